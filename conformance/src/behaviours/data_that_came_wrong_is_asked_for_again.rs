//! At level 1 a Data-Out with a digest error is rejected and then asked for again with a recovery R2T, or the task
//! fails.

use super::support::read_back;
use crate::bench::Bench;
use crate::bench::name;
use crate::verdict::{Outcome, fail, same, skip};
use crate::wire::pattern;
use iscsi::pdu::{Bhs, RejectReason};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 7.1.4.1, 7.8";

/// At level 1 a Data-Out with a digest error is rejected and then asked for again with a recovery R2T, or the task
/// fails.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let mut wire =
        bench.log_in_at_level("1", &[("DataDigest", "CRC32C"), ("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    same("DataDigest", wire.answers.get("DataDigest"), Some("CRC32C"))?;
    let all = pattern(1024);
    let command = wire.write10(2);
    wire.send(&command, Vec::new())?;
    let r2t = wire.r2t(command.initiator_task_tag)?;
    let first = wire.data_out(command.initiator_task_tag, Some(r2t.target_transfer_tag), 0, 0, false);
    let mut bytes = wire.bytes(&first, all[..512].to_vec());
    bytes[60] ^= 1;
    wire.send_bytes(&bytes)?;
    wire.expect_reject(RejectReason::DataDigestError)?;
    let second = wire.data_out(command.initiator_task_tag, Some(r2t.target_transfer_tag), 1, 512, true);
    wire.send(&second, all[512..].to_vec())?;
    let mut again = match wire.receive_bhs()? {
        Bhs::ReadyToTransfer(again) => again,
        Bhs::ScsiResponse(_) => return skip("the target fails the task instead, which the standard allows"),
        other => return fail(format!("after the data there is {}", name(&other))),
    };
    same("recovery R2T offset", again.buffer_offset, 0)?;
    let mut asked = again.desired_data_transfer_length;
    wire.answer_r2t(&again, &all, 512)?;
    while asked < 512 {
        again = wire.r2t(command.initiator_task_tag)?;
        asked += again.desired_data_transfer_length;
        wire.answer_r2t(&again, &all, 512)?;
    }
    wire.expect_good(command.initiator_task_tag)?;
    read_back(&mut wire, &all)
}
