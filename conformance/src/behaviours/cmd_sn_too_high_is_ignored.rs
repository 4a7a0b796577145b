//! A command beyond MaxCmdSN is ignored silently, and the session goes on.

use crate::bench::Bench;
use crate::verdict::Outcome;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.2.1";

/// A command beyond MaxCmdSN is ignored silently, and the session goes on.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let mut command = wire.test_unit_ready();
    (wire.cmd_sn, command.cmd_sn) = (command.cmd_sn, wire.max_cmd_sn.plus(10));
    wire.send(&command, Vec::new())?;
    wire.expect_silence()?;
    wire.check_alive()
}
