//! How things stood when a command came, for what it does later.
//!
//! A command may wait long between coming and executing: for older tasks, for its range, for its next piece. What it
//! was let to do when it came is looked at again by then.

use scsi::{Sense, Status};

use crate::change_marks::Held;
use crate::failure::Failure;
use crate::sanitize_state::SanitizesBegun;
use crate::task_set::Ticket;
use crate::unit::LogicalUnit;

/// What a command was let in with.
#[derive(Clone, Copy)]
pub(crate) struct Admission {
    /// The marks its nexus held: that may be gone when it executes.
    pub(crate) held: Held,
    /// A sanitize that begins later ends every command that was there before it (SBC-4 4.11.3).
    pub(crate) sanitizes_begun: SanitizesBegun,
    /// There was no write cache, as far as its initiator knows, if it is not told otherwise now: what it writes is
    /// durable, though one be switched on before it executes.
    pub(crate) writes_through: bool,
}

impl Admission {
    /// Whether a command that has waited may go on. Whoever changes blocks asks while it has their range: a sanitize
    /// has all of them alone, so nothing that it has not seen end is written behind it.
    ///
    /// # Errors
    /// The sense data of a sanitize that has begun since; TASK ABORTED, which the abort replaces by what the initiator
    /// is told, if anything.
    pub(crate) fn check(&self, unit: &LogicalUnit, ticket: &Ticket) -> Result<(), Failure> {
        if ticket.abort().is_some() {
            return Err(Failure::Status(Status::TaskAborted));
        }
        self.check_sanitize(unit).map_err(Failure::from)
    }

    /// As [`check`](Self::check), of a command that nobody can have aborted.
    pub(crate) fn check_sanitize(&self, unit: &LogicalUnit) -> Result<(), Sense> {
        unit.sanitize.check_none_since(self.sanitizes_begun)
    }
}
