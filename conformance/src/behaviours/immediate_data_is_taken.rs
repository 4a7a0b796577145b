//! Data in the command PDU is written without an R2T.

use super::support::read_back;
use crate::bench::Bench;
use crate::verdict::Outcome;
use crate::wire::pattern;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.5.2, 13.11";

/// Data in the command PDU is written without an R2T.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let mut wire = bench.log_in_with(&[("ImmediateData", "Yes"), ("InitialR2T", "Yes")], "ImmediateData", "Yes")?;
    let command = wire.write10(1);
    wire.send(&command, pattern(512))?;
    wire.expect_good(command.initiator_task_tag)?;
    read_back(&mut wire, &pattern(512))
}
