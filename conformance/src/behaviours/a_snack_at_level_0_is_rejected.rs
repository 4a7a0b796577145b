//! Without error recovery nothing is sent again: a SNACK is rejected.

use crate::bench::Bench;
use crate::bench::name;
use crate::verdict::{Outcome, fail};
use iscsi::pdu::{Bhs, SnackType};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.16, 11.17.1";

/// Without error recovery nothing is sent again: a SNACK is rejected.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_with(&[("ErrorRecoveryLevel", "0")], "ErrorRecoveryLevel", "0")?;
    wire.check_alive()?;
    wire.snack(SnackType::Status { begin: wire.exp_stat_sn.minus(1), run_length: 1 })?;
    match wire.receive_bhs() {
        Ok(Bhs::Reject(_)) | Err(_) => Ok(()),
        Ok(other) => fail(format!("it is answered with {}", name(&other))),
    }
}
