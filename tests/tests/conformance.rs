//! libiscsi's conformance suite on every kind of logical unit, with one path and with two: nothing fails, and whatever never really
//! passes is listed with its reason in `docs/protocol/iscsi-test-cu.md`, and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tests::World;
use tests::iscsi_test_cu::{Verdict, run};

/// Runs of the suite on one logical unit.
struct Run {
    name: &'static str,
    lun: &'static str,
    /// Logins to the same logical unit.
    path_count: usize,
    /// With `--dataloss` it may write, with `--allow-sanitize` it may wipe.
    options: &'static [&'static str],
    /// What to run, one after the other.
    families: &'static [&'static str],
}

const WRITE: &[&str] = &["--dataloss"];
const WRITE_AND_WIPE: &[&str] = &["--dataloss", "--allow-sanitize"];
const ALL: &[&str] = &["ALL"];

/// The families that write nothing, or expect to be refused. The others write first and expect GOOD.
const READING: &[&str] = &[
    "SCSI.Inquiry",
    "SCSI.Mandatory",
    "SCSI.ModeSense6",
    "SCSI.Prefetch10",
    "SCSI.Prefetch16",
    "SCSI.PrinReadKeys",
    "SCSI.PrinReportCapabilities",
    "SCSI.PrinServiceactionRange",
    "SCSI.ProutClear",
    "SCSI.ProutPreempt",
    "SCSI.ProutRegister",
    "SCSI.Read6",
    "SCSI.Read10",
    "SCSI.Read12",
    "SCSI.Read16",
    "SCSI.ReadCapacity10",
    "SCSI.ReadCapacity16",
    "SCSI.ReadDefectData10",
    "SCSI.ReadDefectData12",
    "SCSI.ReadOnly",
    "SCSI.ReportSupportedOpcodes",
    "SCSI.Reserve6",
    "SCSI.StartStopUnit",
    "SCSI.TestUnitReady",
    "SCSI.Verify10",
    "SCSI.Verify12",
    "SCSI.Verify16",
    "iSCSI.iSCSIcmdsn",
];

/// The families with tests for several logical blocks per physical one. Not all of them: see the page.
const PHYSICAL: &[&str] = &["SCSI.CompareAndWrite", "SCSI.WriteSame10", "SCSI.WriteSame16"];

/// With two paths SANITIZE is left out: see the page.
const RUNS: &[Run] = &[
    Run { name: "thin", lun: "0=ram:256MiB,thin", path_count: 1, options: WRITE_AND_WIPE, families: ALL },
    Run { name: "thin, two paths", lun: "0=ram:256MiB,thin", path_count: 2, options: WRITE, families: ALL },
    Run {
        name: "thick",
        lun: "0=file:disk.img,size=256MiB,thick",
        path_count: 1,
        options: WRITE_AND_WIPE,
        families: ALL,
    },
    Run { name: "thick, two paths", lun: "0=ram:256MiB,thick", path_count: 2, options: WRITE, families: ALL },
    Run { name: "removable", lun: "0=ram:256MiB,removable", path_count: 1, options: WRITE_AND_WIPE, families: ALL },
    Run { name: "removable, two paths", lun: "0=ram:256MiB,removable", path_count: 2, options: WRITE, families: ALL },
    Run { name: "read-only", lun: "0=ram:256MiB,read-only", path_count: 1, options: WRITE, families: READING },
    Run {
        name: "read-only, two paths",
        lun: "0=ram:256MiB,read-only",
        path_count: 2,
        options: WRITE,
        families: READING,
    },
    Run {
        name: "4096-byte blocks",
        lun: "0=file:disk.img,size=256MiB,block=4096",
        path_count: 1,
        options: WRITE,
        families: ALL,
    },
    Run {
        name: "4096-byte physical blocks",
        lun: "0=ram:256MiB,physical=4096",
        path_count: 1,
        options: WRITE,
        families: PHYSICAL,
    },
];

/// Really passed over the union of the runs, of the suite's 230.
const PASSED_MIN: usize = 225;

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
    let urls = vec![target.url(0); one.path_count];
    let mut all = (BTreeMap::new(), String::new());
    for family in one.families {
        let test = format!("--test={family}");
        let arguments: Vec<&str> = one.options.iter().copied().chain([test.as_str()]).collect();
        let (verdicts, log) = run(&arguments, &urls);
        assert!(!verdicts.is_empty(), "{family}: no test ran:\n{log}");
        all.0.extend(verdicts);
        all.1.push_str(&log);
    }
    all
}

/// The first column of the page's table of skips.
fn documented_skips() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol/iscsi-test-cu.md");
    let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(name, _)| name.to_owned()).collect()
}
