//! A logout of the only connection closes the session.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure, same};
use iscsi::pdu::{LogoutOutcome, LogoutReason};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.14, 6.3.5";

/// A logout of the only connection closes the session.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let cid = wire.cid;
    same("outcome", wire.log_out(LogoutReason::CloseConnection, cid)?.outcome, LogoutOutcome::Closed)?;
    wire.expect_close()?;
    let mut again = bench.connect()?;
    let response = bench.try_log_in(&mut again, wire.isid, wire.tsih, 2, &[])?;
    ensure(!response.status.is_success(), "the session is still there")
}
