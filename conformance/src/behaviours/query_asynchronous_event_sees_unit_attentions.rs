//! QUERY ASYNCHRONOUS EVENT succeeds while a unit attention waits, and leaves it there.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7144 4.1";

/// QUERY ASYNCHRONOUS EVENT succeeds while a unit attention waits, and leaves it there.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_with(&[("iSCSIProtocolLevel", "2")], "iSCSIProtocolLevel", "2")?;
    same(
        "without one",
        wire.manage(TaskManagementFunction::QueryAsynchronousEvent, None)?,
        TaskManagementOutcome::FunctionComplete,
    )?;
    same("reset", wire.manage(TaskManagementFunction::NexusReset, None)?, TaskManagementOutcome::FunctionComplete)?;
    for _ in 0..2 {
        same(
            "with one",
            wire.manage(TaskManagementFunction::QueryAsynchronousEvent, None)?,
            TaskManagementOutcome::FunctionSucceeded,
        )?;
    }
    wire.settle()?;
    same(
        "when it was told",
        wire.manage(TaskManagementFunction::QueryAsynchronousEvent, None)?,
        TaskManagementOutcome::FunctionComplete,
    )
}
