//! A login for a session that does not exist is answered with 020ah.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::LoginStatus;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 6.3.1";

/// A login for a session that does not exist is answered with 020ah.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.connect()?;
    let response = bench.try_log_in(&mut wire, bench.fresh_isid(), 0xfff0, 1, &[])?;
    same("status", response.status, LoginStatus::SESSION_DOES_NOT_EXIST)
}
