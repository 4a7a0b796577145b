//! Placing: deferred data is written to its frames. See [`deferred`](crate::deferred).
//!
//! ```text
//!   all that is deferred now ─► written to its frames, neighbours as one ─► one flush ─► forgotten, and its records let go of
//! ```
//! - One placing at a time, so that what is older never lands over what is newer; and none beside the flushes of a
//!   checkpoint.
//! - Nothing is lost when it fails: the data is in the log, and here until the program ends. The cache device counts as
//!   failed then.
//! - It is due when half of its memory is in use, when a task waits for it, and before each
//!   checkpoint, which releases log records.

use std::ops::Range;
use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::Error;
use block::device::DeviceExt;
use futures_util::stream::{self, StreamExt};

use crate::deferred::Placing;
use crate::journal::Journal;
use crate::limits::{PLACED_BYTES_MAX, PLACES_IN_FLIGHT};
use crate::numbers::FrameNumber;

impl Journal {
    /// Places in the background when it is due. Ends when the cache closes.
    pub(crate) async fn place_in_background(self: Arc<Self>) {
        loop {
            let count = self.lines.background.count();
            if self.life.is_stopped() {
                return;
            }
            let is_due = {
                let state = self.lines.state();
                state.deferred.is_due() && state.failure.is_none()
            };
            if !is_due || self.place().await.is_err() {
                self.lines.background.changed_since(count).await;
            }
        }
    }

    /// Places all that is deferred in `range`. The caller keeps others from deferring more there.
    /// When the cache device has failed the data stays deferred.
    pub(crate) async fn place_range(&self, range: ByteRange) {
        let blocks = self.lines.line_size().blocks_of(range);
        while self.lines.state().deferred.has_any_of(&blocks) {
            if self.place().await.is_err() {
                return;
            }
        }
    }

    /// Places all that is deferred when it begins, durably.
    ///
    /// # Errors
    /// The device's own, which has failed then.
    pub(crate) async fn place(&self) -> Result<(), Error> {
        let _turn = self.placing.lock().await;
        let placing = {
            let state = &mut *self.lines.state();
            if state.deferred.line_count() == 0 {
                return Ok(());
            }
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            state.deferred.begin_placing()
        };
        if self.life.has_ended() {
            return Err(self.life.closed());
        }
        if let Err(error) = self.write_deferred(&placing).await {
            self.fail(&error);
            return Err(error);
        }
        let placed = self.lines.state().deferred.finish_placing(&placing);
        // Before the wake-up: a task that waits for room in the log looks which records are still
        // needed.
        drop(placed);
        self.lines.changed.notify();
        Ok(())
    }

    /// Writes what is deferred to its frames, and flushes.
    async fn write_deferred(&self, placing: &Placing) -> Result<(), Error> {
        let runs = neighbours(&placing.frames, (PLACED_BYTES_MAX / self.lines.line_size().bytes()).max(1) as usize);
        let writes = stream::iter(runs).map(|run| self.write_frames(&placing.frames[run]));
        let results: Vec<Result<(), Error>> = writes.buffer_unordered(PLACES_IN_FLIGHT).collect().await;
        results.into_iter().collect::<Result<Vec<()>, Error>>()?;
        self.device.flush().await
    }

    /// Writes the deferred data of consecutive frames.
    async fn write_frames(&self, frames: &[FrameNumber]) -> Result<(), Error> {
        for (offset, buffer) in self.deferred_bytes(frames) {
            self.device.write(offset, buffer, false).await?;
        }
        Ok(())
    }

    /// The deferred data of consecutive frames as few writes: offsets on the device, and bytes.
    fn deferred_bytes(&self, frames: &[FrameNumber]) -> Vec<(u64, Buffer)> {
        let state = self.lines.state();
        let line_bytes = self.lines.line_size().bytes();
        let Some(&first) = frames.first() else { return Vec::new() };
        let mut bytes = Buffer::zeroed(frames.len() * line_bytes as usize);
        let mut parts: Vec<Range<usize>> = Vec::new();
        for &frame in frames {
            let start = (frame - first) as usize * line_bytes as usize;
            let all = self.lines.line_size().all_sectors();
            state.deferred.visit(frame, all, |run, data| {
                bytes[start + run.bytes().start..start + run.bytes().end].copy_from_slice(data);
            });
            for run in state.deferred.sectors(frame).runs().map(|run| run.bytes()) {
                let run = start + run.start..start + run.end;
                match parts.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => parts.push(run),
                }
            }
        }
        let offset = self.lines.layout.frame_offset(first);
        match &parts[..] {
            [all] if all.len() == bytes.len() => vec![(offset, bytes)],
            _ => parts.into_iter().map(|part| (offset + part.start as u64, Buffer::copy_of(&bytes[part]))).collect(),
        }
    }
}

/// Splits ascending `frames` into runs of at most `count_max` consecutive ones, as ranges of
/// indices.
fn neighbours(frames: &[FrameNumber], count_max: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, &frame) in frames.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.len() < count_max && frames[run.end - 1].next() == frame => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}
