//! A PDU that only targets send is rejected.

use crate::bench::Bench;
use crate::bench::name;
use crate::verdict::{Outcome, fail};
use iscsi::pdu::{BHS_BYTES, Bhs};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.17.1";

/// A PDU that only targets send is rejected.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let mut raw = [0; BHS_BYTES];
    (raw[0], raw[1]) = (0x21, 0x80);
    wire.send_bytes(&raw)?;
    match wire.receive_bhs() {
        Ok(Bhs::Reject(_)) | Err(_) => Ok(()),
        Ok(other) => fail(format!("it is answered with {}", name(&other))),
    }
}
