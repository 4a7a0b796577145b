//! The durable note that the log device failed, for a later start.

use std::sync::Arc;

use block::{Error, ErrorKind, SharedDevice};
use store::{Life, Superblock};

use crate::checkpoint::Checkpoints;
use crate::failure::FailureNote;
use crate::format::{ParametersRaw, STATE_FAILED, STATE_IN_USE};
use crate::log_state::LogState;

/// Notes durably that the log device failed, and what reached the origin since.
pub(crate) struct FailureNotes {
    pub(crate) log: Arc<LogState>,
    pub(crate) log_device: SharedDevice,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) life: Arc<Life>,
    /// The user's note beside the log device.
    pub(crate) elsewhere: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl FailureNotes {
    /// Notes the failure when it comes, also when no request does. Ends when the log closes.
    pub(crate) async fn run(&self) {
        loop {
            let count = self.log.background.count();
            if self.life.is_stopped() {
                return;
            }
            let is_unnoted = {
                let state = self.log.state();
                state.failure.is_unnoted()
            };
            if is_unnoted {
                drop(self.note().await);
            }
            self.log.background.changed_since(count).await;
        }
    }

    /// Notes durably that the log device refused a write, before any write goes past the log: a
    /// start without the note would bring older data back. If the device still takes a checkpoint,
    /// the log keeps what it has, and a later start goes on from there. Otherwise the log is marked
    /// as failed, on the device or by the user's `failure_note`, and must be discarded.
    ///
    /// # Errors
    /// When the failure could be noted nowhere.
    pub(crate) async fn note(&self) -> Result<(), Error> {
        let mut superblock = self.checkpoints.superblock.lock().await;
        let note = self.log.state().failure.note;
        if note == FailureNote::Untried {
            self.keep_or_discard(&mut superblock).await;
        }
        self.check_note()
    }

    /// Removes from the durable note what has reached the origin since; done before a write or a
    /// flush reports it durable.
    ///
    /// # Errors
    /// As [`FailureNotes::note`].
    pub(crate) async fn keep(&self) -> Result<(), Error> {
        let mut superblock = self.checkpoints.superblock.lock().await;
        let note = self.log.state().failure.note;
        if matches!(note, FailureNote::Untried | FailureNote::Kept) {
            self.keep_or_discard(&mut superblock).await;
        }
        self.check_note()
    }

    async fn keep_or_discard(&self, superblock: &mut Superblock<ParametersRaw>) {
        let snapshot = self.checkpoints.snapshots.take();
        let is_empty = snapshot.extent_count == 0 && !snapshot.has_nvram;
        if self.checkpoints.commit(superblock, snapshot, STATE_IN_USE).await.is_ok() {
            self.log.state().failure.note = if is_empty { FailureNote::Empty } else { FailureNote::Kept };
            return;
        }
        superblock.payload.state = STATE_FAILED;
        let on_device = superblock.write(&self.log_device).await.is_ok();
        let elsewhere = self.elsewhere.as_ref().is_some_and(|note| note());
        let is_noted = on_device || elsewhere;
        if !is_noted {
            tracing::error!("the log device's failure could be noted nowhere: writes are refused");
        }
        self.log.state().failure.note = if is_noted { FailureNote::Discard } else { FailureNote::Nowhere };
    }

    fn check_note(&self) -> Result<(), Error> {
        if self.log.state().failure.note != FailureNote::Nowhere {
            return Ok(());
        }
        let context = "the log device failed, and that could be noted nowhere: a write past the log could be undone by \
                       the next start";
        Err(Error::new(ErrorKind::Media, context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Parts;

    /// What becomes of the note of a failure, where the device takes nothing more if it is `dead`, and the user's note
    /// can be made or not.
    fn note(is_dead: bool, elsewhere: bool) -> (FailureNote, bool) {
        let mut parts = Parts::new(|options| options.failure_note = Some(Arc::new(move || elsewhere)));
        let (superblock, records) = (parts.superblock.clone(), Arc::new(parts.assembly.records()));
        let checkpoints = Arc::new(parts.assembly.checkpoints(superblock, &records));
        let notes = Arc::new(parts.assembly.notes(&checkpoints));
        parts.append(&records, 0, 8, 1);
        if is_dead {
            parts.device.fail_writes_from(parts.device.writes_seen(), ErrorKind::Media);
        }
        records.give_up(&Error::new(ErrorKind::Media, "it took no record"));
        let noting = Arc::clone(&notes);
        let result = parts.executor.block_on(async move { noting.note().await });
        let note = notes.log.state().failure.note;
        (note, result.is_ok())
    }

    #[test]
    fn a_write_may_go_past_the_log_where_a_later_start_knows_of_it() {
        assert_eq!(note(false, false), (FailureNote::Kept, true));
        assert_eq!(note(true, true), (FailureNote::Discard, true));
        assert_eq!(note(true, false), (FailureNote::Nowhere, false));
    }
}
