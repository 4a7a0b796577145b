//! A normal session's login without TargetName is answered with 0207h.

use crate::bench::Bench;
use crate::bench::INITIATOR;
use crate::verdict::{Outcome, same};
use iscsi::pdu::LoginStatus;
use iscsi::text::Keys;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.13.5, 13.4";

/// A normal session's login without TargetName is answered with 0207h.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.connect()?;
    let request = bench.login_request(&wire, bench.fresh_isid(), 0, 1);
    wire.send(&request, [("InitiatorName", INITIATOR)].into_iter().collect::<Keys>().emit())?;
    same("status", wire.login_response()?.0.status, LoginStatus::MISSING_PARAMETER)
}
