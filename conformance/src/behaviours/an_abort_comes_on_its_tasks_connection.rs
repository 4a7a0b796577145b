//! ABORT TASK on another connection than the task's is not carried out while that lives.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure};
use crate::wire::pattern;
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.5.1";

/// ABORT TASK on another connection than the task's is not carried out while that lives.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let (mut first, mut second) = bench.log_in_twice(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let command = first.write10(1);
    first.send(&command, Vec::new())?;
    let r2t = first.r2t(command.initiator_task_tag)?;
    second.cmd_sn = first.cmd_sn;
    let outcome = second.manage(TaskManagementFunction::AbortTask, Some(&command))?;
    ensure(outcome != TaskManagementOutcome::FunctionComplete, "the task is aborted")?;
    first.answer_r2t(&r2t, &pattern(512), 512)?;
    first.expect_good(command.initiator_task_tag)
}
