//! The log of libiscsi's conformance suite, `iscsi-test-cu`, taken apart.
//!
//! It prints a test's messages between the line that starts it and CUnit's verdict, `passed` or `FAILED`, which may
//! stand behind a message or on the line that starts the test. A message `[FAILED]` alone is none: some tests print it
//! and go on as they should. A skipped test is `passed` to CUnit; to us it is not, nor is one of which any part was
//! skipped.

use std::collections::BTreeMap;
use std::process::Command;

use crate::finish;

/// What became of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it ran, and nothing was wrong.
    Passed,
    /// At least a part did not run.
    Skipped,
    /// Something was wrong.
    Failed,
}

/// Each line of a verbose log that belongs to a test, with the test's `Family.Test`; a line that begins a test without
/// that beginning.
fn lines_of_tests(log: &str) -> impl Iterator<Item = (String, &str)> {
    let mut family = String::new();
    let mut current = None;
    log.lines().filter_map(move |line| {
        let mut said = line;
        if let Some(name) = line.strip_prefix("Suite: ") {
            name.trim().clone_into(&mut family);
            current = None;
        }
        if let Some((_, rest)) = line.split_once("  Test: ") {
            let (name, rest) = rest.split_once(" ...").unwrap_or((rest, ""));
            current = Some(format!("{family}.{}", name.trim()));
            said = rest;
        }
        current.clone().map(|name| (name, said))
    })
}

/// The verdicts in a verbose log, by `Family.Test`.
pub fn verdicts(log: &str) -> BTreeMap<String, Verdict> {
    let mut verdicts = BTreeMap::new();
    for (name, said) in lines_of_tests(log) {
        let verdict = verdicts.entry(name).or_insert(Verdict::Passed);
        if said.starts_with("FAILED") {
            *verdict = Verdict::Failed;
        } else if said.contains("[SKIPPED]") && *verdict == Verdict::Passed {
            *verdict = Verdict::Skipped;
        }
    }
    verdicts
}

/// What one test printed.
pub fn said_by<'a>(log: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    lines_of_tests(log).filter(move |(own, _)| own == name).map(|(_, said)| said)
}

/// Runs the suite with these arguments. What it printed comes with the verdicts, to show when one is wrong.
///
/// # Panics
/// When the suite ended before its summary.
pub fn run(arguments: &[&str], urls: &[String]) -> (BTreeMap<String, Verdict>, String) {
    let finished = finish(Command::new("iscsi-test-cu").arg("--verbose").args(arguments).args(urls));
    let log = format!("{}{}", finished.stdout, finished.stderr);
    assert!(log.contains("Run Summary:"), "iscsi-test-cu {arguments:?} ended early:\n{log}");
    (verdicts(&log), log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_not_a_pass() {
        let log = "Suite: Read6\n  Test: Simple ... \n    [SKIPPED] not thin\npassed\n  Test: Other ...passed\n  Test: \
                   Bad ...FAILED\n    1. x\n";
        let verdicts = verdicts(log);
        assert_eq!(verdicts["Read6.Simple"], Verdict::Skipped);
        assert_eq!(verdicts["Read6.Other"], Verdict::Passed);
        assert_eq!(verdicts["Read6.Bad"], Verdict::Failed);
    }

    #[test]
    fn each_line_belongs_to_its_test() {
        let log = "Suite: A\n  Test: One ... x\n    y\nFAILED\nSuite: B\n  Test: One ...z\n";
        assert_eq!(said_by(log, "A.One").collect::<Vec<_>>(), [" x", "    y", "FAILED"]);
        assert_eq!(said_by(log, "B.One").collect::<Vec<_>>(), ["z"]);
    }

    #[test]
    fn messages_are_no_verdict() {
        let log = "Suite: A\n  Test: Loud ...    [FAILED] as it should\npassed    [FAILED] cleaning up\n\nSuite: B\n  \
                   Test: Loud ...    [INFO] x\nFAILED\n";
        let verdicts = verdicts(log);
        assert_eq!((verdicts["A.Loud"], verdicts["B.Loud"]), (Verdict::Passed, Verdict::Failed));
    }
}
