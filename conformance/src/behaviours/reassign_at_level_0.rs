//! TASK REASSIGN where level 2 was not agreed is not supported.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 7.2.2";

/// TASK REASSIGN where level 2 was not agreed is not supported.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_with(&[("ErrorRecoveryLevel", "0")], "ErrorRecoveryLevel", "0")?;
    let ghost = wire.test_unit_ready();
    wire.cmd_sn = ghost.cmd_sn;
    same(
        "outcome",
        wire.manage(TaskManagementFunction::TaskReassign, Some(&ghost))?,
        TaskManagementOutcome::ReassignmentNotSupported,
    )
}
