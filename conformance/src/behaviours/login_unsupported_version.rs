//! A version that is not there is answered with 0205h.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::LoginStatus;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.12.5, 11.13.5";

/// A version that is not there is answered with 0205h.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.connect()?;
    let mut request = bench.login_request(&wire, bench.fresh_isid(), 0, 1);
    (request.version_max, request.version_min) = (9, 9);
    wire.send(&request, bench.text(&[]))?;
    same("status", wire.login_response()?.0.status, LoginStatus::UNSUPPORTED_VERSION)
}
