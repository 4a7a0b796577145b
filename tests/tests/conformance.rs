//! libiscsi's conformance suite on every kind of logical unit, with one path and with two: nothing fails, and whatever never really
//! passes is listed with its reason in `docs/protocol/iscsi-test-cu.md`, and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tests::World;
use tests::iscsi_test_cu::{Verdict, run};

/// One run of the suite.
struct Run {
    name: &'static str,
    lun: &'static str,
    /// Logins to the same logical unit.
    path_count: usize,
    arguments: &'static [&'static str],
}

/// `--dataloss` lets it write, `--allow-sanitize` lets it wipe.
const ALL: &[&str] = &["--dataloss", "--allow-sanitize", "--test=ALL"];
/// With two paths SANITIZE is left out: the suite's Reservations leaves a RESERVE(6) of the second path behind, which its Reset then runs into.
const ALL_BUT_SANITIZE: &[&str] = &["--dataloss", "--test=ALL"];
/// Nothing that writes: those tests expect GOOD.
const READING: &[&str] = &["--allow-sanitize", "--test=ALL"];

const RUNS: &[Run] = &[
    Run { name: "thin", lun: "0=ram:256MiB,thin", path_count: 1, arguments: ALL },
    Run { name: "thin, two paths", lun: "0=ram:256MiB,thin", path_count: 2, arguments: ALL_BUT_SANITIZE },
    Run { name: "thick", lun: "0=file:disk.img,size=256MiB,thick", path_count: 1, arguments: ALL },
    Run { name: "thick, two paths", lun: "0=ram:256MiB,thick", path_count: 2, arguments: ALL_BUT_SANITIZE },
    Run { name: "removable", lun: "0=ram:256MiB,removable", path_count: 1, arguments: ALL },
    Run { name: "removable, two paths", lun: "0=ram:256MiB,removable", path_count: 2, arguments: ALL_BUT_SANITIZE },
    Run { name: "4096-byte blocks", lun: "0=file:disk.img,size=256MiB,block=4096", path_count: 1, arguments: ALL_BUT_SANITIZE },
    Run { name: "read-only", lun: "0=ram:256MiB,read-only", path_count: 1, arguments: READING },
    Run { name: "read-only, two paths", lun: "0=ram:256MiB,read-only", path_count: 2, arguments: READING },
    Run {
        name: "read-only, refusing writes",
        lun: "0=ram:256MiB,read-only",
        path_count: 1,
        arguments: &["--dataloss", "--test=SCSI.ReadOnly"],
    },
    // The next three want several logical blocks per physical one; GetLBAStatus.UnmapSingle then asks for what SBC-3 does not say.
    Run {
        name: "physical blocks, COMPARE AND WRITE",
        lun: "0=ram:256MiB,physical=4096",
        path_count: 1,
        arguments: &["--dataloss", "--test=SCSI.CompareAndWrite"],
    },
    Run {
        name: "physical blocks, WRITE SAME(10)",
        lun: "0=ram:256MiB,physical=4096",
        path_count: 1,
        arguments: &["--dataloss", "--test=SCSI.WriteSame10"],
    },
    Run {
        name: "physical blocks, WRITE SAME(16)",
        lun: "0=ram:256MiB,physical=4096",
        path_count: 1,
        arguments: &["--dataloss", "--test=SCSI.WriteSame16"],
    },
];

/// Really passed over the union of the runs, of the suite's 230.
const PASSED_MIN: usize = 216;

#[test]
fn nothing_fails_and_every_skip_is_explained() {
    let results: Vec<(&Run, BTreeMap<String, Verdict>, String)> = std::thread::scope(|scope| {
        let threads: Vec<_> = RUNS.iter().map(|run| (run, scope.spawn(|| carry_out(run)))).collect();
        threads
            .into_iter()
            .map(|(run, thread)| {
                let (verdicts, log) = thread.join().expect("a run is judged here, not there");
                (run, verdicts, log)
            })
            .collect()
    });
    let mut known = BTreeSet::new();
    let mut passed = BTreeSet::new();
    for (run, verdicts, log) in &results {
        let of = |verdict| verdicts.iter().filter(move |(_, one)| **one == verdict).map(|(name, _)| name.clone());
        println!(
            "iscsi-test-cu {}: {} passed, {} skipped, {} failed",
            run.name,
            of(Verdict::Passed).count(),
            of(Verdict::Skipped).count(),
            of(Verdict::Failed).count()
        );
        let failed: Vec<String> = of(Verdict::Failed).collect();
        assert!(failed.is_empty(), "{}: {failed:?}\n{log}", run.name);
        known.extend(verdicts.keys().cloned());
        passed.extend(of(Verdict::Passed));
    }
    println!("iscsi-test-cu, all runs: {} of {} really passed", passed.len(), known.len());
    assert!(passed.len() >= PASSED_MIN, "only {} of {}", passed.len(), known.len());
    let skipped: BTreeSet<String> = known.difference(&passed).cloned().collect();
    assert_eq!(skipped, documented_skips(), "docs/protocol/iscsi-test-cu.md does not list what never passes");
}

fn carry_out(one: &Run) -> (BTreeMap<String, Verdict>, String) {
    let world = World::new();
    let target = world.target(["--lun", one.lun]);
    run(one.arguments, &vec![target.url(0); one.path_count])
}

/// The first column of the page's table of skips.
fn documented_skips() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol/iscsi-test-cu.md");
    let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(name, _)| name.to_owned()).collect()
}
