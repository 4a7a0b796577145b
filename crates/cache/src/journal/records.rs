//! Records: a new state of lines becomes durable in the log, and then takes effect in memory.

use std::sync::atomic::Ordering;

use block::{Error, ErrorKind};
use store::{Append, AppendRefused, Hold};

use crate::format::{LogEntry, log_entry_bytes};
use crate::journal::Extent;
use crate::journal::Journal;

impl Journal {
    /// Entries that fit into one record.
    pub(crate) fn entries_max(&self) -> usize {
        (self.log.payload_bytes_max() / log_entry_bytes(self.lines.line_size())).max(1)
    }

    /// Appends entries as one payload, making room in the log when there is none.
    pub(crate) async fn append(&self, entries: &[LogEntry]) -> Result<Hold, Error> {
        let append = self.append_bytes(&LogEntry::emit(entries, self.lines.line_size())).await?;
        append.durable().await
    }

    /// Like [`Journal::append`], of entries with data.
    pub(crate) async fn append_data(&self, entries: &[(LogEntry, &[u8])]) -> Result<Hold, Error> {
        let append = self.append_bytes(&LogEntry::emit_with_data(entries, self.lines.line_size())).await?;
        append.durable().await
    }

    /// Whether `entry_count` entries with `data_bytes` of data fit into one record.
    pub(crate) fn has_room_for(&self, entry_count: usize, data_bytes: u64) -> bool {
        let entries_bytes = (entry_count * log_entry_bytes(self.lines.line_size())) as u64;
        entries_bytes + data_bytes <= self.log.payload_bytes_max() as u64
    }

    /// Like [`Journal::append`], for a caller whose own hold may be what keeps the log full.
    pub(crate) async fn append_now(&self, entries: &[LogEntry]) -> Result<Hold, Error> {
        let refused =
            |_| Error::new(ErrorKind::NoSpace, "the log of the cache has no room to take a failed write back");
        self.log.try_append(&LogEntry::emit(entries, self.lines.line_size())).map_err(refused)?.durable().await
    }

    /// Makes the states in `entries` durable, then applies them. Their lines are busy and stay in
    /// their frames.
    pub(crate) async fn commit_states(&self, entries: &[LogEntry]) -> Result<(), Error> {
        let result = self.append(entries).await;
        if let Err(error) = &result {
            self.fail(error);
        }
        {
            let state = &mut *self.lines.state();
            for entry in entries {
                let frame = entry.frame;
                state.frames.set_busy(frame, false);
                if result.is_ok() {
                    // Clean sectors may have come and gone meanwhile; dirty ones have not.
                    let now = state.frames.line(frame);
                    let removed = now.dirty & !entry.line.dirty;
                    let valid = if (entry.line.valid & removed).is_empty() { now.valid & !removed } else { now.valid };
                    state.frames.set_sectors(frame, valid, entry.line.dirty);
                } else {
                    state.uncertain.insert(entry.line.block);
                }
            }
        }
        // Before the wake-up: a task that waits for room in the log looks whether this record is
        // still needed.
        let result = result.map(drop);
        self.lines.wake_lazy();
        self.lines.changed.notify();
        result
    }

    /// Appends to the log. When the log is full, makes room first; when it is half full, wakes the
    /// background checkpoint.
    async fn append_bytes(&self, payload: &[u8]) -> Result<Append, Error> {
        loop {
            let count = self.lines.changed.count();
            match self.log.try_append(payload) {
                Ok(append) => {
                    if self.is_log_half_full() {
                        self.lines.background.notify();
                    }
                    return Ok(append);
                }
                Err(AppendRefused::Failed(error)) => return Err(error),
                Err(AppendRefused::TooLarge) => unreachable!("groups are bounded by what one record holds"),
                Err(AppendRefused::Full) => {}
            }
            self.counts.log_full.fetch_add(1, Ordering::Relaxed);
            let used = self.log.usage().used_bytes;
            self.checkpoint(Extent::Dirty).await?;
            if self.log.usage().used_bytes >= used {
                // The oldest record is still in use; its user notifies when it is done.
                self.lines.changed.changed_since(count).await;
            }
        }
    }

    /// Writes the first record of this opening, an empty one, and notes its sequence in the
    /// superblock: a log without it has lost its records.
    pub(crate) async fn begin(&self) -> Result<(), Error> {
        drop(self.append(&[]).await?);
        let superblock = &mut self.stored.lock().await.superblock;
        superblock.payload.log_end = self.log.durable_end().into();
        superblock.write(&self.device).await
    }
}

#[cfg(test)]
mod tests {
    use base::executor::Executor;

    use super::*;
    use crate::crash_mode::CrashMode;
    use crate::format::Line;
    use crate::journal::tests::{found, made};
    use crate::lines::tests::put;
    use crate::numbers::BlockNumber;
    use crate::sectors::Sectors;

    #[test]
    fn a_state_that_is_committed_is_true_in_memory_and_on_the_device() {
        let mut executor = Executor::in_order();
        let (device, journal) = made(&mut executor, CrashMode::DirtySynchronous);
        let frame = put(&journal.lines, 7, 0xff, 0x0f);
        let line = journal.lines.state().frames.line(frame);
        let after = Line { dirty: Sectors::from_bytes(&[0x01]), ..line };
        let committing = journal.clone();
        let recovered = executor.block_on(async move {
            drop(committing.append(&[LogEntry::state(frame, None, line)]).await.expect("nothing fails"));
            committing.lines.state().frames.set_busy(frame, true);
            committing.commit_states(&[LogEntry::state(frame, None, after)]).await.expect("nothing fails");
            found(&device).await.1
        });
        let state = journal.lines.state();
        assert!(state.frames.line(frame).dirty == after.dirty && !state.frames.is_busy(frame));
        assert_eq!(
            recovered.frames.find(BlockNumber(7)).map(|(frame, line)| (frame, line.dirty)),
            Some((frame, after.dirty))
        );
    }

    #[test]
    fn a_journal_that_has_failed_takes_no_record_and_nothing_clean_counts() {
        let mut executor = Executor::in_order();
        let (_device, journal) = made(&mut executor, CrashMode::DirtySynchronous);
        let frame = put(&journal.lines, 7, 0xff, 0x0f);
        journal.fail(&Error::new(ErrorKind::Media, "it is gone"));
        let appending = journal.clone();
        let appended = executor.block_on(async move { appending.append(&[]).await.map(drop) });
        assert!(appended.unwrap_err().to_string().contains("it is gone"));
        let line = journal.lines.state().frames.line(frame);
        assert_eq!(line.valid, line.dirty);
    }
}
