//! Data that was never sent cannot be asked for: protocol error.

use crate::bench::Bench;
use crate::verdict::Outcome;
use base::serial::Serial32;
use iscsi::pdu::{RejectReason, SnackType};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.16";

/// Data that was never sent cannot be asked for: protocol error.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_at_level("1", &[])?;
    wire.acknowledges = false;
    let command = wire.read10(1);
    wire.send(&command, Vec::new())?;
    wire.read_all(command.initiator_task_tag)?;
    let task = command.initiator_task_tag;
    wire.snack(SnackType::DataOrR2t { initiator_task_tag: task, begin: Serial32(77), run_length: 1 })?;
    wire.expect_reject(RejectReason::ProtocolError)
}
