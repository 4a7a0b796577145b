//! A write that waits for its data is asked for it again on the connection it is reassigned to.

use super::support::read_back;
use crate::bench::Bench;
use crate::verdict::{Outcome, same, skip};
use crate::wire::pattern;
use iscsi::pdu::{LogoutOutcome, LogoutReason, TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 7.2.2, 11.5.1";

/// A write that waits for its data is asked for it again on the connection it is reassigned to.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let keys = [("MaxConnections", "2"), ("ImmediateData", "No"), ("InitialR2T", "Yes")];
    let mut first = bench.log_in_at_level("2", &keys)?;
    if first.answers.get("MaxConnections") != Some("2") {
        return skip("the target takes one connection");
    }
    let mut second = bench.join(&first, 2)?;
    let command = first.write10(1);
    first.send(&command, Vec::new())?;
    first.r2t(command.initiator_task_tag)?;
    second.cmd_sn = first.cmd_sn;
    let outcome = second.manage(TaskManagementFunction::TaskReassign, Some(&command))?;
    same("while it is allegiant", outcome, TaskManagementOutcome::TaskStillAllegiant)?;
    let logout = second.log_out(LogoutReason::RemoveForRecovery, first.cid)?;
    same("logout", logout.outcome, LogoutOutcome::Closed)?;
    first.expect_close()?;
    same(
        "outcome",
        second.manage(TaskManagementFunction::TaskReassign, Some(&command))?,
        TaskManagementOutcome::FunctionComplete,
    )?;
    let r2t = second.r2t(command.initiator_task_tag)?;
    second.answer_r2t(&r2t, &pattern(512), 512)?;
    second.expect_good(command.initiator_task_tag)?;
    read_back(&mut second, &pattern(512))
}
