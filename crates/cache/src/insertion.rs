//! Insertion: clean data gets into frames.
//!
//! ```text
//!   copied ─► what the device says of these frames and blocks is taken back (`unmap`) ─► written to the frames ─► valid, unless the origin lost writes since,
//!   or asked for them back
//! ```
//! The copy is bounded: when the cache device cannot keep up, data is not inserted, and no reader
//! waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use futures_util::future::join_all;

use crate::core::{Core, Since};
use crate::line_checksum::LineChecksum;
use crate::lines::{CleanPart, Lines};
use crate::mappings::Mappings;
use crate::numbers::each_of;
use crate::pins::Pins;

/// Which sectors an insertion takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    /// Those that are not valid.
    Missing,
    /// All but dirty ones: the new bytes are newer than the clean ones in the frame.
    All,
}

/// Clean data on its way to the cache device.
pub(crate) struct Insertion {
    pub(crate) parts: Vec<CleanPart>,
    /// Offsets on the cache device, and what goes there.
    pub(crate) writes: Vec<(u64, Buffer)>,
    pub(crate) pins: Pins,
}

impl Insertion {
    pub(crate) fn nothing(lines: &Arc<Lines>) -> Self {
        Self { parts: Vec::new(), writes: Vec::new(), pins: Pins::none(lines) }
    }
}

impl Core {
    /// Picks the sectors of `range` to write into the frames of their blocks and copies them. `None` when there is no
    /// memory for it now.
    pub(crate) fn plan_insertion(
        self: &Arc<Self>,
        range: ByteRange,
        bytes: &[u8],
        wanted: Wanted,
    ) -> Option<Insertion> {
        let mut insertion = Insertion::nothing(&self.lines);
        let mut writes: Vec<(u64, std::ops::Range<usize>)> = Vec::new();
        let state = &mut *self.lines.state();
        if state.failure.is_some() || !state.mode.caches_reads() {
            return Some(insertion);
        }
        for block in each_of(self.line_size().blocks_of(range)) {
            let Some((frame, line)) = state.frames.find(block) else { continue };
            let (part, at) = self.line_size().part_of(block, range);
            let mask = match wanted {
                Wanted::Missing => part & !line.valid,
                Wanted::All => part & !line.dirty,
            };
            if mask.is_empty() {
                continue;
            }
            insertion.pins.add(&mut state.frames, frame);
            let is_whole = state.frames.has_checksums() && mask == self.line_size().all_sectors();
            let data = bytes.get(at..at + self.line_size().bytes() as usize).filter(|_| is_whole);
            let checksum = data.map_or(LineChecksum::UNKNOWN, LineChecksum::of);
            insertion.parts.push(CleanPart { block, mask, checksum });
            let first = part.hull().map_or(0, |run| run.offset());
            for run in mask.runs() {
                let offset = self.layout.frame_offset(frame) + run.offset();
                let start = at + (run.offset() - first) as usize;
                let end = start + run.length() as usize;
                match writes.last_mut() {
                    Some((last_offset, last)) if *last_offset + last.len() as u64 == offset && last.end == start => {
                        last.end = end;
                    }
                    _ => writes.push((offset, start..end)),
                }
            }
        }
        for (offset, part) in writes {
            let mut buffer = self.insert_pool.try_acquire(part.len())?;
            buffer.copy_from_slice(bytes.get(part)?);
            insertion.writes.push((offset, buffer));
        }
        Some(insertion)
    }

    /// Writes clean data to the cache device. Returns whether it took all of it.
    pub(crate) async fn write_clean(&self, parts: &[CleanPart], pins: &Pins, writes: Vec<(u64, Buffer)>) -> bool {
        // Mappings of these frames and blocks on the device must not count after a crash any more.
        let is_concerned = |mappings: &Mappings| {
            pins.frames().iter().any(|&frame| mappings.is_frame_unmapped(frame))
                || parts.iter().any(|part| mappings.is_unmapped(part.block))
        };
        if self.journal.settle(is_concerned).await.is_err() {
            return false;
        }
        let is_durable = self.crash_mode.maps_at_once();
        let writes = writes.into_iter().map(|(offset, buffer)| self.cache_device.write(offset, buffer, is_durable));
        let results = join_all(writes).await;
        let Some(error) = results.into_iter().find_map(Result::err) else { return true };
        self.refused_writes.note(&error, "clean data stays uncached", self.clock.now());
        self.counters.cache_write_errors.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Marks these clean sectors of the frames valid, unless the origin has lost writes `since` or
    /// has revoked them: what was read or written may be what it lost, or what other hosts changed.
    pub(crate) async fn admit(&self, parts: &[CleanPart], since: Since) {
        let is_safe = || {
            let flushes = &self.origin.flushes;
            let may_lose = flushes.has_unflushed_writes() || flushes.has_lost();
            !may_lose && self.origin.losses.count() == since.losses
        };
        if self.journal.map(parts, is_safe).await {
            self.make_valid(parts, since);
        }
    }

    fn make_valid(&self, parts: &[CleanPart], since: Since) {
        {
            let state = &mut *self.lines.state();
            // A loss is counted first, then lines are forgotten: one that is not seen here finds
            // these lines.
            if self.origin.losses.count() != since.losses || state.failure.is_some() {
                return;
            }
            let has_unflushed = self.origin.has_unflushed_writes();
            let has_lost = self.origin.flushes.has_lost();
            let is_spared = |block| self.revocations.have_spared(self.line_size().line_range(block), since.revocations);
            for &CleanPart { block, mask, checksum } in parts.iter().filter(|part| is_spared(part.block)) {
                if let Some((frame, line)) = state.frames.find(block) {
                    state.frames.set_sectors(frame, line.valid | mask, line.dirty);
                    if checksum.is_known() {
                        state.frames.set_checksum(frame, checksum);
                    }
                    if has_unflushed {
                        state.frames.mappings.set_unflushed(frame);
                    }
                    if has_lost {
                        state.frames.mappings.set_doubtful(frame);
                    }
                }
            }
        }
        self.lines.wake_lazy();
    }
}
