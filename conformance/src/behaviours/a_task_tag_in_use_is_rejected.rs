//! A command with the tag of an active task is rejected as task in progress.

use crate::bench::Bench;
use crate::verdict::Outcome;
use iscsi::pdu::{RejectReason, ScsiCommand};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.17.1";

/// A command with the tag of an active task is rejected as task in progress.
pub fn run(bench: &Bench) -> Outcome {
    bench.needs_to_write()?;
    let mut wire = bench.log_in(&[("InitialR2T", "Yes"), ("ImmediateData", "No")])?;
    let first = wire.write10(1);
    wire.send(&first, Vec::new())?;
    wire.r2t(first.initiator_task_tag)?;
    let second = ScsiCommand { initiator_task_tag: first.initiator_task_tag, ..wire.test_unit_ready() };
    wire.send(&second, Vec::new())?;
    wire.expect_reject(RejectReason::TaskInProgress)
}
