//! A Text Request that continues an exchange which is not there is rejected.

use crate::bench::Bench;
use crate::bench::name;
use crate::verdict::{Outcome, fail};
use iscsi::pdu::{Bhs, TargetTransferTag};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.10.4";

/// A Text Request that continues an exchange which is not there is rejected.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let request = wire.text_request(TargetTransferTag::new(0x7777));
    wire.send(&request, Vec::new())?;
    match wire.receive_bhs()? {
        Bhs::Reject(_) => Ok(()),
        other => fail(format!("it is answered with {}", name(&other))),
    }
}
