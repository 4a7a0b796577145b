//! Which dirty lines are cleaned together: neighbours in the LUN, in whichever sets they are.
//!
//! An application writes a stretch of the LUN with one request; its lines stand in several sets, and come up for
//! cleaning at different times. Sent as they come up they would be several writes. So a line that is to be cleaned
//! brings along its *run*: the dirty lines before and behind it without a gap, up to what one write may carry. Every
//! write to the LUN then has at least one write of the application to itself:
//!
//! ```text
//!   dirty      ■ ■ ■ ■ ■ ■ · · ■ ■ ■      ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■ ■      longer than a write:
//!   picked         ^                                     ^                   cut at multiples of its length,
//!   one write  └─────────┘                   └───────────┘                   so that pieces fit together
//! ```
//! Neighbours are looked up by block in the existing index. A separate list of runs would take more
//! memory and be one more thing to keep true at every write. It would save some look-ups (each tens
//! of nanoseconds) per line that is written to a LUN (each microseconds at least).

use std::collections::BTreeSet;
use std::ops::Range;

use crate::frames::Frames;
use crate::numbers::{BlockNumber, FrameNumber, SetNumber, each_of};

impl Frames {
    /// At least `count` dirty blocks with their runs of up to `run_max`, ascending, from the frame `cursor` on, and the
    /// cursor to go on with; fewer, and the first frame, when that is all around.
    pub(crate) fn dirty_batch(
        &self,
        cursor: FrameNumber,
        count: usize,
        run_max: u64,
    ) -> (Vec<BlockNumber>, FrameNumber) {
        let mut blocks = BTreeSet::new();
        for frame in cursor.up_to(FrameNumber(self.layout().frame_count())) {
            let Some(block) = self.dirty_block(frame) else { continue };
            self.add_run(&mut blocks, block, run_max);
            if blocks.len() >= count {
                return (blocks.into_iter().collect(), frame.next());
            }
        }
        (blocks.into_iter().collect(), FrameNumber::FIRST)
    }

    /// At least `count` dirty blocks of a set, used least recently first, with their runs of up to `run_max`,
    /// ascending; fewer when the set has no more.
    pub(crate) fn dirty_batch_of(&self, set: SetNumber, count: usize, run_max: u64) -> Vec<BlockNumber> {
        let mut blocks = BTreeSet::new();
        for block in self.dirty_blocks_of(set) {
            if blocks.len() >= count {
                break;
            }
            self.add_run(&mut blocks, block, run_max);
        }
        blocks.into_iter().collect()
    }

    fn add_run(&self, blocks: &mut BTreeSet<BlockNumber>, block: BlockNumber, run_max: u64) {
        if !blocks.contains(&block) {
            blocks.extend(each_of(self.dirty_run(block, run_max)));
        }
    }

    /// The dirty blocks around a dirty one, of which one write of `run_max` blocks can carry all.
    fn dirty_run(&self, block: BlockNumber, run_max: u64) -> Range<BlockNumber> {
        let is_before = |back: &u64| block.checked_sub(*back).is_some_and(|before| self.is_dirty(before));
        let before_count = (1..run_max).take_while(is_before).count() as u64;
        let is_long = before_count + 1 == run_max;
        let start = if is_long { block.last_multiple_of(run_max) } else { block - before_count };
        let behind_count =
            each_of(block + 1..start + run_max).take_while(|&behind| self.is_dirty(behind)).count() as u64;
        start..block + 1 + behind_count
    }
}

/// How many of these ascending blocks make a batch: at least `count` if there are so many, and no run is cut but where
/// a write of `run_max` blocks ends.
pub(crate) fn batch_length(blocks: &[BlockNumber], count: usize, run_max: u64) -> usize {
    let mut run_length = 0;
    for (index, &block) in blocks.iter().enumerate() {
        let goes_on = index > 0 && block.checked_sub(1) == Some(blocks[index - 1]) && run_length < run_max;
        if !goes_on && index >= count.max(1) {
            return index;
        }
        run_length = if goes_on { run_length + 1 } else { 1 };
    }
    blocks.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Line;
    use crate::layout::Layout;
    use crate::options::{Associativity, FormatOptions};
    use crate::replacement::Replacement;
    use crate::sectors::Sectors;

    /// Many small sets, so that neighbours stand in several of them.
    fn frames(dirty: impl IntoIterator<Item = u64>) -> Frames {
        let options = FormatOptions { associativity: Associativity::Ways(64), ..FormatOptions::default() };
        let mut frames = Frames::new(Layout::new(16 << 20, &options).unwrap(), Replacement::Lru);
        for block in dirty.into_iter().map(BlockNumber) {
            let frame = frames.reserve(block).unwrap().frame;
            let sectors = Sectors::from_bytes(&[0xff]);
            frames.attach(frame, Line { block, valid: sectors, dirty: sectors, ..Line::default() });
        }
        frames
    }

    fn blocks(start: u64, end: u64) -> Range<BlockNumber> {
        BlockNumber(start)..BlockNumber(end)
    }

    #[test]
    fn a_line_brings_its_neighbours_before_and_behind_it_along() {
        let frames = frames((100..150).chain(200..203).chain([300]));
        assert_eq!(
            (frames.dirty_run(BlockNumber(130), 256), frames.dirty_run(BlockNumber(100), 256)),
            (blocks(100, 150), blocks(100, 150))
        );
        assert_eq!(
            (frames.dirty_run(BlockNumber(202), 256), frames.dirty_run(BlockNumber(300), 256)),
            (blocks(200, 203), blocks(300, 301))
        );
        let set = frames.layout().set_of(BlockNumber(130));
        assert_eq!(frames.dirty_batch_of(set, 1, 256), each_of(blocks(100, 150)).collect::<Vec<_>>());
        let (all, cursor) = frames.dirty_batch(FrameNumber::FIRST, 1000, 256);
        assert_eq!((all.len(), cursor), (54, FrameNumber::FIRST));
    }

    #[test]
    fn a_long_run_is_cut_where_pieces_fit_together() {
        let long = frames(5..100);
        assert_eq!(long.dirty_run(BlockNumber(12), 16), blocks(5, 21), "its beginning is near");
        assert_eq!(
            (long.dirty_run(BlockNumber(50), 16), long.dirty_run(BlockNumber(98), 16)),
            (blocks(48, 64), blocks(96, 100))
        );
        assert_eq!(frames(0..40).dirty_run(BlockNumber(3), 16), blocks(0, 16), "it begins at the first block");
    }

    #[test]
    fn a_batch_of_all_dirty_lines_ends_with_a_run() {
        let blocks: Vec<BlockNumber> = (0..10).chain(20..60).chain([70]).map(BlockNumber).collect();
        assert_eq!(batch_length(&blocks, 4, 256), 10);
        assert_eq!(batch_length(&blocks, 10, 256), 10);
        assert_eq!(batch_length(&blocks, 11, 16), 26, "a long run is cut where a write ends");
        assert_eq!((batch_length(&blocks, 100, 256), batch_length(&[], 4, 256)), (51, 0));
        assert_eq!(batch_length(&blocks, 0, 256), 10, "a batch is of one run at least");
    }
}
