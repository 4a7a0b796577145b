//! Checkpoints: the table takes over what the log holds, so that the log's space can be used again.
//!
//! ```text
//!   1. note how far the log is still needed (the oldest append whose effect is not in memory yet)
//!   2. write the changed table pages to their older slots ─► 3. flush ─► 4. superblock with the new tail, both copies ─► 5. release
//! ```
//! Step 1 comes before step 2, so everything before the noted position is in the pages. Requests go on meanwhile. A power loss before step 4 leaves the
//! old tail and the whole log behind it.
//!
//! While the cache runs only pages with changes to *dirty* lines are written. When it closes all changed pages are, and the
//! superblock says so.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use block::Error;
use block::device::DeviceExt;
use futures_util::stream::{self, StreamExt};
use store::{Append, AppendRefused};

use crate::core::Core;
use crate::format::{PAGE_BYTES, STATE_CLOSED, STATE_IN_USE, emit_page};
use crate::limits::TABLE_WRITES_IN_FLIGHT;

/// Which pages a checkpoint writes, and what the superblock says after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Dirty lines; the cache stays in use.
    Dirty,
    /// Everything; the cache is closed, and what is in it can be trusted at the next open.
    Complete,
}

impl Core {
    /// Appends to the log. When it is full, makes room first; when it is half full, sees to it in the background.
    pub(crate) async fn append_with_room(&self, payload: &[u8]) -> Result<Append, Error> {
        loop {
            let count = self.changed.count();
            match self.log.try_append(payload) {
                Ok(append) => {
                    if self.is_log_half_full() {
                        self.background.notify();
                    }
                    return Ok(append);
                }
                Err(AppendRefused::Failed(error)) => return Err(error),
                Err(AppendRefused::TooLarge) => unreachable!("groups are bounded by what one record holds"),
                Err(AppendRefused::Full) => {}
            }
            self.counters.log_full.fetch_add(1, Ordering::Relaxed);
            let used = self.log.usage().used_bytes;
            self.checkpoint(Extent::Dirty).await?;
            if self.log.usage().used_bytes >= used {
                // The oldest record is still being acted on; whoever does so says when it is done.
                self.changed.changed_since(count).await;
            }
        }
    }

    /// Runs checkpoints in the background while the log is more than half full. Ends when the cache closes.
    pub(crate) async fn checkpoint_in_background(self: Arc<Self>) {
        loop {
            let count = self.background.count();
            if self.is_stopped.load(Ordering::Acquire) {
                return;
            }
            let used_bytes = self.log.usage().used_bytes;
            let is_needed = self.is_log_half_full() && self.log.failure().is_none();
            let has_helped =
                is_needed && self.checkpoint(Extent::Dirty).await.is_ok() && self.log.usage().used_bytes < used_bytes;
            if !has_helped {
                self.background.changed_since(count).await;
            }
        }
    }

    fn is_log_half_full(&self) -> bool {
        let usage = self.log.usage();
        usage.used_bytes * 2 > usage.region_bytes
    }

    /// See the module.
    pub(crate) async fn checkpoint(&self, extent: Extent) -> Result<(), Error> {
        let mut superblock = self.superblock.lock().await;
        let is_closed = superblock.payload.state == STATE_CLOSED && self.is_stopped.load(Ordering::Acquire);
        if is_closed {
            return Ok(());
        }
        let position = self.log.position_needed();
        let (pages, sequence, dirty_lines) = {
            let state = &mut *self.state();
            let sequence = state.table.sequence_next;
            state.table.sequence_next += 1;
            let pages = state.frames.take_pages(extent == Extent::Complete);
            (pages, sequence, state.frames.counts().dirty_lines)
        };
        let mut result = self.write_pages(&pages, sequence).await;
        if result.is_ok() {
            self.state().table.flip(&pages);
            let payload = &mut superblock.payload;
            payload.log_position = position.into();
            payload.table_sequence = sequence.into();
            payload.dirty_lines = dirty_lines.into();
            payload.state = if extent == Extent::Complete { STATE_CLOSED } else { STATE_IN_USE };
            result = superblock.write(&self.cache_device).await;
        }
        if let Err(error) = &result {
            self.state().frames.put_pages_back(&pages);
            self.fail(error);
            return result;
        }
        let used_bytes = self.log.usage().used_bytes;
        self.log.release_until(position);
        self.counters.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.counters.table_pages_written.fetch_add(pages.len() as u64, Ordering::Relaxed);
        // Only for room that was made: a checkpoint without it must not wake who asked for it, or that one never waits.
        if self.log.usage().used_bytes < used_bytes {
            self.changed.notify();
        }
        Ok(())
    }

    /// Writes table pages as they are now to their older slots, durably.
    async fn write_pages(&self, pages: &[u64], sequence: u64) -> Result<(), Error> {
        if pages.is_empty() {
            return Ok(());
        }
        let uuid = self.uuid;
        let writes = stream::iter(pages.iter().copied()).map(|page| {
            let mut buffer = Buffer::zeroed(PAGE_BYTES);
            let offset = {
                let state = self.state();
                emit_page(&mut buffer, uuid, page, sequence, state.frames.page(page));
                state.table.older_slot_offset(&self.layout, page)
            };
            self.cache_device.write(offset, buffer, false)
        });
        let results: Vec<Result<Buffer, Error>> = writes.buffer_unordered(TABLE_WRITES_IN_FLIGHT).collect().await;
        results.into_iter().collect::<Result<Vec<_>, Error>>()?;
        self.cache_device.flush().await
    }
}
