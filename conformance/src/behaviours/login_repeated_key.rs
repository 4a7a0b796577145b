//! A key said twice in one negotiation ends the login with an initiator error.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 6.1";

/// A key said twice in one negotiation ends the login with an initiator error.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.connect()?;
    let response = bench.try_log_in(
        &mut wire,
        bench.fresh_isid(),
        0,
        1,
        &[("MaxBurstLength", "65536"), ("MaxBurstLength", "4096")],
    )?;
    same("status class", response.status.class(), 2)
}
