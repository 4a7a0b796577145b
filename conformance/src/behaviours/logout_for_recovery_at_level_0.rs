//! Without level 2 a recovery logout is answered with 2.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{LogoutOutcome, LogoutReason};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.15.1";

/// Without level 2 a recovery logout is answered with 2.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_with(&[("ErrorRecoveryLevel", "0")], "ErrorRecoveryLevel", "0")?;
    let cid = wire.cid;
    same("outcome", wire.log_out(LogoutReason::RemoveForRecovery, cid)?.outcome, LogoutOutcome::RecoveryNotSupported)
}
