//! An R2T whose data has not come is sent again with the same R2TSN and tag.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use crate::wire::pattern;
use iscsi::pdu::SnackType;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.16";

/// An R2T whose data has not come is sent again with the same R2TSN and tag.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let mut wire = bench.log_in_at_level("1", &[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let command = wire.write10(1);
    wire.send(&command, Vec::new())?;
    let r2t = wire.r2t(command.initiator_task_tag)?;
    let task = command.initiator_task_tag;
    wire.snack(SnackType::DataOrR2t { initiator_task_tag: task, begin: r2t.r2t_sn, run_length: 1 })?;
    let again = wire.r2t(task)?;
    same("R2TSN and tag", (again.r2t_sn, again.target_transfer_tag), (r2t.r2t_sn, r2t.target_transfer_tag))?;
    wire.answer_r2t(&again, &pattern(512), 512)?;
    wire.expect_good(task)
}
