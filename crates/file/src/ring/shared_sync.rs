//! Which durable writes wait for which sync, where they share one.
//!
//! ```text
//!   writing ─► written ──(more than half of them are, and no sync is under way)──► syncing ──(well or not)──► over
//!      └─(failed)─► over                      ▲                                       │
//!                                             └───────────(to be made again)──────────┘
//! ```
//! A sync makes durable what was written before it began, so what is written while one is under way is for the next. It begins when more than half of what
//! is on its way is written: as soon as a lone write is, and not for the first of many, for whose sake the others would wait for two.

/// Writes by their slots in the ring.
#[derive(Default)]
pub(super) struct SharedSync {
    /// How many are not written yet.
    writing: usize,
    written: Vec<usize>,
    /// What the sync under way makes durable.
    syncing: Vec<usize>,
}

impl SharedSync {
    /// A write is on its way.
    pub(super) fn begin_write(&mut self) {
        self.writing += 1;
    }

    /// The write in `slot` is written, and over after a sync.
    pub(super) fn written(&mut self, slot: usize) {
        self.writing -= 1;
        self.written.push(slot);
    }

    /// A write failed before it was written.
    pub(super) fn write_failed(&mut self) {
        self.writing -= 1;
    }

    /// Whether a sync begins now.
    pub(super) fn begin_sync(&mut self) -> bool {
        let begins = self.syncing.is_empty() && self.written.len() > self.writing;
        if begins {
            std::mem::swap(&mut self.syncing, &mut self.written);
        }
        begins
    }

    /// The sync is to be made again, for what has been written since, too.
    pub(super) fn again(&mut self) {
        self.written.append(&mut self.syncing);
    }

    /// The sync is over, and with it the writes in these slots.
    pub(super) fn synced(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.syncing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_writes(count: usize) -> SharedSync {
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
        sync.again();
        assert!(sync.begin_sync());
        let mut slots = sync.synced();
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2]);
    }
}
