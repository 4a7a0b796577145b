//! The progress of a sanitize, and the commands allowed meanwhile.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use scsi::Sense;

/// The state of a sanitize: none, under way, or failed.
#[derive(Default)]
pub(crate) struct SanitizeState {
    /// Zero when ready, else its progress in 65536ths plus one, or `FAILED`; so that a command
    /// costs one load.
    state: AtomicU32,
    /// Count of sanitizes begun; it grows after `state` has left ready.
    begun: AtomicU32,
    /// AUSE of the sanitize that failed.
    may_exit: Mutex<bool>,
}

/// The count of sanitizes of a unit that had begun at some moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SanitizesBegun(u32);

const READY: u32 = 0;
const FAILED: u32 = u32::MAX;

impl SanitizeState {
    /// Whether other commands may run.
    pub(crate) fn check(&self) -> Result<(), Sense> {
        match self.state.load(Ordering::Acquire) {
            READY => Ok(()),
            FAILED => Err(Sense::SANITIZE_FAILED),
            progress => Err(Sense::SANITIZE_IN_PROGRESS.with_progress(u16::try_from(progress - 1).unwrap_or(u16::MAX))),
        }
    }

    /// The count of sanitizes begun. Call it before [`check`](Self::check), so that none begins
    /// unnoticed between the two.
    pub(crate) fn begun(&self) -> SanitizesBegun {
        SanitizesBegun(self.begun.load(Ordering::Acquire))
    }

    /// Whether a command may go on that arrived when `known` had begun.
    ///
    /// # Errors
    /// SANITIZE IN PROGRESS, as at its beginning, even if that sanitize has ended by now.
    pub(crate) fn check_none_since(&self, known: SanitizesBegun) -> Result<(), Sense> {
        if self.begun() == known { Ok(()) } else { Err(Sense::SANITIZE_IN_PROGRESS.with_progress(0)) }
    }

    /// Begins a sanitize, unless one is under way.
    pub(crate) fn begin(&self, may_exit: bool) -> Result<(), Sense> {
        let mut own = self.may_exit.lock().unwrap_or_else(PoisonError::into_inner);
        match self.state.load(Ordering::Acquire) {
            READY | FAILED => {
                *own = may_exit;
                self.state.store(1, Ordering::Release);
                self.begun.fetch_add(1, Ordering::Release);
                Ok(())
            }
            _ => self.check(),
        }
    }

    pub(crate) fn note_progress(&self, done: u64, total: u64) {
        let progress = u128::from(done) * 0xffff / u128::from(total.max(1));
        self.state.store(1 + u32::try_from(progress).unwrap_or(0xffff), Ordering::Release);
    }

    pub(crate) fn end(&self, is_done: bool) {
        self.state.store(if is_done { READY } else { FAILED }, Ordering::Release);
    }

    /// EXIT FAILURE MODE.
    pub(crate) fn exit_failure(&self) -> Result<(), Sense> {
        let may_exit = self.may_exit.lock().unwrap_or_else(PoisonError::into_inner);
        match (self.state.load(Ordering::Acquire), *may_exit) {
            (FAILED, true) => self.state.store(READY, Ordering::Release),
            (FAILED, false) => return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4)),
            (_, _) => {}
        }
        Ok(())
    }
}
