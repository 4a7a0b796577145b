//! Each response has the next StatSN of its connection.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.2.2";

/// Each response has the next StatSN of its connection.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    for _ in 0..5 {
        let before = wire.exp_stat_sn;
        wire.check_alive()?;
        same("StatSN", wire.exp_stat_sn, before.next())?;
    }
    Ok(())
}
