//! The response of a multi-task abort is fenced: what was answered before it on other connections must have been
//! acknowledged there, for which the target asks with a ping.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.2.3.2, 4.2.3.3";

/// The second connection has an answer that it did not acknowledge when the first one aborts the task set.
pub fn run(bench: &Bench) -> Outcome {
    let (mut first, mut second) = bench.log_in_twice(&[("TaskReporting", "ResponseFence")])?;
    second.cmd_sn = first.cmd_sn;
    second.check_alive()?;
    first.cmd_sn = second.cmd_sn;
    let request = first.management(TaskManagementFunction::AbortTaskSet, None);
    first.send(&request, Vec::new())?;
    first.expect_silence()?;
    // The ping is answered here, and with it everything acknowledged.
    second.expect_silence()?;
    same("outcome", first.management_outcome()?, TaskManagementOutcome::FunctionComplete)
}
