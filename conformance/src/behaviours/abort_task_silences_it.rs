//! After ABORT TASK has completed, nothing comes for the task.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use crate::wire::pattern;
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.5.1";

/// After ABORT TASK has completed, nothing comes for the task.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let mut wire = bench.log_in(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let command = wire.write10(1);
    wire.send(&command, Vec::new())?;
    let r2t = wire.r2t(command.initiator_task_tag)?;
    same(
        "outcome",
        wire.manage(TaskManagementFunction::AbortTask, Some(&command))?,
        TaskManagementOutcome::FunctionComplete,
    )?;
    wire.answer_r2t(&r2t, &pattern(512), 512)?;
    wire.expect_silence()?;
    wire.check_alive()
}
