//! R2T and response come where the command came; data on another connection is not taken.

use super::support::read_back;
use crate::bench::Bench;
use crate::bench::name;
use crate::verdict::{Outcome, fail};
use crate::wire::pattern;
use iscsi::pdu::Bhs;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.5.1";

/// R2T and response come where the command came; data on another connection is not taken.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let (mut first, mut second) = bench.log_in_twice(&[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let command = first.write10(1);
    first.send(&command, Vec::new())?;
    let r2t = first.r2t(command.initiator_task_tag)?;
    second.answer_r2t(&r2t, &vec![0xee; 512], 512)?;
    match second.receive_bhs()? {
        Bhs::Reject(_) => {}
        other => return fail(format!("it is answered with {}", name(&other))),
    }
    first.answer_r2t(&r2t, &pattern(512), 512)?;
    first.expect_good(command.initiator_task_tag)?;
    read_back(&mut first, &pattern(512))
}
