//! Checkpoints: the table takes over what the log holds, so that the log's space can be used again.
//!
//! ```text
//!   0. place what is deferred, so that its records are needed no more
//!   1. note how far the log is still needed (the oldest append whose effect is not in memory yet, or whose data is not in its frame)
//!   2. write the changed table pages to their older slots ─► 3. flush ─► 4. superblock with the new tail, both copies ─► 5. release
//! ```
//! Step 1 comes before step 2, so everything before the noted position is in the pages. Requests go on meanwhile. A
//! power loss before step 4 leaves the old tail and the whole log behind it.
//!
//! While the cache runs only pages with changes to *dirty* lines are written. When it closes all changed pages are, and
//! the superblock says so. Where clean lines count after a crash, others are written as well, some at a time and
//! without hurry, and before any page is written the origin is flushed and the data on the cache device, so that what a
//! page says is true whenever it lands.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use block::Error;
use block::device::DeviceExt;
use futures_util::stream::{self, StreamExt};

use crate::crash_mode::CrashMode;
use crate::format::{PAGE_BYTES, STATE_CLOSED, STATE_IN_USE, emit_page};
use crate::journal::{Journal, Stored};
use crate::limits::{LAZY_PAGES, PAGES_PER_BATCH, TABLE_WRITES_IN_FLIGHT};
use crate::numbers::{PageNumber, TableSequence};
use crate::table::Table;

/// Which pages a checkpoint writes, and what the superblock says after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Changes of dirty lines, and mappings that must not count any more; the cache stays in use.
    Dirty,
    /// The same, and some of the other pages that changed.
    Lazy,
    /// All changed pages; the cache is closed, and the next open can trust its content.
    Complete,
}

impl Journal {
    /// Runs checkpoints in the background while the log is more than half full. Ends when the cache closes.
    pub(crate) async fn checkpoint_in_background(self: Arc<Self>) {
        loop {
            let count = self.lines.background.count();
            if self.life.is_stopped() {
                return;
            }
            let used_bytes = self.log.usage().used_bytes;
            let is_needed = self.is_log_half_full() && self.log.failure().is_none();
            let has_helped =
                is_needed && self.checkpoint(Extent::Dirty).await.is_ok() && self.log.usage().used_bytes < used_bytes;
            if !has_helped {
                self.lines.background.changed_since(count).await;
            }
        }
    }

    /// Writes the changed table pages that `extent` names, and releases the log before them.
    pub(crate) async fn checkpoint(&self, extent: Extent) -> Result<(), Error> {
        let mut stored = self.stored.lock().await;
        let Stored { superblock, table } = &mut *stored;
        if self.life.has_ended() {
            return Ok(());
        }
        // A checkpoint that began in the background while the cache is being closed has to be a
        // complete one, too.
        let extent = if self.life.is_stopped() { Extent::Complete } else { extent };
        self.place().await?;
        // A flush here that fails may drop data on its way to frames, which a concurrent placing
        // would take for durable.
        let _turn = self.placing.lock().await;
        let position = self.log.position_needed();
        let (pages, sequence, dirty_lines, clean_at) = {
            let state = &mut *self.lines.state();
            state.note_clean();
            let sequence = table.sequence_next;
            table.sequence_next = sequence.next();
            let pages = match extent {
                Extent::Dirty => state.frames.take_pages(false),
                Extent::Lazy => state.frames.take_pages_lazily(LAZY_PAGES),
                Extent::Complete => state.frames.take_pages(true),
            };
            (pages, sequence, state.frames.counts().dirty_lines, state.clean_at)
        };
        let mut result = self.write_pages(table, &pages, sequence).await;
        if result.is_ok() {
            let is_closed = extent == Extent::Complete;
            table.note_written(&pages, sequence);
            let digest = if is_closed { table.digest() } else { 0 };
            let payload = &mut superblock.payload;
            payload.table_digest = digest.into();
            payload.log_position = position.into();
            payload.log_end = self.log.durable_end().into();
            payload.table_sequence = sequence.into();
            payload.dirty_lines = dirty_lines.into();
            payload.clean_at = clean_at.into();
            payload.state = if is_closed { STATE_CLOSED } else { STATE_IN_USE };
            superblock.set_token(self.tokens, is_closed);
            result = superblock.write(&self.device).await;
        }
        if let Err(error) = &result {
            self.lines.state().frames.put_pages_back(&pages);
            self.fail(error);
            return result;
        }
        let used_bytes = self.log.usage().used_bytes;
        self.log.release_until(position);
        self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.counts.table_pages_written.fetch_add(pages.len() as u64, Ordering::Relaxed);
        // Only when room was made: otherwise a checkpoint would wake the request that asked for it,
        // which would ask again at once.
        if self.log.usage().used_bytes < used_bytes {
            self.lines.changed.notify();
        }
        Ok(())
    }

    /// Writes table pages as they are now to their older slots, durably.
    async fn write_pages(&self, table: &Table, pages: &[PageNumber], sequence: TableSequence) -> Result<(), Error> {
        for batch in pages.chunks(PAGES_PER_BATCH) {
            let images = self.page_images(table, batch, sequence);
            if self.crash_mode.keeps_clean() {
                // The data of the frames has to be durable before a page that maps it.
                self.device.flush().await?;
            }
            let writes = stream::iter(images).map(|(offset, buffer)| self.device.write(offset, buffer, false));
            let results: Vec<Result<Buffer, Error>> = writes.buffer_unordered(TABLE_WRITES_IN_FLIGHT).collect().await;
            results.into_iter().collect::<Result<Vec<_>, Error>>()?;
        }
        if pages.is_empty() { Ok(()) } else { self.device.flush().await }
    }

    /// The page images to write, with their offsets.
    fn page_images(&self, table: &Table, pages: &[PageNumber], sequence: TableSequence) -> Vec<(u64, Buffer)> {
        let image = |&page: &PageNumber| {
            let mut buffer = Buffer::zeroed(PAGE_BYTES);
            let lines = self.lines.state().frames.page_to_store(page);
            emit_page(&mut buffer, self.lines.line_size(), self.uuid(), page, sequence, lines.into_iter());
            (table.older_slot_offset(&self.lines.layout, page), buffer)
        };
        pages.iter().map(image).collect()
    }

    /// Makes clean lines void after a crash, by the superblock: the log, which failed, can no
    /// longer unmap them one by one.
    ///
    /// # Errors
    /// The device's own: the mappings on it then still count after a crash.
    pub(crate) async fn void_mappings(&self) -> Result<(), Error> {
        let mut stored = self.stored.lock().await;
        let superblock = &mut stored.superblock;
        if !self.lines.state().frames.mappings.is_kept || self.life.has_ended() {
            return Ok(());
        }
        superblock.payload.crash_mode = CrashMode::DirtySynchronous as u8;
        superblock.write(&self.device).await?;
        self.lines.state().frames.void_mappings();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::executor::Executor;

    use super::*;
    use crate::format::LogEntry;
    use crate::journal::tests::{found, made};
    use crate::lines::tests::put;
    use crate::numbers::BlockNumber;

    #[test]
    fn what_the_table_has_taken_over_is_found_without_the_log() {
        let mut executor = Executor::in_order();
        let (device, journal) = made(&mut executor, CrashMode::DirtySynchronous);
        let frame = put(&journal.lines, 7, 0xff, 0x0f);
        let line = journal.lines.state().frames.line(frame);
        let (used, recovered) = executor.block_on(async move {
            let mut used = Vec::new();
            drop(journal.append(&[LogEntry::state(frame, None, line)]).await.expect("nothing fails"));
            used.push(journal.status().log.used_bytes);
            journal.checkpoint(Extent::Dirty).await.expect("nothing fails");
            used.push(journal.status().log.used_bytes);
            (used, found(&device).await.1)
        });
        assert!(used[1] < used[0], "{used:?}: its room is free");
        assert_eq!((recovered.report.log_records, recovered.report.dirty_lines), (0, 1));
        let found = recovered.frames.find(BlockNumber(7)).map(|(frame, line)| (frame, line.dirty));
        assert_eq!(found, Some((frame, line.dirty)), "what is clean was not kept");
    }

    #[test]
    fn nothing_is_written_behind_the_end() {
        let mut executor = Executor::in_order();
        let (device, journal) = made(&mut executor, CrashMode::DirtySynchronous);
        put(&journal.lines, 7, 0xff, 0x0f);
        let recovered = executor.block_on(async move {
            journal.life.end();
            journal.checkpoint(Extent::Dirty).await.expect("nothing is done");
            found(&device).await.1
        });
        assert_eq!(recovered.report.dirty_lines, 0);
    }
}
