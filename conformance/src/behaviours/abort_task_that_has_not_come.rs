//! ABORT TASK uses up the number of a command that has not come; it is never executed.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.6.1";

/// ABORT TASK uses up the number of a command that has not come; it is never executed.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let lost = wire.test_unit_ready();
    same(
        "outcome",
        wire.manage(TaskManagementFunction::AbortTask, Some(&lost))?,
        TaskManagementOutcome::FunctionComplete,
    )?;
    wire.send(&lost, Vec::new())?;
    wire.expect_silence()?;
    wire.check_alive()
}
