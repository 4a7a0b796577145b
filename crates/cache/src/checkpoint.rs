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
//! superblock says so. Where clean lines count after a crash, others are written as well, some at a time and without hurry, and before
//! any page is written the origin is flushed and the data on the cache device, so that what a page says is true whenever it lands.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use block::Error;
use block::device::DeviceExt;
use futures_util::stream::{self, StreamExt};
use store::{Append, AppendRefused};

use crate::core::Core;
use crate::crash_mode::CrashMode;
use crate::format::{PAGE_BYTES, STATE_CLOSED, STATE_IN_USE, emit_page};
use crate::limits::{LAZY_PAGES, PAGES_PER_BATCH, TABLE_WRITES_IN_FLIGHT};

/// Which pages a checkpoint writes, and what the superblock says after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// Dirty lines, and what the device must not say any more; the cache stays in use.
    Dirty,
    /// These, and some of the other pages that changed.
    Lazy,
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

    /// Gives the log of this opening its first record, which says nothing, and notes that it is there: a log without it has lost what it had.
    pub(crate) async fn begin_log(&self) -> Result<(), Error> {
        drop(self.append_entries(&[]).await?);
        let mut superblock = self.superblock.lock().await;
        superblock.payload.log_end = self.log.durable_end().into();
        superblock.write(&self.cache_device).await
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

    /// Stores clean lines without hurry, where they count after a crash. Ends when the cache closes.
    pub(crate) async fn store_lazily(self: Arc<Self>) {
        loop {
            let count = self.background.count();
            if self.is_stopped.load(Ordering::Acquire) {
                return;
            }
            self.is_lazy_idle.store(true, Ordering::Release);
            let is_needed = {
                let state = self.state();
                state.failure.is_none() && state.frames.mappings.is_kept && state.frames.has_changed_pages()
            };
            if !is_needed {
                self.background.changed_since(count).await;
                continue;
            }
            self.is_lazy_idle.store(false, Ordering::Release);
            self.clock.sleep(self.lazy_interval).await;
            if self.is_stopped.load(Ordering::Acquire) {
                return;
            }
            let is_flushed = self.settle_origin().await;
            if self.checkpoint(Extent::Lazy).await.is_err() || !is_flushed {
                // The pages wait for an origin that takes a flush; it is asked again when there is more to store.
                self.is_lazy_idle.store(true, Ordering::Release);
                self.background.changed_since(count).await;
            }
        }
    }

    /// Says that there may be something to store without hurry.
    pub(crate) fn wake_lazy(&self) {
        if self.is_lazy_idle.swap(false, Ordering::AcqRel) {
            self.background.notify();
        }
    }

    fn is_log_half_full(&self) -> bool {
        let usage = self.log.usage();
        usage.used_bytes * 2 > usage.region_bytes
    }

    /// See the module.
    pub(crate) async fn checkpoint(&self, extent: Extent) -> Result<(), Error> {
        let mut superblock = self.superblock.lock().await;
        if self.has_ended.load(Ordering::Acquire) {
            return Ok(());
        }
        // One that began in the background says of a cache that is being closed no less than who closes it.
        let extent = if self.is_stopped.load(Ordering::Acquire) { Extent::Complete } else { extent };
        let position = self.log.position_needed();
        let (pages, sequence, dirty_lines, clean_at) = {
            let state = &mut *self.state();
            self.note_clean(state);
            let sequence = state.table.sequence_next;
            state.table.sequence_next += 1;
            let pages = match extent {
                Extent::Dirty => state.frames.take_pages(false),
                Extent::Lazy => state.frames.take_pages_lazily(LAZY_PAGES),
                Extent::Complete => state.frames.take_pages(true),
            };
            (pages, sequence, state.frames.counts().dirty_lines, state.clean_at)
        };
        let mut result = self.write_pages(&pages, sequence).await;
        if result.is_ok() {
            let is_closed = extent == Extent::Complete;
            let digest = {
                let table = &mut self.state().table;
                table.note_written(&pages, sequence);
                if is_closed { table.digest() } else { 0 }
            };
            let payload = &mut superblock.payload;
            payload.table_digest = digest.into();
            payload.log_position = position.into();
            payload.log_end = self.log.durable_end().into();
            payload.table_sequence = sequence.into();
            payload.dirty_lines = dirty_lines.into();
            payload.clean_at = clean_at.into();
            payload.state = if is_closed { STATE_CLOSED } else { STATE_IN_USE };
            superblock.set_token(self.tokens, is_closed);
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
        for batch in pages.chunks(PAGES_PER_BATCH) {
            let images = self.page_images(batch, sequence);
            if self.crash_mode.keeps_clean() {
                // A page that lands says what its frames hold: that comes first.
                self.cache_device.flush().await?;
            }
            let writes = stream::iter(images).map(|(offset, buffer)| self.cache_device.write(offset, buffer, false));
            let results: Vec<Result<Buffer, Error>> = writes.buffer_unordered(TABLE_WRITES_IN_FLIGHT).collect().await;
            results.into_iter().collect::<Result<Vec<_>, Error>>()?;
        }
        if pages.is_empty() { Ok(()) } else { self.cache_device.flush().await }
    }

    /// What to write, and where.
    fn page_images(&self, pages: &[u64], sequence: u64) -> Vec<(u64, Buffer)> {
        let image = |&page: &u64| {
            let mut buffer = Buffer::zeroed(PAGE_BYTES);
            let state = &mut *self.state();
            let lines = state.frames.page_to_store(page);
            emit_page(&mut buffer, self.line_size(), self.uuid, page, sequence, lines.into_iter());
            (state.table.older_slot_offset(&self.layout, page), buffer)
        };
        pages.iter().map(image).collect()
    }

    /// Lets clean lines be stored that the origin could still lose. What it does not flush now is stored another time.
    /// Whether it could.
    async fn settle_origin(self: &Arc<Self>) -> bool {
        let has_unflushed = self.state().frames.mappings.has_unflushed();
        if has_unflushed && let Err(error) = self.flush_origin().await {
            tracing::debug!(%error, "the origin does not flush; what it has not flushed is not kept over a crash");
            return false;
        }
        true
    }

    /// Clean lines do not count after a crash from now on: the log cannot take back any more what the device says about them.
    ///
    /// # Errors
    /// The device's own: what it says stays what a crash brings back.
    pub(crate) async fn void_mappings(&self) -> Result<(), Error> {
        let mut superblock = self.superblock.lock().await;
        if !self.state().frames.mappings.is_kept || self.has_ended.load(Ordering::Acquire) {
            return Ok(());
        }
        superblock.payload.crash_mode = CrashMode::DirtySynchronous as u8;
        superblock.write(&self.cache_device).await?;
        self.state().frames.void_mappings();
        Ok(())
    }
}
