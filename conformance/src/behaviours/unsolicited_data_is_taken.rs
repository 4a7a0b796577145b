//! With InitialR2T=No data up to FirstBurstLength comes unasked, and the rest is asked for.

use super::support::read_back;
use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use crate::wire::pattern;
use iscsi::pdu::ScsiCommand;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.5.2, 13.10";

/// With InitialR2T=No data up to FirstBurstLength comes unasked, and the rest is asked for.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let keys =
        [("ImmediateData", "No"), ("InitialR2T", "No"), ("FirstBurstLength", "1024"), ("MaxBurstLength", "4096")];
    let mut wire = bench.log_in_with(&keys, "InitialR2T", "No")?;
    let all = pattern(2048);
    let command = ScsiCommand { is_final: false, ..wire.write10(4) };
    wire.send(&command, Vec::new())?;
    let first = wire.data_out(command.initiator_task_tag, None, 0, 0, true);
    wire.send(&first, all[..1024].to_vec())?;
    let r2t = wire.r2t(command.initiator_task_tag)?;
    same("R2T offset", r2t.buffer_offset, 1024)?;
    wire.answer_r2t(&r2t, &all, 1024)?;
    wire.expect_good(command.initiator_task_tag)?;
    read_back(&mut wire, &all)
}
