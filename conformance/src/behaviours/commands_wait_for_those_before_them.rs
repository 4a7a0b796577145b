//! A command with a gap before it is executed when the gap is closed.

use crate::bench::Bench;
use crate::verdict::Outcome;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.2.1";

/// A command with a gap before it is executed when the gap is closed.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let (first, second) = (wire.test_unit_ready(), wire.test_unit_ready());
    wire.send(&second, Vec::new())?;
    wire.expect_silence()?;
    wire.send(&first, Vec::new())?;
    wire.expect_good(first.initiator_task_tag)?;
    wire.expect_good(second.initiator_task_tag)
}
