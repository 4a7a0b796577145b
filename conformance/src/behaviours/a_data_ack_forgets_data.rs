//! Where the target asks for an acknowledgement (A bit), data before it cannot be asked for again.

use crate::bench::Bench;
use crate::verdict::{Outcome, fail, skip};
use base::serial::Serial32;
use iscsi::pdu::{RejectReason, SnackType};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.16.2";

/// Where the target asks for an acknowledgement (A bit), data before it cannot be asked for again.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_at_level(
        "1",
        &[("MaxRecvDataSegmentLength", "512"), ("MaxBurstLength", "1024"), ("FirstBurstLength", "1024")],
    )?;
    wire.acknowledges = false;
    let command = wire.read10(4);
    wire.send(&command, Vec::new())?;
    let (pieces, _) = wire.read_all(command.initiator_task_tag)?;
    let asking = pieces.iter().find(|(header, _)| header.wants_acknowledgement);
    let Some((header, _)) = asking else { return skip("the target never sets the A bit") };
    let Some(tag) = header.target_transfer_tag else { return fail("the A bit comes without a tag") };
    wire.snack(SnackType::DataAck { target_transfer_tag: tag, begin: header.data_sn.next() })?;
    let task = command.initiator_task_tag;
    wire.snack(SnackType::DataOrR2t { initiator_task_tag: task, begin: Serial32(0), run_length: 1 })?;
    wire.expect_reject(RejectReason::ProtocolError)
}
