//! Mappings: which clean lines the device has in which frames and would bring back after a crash.
//!
//! ```text
//!            page or record with it written                   block or bytes about to change, or frame wanted
//!   in memory ─────────────────────────────► mapped on the device ─────────────────────────────► unmapped: a record says so
//!      ▲  └ not while the origin could still lose ┘                                          nothing changes until it is durable ┘
//!      └ what made it so                                                                     (then the page, with the next checkpoint)
//! ```
//! - A line is *mapped* when a table page or a record, on the device or on its way there, has a
//!   frame with clean sectors of it. Each frame has one bit for that, which may be set without
//!   need, but never missing.
//! - A mapped line that leaves its frame is *unmapped*, by block, until a record about that is
//!   durable. Until then its old frame must not be written, and its block must not be changed,
//!   mapped again or appended to the log: each such operation settles it first.
//! - A line with what the origin has not flushed is not mapped: the origin could come back without it.
//! - An origin that failed to flush may still show the data that it has dropped, and flush well
//!   from then on, as Linux does: the data is gone after its next power loss. Data read from it
//!   since is *doubtful*: it is served, but never stored as clean.
//!
//! Only crash modes that keep clean lines map any ([`CrashMode`](crate::CrashMode)). What the origin has not flushed is
//! known in all of them: an origin that loses it, while this goes on, has something else than the cache.

use std::collections::BTreeMap;

use crate::numbers::{BlockNumber, FrameNumber};
use crate::page_set::PageSet;

/// A line that left its frame while the device still has it mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unmapped {
    pub(crate) frame: FrameNumber,
    /// Whether its record is on its way.
    is_on_its_way: bool,
}

/// The mapped frames, and the lines whose mapping no longer holds.
pub(crate) struct Mappings {
    /// Whether clean lines count after a crash.
    pub(crate) is_kept: bool,
    /// By block.
    unmapped: BTreeMap<BlockNumber, Unmapped>,
    /// Frames with data that the origin could lose.
    unflushed: PageSet<FrameNumber>,
    /// Those of them that a flush of the origin, under way, will make safe.
    flushing: PageSet<FrameNumber>,
    /// Frames with data that the origin shows, though it may have dropped it.
    doubtful: PageSet<FrameNumber>,
    /// Flushes of the origin under way.
    flush_count: u32,
    /// Whether one of these failed.
    has_flush_failed: bool,
}

impl Mappings {
    /// No mapping, for `frame_count` frames.
    pub(crate) fn new(frame_count: u32, is_kept: bool) -> Self {
        let frames = || PageSet::new(frame_count.into());
        Self {
            is_kept,
            unmapped: BTreeMap::new(),
            unflushed: frames(),
            flushing: frames(),
            doubtful: frames(),
            flush_count: 0,
            has_flush_failed: false,
        }
    }

    /// From now on clean lines do not count after a crash.
    pub(crate) fn void(&mut self) {
        self.is_kept = false;
        self.unmapped.clear();
    }

    /// Notes that `block` left `frame`, and is still mapped on the device.
    pub(crate) fn unmap(&mut self, block: BlockNumber, frame: FrameNumber) {
        let before = self.unmapped.insert(block, Unmapped { frame, is_on_its_way: false });
        assert!(before.is_none(), "a block is mapped to one frame");
    }

    /// Whether a record about this block has to be durable first.
    pub(crate) fn is_unmapped(&self, block: BlockNumber) -> bool {
        self.unmapped.contains_key(&block)
    }

    /// Whether a record about one of these blocks has to be durable first.
    pub(crate) fn is_any_unmapped(&self, blocks: std::ops::Range<BlockNumber>) -> bool {
        self.unmapped.range(blocks).next().is_some()
    }

    /// Whether a record about what was in this frame has to be durable first.
    pub(crate) fn is_frame_unmapped(&self, frame: FrameNumber) -> bool {
        // As many as there are misses in flight: a second index would cost more than it saves.
        self.unmapped.values().any(|unmapped| unmapped.frame == frame)
    }

    /// Up to `count` lines (block, frame) whose records are not on their way yet; from now on they are.
    pub(crate) fn take_unmapped(&mut self, count: usize) -> Vec<(BlockNumber, FrameNumber)> {
        let waiting = self.unmapped.iter_mut().filter(|(_, unmapped)| !unmapped.is_on_its_way);
        let take = |(&block, unmapped): (&BlockNumber, &mut Unmapped)| {
            unmapped.is_on_its_way = true;
            (block, unmapped.frame)
        };
        waiting.take(count).map(take).collect()
    }

    /// Removes lines whose records are durable.
    pub(crate) fn forget_unmapped(&mut self, taken: &[(BlockNumber, FrameNumber)]) {
        for (block, _) in taken {
            self.unmapped.remove(block);
        }
    }

    /// `frame` holds data that the origin could lose.
    pub(crate) fn set_unflushed(&mut self, frame: FrameNumber) {
        self.unflushed.insert(frame);
    }

    /// Whether `frame` may hold data that the origin could lose.
    pub(crate) fn is_unflushed(&self, frame: FrameNumber) -> bool {
        self.unflushed.contains(frame) || self.flushing.contains(frame)
    }

    /// Whether any frame may.
    pub(crate) fn has_unflushed(&self) -> bool {
        !self.unflushed.is_empty() || !self.flushing.is_empty()
    }

    /// A flush of the origin begins.
    pub(crate) fn start_flush(&mut self) {
        self.flush_count += 1;
        for frame in self.unflushed.take() {
            self.flushing.insert(frame);
        }
    }

    /// Notes that the origin may have dropped the data in `frame`, though it shows it.
    pub(crate) fn set_doubtful(&mut self, frame: FrameNumber) {
        self.doubtful.insert(frame);
    }

    /// Whether the origin may have dropped the data in `frame`, though it shows it.
    pub(crate) fn is_doubtful(&self, frame: FrameNumber) -> bool {
        self.doubtful.contains(frame)
    }

    /// Notes that the clean data of the frame `from` was copied to `to`: it is as safe, or as
    /// doubtful.
    pub(crate) fn note_copied(&mut self, from: FrameNumber, to: FrameNumber) {
        if self.is_unflushed(from) {
            self.set_unflushed(to);
        }
        if self.is_doubtful(from) {
            self.set_doubtful(to);
        }
    }

    /// Whether the origin has all clean data of `frame` durably.
    pub(crate) fn is_safe(&self, frame: FrameNumber) -> bool {
        !self.is_unflushed(frame) && !self.is_doubtful(frame)
    }

    /// A flush of the origin ended. What was written before it is safe once all that run at the same time have
    /// succeeded, and doubtful if the origin ever failed to flush what it had (`has_lost`).
    pub(crate) fn finish_flush(&mut self, is_ok: bool, has_lost: bool) {
        self.flush_count -= 1;
        self.has_flush_failed |= !is_ok;
        if self.flush_count == 0 {
            let flushed = self.flushing.take();
            if std::mem::take(&mut self.has_flush_failed) {
                flushed.into_iter().for_each(|frame| self.unflushed.insert(frame));
            } else if has_lost {
                flushed.into_iter().for_each(|frame| self.doubtful.insert(frame));
            }
        }
    }

    /// Frames with data that the origin could lose.
    pub(crate) fn unflushed_frames(&self) -> Vec<FrameNumber> {
        let mut frames = self.unflushed.list();
        frames.extend(self.flushing.list());
        frames.extend(self.doubtful.list());
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_sent_once_and_counts_until_it_is_durable() {
        let mut mappings = Mappings::new(64, true);
        mappings.unmap(BlockNumber(7), FrameNumber(3));
        mappings.unmap(BlockNumber(9), FrameNumber(4));
        assert!(
            mappings.is_unmapped(BlockNumber(7))
                && mappings.is_frame_unmapped(FrameNumber(4))
                && mappings.is_any_unmapped(BlockNumber(8)..BlockNumber(10))
        );
        assert_eq!(mappings.take_unmapped(1), [(BlockNumber(7), FrameNumber(3))]);
        assert_eq!(mappings.take_unmapped(5), [(BlockNumber(9), FrameNumber(4))]);
        assert!(mappings.take_unmapped(5).is_empty());
        mappings.forget_unmapped(&[(BlockNumber(7), FrameNumber(3))]);
        assert!(
            !mappings.is_unmapped(BlockNumber(7))
                && !mappings.is_frame_unmapped(FrameNumber(3))
                && !mappings.is_any_unmapped(BlockNumber(0)..BlockNumber(9))
        );
        assert!(mappings.is_unmapped(BlockNumber(9)));
    }

    #[test]
    fn data_is_safe_when_every_flush_that_could_cover_it_succeeded() {
        let mut mappings = Mappings::new(64, true);
        mappings.set_unflushed(FrameNumber(1));
        mappings.start_flush();
        mappings.set_unflushed(FrameNumber(2));
        mappings.start_flush();
        mappings.finish_flush(true, false);
        assert!(
            mappings.is_unflushed(FrameNumber(1)) && mappings.is_unflushed(FrameNumber(2)),
            "the second flush may have to cover it"
        );
        mappings.finish_flush(false, false);
        assert_eq!(mappings.unflushed_frames(), [FrameNumber(1), FrameNumber(2)]);
        mappings.start_flush();
        mappings.set_unflushed(FrameNumber(2));
        mappings.finish_flush(true, false);
        assert!(
            !mappings.is_unflushed(FrameNumber(1)) && mappings.is_unflushed(FrameNumber(2)),
            "written again behind the flush"
        );
    }
}
