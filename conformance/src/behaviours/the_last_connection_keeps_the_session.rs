//! A connection that logs itself out leaves the session to the others.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{LogoutOutcome, LogoutReason};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 6.3.5";

/// A connection that logs itself out leaves the session to the others.
pub fn run(bench: &Bench) -> Outcome {
    let (mut first, mut second) = bench.log_in_twice(&[])?;
    let cid = first.cid;
    same("outcome", first.log_out(LogoutReason::CloseConnection, cid)?.outcome, LogoutOutcome::Closed)?;
    first.expect_close()?;
    second.cmd_sn = first.cmd_sn;
    second.check_alive()
}
