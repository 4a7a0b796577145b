//! Conformance tests for iSCSI targets, in raw PDUs: one behaviour a file, each with its clause.
//!
//! `cargo run -p conformance -- iscsi://HOST:PORT/IQN/LUN [--allow-data-loss] [NAME...]` tries any target. A behaviour
//! passes, fails, or is skipped with the reason: the target did not agree to what it needs, or it would write and was
//! not allowed to.
//!
//! | module | holds |
//! |---|---|
//! | [`bench`] | where the target is, and logins to it |
//! | [`wire`] | one connection: PDUs out, PDUs in, numbers |
//! | [`behaviours`] | the behaviours |

#![forbid(unsafe_code)]

pub mod behaviours;
pub mod bench;
pub mod verdict;
pub mod wire;

pub use behaviours::{BEHAVIOURS, Behaviour};
pub use bench::Bench;
pub use verdict::{Outcome, Stop};

/// What came of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Behaviours that are as the standard says.
    pub passed: usize,
    /// Behaviours that are not.
    pub failed: usize,
    /// Behaviours that could not be tried.
    pub skipped: usize,
}

/// Tries every behaviour whose name is among `names`, or all, and prints a line for each.
pub fn run(bench: &Bench, names: &[String]) -> Tally {
    let mut tally = Tally::default();
    for behaviour in BEHAVIOURS.iter().filter(|it| names.is_empty() || names.iter().any(|name| name == it.name)) {
        let outcome = (behaviour.run)(bench);
        let (word, why) = match outcome {
            Ok(()) => {
                tally.passed += 1;
                ("passed ", String::new())
            }
            Err(Stop::Fail(why)) => {
                tally.failed += 1;
                ("FAILED ", format!(": {why}"))
            }
            Err(Stop::Skip(why)) => {
                tally.skipped += 1;
                ("skipped", format!(": {why}"))
            }
        };
        println!("{word} {} ({}){why}", behaviour.name, behaviour.clause);
    }
    println!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    tally
}
