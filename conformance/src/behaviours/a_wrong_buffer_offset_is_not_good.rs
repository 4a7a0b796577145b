//! A Data-Out whose offset is not the next one must not be written as if it were.

use super::support::refused;
use crate::bench::Bench;
use crate::verdict::Outcome;
use crate::wire::pattern;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 7.13, 11.7.4";

/// A Data-Out whose offset is not the next one must not be written as if it were.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let mut wire = bench.log_in_with(&[("ImmediateData", "No"), ("InitialR2T", "Yes")], "InitialR2T", "Yes")?;
    let command = wire.write10(1);
    wire.send(&command, Vec::new())?;
    let r2t = wire.r2t(command.initiator_task_tag)?;
    let data = wire.data_out(command.initiator_task_tag, Some(r2t.target_transfer_tag), 0, 512, true);
    wire.send(&data, pattern(512))?;
    refused(&mut wire, command.initiator_task_tag)
}
