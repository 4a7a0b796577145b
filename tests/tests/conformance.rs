//! libiscsi's conformance suite on every kind of logical unit, with one path and with two: nothing fails, and whatever
//! never really passes is listed with its reason in `docs/protocol/iscsi-test-cu.md`, and nothing else is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tests::World;
use tests::iscsi_test_cu::{Verdict, run, said_by};

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
    excuse: Excuse,
}

const WRITE: &[&str] = &["--dataloss"];
const WRITE_AND_WIPE: &[&str] = &["--dataloss", "--allow-sanitize"];
const ALL: &[&str] = &["ALL"];

/// What may fail in a run through no fault of the target. The page says why.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Excuse {
    None,
    /// With two paths `Sanitize.Reservations` leaves its RESERVE(6) to `Sanitize.Reset`: that one fails, and no other.
    ReservationLeft,
    /// A test that writes meets WRITE PROTECTED, and its log says so.
    ReadOnly,
}

/// On a read-only unit these fail without printing what they met: they look at what became of a write, or a sanitize,
/// that they do not wait for.
const WRITE_SILENTLY: &[&str] = &[
    "Sanitize.Reset",
    "Write10.Async",
    "iSCSITMF.AbortTaskSimpleAsync",
    "MultipathIO.Simple",
    "MultipathIO.CompareAndWrite",
    "MultipathIO.CompareAndWriteAsync",
];

/// The families with tests for several logical blocks per physical one. Not all of them: see the page.
const PHYSICAL: &[&str] = &["SCSI.CompareAndWrite", "SCSI.WriteSame10", "SCSI.WriteSame16"];

/// In the order of the page's table.
const RUNS: &[Run] = &[
    Run {
        name: "thin",
        lun: "0=ram:256MiB,thin",
        path_count: 1,
        options: WRITE_AND_WIPE,
        families: ALL,
        excuse: Excuse::None,
    },
    Run {
        name: "thin, two paths",
        lun: "0=ram:256MiB,thin",
        path_count: 2,
        options: WRITE_AND_WIPE,
        families: ALL,
        excuse: Excuse::ReservationLeft,
    },
    Run {
        name: "thick",
        lun: "0=file:disk.img,size=256MiB,thick",
        path_count: 1,
        options: WRITE_AND_WIPE,
        families: ALL,
        excuse: Excuse::None,
    },
    Run {
        name: "thick, two paths",
        lun: "0=file:disk.img,size=256MiB,thick",
        path_count: 2,
        options: WRITE_AND_WIPE,
        families: ALL,
        excuse: Excuse::ReservationLeft,
    },
    Run {
        name: "removable",
        lun: "0=ram:256MiB,removable",
        path_count: 1,
        options: WRITE_AND_WIPE,
        families: ALL,
        excuse: Excuse::None,
    },
    Run {
        name: "removable, two paths",
        lun: "0=ram:256MiB,removable",
        path_count: 2,
        options: WRITE_AND_WIPE,
        families: ALL,
        excuse: Excuse::ReservationLeft,
    },
    Run {
        name: "two paths, Sanitize.Reset",
        lun: "0=ram:256MiB,thin",
        path_count: 2,
        options: WRITE_AND_WIPE,
        families: &["ALL.Sanitize.Reset"],
        excuse: Excuse::None,
    },
    Run {
        name: "read-only",
        lun: "0=ram:256MiB,read-only",
        path_count: 1,
        options: WRITE_AND_WIPE,
        families: ALL,
        excuse: Excuse::ReadOnly,
    },
    Run {
        name: "read-only, two paths",
        lun: "0=ram:256MiB,read-only",
        path_count: 2,
        options: WRITE_AND_WIPE,
        families: ALL,
        excuse: Excuse::ReadOnly,
    },
    Run {
        name: "4096-byte blocks",
        lun: "0=file:disk.img,size=256MiB,block=4096",
        path_count: 1,
        options: WRITE,
        families: ALL,
        excuse: Excuse::None,
    },
    Run {
        name: "4096-byte physical blocks",
        lun: "0=ram:256MiB,physical=4096",
        path_count: 1,
        options: WRITE,
        families: PHYSICAL,
        excuse: Excuse::None,
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
    let rows = documented_counts();
    assert_eq!(rows.len(), RUNS.len() + 1, "a row for each run and one for all: {rows:?}");
    let mut known = BTreeSet::new();
    let mut passed = BTreeSet::new();
    for ((run, verdicts, log), row) in results.iter().zip(&rows) {
        let of = |verdict| verdicts.iter().filter(move |(_, one)| **one == verdict).map(|(name, _)| name.clone());
        println!(
            "iscsi-test-cu {}: {} passed, {} skipped, {} failed {:?}",
            run.name,
            of(Verdict::Passed).count(),
            of(Verdict::Skipped).count(),
            of(Verdict::Failed).count(),
            Vec::from_iter(of(Verdict::Failed))
        );
        let counts = [Verdict::Passed, Verdict::Skipped, Verdict::Failed].map(|verdict| of(verdict).count());
        match run.excuse {
            // Whether a test that does not wait for its write fails is a matter of time.
            Excuse::ReadOnly => assert_eq!(counts[1], row[1], "{}: the page says {row:?}", run.name),
            _ => assert_eq!(&counts[..], &row[..], "{}: the page says {row:?}", run.name),
        }
        let failed: Vec<String> = of(Verdict::Failed).filter(|name| !run.excuse.covers(name, log)).collect();
        assert!(failed.is_empty(), "{}: {failed:?}\n{log}", run.name);
        if run.excuse == Excuse::ReservationLeft {
            assert_eq!(verdicts["Sanitize.Reset"], Verdict::Failed, "the page says that it fails");
        }
        known.extend(verdicts.keys().cloned());
        passed.extend(of(Verdict::Passed));
    }
    println!("iscsi-test-cu, all runs: {} of {} really passed", passed.len(), known.len());
    assert!(passed.len() >= PASSED_MIN, "only {} of {}", passed.len(), known.len());
    let skipped: BTreeSet<String> = known.difference(&passed).cloned().collect();
    assert_eq!(skipped, documented_skips(), "docs/protocol/iscsi-test-cu.md does not list what never passes");
    assert_eq!(rows.last(), Some(&vec![passed.len(), skipped.len()]), "the page's row of all runs");
}

impl Excuse {
    fn covers(self, name: &str, log: &str) -> bool {
        match self {
            Self::None => false,
            Self::ReservationLeft => name == "Sanitize.Reset",
            Self::ReadOnly => {
                WRITE_SILENTLY.contains(&name) || said_by(log, name).any(|line| line.contains(WRITE_PROTECTED))
            }
        }
    }
}

/// ASC and ASCQ as the suite prints them.
const WRITE_PROTECTED: &str = "0x2700)";

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

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol/iscsi-test-cu.md");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The numbers of the page's table of runs: passed, skipped and failed, as far as a row has them.
fn documented_counts() -> Vec<Vec<usize>> {
    let count = |cell: &str| cell.trim().split(',').next().and_then(|number| number.parse().ok());
    let counts = |row: &str| row.split('|').skip(4).map_while(count).collect();
    page()
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(counts)
        .collect()
}

/// The first column of the page's table of skips.
fn documented_skips() -> BTreeSet<String> {
    let page = page();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(name, _)| name.to_owned()).collect()
}
