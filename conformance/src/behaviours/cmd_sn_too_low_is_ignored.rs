//! A command before ExpCmdSN is ignored silently.

use crate::bench::Bench;
use crate::verdict::Outcome;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.2.1";

/// A command before ExpCmdSN is ignored silently.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let mut command = wire.test_unit_ready();
    (wire.cmd_sn, command.cmd_sn) = (command.cmd_sn, command.cmd_sn.minus(1));
    wire.send(&command, Vec::new())?;
    wire.expect_silence()?;
    wire.check_alive()
}
