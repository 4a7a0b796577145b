//! At level 1 a gap in the DataSNs is filled by a recovery R2T, or the task fails.

use super::support::read_back;
use crate::bench::Bench;
use crate::bench::name;
use crate::verdict::{Outcome, fail, skip};
use crate::wire::pattern;
use iscsi::pdu::{Bhs, ServiceResponse};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 7.1.4.1, 7.9";

/// At level 1 a gap in the DataSNs is filled by a recovery R2T, or the task fails.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let mut wire = bench.log_in_at_level("1", &[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let all = pattern(1024);
    let command = wire.write10(2);
    wire.send(&command, Vec::new())?;
    let r2t = wire.r2t(command.initiator_task_tag)?;
    let second = wire.data_out(command.initiator_task_tag, Some(r2t.target_transfer_tag), 1, 512, true);
    wire.send(&second, all[512..].to_vec())?;
    let again = loop {
        match wire.receive_bhs()? {
            Bhs::Reject(_) => {}
            Bhs::ReadyToTransfer(again) => break again,
            Bhs::ScsiResponse(response) => {
                let failed = response.response != ServiceResponse::CommandCompleted { status: 0 };
                return if failed { skip("the target fails the task instead") } else { fail("half a write is GOOD") };
            }
            other => return fail(format!("after the gap there is {}", name(&other))),
        }
    };
    wire.answer_r2t(&again, &all, 512)?;
    wire.expect_good(command.initiator_task_tag)?;
    read_back(&mut wire, &all)
}
