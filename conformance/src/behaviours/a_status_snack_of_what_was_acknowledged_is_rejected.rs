//! A response that was acknowledged is not there any more: protocol error.

use crate::bench::Bench;
use crate::verdict::Outcome;
use iscsi::pdu::{RejectReason, SnackType};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.16";

/// A response that was acknowledged is not there any more: protocol error.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_at_level("1", &[])?;
    wire.check_alive()?;
    wire.check_alive()?;
    let begin = wire.exp_stat_sn.minus(2);
    wire.snack(SnackType::Status { begin, run_length: 1 })?;
    wire.expect_reject(RejectReason::ProtocolError)
}
