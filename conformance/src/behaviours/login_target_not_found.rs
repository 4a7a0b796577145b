//! A target that is not here is answered with 0203h.

use crate::bench::Bench;
use crate::bench::INITIATOR;
use crate::verdict::{Outcome, same};
use iscsi::pdu::LoginStatus;
use iscsi::text::Keys;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.13.5";

/// A target that is not here is answered with 0203h.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.connect()?;
    let request = bench.login_request(&wire, bench.fresh_isid(), 0, 1);
    let keys = [("InitiatorName", INITIATOR), ("TargetName", "iqn.2026-01.io.example:nobody")];
    wire.send(&request, keys.into_iter().collect::<Keys>().emit())?;
    same("status", wire.login_response()?.0.status, LoginStatus::NOT_FOUND)
}
