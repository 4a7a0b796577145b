//! An initiator that expects more than comes is told the difference.

use super::support::residual;
use crate::bench::Bench;
use crate::verdict::Outcome;
use iscsi::pdu::Residual;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.4.5.1";

/// An initiator that expects more than comes is told the difference.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let mut command = wire.read10(1);
    command.expected_data_transfer_length = 2048;
    wire.send(&command, Vec::new())?;
    residual(&mut wire, Residual::Underflow(1536))
}
