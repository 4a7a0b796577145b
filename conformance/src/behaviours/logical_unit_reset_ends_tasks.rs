//! LogicalUnitReset ends a write whose data is under way; the data is still taken, and the response follows it.

use iscsi::pdu::TaskManagementFunction;

use super::support::ends_a_write;
use crate::bench::Bench;
use crate::verdict::Outcome;

/// Clause.
pub const CLAUSE: &str = "RFC 7143 4.2.3.3, 11.5.1";

/// LogicalUnitReset ends a write whose data is under way; the data is still taken, and the response follows it.
pub fn run(bench: &Bench) -> Outcome {
    ends_a_write(bench, TaskManagementFunction::LogicalUnitReset)
}
