//! A SCSI command in a discovery session is rejected.

use super::support::discovery;
use crate::bench::Bench;
use crate::bench::name;
use crate::verdict::{Outcome, fail};
use iscsi::pdu::Bhs;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.3, 7.4.3";

/// A SCSI command in a discovery session is rejected.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.connect()?;
    discovery(bench, &mut wire)?;
    let command = wire.test_unit_ready();
    wire.send(&command, Vec::new())?;
    match wire.receive_bhs() {
        Ok(Bhs::Reject(_)) | Err(_) => Ok(()),
        Ok(other) => fail(format!("it is answered with {}", name(&other))),
    }
}
