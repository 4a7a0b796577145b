//! An initiator that expects less than the CDB asks for is told the difference.

use super::support::residual;
use crate::bench::Bench;
use crate::verdict::Outcome;
use iscsi::pdu::Residual;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.4.5.1";

/// An initiator that expects less than the CDB asks for is told the difference.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let mut command = wire.read10(4);
    command.expected_data_transfer_length = 512;
    wire.send(&command, Vec::new())?;
    residual(&mut wire, Residual::Overflow(1536))
}
