//! The state that all cleaning of one cache shares: pace, position, holds and progress.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::signal::Signal;
use block::{Error, ErrorKind};
use serde::Serialize;

use crate::numbers::FrameNumber;
use crate::pace::Pace;

/// Progress of a cleaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanProgress {
    /// Lines that were dirty when it began.
    pub lines_total: u64,
    /// Lines of these that are done.
    pub lines_done: u64,
}

/// Pace, place and progress of cleaning, and whether it is held.
pub(crate) struct Cleaner {
    /// Short sections, never across an await or together with another lock; so for each mutex
    /// below.
    pace: Mutex<Pace>,
    /// Progress of the cleaning that a caller asked for, while it runs.
    progress: Mutex<Option<CleanProgress>>,
    /// The error of the last attempt to clean, if it failed.
    failure: Mutex<Option<String>>,
    /// The frame where the next batch begins.
    cursor: AtomicU32,
    /// Batches under way.
    batches: AtomicU64,
    /// Whether background cleaning is held: this is a successor whose predecessor may still go on,
    /// or the caller has yet to find out what other hosts wrote. Only what makes room for a write
    /// is cleaned.
    is_held: AtomicBool,
    /// Whether dirty data is being handed to a successor. Nothing is cleaned meanwhile.
    is_handing_over: AtomicBool,
    /// Notified when a batch has ended.
    changed: Signal,
    /// Notified when there may be something to clean.
    background: Signal,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cleaner {
    pub(crate) fn new(pace: Pace, changed: &Signal, background: &Signal) -> Self {
        Self {
            pace: Mutex::new(pace),
            progress: Mutex::default(),
            failure: Mutex::default(),
            cursor: AtomicU32::new(0),
            batches: AtomicU64::new(0),
            is_held: AtomicBool::new(false),
            is_handing_over: AtomicBool::new(false),
            changed: changed.clone(),
            background: background.clone(),
        }
    }

    pub(crate) fn pace(&self) -> MutexGuard<'_, Pace> {
        lock(&self.pace)
    }

    /// The frame where the next batch begins.
    pub(crate) fn cursor(&self) -> FrameNumber {
        FrameNumber(self.cursor.load(Ordering::Relaxed))
    }

    pub(crate) fn set_cursor(&self, frame: FrameNumber) {
        self.cursor.store(frame.0, Ordering::Relaxed);
    }

    /// Stops background cleaning.
    pub(crate) fn hold(&self) {
        self.is_held.store(true, Ordering::Release);
    }

    /// Allows background cleaning again.
    pub(crate) fn begin(&self) {
        self.is_held.store(false, Ordering::Release);
        self.background.notify();
    }

    /// Whether nothing is cleaned in the background.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    /// Sets whether dirty data is being handed to a successor. Sequentially consistent with the
    /// count of batches: a batch that begins now either is waited for, or sees this.
    pub(crate) fn set_handing_over(&self, is_handing_over: bool) {
        self.is_handing_over.store(is_handing_over, Ordering::SeqCst);
    }

    /// Refuses a batch while dirty data is being handed to a successor.
    ///
    /// # Errors
    /// `Gone`.
    pub(crate) fn check_not_handing_over(&self) -> Result<(), Error> {
        if !self.is_handing_over.load(Ordering::SeqCst) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Gone, "nothing can be cleaned: another cache takes the place of this one"))
    }

    /// Counts a batch that begins; the caller checks afterwards whether it may.
    pub(crate) fn begin_batch(&self) {
        self.batches.fetch_add(1, Ordering::SeqCst);
    }

    /// A batch has ended.
    pub(crate) fn end_batch(&self) {
        self.batches.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify();
    }

    /// Whether a batch is under way; may be out of date when it returns.
    pub(crate) fn is_cleaning(&self) -> bool {
        self.batches.load(Ordering::Relaxed) > 0
    }

    /// Returns when no batch is under way. No other begins while this cache hands over or is stopped.
    pub(crate) async fn wait_for_batches(&self) {
        loop {
            let count = self.changed.count();
            if self.batches.load(Ordering::SeqCst) == 0 {
                return;
            }
            self.changed.changed_since(count).await;
        }
    }

    /// Progress of the cleaning that a caller asked for; `None` when none runs.
    pub(crate) fn progress(&self) -> Option<CleanProgress> {
        *lock(&self.progress)
    }

    pub(crate) fn set_progress(&self, progress: Option<CleanProgress>) {
        *lock(&self.progress) = progress;
    }

    /// The error of the last attempt to clean, if it failed.
    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    pub(crate) fn note_result(&self, result: &Result<(), Error>) {
        *lock(&self.failure) = result.as_ref().err().map(ToString::to_string);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;
    use crate::line_size::LineSize;
    use crate::pace::CleaningRate;

    fn cleaner() -> Cleaner {
        let pace = Pace::new(LineSize::default(), CleaningRate::default());
        Cleaner::new(pace, &Signal::new(), &Signal::new())
    }

    #[test]
    fn who_waits_for_batches_waits_for_the_last() {
        let cleaner = cleaner();
        (0..2).for_each(|_| cleaner.begin_batch());
        let mut waiting = pin!(cleaner.wait_for_batches());
        assert!(waiting.as_mut().now_or_never().is_none());
        cleaner.end_batch();
        assert!(cleaner.is_cleaning() && waiting.as_mut().now_or_never().is_none());
        cleaner.end_batch();
        assert!(waiting.now_or_never().is_some() && !cleaner.is_cleaning());
    }

    #[test]
    fn a_batch_that_begins_while_a_successor_takes_over_is_refused() {
        let cleaner = cleaner();
        cleaner.set_handing_over(true);
        assert_eq!(cleaner.check_not_handing_over().map_err(|error| error.kind()), Err(ErrorKind::Gone));
        cleaner.set_handing_over(false);
        assert!(cleaner.check_not_handing_over().is_ok());
    }
}
