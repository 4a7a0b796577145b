//! A logout of a CID that is not there is answered with 1, and the connection stays.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{LogoutOutcome, LogoutReason};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.15.1";

/// A logout of a CID that is not there is answered with 1, and the connection stays.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    same("outcome", wire.log_out(LogoutReason::CloseConnection, 0x4321)?.outcome, LogoutOutcome::CidNotFound)?;
    wire.check_alive()
}
