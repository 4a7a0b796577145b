//! A connection beyond MaxConnections is refused with 0206h.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::LoginStatus;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.13.5, 13.2";

/// A connection beyond MaxConnections is refused with 0206h.
pub fn run(bench: &Bench) -> Outcome {
    let first = bench.log_in_with(&[("MaxConnections", "1")], "MaxConnections", "1")?;
    let mut wire = bench.connect()?;
    wire.cmd_sn = first.cmd_sn;
    let response = bench.try_log_in(&mut wire, first.isid, first.tsih, 2, &[])?;
    same("status", response.status, LoginStatus::TOO_MANY_CONNECTIONS)
}
