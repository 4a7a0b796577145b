//! ABORT TASK of a task outside the window does not find it.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.6.1";

/// ABORT TASK of a task outside the window does not find it.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let mut ghost = wire.test_unit_ready();
    wire.cmd_sn = ghost.cmd_sn;
    ghost.cmd_sn = ghost.cmd_sn.minus(100);
    same(
        "outcome",
        wire.manage(TaskManagementFunction::AbortTask, Some(&ghost))?,
        TaskManagementOutcome::TaskDoesNotExist,
    )
}
