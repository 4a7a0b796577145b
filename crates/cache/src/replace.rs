//! Replacement of a cache by a successor while requests go on: of another size, or with other sets.
//!
//! ```text
//!   copy      clean lines are copied one by one; the successor forgets what clients write here meanwhile
//!   hand over requests wait; dirty lines are copied, durably; from then on the successor has everything
//! ```
//! - Until the hand-over is finished this cache has everything that counts, unchanged: if anything
//!   fails before, it goes on. A successor that was abandoned is worth nothing.
//! - Between [`HandOver`] and [`HandOver::finish`] the caller makes the successor the cache that
//!   the next start finds: in that moment neither acknowledges a write.
//! - A line is copied under its range lock, shared: a write waits for it, and then makes the successor forget it.
//! - During the hand-over nothing is cleaned here: a dirty line on its way to the origin could
//!   overtake newer data that the successor sends.
//! - Both share the state of flushes of the origin (`origin_flushes`), from when the successor is
//!   opened.
//! - The successor has no write to the origin under way when the hand-over is complete: until it is
//!   finished it cleans only what would not fit otherwise, and waits for that. If the hand-over is
//!   not finished, this cache goes on, and no write of the successor overtakes its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::range_lock::RangeGuard;
use block::{Error, ErrorKind, Request};
use futures_util::stream::{self, StreamExt};

use crate::admission::{Tuning, seen_slots};
use crate::alignment::{inside, outside};
use crate::core::{Core, Since};
use crate::format::Line;
use crate::insertion::Wanted;
use crate::limits::COPIES_IN_FLIGHT;
use crate::line_check::lost;
use crate::mode::Mode;
use crate::numbers::{BlockNumber, FrameNumber};
use crate::options::{DirtyLimits, Percent};
use crate::pins::Pins;
use crate::succession::CopyProgress;

/// A cache whose requests wait, since its successor has everything. If this is dropped, the cache
/// goes on as before.
#[must_use = "the cache stands still as long as this lives"]
pub struct HandOver {
    core: Arc<Core>,
    successor: Arc<Core>,
    is_finished: bool,
    _guard: RangeGuard,
}

impl HandOver {
    /// The successor is the cache that the next start finds: this one ends, and leaves its device
    /// as it is.
    pub fn finish(mut self) {
        self.is_finished = true;
        self.core.life.refuse_requests();
        self.core.life.stop();
        // Requests that still wait here fail: the cache has been replaced.
        self.core.life.end();
        self.core.workers.stop();
        self.successor.cleaner.begin();
    }
}

impl Drop for HandOver {
    fn drop(&mut self) {
        if !self.is_finished {
            self.core.cleaner.set_handing_over(false);
        }
        self.core.lines.wake_all();
    }
}

impl Core {
    /// Copies all clean sectors. From the call on the successor forgets what clients write here.
    pub(crate) async fn copy_to(
        self: &Arc<Self>,
        successor: &Arc<Self>,
        mut progress: impl FnMut(CopyProgress),
    ) -> Result<(), Error> {
        check_successor(self, successor)?;
        self.succession.begin(&successor.journal, successor.origin.padding);
        let lines_total = self.lines.state().frames.counts().resident_lines;
        let mut done = CopyProgress { lines_total, lines_done: 0 };
        for set in self.layout.sets() {
            let blocks = self.lines.state().frames.blocks_of(set);
            let line_count = blocks.len() as u64;
            let copies = stream::iter(blocks).map(|block| self.copy_line(successor, block));
            let copied: Vec<Result<(), Error>> = copies.buffered(COPIES_IN_FLIGHT).collect().await;
            if let Some(error) = copied.into_iter().find_map(Result::err) {
                self.succession.end();
                return Err(error);
            }
            done.lines_done = (done.lines_done + line_count).min(lines_total);
            self.succession.note_progress(done);
            progress(done);
        }
        Ok(())
    }

    /// Copies the clean sectors of one line. When the cache device cannot return them, they are
    /// left out.
    async fn copy_line(self: &Arc<Self>, successor: &Arc<Self>, block: BlockNumber) -> Result<(), Error> {
        let _guard = self.ranges.shared(self.line_size().line_range(block)).await;
        // Before the line is looked at: a later loss may concern its data.
        let since = successor.since();
        // The successor may have counted a loss that this cache has not noted yet.
        self.origin.reports.note_unread_losses();
        let Some((frame, line, _pins)) = self.pinned_line(block) else { return Ok(()) };
        let clean = line.valid & !line.dirty;
        if !self.is_line_intact(block, frame, line.checksum).await {
            return Ok(());
        }
        for run in clean.runs() {
            let offset = self.layout.frame_offset(frame) + run.offset();
            let read = self.cache_device.read(offset, Buffer::zeroed(run.length() as usize)).await;
            let Ok(bytes) = read else { continue };
            if self.lines.has_failed() {
                // The cache device may have dropped clean data: see `Lines::fail`.
                return Ok(());
            }
            let range =
                ByteRange { offset: self.line_size().line_range(block).offset + run.offset(), length: run.length() };
            let range = inside(outside(range, self.origin.padding), successor.origin.padding);
            successor.take_in(range, &bytes, since).await?;
        }
        Ok(())
    }

    fn pinned_line(self: &Arc<Self>, block: BlockNumber) -> Option<(FrameNumber, Line, Pins)> {
        let mut pins = Pins::none(&self.lines);
        let state = &mut *self.lines.state();
        let (frame, line) = state.frames.find(block)?;
        pins.add(&mut state.frames, frame);
        Some((frame, line, pins))
    }

    /// Inserts data that is clean: the origin has it.
    async fn take_in(self: &Arc<Self>, range: ByteRange, bytes: &[u8], since: Since) -> Result<(), Error> {
        if let Some(error) = &self.lines.state().failure {
            return Err(error.clone());
        }
        let evicted_count = self.lines.give_frames(range);
        self.counters.evictions.fetch_add(evicted_count, Ordering::Relaxed);
        let Some(insertion) = self.plan_insertion(range, bytes, Wanted::Missing) else { return Ok(()) };
        if self.write_clean(&insertion.parts, &insertion.pins, insertion.writes).await {
            self.admit(&insertion.parts, since).await;
        }
        Ok(())
    }

    /// Waits for all requests and hands what is dirty to the successor.
    pub(crate) async fn hand_over(self: &Arc<Self>, successor: &Arc<Self>) -> Result<HandOver, Error> {
        let guard = self.exclude_requests().await;
        if self.life.has_ended() {
            return Err(self.life.closed());
        }
        // Sequentially consistent with the count of batches: a batch that begins now either is seen here, or sees this.
        self.cleaner.set_handing_over(true);
        successor.cleaner.hold();
        let hand_over =
            HandOver { core: Arc::clone(self), successor: Arc::clone(successor), is_finished: false, _guard: guard };
        self.cleaner.wait_for_batches().await;
        self.journal.place().await?;
        let is_copied = self.succession.end().is_some_and(|ended| Arc::ptr_eq(&ended, &successor.journal));
        if !is_copied {
            let context =
                "the cache that was to take the place of this one failed meanwhile, or nothing was copied to it";
            return Err(Error::new(ErrorKind::Media, context));
        }
        successor.crash_mode.check_mode(self.lines.mode())?;
        self.hand_lines_over(successor).await?;
        self.hand_settings_over(successor);
        match &successor.lines.state().failure {
            Some(error) => Err(error.clone()),
            None => Ok(hand_over),
        }
    }

    /// Ends an abandoned successor. Returns when it has nothing under way to the origin: no batch
    /// of cleaning, and no write that its own device refused.
    pub(crate) async fn leave(&self) {
        self.life.refuse_requests();
        self.cleaner.set_handing_over(true);
        self.life.stop();
        self.lines.wake_all();
        self.cleaner.wait_for_batches().await;
        let _guard = self.exclude_requests().await;
        self.life.end();
        self.workers.stop();
    }

    /// Moves all dirty lines to the successor, which sends the origin no more than it must for
    /// room.
    async fn hand_lines_over(&self, successor: &Arc<Self>) -> Result<(), Error> {
        let blocks = self.lines.state().frames.dirty_in(BlockNumber::FIRST..BlockNumber::END);
        if blocks.is_empty() {
            return Ok(());
        }
        successor.crash_mode.check_mode(Mode::WriteBack)?;
        {
            let mut state = successor.lines.state();
            state.mode = Mode::WriteBack;
            state.dirty = DirtyLimits { clean_above: Percent::ALL, max: Percent::ALL };
            state.admissions.set(Tuning::default(), 0);
        }
        let moves = stream::iter(blocks).map(|block| self.hand_line_over(successor, block));
        let moved: Vec<Result<(), Error>> = moves.buffer_unordered(COPIES_IN_FLIGHT).collect().await;
        moved.into_iter().collect()
    }

    /// Copies the settings that can change while a cache runs.
    fn hand_settings_over(&self, successor: &Self) {
        let (mode, dirty, clean_at, tuning, replacement, deferred_max) = {
            let state = self.lines.state();
            let (tuning, replacement) = (state.admissions.tuning(), state.frames.replacement());
            (state.mode, state.dirty, state.clean_at, tuning, replacement, state.deferred.write_bytes_max())
        };
        let rate = self.cleaner.pace().rate;
        successor.cleaner.pace().rate = rate;
        let mut state = successor.lines.state();
        (state.mode, state.dirty, state.clean_at) = (mode, dirty, clean_at);
        state.admissions.set(tuning, seen_slots(successor.layout.frame_count()));
        state.frames.set_replacement(replacement);
        state.deferred.set_write_bytes_max(deferred_max);
    }

    /// Writes the dirty sectors of one line to the successor, durably.
    async fn hand_line_over(&self, successor: &Arc<Self>, block: BlockNumber) -> Result<(), Error> {
        let found = self.lines.state().frames.find(block);
        let Some((frame, line)) = found else { return Ok(()) };
        if line.is_lost {
            return Err(lost(self.line_size(), block));
        }
        if !self.is_line_intact(block, frame, line.checksum).await {
            self.note_damage(&[(block, frame)]);
            return Err(lost(self.line_size(), block));
        }
        for run in line.dirty.runs() {
            let offset = self.layout.frame_offset(frame) + run.offset();
            let bytes = self.cache_device.read(offset, Buffer::zeroed(run.length() as usize)).await?;
            let request = Request::write(
                self.line_size().line_range(block).offset + run.offset() - self.origin.padding,
                bytes,
                true,
            );
            successor.submit(request).await.result?;
        }
        Ok(())
    }
}

/// Refuses a successor that is for another origin, or does not share the state of its flushes.
fn check_successor(core: &Core, successor: &Core) -> Result<(), Error> {
    let is_opened_so = Arc::ptr_eq(&core.origin.flushes, &successor.origin.flushes);
    if is_opened_so
        && core.origin.reports.was_same_as(&successor.origin.reports)
        && core.journal.uuid() != successor.journal.uuid()
    {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        "a cache is replaced by another one of the same disk, opened as its successor",
    ))
}
