//! The checks before a command runs, and the choice of its handler.
//!
//! The transport has parsed the CDB. In this order (SAM-5 5.3.3, SPC-4 5.9): a pending unit attention
//! is reported, with any command that is not exempt; then errors of the CDB; then reservations; then
//! the medium's presence; then the command itself. A command that needs one device request and no
//! waiting costs no allocation.

use std::sync::Arc;

use scsi::{Cdb, CdbError, Sense, Status};

use crate::admission::Admission;
use crate::command::{Command, Outcome};
use crate::commands;
use crate::execution::Execution;
use crate::failure::Failure;
use crate::nexus::NexusId;
use crate::protection;
use crate::unit::LogicalUnit;

impl LogicalUnit {
    /// Runs one command of `nexus`, in whose map so many units have come under a number.
    pub(crate) fn execute(self: &Arc<Self>, nexus: &NexusId, command: Command, arrivals: u64) -> Execution {
        // Taken when the command arrives: its nexus may be gone when it executes.
        let admission = Admission {
            sanitizes_begun: self.sanitize.begun(),
            held: self.held_by(nexus),
            writes_through: self.mode.writes_through(),
            arrivals,
        };
        let cdb = match self.admit(nexus, command.cdb) {
            Ok(cdb) => cdb,
            Err(failure) => return Execution::ready(Outcome::from(Err(failure))),
        };
        if commands::waits_for_nothing(&cdb) {
            return commands::start(self, nexus, cdb, command, admission);
        }
        if self.tasks.is_full_for(nexus) {
            return Execution::ready(Outcome::status(Status::TaskSetFull));
        }
        // SANITIZE overtakes all (SBC-4 5.30): commands that wait are refused because of it, not
        // carried out first.
        if matches!(cdb, Cdb::Sanitize(_)) || !self.tasks.must_wait(command.attribute) {
            return commands::start(self, nexus, cdb, command, admission);
        }
        let ticket = Arc::new(self.enter(nexus, &command));
        let (unit, nexus, workers) = (Arc::clone(self), nexus.clone(), self.workers().clone());
        let waiting = Arc::clone(&ticket);
        let future = async move {
            waiting.turn().await;
            if !cdb.exemption().from_sanitize
                && let Err(failure) = admission.check(&unit, &waiting)
            {
                return Outcome::from(Err(failure));
            }
            // The ticket takes and holds its place in the order; what starts here is part of this
            // task.
            commands::start(&unit, &nexus, cdb, command, admission).await
        };
        Execution::task(future, ticket, &workers)
    }

    /// Decides whether a command may be executed.
    fn admit(&self, nexus: &NexusId, parsed: Result<Cdb, CdbError>) -> Result<Cdb, Failure> {
        self.watch.catch_up();
        if !parsed.as_ref().is_ok_and(|cdb| cdb.exemption().from_attention)
            && let Some(sense) = self.attentions.take(nexus)
        {
            return Err(sense.into());
        }
        let cdb = parsed?;
        self.reservations.check(nexus, &cdb)?;
        if protection::is_for_writers(&cdb) && self.protection.covers(nexus) {
            return Err(Sense::WRITE_PROTECTED.into());
        }
        if !cdb.exemption().from_sanitize {
            self.sanitize.check()?;
        }
        Ok(cdb)
    }
}
