//! A response that is not acknowledged is sent again, with the same StatSN.

use crate::bench::Bench;
use crate::verdict::{Outcome, fail, same};
use iscsi::pdu::{Bhs, SnackType};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.16";

/// A response that is not acknowledged is sent again, with the same StatSN.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in_at_level("1", &[])?;
    wire.acknowledges = false;
    let command = wire.test_unit_ready();
    wire.send(&command, Vec::new())?;
    let Bhs::ScsiResponse(first) = wire.receive_bhs()? else { return fail("no response comes") };
    wire.snack(SnackType::Status { begin: first.stat_sn, run_length: 1 })?;
    let Bhs::ScsiResponse(again) = wire.receive_bhs()? else { return fail("no response comes again") };
    same("StatSN", again.stat_sn, first.stat_sn)?;
    same("task", again.initiator_task_tag, command.initiator_task_tag)
}
