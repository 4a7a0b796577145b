//! A NOP-Out without a task tag has no answer.

use crate::bench::Bench;
use crate::verdict::Outcome;
use iscsi::pdu::NopOut;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.18";

/// A NOP-Out without a task tag has no answer.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let ping = NopOut { initiator_task_tag: None, ..wire.nop_out() };
    wire.send(&ping, Vec::new())?;
    wire.expect_silence()?;
    wire.check_alive()
}
