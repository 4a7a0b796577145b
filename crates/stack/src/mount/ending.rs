//! The end of a mount, and what is left undone where its target is away.
//!
//! What was acknowledged as durable is in the redo area, at least, and stays; what was not is in memory only.

use super::parts::MountParts;
use crate::control::Progress;
use crate::ending_time::telling;
use crate::error::{Error, Failure, Result};
use crate::status::{Left, Report};

impl MountParts {
    /// Everything is durable, in its place and marked as clean; nobody is asked any more. Without its target it ends as
    /// by a crash.
    ///
    /// # Errors
    /// What was done is not durable; or, unless it was to end at once, the file system is not marked as clean.
    pub(super) async fn end(&self) -> Result<()> {
        let committed = self.ending_time.within(self.file_system.commit()).await;
        let closed = match committed {
            Some(Ok(())) => {
                self.is_committed.set(true);
                self.ending_time.within(sharedfs::close(&self.file_system)).await
            }
            failed => failed,
        };
        if let (Some(mark), Some(remotes)) = (&self.mark, &self.remotes) {
            self.ending_time.within(mark.give_up(remotes)).await;
        }
        let left = match &self.remotes {
            Some(remotes) => self.ending_time.within(remotes.close()).await.unwrap_or(Ok(())),
            None => Ok(()),
        };
        let error = match closed {
            Some(Ok(())) => return left.map_err(Error::from),
            Some(Err(error)) => self.named(Error::from(error)),
            None => Error::new(Failure::Unreachable, "its target does not answer"),
        };
        if self.dirty_bytes() == 0 && self.ending_time.is_cut_short() {
            tracing::warn!("\"{}\" is not marked as clean: the next `forebay mount` makes it whole", self.name);
            return Ok(());
        }
        Err(self.ends_undone(&error))
    }

    /// An error of a commit; that of what others changed is the user's to decide.
    pub(super) fn named(&self, error: Error) -> Error {
        self.trouble().map_or(error, |trouble| Error::new(Failure::WouldLoseData, trouble))
    }

    /// Why it did not end in order, with what becomes of what is in it.
    fn ends_undone(&self, error: &Error) -> Error {
        // Of a session it would say that it goes on looking, which ends here.
        let last_error = self.remotes.as_ref().and_then(|remotes| remotes.session().last_error);
        let why = last_error.filter(|_| error.failure() == Failure::Unreachable).unwrap_or_else(|| error.to_string());
        let undone = match self.dirty_bytes() {
            0 => "is not marked as clean".to_owned(),
            bytes => format!("{bytes} bytes changed in it were not durable yet and may be lost"),
        };
        let message = format!(
            "\"{}\" is unmounted, but {undone} ({why}); what was durable is whole at the next `forebay mount`",
            self.name
        );
        Error::new(error.failure(), message)
    }

    /// Bytes of blocks that are changed and not durable.
    pub(super) fn dirty_bytes(&self) -> u64 {
        if self.is_committed.get() {
            // What is changed since says that it is clean.
            return 0;
        }
        let blocks = self.file_system.blocks();
        (blocks.counters().changed_blocks * ext2::Blocks::block_bytes(blocks)) as u64
    }

    /// The target that they wait for, and how it is.
    fn waits_for(&self) -> Option<String> {
        self.ending_time.waits_for(self.remotes.as_ref(), || self.dirty_bytes())
    }

    /// Ends it, as long as that takes. Nothing but memory has what is not durable: with `keep_dirty`, too, that is
    /// waited for.
    ///
    /// # Errors
    /// `WouldLoseData` where `keep_dirty` would leave what nothing keeps; what went wrong. Whoever comes second waits
    /// for the same end.
    pub(super) async fn detach(&self, keep_dirty: bool, progress: &Progress) -> Result<Left> {
        let pid = std::process::id();
        let (name, waits_for) = (&self.name, self.waits_for());
        if let Some(target) = waits_for.as_ref().filter(|_| keep_dirty) {
            let message = format!(
                "\"{name}\" is a mount, and nothing keeps the {} bytes changed in it that are not durable yet: it \
                 waits for {target}, and `kill {pid}` ends it at once, without them",
                self.dirty_bytes()
            );
            return Err(Error::new(Failure::WouldLoseData, message));
        }
        self.ending_time.begin();
        if keep_dirty && self.dirty_bytes() == 0 {
            self.ending_time.cut_short();
        }
        let waits = || {
            let (waits_for, dirty_bytes) = (self.waits_for()?, self.dirty_bytes());
            Some(Report::Waits { waits_for, dirty_bytes, is_file_gone: false, pid: Some(pid) })
        };
        telling(self.has_ended(), Some(progress), waits).await;
        let ended = self.ended.borrow().clone();
        ended.unwrap_or(Ok(())).map(|()| self.ending_time.left(0))
    }
}
