//! Responses are numbered on each connection for itself.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.2.2";

/// Responses are numbered on each connection for itself.
pub fn run(bench: &Bench) -> Outcome {
    let (mut first, mut second) = bench.log_in_twice(&[])?;
    for _ in 0..3 {
        let before = (first.exp_stat_sn, second.exp_stat_sn);
        first.check_alive()?;
        second.cmd_sn = first.cmd_sn;
        second.check_alive()?;
        first.cmd_sn = second.cmd_sn;
        same("StatSNs", (first.exp_stat_sn, second.exp_stat_sn), (before.0.next(), before.1.next()))?;
    }
    Ok(())
}
