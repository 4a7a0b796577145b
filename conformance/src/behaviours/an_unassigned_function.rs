//! A function code nobody knows is answered as not supported, not rejected.

use crate::bench::Bench;
use crate::verdict::{Outcome, same};
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};

/// Clause.
pub const CLAUSE: &str = "RFC 7143 11.6.1";

/// A function code nobody knows is answered as not supported, not rejected.
pub fn run(bench: &Bench) -> Outcome {
    let mut wire = bench.log_in(&[])?;
    let mut request = wire.management(TaskManagementFunction::AbortTask, None);
    request.function = Err(100);
    wire.send(&request, Vec::new())?;
    same("outcome", wire.management_outcome()?, TaskManagementOutcome::FunctionNotSupported)
}
