//! Changes of the origin that supersede the cache's content of the same sectors: the order of
//! steps, and what is forgotten.

use std::future::Future;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::{Error, Response};

use crate::core::Core;
use crate::format::{Line, LogEntry};

impl Core {
    /// Writes to the origin; no sector of the range is dirty any more when this returns. The caller
    /// holds the range and has prepared it with
    /// [`Journal::prepare_supersede`](crate::journal::Journal::prepare_supersede).
    pub(crate) async fn write_origin(&self, range: ByteRange, buffer: Buffer, fua: bool) -> Response {
        let is_mapped_at_once = self.crash_mode.maps_at_once();
        let fua = fua || is_mapped_at_once || self.lines.has_dirty(range);
        let order = self.origin.order.exclusive(self.line_size().whole_lines(range)).await;
        if let Err(error) = self.journal.unmap_cleaned(range).await {
            return Response::failed(error, buffer);
        }
        let failures = self.origin.flushes.failures.count();
        let mut response = self.origin.write(range, buffer, fua).await;
        self.origin.note_change(&response.result, fua, failures);
        match &response.result {
            Ok(()) => response.result = self.forget_superseded(range).await,
            Err(_) => self.distrust(range),
        }
        // Released only now: a line that is still dirty would be picked for cleaning and sent over
        // the newer data.
        drop(order);
        self.lines.changed.notify();
        response
    }

    /// Records durably that no sector of `range` is dirty, and drops them all. The origin has newer
    /// data there, durably.
    pub(crate) async fn forget_superseded(&self, range: ByteRange) -> Result<(), Error> {
        let entries_max = self.journal.entries_max();
        loop {
            let count = self.lines.changed.count();
            match self.plan_forget(range, entries_max) {
                Forget::Done => return Ok(()),
                Forget::Wait => self.lines.changed.changed_since(count).await,
                Forget::Record(entries) => self.journal.commit_states(&entries).await?,
            }
        }
    }

    /// A change of the origin failed, and may have landed all the same. Nothing that is here of the
    /// range counts as the origin's any more: what is clean is forgotten, and what a batch under way
    /// has sent stays dirty.
    fn distrust(&self, range: ByteRange) {
        let state = &mut *self.lines.state();
        for block in state.frames.resident_in(self.line_size().blocks_of(range)) {
            let (part, _) = self.line_size().part_of(block, range);
            state.supersede_cleaning(block, part);
        }
        state.forget_clean(range);
    }

    fn plan_forget(&self, range: ByteRange, entries_max: usize) -> Forget {
        let state = &mut *self.lines.state();
        let mut entries = Vec::new();
        let mut must_wait = false;
        for block in state.frames.resident_in(self.line_size().blocks_of(range)) {
            let Some((frame, line)) = state.frames.find(block) else { continue };
            let (part, _) = self.line_size().part_of(block, range);
            state.supersede_cleaning(block, part);
            let after = Line { valid: line.valid & !part, dirty: line.dirty & !part, ..line };
            if state.frames.is_busy(frame) {
                must_wait = true;
            } else if line.dirty == after.dirty {
                state.frames.set_sectors(frame, after.valid, after.dirty);
            } else if entries.len() < entries_max {
                state.frames.set_busy(frame, true);
                entries.push(LogEntry::state(frame, None, after));
            }
        }
        match (entries.is_empty(), must_wait) {
            (false, _) => Forget::Record(entries),
            (true, true) => Forget::Wait,
            (true, false) => Forget::Done,
        }
    }

    /// Carries out a change of the origin in its write order, and forgets what it replaced.
    pub(crate) async fn replace_on_origin(
        &self,
        range: ByteRange,
        change: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let order = self.origin.order.exclusive(self.line_size().whole_lines(range)).await;
        let mut result = self.journal.unmap_cleaned(range).await;
        if result.is_ok() {
            result = change.await;
            match &result {
                Ok(()) => result = self.forget_superseded(range).await,
                Err(_) => self.distrust(range),
            }
        }
        // Released only now: a line that is still dirty would be picked for cleaning and sent over
        // the newer data.
        drop(order);
        self.lines.changed.notify();
        result
    }
}

/// The next step of forgetting.
enum Forget {
    Done,
    /// A record about one of the lines is on its way.
    Wait,
    Record(Vec<LogEntry>),
}
