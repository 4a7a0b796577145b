//! One connection can close another; the session goes on.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{LogoutOutcome, LogoutReason};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.14";

/// One connection can close another; the session goes on.
pub fn run(bench: &Bench) -> Outcome {
    let (mut first, mut second) = bench.log_in_twice(&[])?;
    let cid = second.cid;
    same("outcome", first.log_out(LogoutReason::CloseConnection, cid)?.outcome, LogoutOutcome::Closed)?;
    second.expect_close()?;
    first.check_alive()
}
