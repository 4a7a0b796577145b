//! A DataACK that names no data is an invalid data ack.

use crate::bench::Bench;
use crate::verdict::Outcome;
use base::serial::Serial32;
use iscsi::pdu::{RejectReason, SnackType, TargetTransferTag};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.16.2, 11.17.1";

/// A DataACK that names no data is an invalid data ack.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_at_level("1", &[])?;
    let tag = TargetTransferTag::new(0x1234).expect("not the reserved value");
    wire.snack(SnackType::DataAck { target_transfer_tag: tag, begin: Serial32(3) })?;
    wire.expect_reject(RejectReason::InvalidDataAck)
}
