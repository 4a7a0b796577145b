//! AbortTaskSet ends a write whose data is under way; the data is still taken, and the response follows it.

use crate::bench::Bench;
use iscsi::pdu::{Bhs, TaskManagementFunction, TaskManagementOutcome};
use crate::bench::{name};
use crate::verdict::{Outcome, fail, same, skip};
use crate::wire::{pattern};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.3.3, 11.5.1";

/// AbortTaskSet ends a write whose data is under way; the data is still taken, and the response follows it.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let mut wire = bench.log_in(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let command = wire.write10(1);
    wire.send(&command, Vec::new())?;
    let r2t = wire.r2t(command.initiator_task_tag)?;
    let request = wire.management(TaskManagementFunction::AbortTaskSet, None);
    wire.send(&request, Vec::new())?;
    wire.answer_r2t(&r2t, &pattern(512), 512)?;
    loop {
        match wire.receive_bhs()? {
            Bhs::TaskManagementResponse(response) if response.outcome == TaskManagementOutcome::FunctionNotSupported => {
                return skip("the target does not support it, as it may");
            }
            Bhs::TaskManagementResponse(response) => {
                same("outcome", response.outcome, TaskManagementOutcome::FunctionComplete)?;
                break;
            }
            // The task may have ended before.
            Bhs::ScsiResponse(response) if response.initiator_task_tag == command.initiator_task_tag => {}
            other => return fail(format!("there is {}", name(&other))),
        }
    }
    wire.expect_silence()?;
    wire.settle()
}
