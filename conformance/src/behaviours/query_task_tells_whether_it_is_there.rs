//! QUERY TASK succeeds for a task that is there and completes for one that is not.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use crate::wire::pattern;
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7144 4.1, 4.2";

/// QUERY TASK succeeds for a task that is there and completes for one that is not.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let keys = [("iSCSIProtocolLevel", "2"), ("ImmediateData", "No"), ("InitialR2T", "Yes")];
    let mut wire = bench.log_in_with(&keys, "iSCSIProtocolLevel", "2")?;
    let command = wire.write10(1);
    wire.send(&command, Vec::new())?;
    let r2t = wire.r2t(command.initiator_task_tag)?;
    same(
        "while it is there",
        wire.manage(TaskManagementFunction::QueryTask, Some(&command))?,
        TaskManagementOutcome::FunctionSucceeded,
    )?;
    same(
        "its task set",
        wire.manage(TaskManagementFunction::QueryTaskSet, None)?,
        TaskManagementOutcome::FunctionSucceeded,
    )?;
    wire.answer_r2t(&r2t, &pattern(512), 512)?;
    wire.expect_good(command.initiator_task_tag)?;
    same(
        "when it is gone",
        wire.manage(TaskManagementFunction::QueryTask, Some(&command))?,
        TaskManagementOutcome::FunctionComplete,
    )?;
    same(
        "an empty task set",
        wire.manage(TaskManagementFunction::QueryTaskSet, None)?,
        TaskManagementOutcome::FunctionComplete,
    )
}
