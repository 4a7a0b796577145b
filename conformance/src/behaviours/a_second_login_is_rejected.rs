//! A Login Request in the full feature phase is a protocol error.

use crate::bench::Bench;
use crate::bench::name;
use crate::verdict::{Outcome, fail};
use iscsi::pdu::Bhs;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 6.3, 11.17.1";

/// A Login Request in the full feature phase is a protocol error.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let request = bench.login_request(&wire, wire.isid, wire.tsih, wire.cid);
    wire.send(&request, bench.text(&[]))?;
    match wire.receive_bhs() {
        Ok(Bhs::Reject(_)) | Err(_) => Ok(()),
        Ok(other) => fail(format!("it is answered with {}", name(&other))),
    }
}
