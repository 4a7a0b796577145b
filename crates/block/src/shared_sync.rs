//! The choice of which sync covers which writes and flushes, where they share one.
//!
//! ```text
//!   writing ─► written ──(more than half of them are, and no sync is under way)──► syncing ──(well or not)──► over
//!      └─(failed)─► over                      ▲                                       │
//!                                             └───────────(to be made again)──────────┘
//! ```
//! A sync makes durable what was written before it began, so a write that ends while one is under
//! way is left for the next. A sync begins when more than half of the writes under way are written:
//! at once for a lone write, and not for the first of many, since the others would then wait for
//! two. A flush has nothing to write and counts as written.
//!
//! A failed sync fails everything that is written, not only what waited for this sync: a write that
//! ended while it was under way may have been dropped, too, and the next sync would not report
//! that.
//!
//! A state machine without I/O: `file` drives it in its ring, and the layer
//! [`shared_flush`](crate::layer::shared_flush) over a modelled medium.

use crate::limits::SYNC_REPEATS_MAX;

/// Writes and flushes that share syncs; `T` is their driver's name for one.
#[derive(Debug)]
pub struct SharedSync<T> {
    /// Count of writes that are not written yet.
    writing: usize,
    written: Vec<T>,
    /// Those that the sync under way makes durable.
    syncing: Vec<T>,
    /// How often the present sync was repeated.
    repeat_count: u32,
}

impl<T> Default for SharedSync<T> {
    fn default() -> Self {
        Self { writing: 0, written: Vec::new(), syncing: Vec::new(), repeat_count: 0 }
    }
}

impl<T> SharedSync<T> {
    /// Notes a write that was submitted.
    pub fn begin_write(&mut self) {
        self.writing += 1;
    }

    /// Notes that a write is written: a sync will end it.
    pub fn written(&mut self, one: T) {
        self.writing -= 1;
        self.written.push(one);
    }

    /// Adds one that has nothing to write: a flush, or zeroes that are there already. A sync will
    /// end it.
    pub fn join(&mut self, one: T) {
        self.written.push(one);
    }

    /// Notes a write that failed before it was written.
    pub fn write_failed(&mut self) {
        self.writing -= 1;
    }

    /// Begins a sync, if it is due. Returns whether it is.
    pub fn begin_sync(&mut self) -> bool {
        let begins = self.syncing.is_empty() && self.written.len() > self.writing;
        if begins {
            std::mem::swap(&mut self.syncing, &mut self.written);
        }
        begins
    }

    /// Asks to repeat the sync, for what has been written since, too. Returns whether to do so; not
    /// for ever.
    pub fn again(&mut self) -> bool {
        if self.repeat_count == SYNC_REPEATS_MAX {
            return false;
        }
        self.repeat_count += 1;
        self.written.append(&mut self.syncing);
        true
    }

    /// The sync has succeeded. Returns those that it made durable.
    pub fn synced(&mut self) -> Vec<T> {
        self.repeat_count = 0;
        std::mem::take(&mut self.syncing)
    }

    /// The sync has failed. Returns those that fail with it.
    pub fn sync_failed(&mut self) -> Vec<T> {
        let mut failed = self.synced();
        failed.append(&mut self.written);
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_writes(count: usize) -> SharedSync<usize> {
        let mut sync = SharedSync::default();
        (0..count).for_each(|_| sync.begin_write());
        sync
    }

    #[test]
    fn a_lone_write_is_synced_at_once_and_the_first_of_two_waits_for_the_other() {
        let mut alone = with_writes(1);
        assert!(!alone.begin_sync(), "nothing is written");
        alone.written(7);
        assert!(alone.begin_sync());
        assert_eq!(alone.synced(), [7]);
        assert!(!alone.begin_sync(), "nothing is left");
        let mut two = with_writes(2);
        two.written(0);
        assert!(!two.begin_sync());
        two.written(1);
        assert!(two.begin_sync());
        assert_eq!(two.synced(), [0, 1]);
    }

    #[test]
    fn what_is_written_during_a_sync_is_for_the_next() {
        let mut sync = with_writes(5);
        (0..3).for_each(|slot| sync.written(slot));
        assert!(sync.begin_sync(), "three of five are written");
        (3..5).for_each(|slot| sync.written(slot));
        assert!(!sync.begin_sync(), "one is under way");
        assert_eq!(sync.synced(), [0, 1, 2]);
        assert!(sync.begin_sync());
        assert_eq!(sync.synced(), [3, 4]);
    }

    #[test]
    fn a_write_that_fails_keeps_no_other_waiting() {
        let mut sync = with_writes(2);
        sync.written(0);
        sync.write_failed();
        assert!(sync.begin_sync());
        assert_eq!(sync.synced(), [0]);
    }

    #[test]
    fn a_sync_that_is_made_again_takes_along_what_was_written_since() {
        let mut sync = with_writes(2);
        sync.written(0);
        sync.written(1);
        assert!(sync.begin_sync());
        sync.begin_write();
        sync.written(2);
        assert!(sync.again());
        assert!(sync.begin_sync());
        let mut slots = sync.synced();
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2]);
    }

    #[test]
    fn a_sync_that_fails_fails_what_was_written_meanwhile() {
        let mut sync = with_writes(4);
        (0..3).for_each(|slot| sync.written(slot));
        assert!(sync.begin_sync());
        sync.written(3);
        sync.join(4);
        assert_eq!(sync.sync_failed(), [0, 1, 2, 3, 4]);
        assert!(!sync.begin_sync(), "nothing is left");
    }

    #[test]
    fn a_sync_is_not_made_again_for_ever() {
        let mut sync = with_writes(1);
        sync.written(0);
        for _ in 0..SYNC_REPEATS_MAX {
            assert!(sync.begin_sync() && sync.again());
        }
        assert!(sync.begin_sync() && !sync.again());
        assert_eq!(sync.sync_failed(), [0]);
        sync.join(1);
        assert!(sync.begin_sync() && sync.again(), "each sync has its own count");
    }

    #[test]
    fn a_flush_is_synced_at_once_or_with_the_writes_under_way() {
        let mut sync = SharedSync::default();
        sync.join(9);
        assert!(sync.begin_sync());
        assert_eq!(sync.synced(), [9]);
        sync.begin_write();
        sync.join(9);
        assert!(!sync.begin_sync());
        sync.written(0);
        assert!(sync.begin_sync());
        assert_eq!(sync.synced(), [9, 0]);
    }
}
