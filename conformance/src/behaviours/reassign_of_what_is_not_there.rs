//! TASK REASSIGN of a task nobody knows does not find it.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.6.1";

/// TASK REASSIGN of a task nobody knows does not find it.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_at_level("2", &[])?;
    let ghost = wire.test_unit_ready();
    wire.cmd_sn = ghost.cmd_sn;
    same(
        "outcome",
        wire.manage(TaskManagementFunction::TaskReassign, Some(&ghost))?,
        TaskManagementOutcome::TaskDoesNotExist,
    )
}
