//! An immediate command is executed at once and uses no CmdSN.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.2.1";

/// An immediate command is executed at once and uses no CmdSN.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let mut command = wire.test_unit_ready();
    command.is_immediate = true;
    wire.cmd_sn = command.cmd_sn;
    wire.send(&command, Vec::new())?;
    wire.expect_good(command.initiator_task_tag)?;
    same("ExpCmdSN", wire.exp_cmd_sn, command.cmd_sn)?;
    wire.check_alive()
}
