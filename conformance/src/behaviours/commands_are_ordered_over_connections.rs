//! A command on one connection waits for one before it on another; each is answered on its own.

use crate::bench::Bench;
use crate::verdict::Outcome;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.2.1";

/// A command on one connection waits for one before it on another; each is answered on its own.
pub fn run(bench: &Bench) -> Outcome {
    let (mut first, mut second) = bench.log_in_twice(&[])?;
    let earlier = first.test_unit_ready();
    second.cmd_sn = earlier.cmd_sn.next();
    let later = second.test_unit_ready();
    second.send(&later, Vec::new())?;
    second.expect_silence()?;
    first.send(&earlier, Vec::new())?;
    first.expect_good(earlier.initiator_task_tag)?;
    second.expect_good(later.initiator_task_tag)
}
