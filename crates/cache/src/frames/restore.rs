//! Restoring frames from the table on the device.
//!
//! A cache cannot be used before every line of its table is in its frame, and a large one has
//! millions of lines: here a line costs some nanoseconds. So a clean line goes from its entry
//! straight into its frame, without a [`Line`] between. Divisions by the ways of a set are done
//! once for a set. Whether a block is in a frame already is looked up in a small table of one set,
//! not in the index.

use std::ops::Range;

use crate::format::{Line, StoredLine};
use crate::frames::{Frames, MAPPED};
use crate::index::{Index, SCANNED_WAYS_MAX};
use crate::layout::Layout;
use crate::mappings::Mappings;
use crate::numbers::{BlockNumber, FrameNumber, PageNumber, SetNumber, Tag};
use crate::page_set::PageSet;
use crate::replacement::{List, Order, Replacement};
use crate::tags::Tags;

/// Outcome of [`Frames::restore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restored {
    /// The frame holds the line.
    Done,
    /// Nothing was done: the block is in another frame.
    HeldElsewhere,
    /// Nothing was done: the block belongs to another set.
    OtherSet,
}

/// Slots of [`SetSeen`]: four for each frame, so that few probes collide.
const SLOTS: usize = 4 * SCANNED_WAYS_MAX as usize;

/// The set that is being restored, and the tags in its frames so far.
pub(crate) struct SetSeen {
    set: SetNumber,
    frames: Range<FrameNumber>,
    /// A hash table with open addressing: 0, or the place in the set, from 1 on, of a tag that belongs here or in a
    /// slot before. Larger sets do without; their index is a hash table itself.
    slots: Box<[u16; SLOTS]>,
}

impl SetSeen {
    /// The state before the first frame.
    pub(crate) fn new() -> Self {
        Self { set: SetNumber::FIRST, frames: FrameNumber::FIRST..FrameNumber::FIRST, slots: Box::new([0; SLOTS]) }
    }

    /// Goes on to the set of `frame`.
    #[inline]
    fn go_to(&mut self, frame: FrameNumber, layout: &Layout) {
        if !self.frames.contains(&frame) {
            self.set = layout.set_of_frame(frame);
            self.frames = layout.frames_of(self.set);
            self.slots.fill(0);
        }
    }

    /// Notes that `frame` of this set is to hold `tag`; `false` when another one does.
    #[inline]
    fn enter(&mut self, frame: FrameNumber, tag: Tag, tags: &Tags, index: &Index) -> bool {
        if matches!(index, Index::Hash(_)) {
            return index.find(tags, self.frames.clone(), tag).is_none();
        }
        let mut slot = crate::index::hash(tag) as usize % SLOTS;
        while let Some(place) = self.slots[slot].checked_sub(1) {
            if tags.get((self.frames.start + u32::from(place)).index()) == Some(tag) {
                return false;
            }
            slot = (slot + 1) % SLOTS;
        }
        self.slots[slot] = (frame - self.frames.start + 1) as u16;
        true
    }
}

impl Frames {
    /// Reserved frames for [`Frames::restore`], until [`Frames::set_stored`]. `are_kept`: whether
    /// clean lines count after a crash.
    pub(crate) fn to_restore(layout: Layout, policy: Replacement, are_kept: bool) -> Self {
        let mappings = Mappings::new(layout.frame_count(), are_kept);
        Self { mappings, ..Self::in_order(layout, Order::reserved(policy, layout)) }
    }

    /// Restores `line` into a frame, as a table has it. Frames come in order, each once, with one
    /// `seen` for all.
    pub(crate) fn restore(&mut self, frame: FrameNumber, line: Line, seen: &mut SetSeen) -> Restored {
        match self.enter(frame, line.block, seen) {
            Ok(_) => {
                self.attach(frame, line);
                Restored::Done
            }
            Err(restored) => restored,
        }
    }

    /// [`Frames::restore`] of a clean line: like attaching it, without the look-ups whose answers
    /// are known.
    #[inline]
    pub(crate) fn restore_clean(&mut self, frame: FrameNumber, line: StoredLine<'_>, seen: &mut SetSeen) -> Restored {
        debug_assert!(!line.is_dirty());
        let tag = match self.enter(frame, line.block(), seen) {
            Ok(tag) => tag,
            Err(restored) => return restored,
        };
        assert!(self.order.list(frame) == List::Reserved, "a frame is restored once");
        self.tags.set(frame.index(), tag);
        self.index.insert_tag(&self.tags, frame, tag);
        self.order.restore(seen.set, frame);
        let (first, rest) = line.valid_bytes();
        let valid_count = self.valid.set_bytes(frame, first, rest);
        self.set_checksum(frame, line.checksum());
        self.counts.resident_lines += 1;
        self.counts.valid_sectors += u64::from(valid_count);
        Restored::Done
    }

    /// The tag of `block`, if it belongs into the set of `frame` and no frame holds it yet.
    #[inline]
    fn enter(&self, frame: FrameNumber, block: BlockNumber, seen: &mut SetSeen) -> Result<Tag, Restored> {
        seen.go_to(frame, &self.layout);
        let (set, tag) = self.layout.place_of(block);
        if set != seen.set {
            return Err(Restored::OtherSet);
        }
        seen.enter(frame, tag, &self.tags, &self.index).then_some(tag).ok_or(Restored::HeldElsewhere)
    }

    /// Declares that the table on the device agrees with the frames, except the `changed` pages;
    /// the `urgent` of these differ in what counts after a crash. Frames that were not restored
    /// become free.
    pub(crate) fn set_stored(&mut self, changed: &PageSet<PageNumber>, urgent: &PageSet<PageNumber>) {
        self.order.free_reserved();
        self.changed = changed.clone();
        self.urgent = urgent.clone();
        if self.mappings.is_kept {
            for frame in self.layout.frames() {
                if self.has_clean(frame) {
                    self.states[frame.index()] |= MAPPED;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::format::{PAGE_BYTES, emit_page, page_lines};
    use crate::line_size::LineSize;
    use crate::numbers::TableSequence;
    use crate::options::{Associativity, FormatOptions};
    use crate::sectors::Sectors;

    fn layout(ways: u32, line_size: LineSize) -> Layout {
        let associativity = Associativity::Ways(ways);
        let options = FormatOptions { associativity, frames_max: Some(600), line_size, ..FormatOptions::default() };
        Layout::new(16 << 20, &options).unwrap()
    }

    /// Restores `lines`, frame by frame. Returns the outcome of each that is not empty.
    fn restore_all(frames: &mut Frames, lines: &[Line]) -> Vec<(FrameNumber, Restored)> {
        let layout = *frames.layout();
        let (mut seen, mut all) = (SetSeen::new(), Vec::new());
        for (page, lines) in lines.chunks(layout.entries_per_page() as usize).enumerate() {
            let mut bytes = vec![0; PAGE_BYTES];
            let page = PageNumber(page as u64);
            emit_page(&mut bytes, layout.line_size, Uuid::nil(), page, TableSequence(1), lines.iter().copied());
            let stored = layout.frames_of_page(page).zip(page_lines(&bytes, layout.line_size));
            for (frame, stored) in stored.filter(|(_, it)| !it.is_empty()) {
                let restored = match stored.is_dirty() {
                    true => frames.restore(frame, stored.line(), &mut seen),
                    false => frames.restore_clean(frame, stored, &mut seen),
                };
                all.push((frame, restored));
            }
        }
        all
    }

    proptest! {
        /// Against the naive model: which frame holds which block, and in which order.
        #[test]
        fn a_table_is_restored_as_it_says(
            ways in prop_oneof![1u32..20, Just(256), 257u32..300],
            shift in 12u32..=14,
            stored in proptest::collection::vec(
                (0u64..300, any::<[u8; 4]>(), prop_oneof![3 => Just(0u8), 1 => any::<u8>()]),
                600,
            ),
        ) {
            let line_size = LineSize::new(1 << shift).unwrap();
            let layout = layout(ways, line_size);
            let line_of = |(frame, (tag, valid, dirty)): (FrameNumber, (u64, [u8; 4], u8))| {
                let valid = Sectors::from_bytes(&valid) & line_size.all_sectors();
                let dirty = Sectors::from_bytes(&[dirty]) & valid;
                Line { block: layout.block_of(layout.set_of_frame(frame), Tag(tag)), valid, dirty, ..Line::default() }
            };
            let lines: Vec<Line> = layout.frames().zip(stored).map(line_of).collect();
            let mut frames = Frames::to_restore(layout, Replacement::Lru, false);
            let found = restore_all(&mut frames, &lines);
            let mut held: BTreeMap<BlockNumber, FrameNumber> = BTreeMap::new();
            let mut expected = Vec::new();
            for (frame, line) in layout.frames().zip(&lines).filter(|(_, line)| !line.valid.is_empty()) {
                let is_held = held.contains_key(&line.block);
                held.entry(line.block).or_insert(frame);
                expected.push((frame, if is_held { Restored::HeldElsewhere } else { Restored::Done }));
            }
            prop_assert_eq!(found, expected);
            frames.set_stored(&PageSet::new(layout.page_count), &PageSet::new(layout.page_count));
            for (&block, &frame) in &held {
                prop_assert_eq!(frames.find(block), Some((frame, lines[frame.index()])));
            }
            let of = |what: fn(&Line) -> u64| held.values().map(|&frame| what(&lines[frame.index()])).sum::<u64>();
            let counts = frames.counts();
            prop_assert_eq!(counts.resident_lines, held.len() as u64);
            prop_assert_eq!(counts.valid_sectors, of(|line| u64::from(line.valid.count())));
            prop_assert_eq!(counts.dirty_sectors, of(|line| u64::from(line.dirty.count())));
            for set in layout.sets() {
                let of_set = held.values().copied().filter(|&frame| layout.set_of_frame(frame) == set);
                let mut in_order: Vec<FrameNumber> = of_set.collect();
                in_order.sort_by_key(|&frame| (!lines[frame.index()].dirty.is_empty(), frame));
                let blocks: Vec<BlockNumber> = in_order.iter().map(|&frame| lines[frame.index()].block).collect();
                prop_assert_eq!(frames.blocks_of(set), blocks, "clean ones in the order of the table, then dirty ones");
                let free = layout.ways as usize - in_order.len();
                let reserved = (0..free).filter(|&nth| {
                    frames.reserve(layout.block_of(set, Tag(1000 + nth as u64))).is_some_and(|it| !it.has_evicted)
                });
                prop_assert_eq!(reserved.count(), free, "what was not restored is free");
            }
        }
    }

    #[test]
    fn a_line_of_another_set_is_not_restored() {
        for ways in [16, 300] {
            let layout = layout(ways, LineSize::default());
            let valid = layout.line_size.all_sectors();
            let lines =
                [0, 1].map(SetNumber).map(|set| Line { block: layout.block_of(set, Tag(0)), valid, ..Line::default() });
            let mut frames = Frames::to_restore(layout, Replacement::Lru, false);
            assert_eq!(
                restore_all(&mut frames, &lines),
                [(FrameNumber(0), Restored::Done), (FrameNumber(1), Restored::OtherSet)]
            );
        }
    }
}
