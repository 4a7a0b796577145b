//! A logout of the session is answered with 0, and the connection is closed.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{LogoutOutcome, LogoutReason};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.14, 11.15";

/// A logout of the session is answered with 0, and the connection is closed.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    same("outcome", wire.log_out(LogoutReason::CloseSession, 0)?.outcome, LogoutOutcome::Closed)?;
    wire.expect_close()
}
