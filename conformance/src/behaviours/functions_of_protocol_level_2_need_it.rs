//! Without iSCSIProtocolLevel=2 the functions of RFC 7144 are not supported.

use crate::bench::Bench;
use crate::verdict::{Outcome, ensure};
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7144 7.1.1";

/// Without iSCSIProtocolLevel=2 the functions of RFC 7144 are not supported.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let outcome = wire.manage(TaskManagementFunction::QueryTaskSet, None)?;
    ensure(
        outcome != TaskManagementOutcome::FunctionSucceeded && outcome != TaskManagementOutcome::FunctionComplete,
        format!("it is answered with {outcome}"),
    )
}
