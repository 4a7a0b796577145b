//! The state of the unit when a command arrived, kept for its execution.
//!
//! A command may wait long between arrival and execution: for older tasks, for its range, for its
//! next piece. By then its permission to run is checked again.

use scsi::{Sense, Status};

use crate::change_marks::Held;
use crate::failure::Failure;
use crate::sanitize_state::SanitizesBegun;
use crate::task_set::Ticket;
use crate::unit::LogicalUnit;

/// The state recorded when a command was admitted.
#[derive(Clone, Copy)]
pub(crate) struct Admission {
    /// The marks that its nexus held; it may hold others when the command executes.
    pub(crate) held: Held,
    /// The count of sanitizes begun by then: a later one ends every command that arrived before it
    /// (SBC-4 4.11.3).
    pub(crate) sanitizes_begun: SanitizesBegun,
    /// How many units had come under a number of its map by then: of a later one its initiator does not know.
    pub(crate) arrivals: u64,
    /// Whether the initiator believes that there is no write cache, unless this command reports
    /// one: its data is made durable, even if a cache is switched on before it executes.
    pub(crate) writes_through: bool,
}

impl Admission {
    /// Whether a command that has waited may go on. A command that changes blocks checks this while
    /// it holds their range: a sanitize holds all of them exclusively, so no write follows one
    /// unnoticed.
    ///
    /// # Errors
    /// The sense data of a sanitize that has begun since; TASK ABORTED for an aborted command,
    /// whose final outcome the abort decides.
    pub(crate) fn check(&self, unit: &LogicalUnit, ticket: &Ticket) -> Result<(), Failure> {
        if ticket.abort().is_some() {
            return Err(Failure::Status(Status::TaskAborted));
        }
        self.check_sanitize(unit).map_err(Failure::from)
    }

    /// Like [`check`](Self::check), for a command that cannot have been aborted.
    pub(crate) fn check_sanitize(&self, unit: &LogicalUnit) -> Result<(), Sense> {
        unit.sanitize.check_none_since(self.sanitizes_begun)
    }
}
