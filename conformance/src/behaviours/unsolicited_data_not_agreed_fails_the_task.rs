//! Unsolicited data where InitialR2T=Yes was agreed is refused: a Reject, a failed task, or the end of the connection.

use super::support::refused;
use crate::bench::Bench;
use crate::verdict::Outcome;
use crate::wire::pattern;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.4.7.2, 13.10";

/// Unsolicited data where InitialR2T=Yes was agreed is refused: a Reject, a failed task, or the end of the connection.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let mut wire = bench.log_in_with(&[("ImmediateData", "No"), ("InitialR2T", "Yes")], "InitialR2T", "Yes")?;
    let command = wire.write10(1);
    wire.send(&command, Vec::new())?;
    wire.r2t(command.initiator_task_tag)?;
    let data = wire.data_out(command.initiator_task_tag, None, 0, 0, true);
    wire.send(&data, pattern(512))?;
    refused(&mut wire, command.initiator_task_tag)
}
