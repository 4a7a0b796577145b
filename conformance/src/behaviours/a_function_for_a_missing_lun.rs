//! A task management function for a LUN that is not there says so.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.6.1";

/// A task management function for a LUN that is not there says so.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    wire.lun = 0x00fe_0000_0000_0000;
    same(
        "outcome",
        wire.manage(TaskManagementFunction::LogicalUnitReset, None)?,
        TaskManagementOutcome::LunDoesNotExist,
    )
}
