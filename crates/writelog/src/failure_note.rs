//! The durable note that the log device failed, for a later start.

use std::sync::Arc;

use block::{Error, ErrorKind};
use store::Superblock;

use crate::core::Core;
use crate::failure::FailureNote;
use crate::format::{ParametersRaw, STATE_FAILED, STATE_IN_USE};

impl Core {
    /// Notes the failure when it comes, also when no request does. Ends when the log closes.
    pub(crate) async fn note_failure_in_background(self: Arc<Self>) {
        loop {
            let count = self.background.count();
            if self.life.is_stopped() {
                return;
            }
            let is_unnoted = {
                let state = self.state();
                state.failure.is_unnoted()
            };
            if is_unnoted {
                drop(self.note_failure().await);
            }
            self.background.changed_since(count).await;
        }
    }

    /// Notes durably that the log device refused a write, before any write goes past the log: a
    /// start without the note would bring older data back. If the device still takes a checkpoint,
    /// the log keeps what it has, and a later start goes on from there. Otherwise the log is marked
    /// as failed, on the device or by the user's `failure_note`, and must be discarded.
    ///
    /// # Errors
    /// When the failure could be noted nowhere.
    pub(crate) async fn note_failure(self: &Arc<Self>) -> Result<(), Error> {
        let mut superblock = self.superblock.lock().await;
        let note = self.state().failure.note;
        if note == FailureNote::Untried {
            self.keep_or_discard(&mut superblock).await;
        }
        self.check_note()
    }

    /// Removes from the durable note what has reached the origin since; done before a write or a
    /// flush reports it durable.
    ///
    /// # Errors
    /// As [`Core::note_failure`].
    pub(crate) async fn keep_failure_note(self: &Arc<Self>) -> Result<(), Error> {
        let mut superblock = self.superblock.lock().await;
        let note = self.state().failure.note;
        if matches!(note, FailureNote::Untried | FailureNote::Kept) {
            self.keep_or_discard(&mut superblock).await;
        }
        self.check_note()
    }

    async fn keep_or_discard(self: &Arc<Self>, superblock: &mut Superblock<ParametersRaw>) {
        let snapshot = self.snapshot();
        let is_empty = snapshot.extent_count == 0 && !snapshot.has_nvram;
        if self.commit(superblock, snapshot, STATE_IN_USE).await.is_ok() {
            self.state().failure.note = if is_empty { FailureNote::Empty } else { FailureNote::Kept };
            return;
        }
        superblock.payload.state = STATE_FAILED;
        let on_device = superblock.write(&self.log_device).await.is_ok();
        let elsewhere = self.options.failure_note.as_ref().is_some_and(|note| note());
        let is_noted = on_device || elsewhere;
        if !is_noted {
            tracing::error!("the log device's failure could be noted nowhere: writes are refused");
        }
        self.state().failure.note = if is_noted { FailureNote::Discard } else { FailureNote::Nowhere };
    }

    fn check_note(&self) -> Result<(), Error> {
        if self.state().failure.note != FailureNote::Nowhere {
            return Ok(());
        }
        let context = "the log device failed, and that could be noted nowhere: a write past the log could be undone by \
                       the next start";
        Err(Error::new(ErrorKind::Media, context))
    }
}
