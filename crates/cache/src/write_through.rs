//! Writes acknowledged by the origin.
//!
//! The write goes to the origin and, at the same time, a copy of it to the cache device; the acknowledgement waits for the origin alone
//! (paper 2.5). The written sectors are invalid in the cache until both are done, and the range lock is kept until then, so nobody
//! reads a copy that the origin does not have.
//!
//! Dirty sectors from a time of write-back that are written again: the origin gets the new data durably, then a log record says that
//! they are not dirty any more, then the write is acknowledged. The other order would, after a crash in between, show what the
//! origin had before the dirty data.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::range_lock::RangeGuard;
use block::{Error, ErrorKind, Request, Response};
use futures_util::future::{Either, select};

use crate::core::Core;
use crate::crash_mode::CrashMode;
use crate::format::{FRAME_NONE, Line, LogEntry};
use crate::read::{Insertion, Wanted};
use crate::status::{RequestKind, Serving};
use crate::write_back::supersede_cleaning;

/// What the cache does with what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// It takes it in, where the lines have frames.
    Keep,
    /// It forgets what it had.
    Drop,
}

pub(crate) async fn write(
    core: Arc<Core>,
    range: ByteRange,
    buffer: Buffer,
    fua: bool,
    copy: Copy,
    guard: RangeGuard,
) -> Response {
    let losses = core.origin_losses.load(Ordering::Acquire);
    if let Err(error) = core.prepare_supersede(range).await {
        return Response::failed(error, buffer);
    }
    let insertion = match copy {
        Copy::Keep => core.plan_insertion(range, &buffer, Wanted::All),
        Copy::Drop => {
            core.release_empty(range);
            Some(Insertion::nothing(&core))
        }
    };
    if insertion.is_none() {
        core.counters.insertions_dropped.fetch_add(1, Ordering::Relaxed);
    }
    let Insertion { parts, writes, pins } = insertion.unwrap_or_else(|| Insertion::nothing(&core));
    let cached = {
        let core = Arc::clone(&core);
        Box::pin(async move {
            let is_cached = core.write_clean(&parts, &pins, writes).await;
            (is_cached, parts, pins)
        })
    };
    let written = Box::pin(core.write_origin(range, buffer, fua));
    let response = match select(written, cached).await {
        Either::Left((response, cached)) => {
            let (core, is_written) = (Arc::clone(&core), response.result.is_ok());
            core.clone().start(async move {
                let (is_cached, parts, pins) = cached.await;
                if is_cached && is_written {
                    core.admit(&parts, losses).await;
                }
                drop((pins, guard));
            });
            response
        }
        Either::Right(((is_cached, parts, pins), written)) => {
            let response = written.await;
            let (core, is_written) = (Arc::clone(&core), response.result.is_ok());
            core.clone().start(async move {
                if is_cached && is_written {
                    core.admit(&parts, losses).await;
                }
                drop((pins, guard));
            });
            response
        }
    };
    core.counters.of(RequestKind::Write).served(Serving::Miss);
    response
}

impl Core {
    /// Makes the sectors of `range` invalid in the cache, but for dirty ones, because the origin is about to get others. After a crash they are
    /// invalid as well. The caller keeps others out of the range.
    ///
    /// # Errors
    /// `Media` when the cache device failed and the cache may come back after a restart with what is about to be replaced.
    pub(crate) async fn prepare_supersede(&self, range: ByteRange) -> Result<(), Error> {
        self.invalidate(range)?;
        self.unmap(range).await
    }

    fn invalidate(&self, range: ByteRange) -> Result<(), Error> {
        let state = &mut *self.state();
        if state.failure.is_some() {
            let is_dirty = |block: u64| {
                let (part, _) = self.line_size().part_of(block, range);
                state.frames.find(block).is_some_and(|(_, line)| !(line.dirty & part).is_empty())
            };
            // The range may be all that there could ever be: it is not gone through.
            let blocks = self.line_size().blocks_of(range);
            let is_uncertain = state.uncertain.range(blocks.clone()).next().is_some();
            if is_uncertain || state.frames.resident_in(blocks).into_iter().any(is_dirty) {
                let context = format!("{range} are dirty in a cache whose device failed; they cannot be replaced");
                return Err(Error::new(ErrorKind::Media, context));
            }
        }
        for block in state.frames.resident_in(self.line_size().blocks_of(range)) {
            if let Some((frame, line)) = state.frames.find(block) {
                let (part, _) = self.line_size().part_of(block, range);
                state.frames.set_sectors(frame, line.valid & (!part | line.dirty), line.dirty);
            }
        }
        Ok(())
    }

    /// Gives the frames back of lines in `range` of which nothing is valid. The caller keeps others out of the range.
    fn release_empty(&self, range: ByteRange) {
        let state = &mut *self.state();
        for block in state.frames.resident_in(self.line_size().blocks_of(range)) {
            if let Some((frame, line)) = state.frames.find(block)
                && line.valid.is_empty()
                && !state.frames.is_busy(frame)
            {
                state.frames.release(frame);
            }
        }
    }

    /// Writes to the origin; dirty sectors of the range are dirty no more when this returns. The caller holds the range and has prepared
    /// it with [`Core::prepare_supersede`].
    pub(crate) async fn write_origin(&self, range: ByteRange, buffer: Buffer, fua: bool) -> Response {
        let is_mapped_at_once = self.crash_mode == CrashMode::AllSynchronous;
        let fua = fua || is_mapped_at_once || self.has_dirty(range);
        let order = self.origin_ranges.exclusive(self.line_size().whole_lines(range)).await;
        if let Err(error) = self.unmap_cleaned(range).await {
            return Response::failed(error, buffer);
        }
        let failures = self.origin_flushes.failures.count();
        let mut response = self.origin.submit(Request::write(range.offset, buffer, fua)).await;
        if response.result.is_ok() {
            if !fua {
                self.note_origin_write(failures);
            }
            response.result = self.forget_superseded(range).await;
        }
        // Not before: a line that is still dirty would be picked for cleaning and sent over the newer data.
        drop(order);
        self.changed.notify();
        response
    }

    /// Whether a sector of `range` is dirty.
    pub(crate) fn has_dirty(&self, range: ByteRange) -> bool {
        let line_size = self.line_size();
        let state = self.state();
        let is_touched = |block: u64| {
            let found = state.frames.find(block);
            found.is_some_and(|(_, line)| !(line.dirty & line_size.part_of(block, range).0).is_empty())
        };
        state.frames.dirty_in(line_size.blocks_of(range)).into_iter().any(is_touched)
    }

    /// Says durably that no sector of `range` is dirty, and that the cache holds none. The origin has newer ones, durably.
    pub(crate) async fn forget_superseded(&self, range: ByteRange) -> Result<(), Error> {
        let entries_max = self.entries_max();
        loop {
            let count = self.changed.count();
            match self.plan_forget(range, entries_max) {
                Forget::Done => return Ok(()),
                Forget::Wait => self.changed.changed_since(count).await,
                Forget::Record(entries) => self.commit_states(&entries).await?,
            }
        }
    }

    fn plan_forget(&self, range: ByteRange, entries_max: usize) -> Forget {
        let state = &mut *self.state();
        let mut entries = Vec::new();
        let mut must_wait = false;
        for block in state.frames.resident_in(self.line_size().blocks_of(range)) {
            let Some((frame, line)) = state.frames.find(block) else { continue };
            let (part, _) = self.line_size().part_of(block, range);
            supersede_cleaning(state, block, part);
            let after = Line { valid: line.valid & !part, dirty: line.dirty & !part, ..line };
            if state.frames.is_busy(frame) {
                must_wait = true;
            } else if line.dirty == after.dirty {
                state.frames.set_sectors(frame, after.valid, after.dirty);
            } else if entries.len() < entries_max {
                state.frames.set_busy(frame, true);
                entries.push(LogEntry::state(frame, FRAME_NONE, after));
            }
        }
        match (entries.is_empty(), must_wait) {
            (false, _) => Forget::Record(entries),
            (true, true) => Forget::Wait,
            (true, false) => Forget::Done,
        }
    }

    /// Makes the states in `entries` durable and then true. Their lines are busy and stay in their frames.
    pub(crate) async fn commit_states(&self, entries: &[LogEntry]) -> Result<(), Error> {
        let result = self.append_entries(entries).await;
        if let Err(error) = &result {
            self.fail(error);
        }
        {
            let state = &mut *self.state();
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
        // Before anybody is woken: who waits for room in the log looks whether this record is still needed.
        let result = result.map(drop);
        self.wake_lazy();
        self.changed.notify();
        result
    }
}

/// What is left to forget.
enum Forget {
    Done,
    /// A record about one of the lines is on its way.
    Wait,
    Record(Vec<LogEntry>),
}
