//! Flush: the barrier.
//!
//! What `log` and `nvram` acknowledged is durable already, and the open flushed what the origin had
//! acknowledged before, so there is nothing to do. With `unsafe-volatile` a flush moves all slots
//! to the log. After a failure of the log device writes went to the origin with force unit access.

use std::sync::Arc;

use block::Error;

use crate::failure_note::FailureNotes;
use crate::level1::SlotMover;
use crate::level2::Destager;
use crate::log_state::LogState;
use crate::options::Durability;

/// Makes durable what was acknowledged.
pub(crate) struct Flusher {
    pub(crate) log: Arc<LogState>,
    pub(crate) durability: Durability,
    pub(crate) mover: Arc<SlotMover>,
    pub(crate) destager: Arc<Destager>,
    pub(crate) notes: Arc<FailureNotes>,
}

impl Flusher {
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        if self.durability != Durability::UnsafeVolatile {
            return Ok(());
        }
        let is_empty = self.log.state().contents.stage.as_ref().is_none_or(|stage| stage.is_empty());
        if !is_empty {
            match self.mover.move_round(1.0).await {
                // Slots in RAM that no log takes go to the origin.
                Err(_) if self.log.has_failed() => self.destager.destage_all(|_| {}).await?,
                result => result?,
            }
        }
        // Data in the log below slots that went to the origin does not count any more.
        if self.log.has_failed() { self.notes.keep().await } else { Ok(()) }
    }
}
