//! The frames of a cache: what each holds, the index by block, and the choice of the next victim.
//!
//! What it keeps true:
//! - A block is held by at most one frame, of its set.
//! - A frame that is *pinned* (a request reads or writes its bytes now) or *busy* (a record about
//!   its line is under way) is never given to another block; nor is one with a dirty line: it has
//!   to be cleaned first. The replacement policy chooses among the others.
//! - The table pages that no longer agree with the frames are known. *Urgent* ones must reach the
//!   device with the next checkpoint (changes of dirty lines, and clean lines that the device must
//!   not have any more); the others can wait.
//! - Where clean lines count after a crash it is known which of them the device has: see [`Mappings`].
//!
//! Memory is what bounds a large cache, so a frame of 4 KiB of a set of up to 256 takes 11 bytes, and up to 4 more for
//! what its policy remembers:
//!
//! | bytes | what |
//! |---:|---|
//! | 4 | tag: which block of the set ([`Tags`]) |
//! | 1 | fingerprint of the tag ([`Index`]) |
//! | 2 | valid and dirty sectors ([`Bitmaps`]); as much for every 4 KiB of larger lines |
//! | 1 | pins, busy, lost, mapped |
//! | 1 + 2 | list and hits, links ([`Order`]) |
//!
//! All of it lives under the cache's one mutex; nothing here waits.

pub(crate) mod restore;

use std::collections::{BTreeMap, BTreeSet};

use crate::bitmaps::Bitmaps;
use crate::format::Line;
use crate::index::Index;
use crate::layout::Layout;
use crate::line_checksum::LineChecksum;
use crate::mappings::Mappings;
use crate::numbers::{BlockNumber, FrameNumber, PageNumber, SetNumber, each_of};
use crate::page_set::PageSet;
use crate::replacement::{List, Order, Replacement, Taken};
use crate::sectors::Sectors;
use crate::tags::Tags;

/// Bits of a frame's state.
const LOST: u8 = 1;
/// A record about this line is on its way to the log.
const BUSY: u8 = 1 << 1;
/// The device may say that clean sectors of this line are here, and would be believed after a crash.
const MAPPED: u8 = 1 << 2;
/// One pin. Five bits count them; all ones mean that the count is in `Frames::many_pins`.
const PIN: u8 = 1 << 3;
const PINS: u8 = !(LOST | BUSY | MAPPED);

/// Counts for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames that hold a block, whether or not any sector is valid yet.
    pub resident_lines: u64,
    /// Lines with a dirty sector.
    pub dirty_lines: u64,
    /// Valid sectors.
    pub valid_sectors: u64,
    /// Dirty sectors.
    pub dirty_sectors: u64,
}

/// All frames of a cache.
pub struct Frames {
    layout: Layout,
    tags: Tags,
    valid: Bitmaps,
    dirty: Bitmaps,
    states: Vec<u8>,
    /// Pin counts of frames with more pins than their state can count.
    many_pins: BTreeMap<FrameNumber, u32>,
    order: Order,
    index: Index,
    lost_count: usize,
    /// [`LineChecksum::to_raw`] of each frame, so that zeroed memory means unknown; empty in a
    /// cache without checksums.
    checksums: Vec<u32>,
    counts: Counts,
    changed: PageSet<PageNumber>,
    urgent: PageSet<PageNumber>,
    /// Count of frames given up because their medium failed, for sets that have any.
    failed: BTreeMap<SetNumber, u32>,
    /// Where the next search for changed pages to be stored lazily begins.
    lazy_cursor: PageNumber,
    pub(crate) mappings: Mappings,
    /// Blocks with dirty data beyond the end of the origin. See `stranded`.
    pub(crate) stranded: BTreeSet<BlockNumber>,
}

impl Frames {
    /// Empty frames.
    pub fn new(layout: Layout, policy: Replacement) -> Self {
        Self::in_order(layout, Order::new(policy, layout))
    }

    fn in_order(layout: Layout, order: Order) -> Self {
        let frame_count = layout.frame_count() as usize;
        Self {
            layout,
            tags: Tags::new(frame_count),
            valid: Bitmaps::new(layout.line_size, frame_count),
            dirty: Bitmaps::new(layout.line_size, frame_count),
            states: vec![0; frame_count],
            many_pins: BTreeMap::new(),
            order,
            index: Index::new(layout.ways, layout.frame_count()),
            lost_count: 0,
            checksums: Vec::new(),
            counts: Counts::default(),
            changed: PageSet::new(layout.page_count),
            urgent: PageSet::new(layout.page_count),
            failed: BTreeMap::new(),
            lazy_cursor: PageNumber::FIRST,
            mappings: Mappings::new(layout.frame_count(), false),
            stranded: BTreeSet::new(),
        }
    }

    /// Keeps checksums of whole lines from now on.
    pub(crate) fn with_checksums(mut self) -> Self {
        self.checksums = vec![0; self.layout.frame_count() as usize];
        self
    }

    /// Whether checksums of whole lines are kept.
    pub(crate) fn has_checksums(&self) -> bool {
        !self.checksums.is_empty()
    }

    /// Sets the checksum of the data in `frame`; ignored where not all of it is valid. Where one was
    /// known of a dirty line, its page is urgent: with the old one, data that was written since
    /// would count as damaged once no record of the log says otherwise.
    pub(crate) fn set_checksum(&mut self, frame: FrameNumber, checksum: LineChecksum) {
        let is_whole = self.valid.get(frame) == self.layout.line_size.all_sectors();
        let Some(place) = self.checksums.get_mut(frame.index()).filter(|_| is_whole) else { return };
        let before = std::mem::replace(place, checksum.to_raw());
        if before == checksum.to_raw() {
            return;
        }
        let page = self.layout.page_of(frame);
        self.changed.insert(page);
        if LineChecksum::from_raw(before).is_known() && !self.dirty.is_empty(frame) {
            self.urgent.insert(page);
        }
    }

    /// Marks the line in `frame` lost: its dirty sectors can no longer be read as written.
    pub(crate) fn set_lost(&mut self, frame: FrameNumber) {
        let state = &mut self.states[frame.index()];
        if *state & LOST == 0 && !self.dirty.is_empty(frame) {
            *state |= LOST;
            self.lost_count += 1;
            self.urgent.insert(self.layout.page_of(frame));
        }
    }

    /// The layout of the cache device.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The replacement policy in force.
    pub fn replacement(&self) -> Replacement {
        self.order.policy()
    }

    /// Sets the replacement policy.
    pub fn set_replacement(&mut self, policy: Replacement) {
        if policy != self.order.policy() {
            self.order.set_policy(policy);
        }
    }

    /// The frame that holds `block`.
    pub fn lookup(&self, block: BlockNumber) -> Option<FrameNumber> {
        let set = self.layout.set_of(block);
        self.index.find(&self.tags, self.layout.frames_of(set), self.layout.tag_of(block))
    }

    /// What `frame` holds.
    pub fn line(&self, frame: FrameNumber) -> Line {
        let Some(block) = self.block(frame) else { return Line::default() };
        let is_lost = self.states[frame.index()] & LOST != 0;
        let checksum = LineChecksum::from_raw(self.checksums.get(frame.index()).copied().unwrap_or(0));
        Line { block, valid: self.valid.get(frame), dirty: self.dirty.get(frame), is_lost, checksum }
    }

    /// What the cache holds of `block`, and where.
    pub fn find(&self, block: BlockNumber) -> Option<(FrameNumber, Line)> {
        self.lookup(block).map(|frame| (frame, self.line(frame)))
    }

    /// Counts now.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Dirty blocks of `blocks`, ascending.
    pub fn dirty_in(&self, blocks: std::ops::Range<BlockNumber>) -> Vec<BlockNumber> {
        if blocks.start.count_up_to(blocks.end) <= self.counts.resident_lines {
            return each_of(blocks).filter(|&block| self.is_dirty(block)).collect();
        }
        let all = self.dirty.used().filter_map(|frame| self.block(frame));
        let mut found: Vec<BlockNumber> = all.filter(|block| blocks.contains(block)).collect();
        found.sort_unstable();
        found
    }

    /// Whether a sector of `block` is dirty.
    pub(crate) fn is_dirty(&self, block: BlockNumber) -> bool {
        self.lookup(block).is_some_and(|frame| !self.dirty.is_empty(frame))
    }

    /// The block in `frame`, if a sector of it is dirty.
    pub(crate) fn dirty_block(&self, frame: FrameNumber) -> Option<BlockNumber> {
        if self.dirty.is_empty(frame) { None } else { self.block(frame) }
    }

    /// Dirty blocks of a set, least recently used first.
    pub fn dirty_blocks_of(&self, set: SetNumber) -> impl Iterator<Item = BlockNumber> + '_ {
        self.order.dirty(set).filter_map(|frame| self.block(frame))
    }

    /// Blocks of a set: clean ones, the next victim first, then dirty ones.
    pub(crate) fn blocks_of(&self, set: SetNumber) -> Vec<BlockNumber> {
        self.order.clean(set).chain(self.order.dirty(set)).filter_map(|frame| self.block(frame)).collect()
    }

    /// Dirty lines that are known to be unreadable.
    pub fn lost_count(&self) -> usize {
        self.lost_count
    }

    /// Resident blocks in `blocks`, in no particular order.
    pub fn resident_in(&self, blocks: std::ops::Range<BlockNumber>) -> Vec<BlockNumber> {
        if blocks.start.count_up_to(blocks.end) <= self.counts.resident_lines {
            return each_of(blocks).filter(|&block| self.lookup(block).is_some()).collect();
        }
        let all = self.layout.frames().filter_map(|frame| self.block(frame));
        all.filter(|block| blocks.contains(block)).collect()
    }

    /// Notes a use of the line in `frame`.
    pub fn touch(&mut self, frame: FrameNumber) {
        self.order.hit(frame);
    }

    /// Takes a frame for `block` out of its set: a free one, else that of a clean line, which is then resident no more.
    /// `None` when the set has neither. The frame is reserved until [`Frames::attach`] or [`Frames::release`]. A block
    /// that is resident is about to move there.
    pub fn reserve(&mut self, block: BlockNumber) -> Option<Reserved> {
        let (set, tag) = (self.layout.set_of(block), self.layout.tag_of(block));
        let held = self.lookup(block);
        // Beside the frame of the block before, so that consecutive blocks stand in consecutive
        // frames.
        let beside = block.checked_sub(1).and_then(|before| self.lookup(before)).map(FrameNumber::next);
        let states = &self.states;
        let can_spare = |frame: FrameNumber| states[frame.index()] & !(LOST | MAPPED) == 0;
        let reserved = match self.order.take(set, tag, &self.tags, beside, can_spare)? {
            Taken::Free(frame) => Reserved { frame, has_evicted: false },
            Taken::Evicted(frame) => {
                self.forget(frame);
                Reserved { frame, has_evicted: true }
            }
        };
        if let Some(held) = held {
            self.order.follow(held, reserved.frame);
        }
        Some(reserved)
    }

    /// Lets a reserved frame hold `line`, which counts as used now.
    pub fn attach(&mut self, frame: FrameNumber, line: Line) {
        debug_assert!(line.valid.contains(line.dirty));
        assert!(self.lookup(line.block).is_none(), "a block is held by at most one frame");
        assert_eq!(self.layout.set_of(line.block), self.layout.set_of_frame(frame), "a block is held in its set");
        assert!(
            self.order.list(frame) == List::Reserved && self.block(frame).is_none(),
            "only a reserved frame can be attached"
        );
        self.tags.set(frame.index(), self.layout.tag_of(line.block));
        self.index.insert(&self.tags, frame);
        self.states[frame.index()] &= PINS;
        self.counts.resident_lines += 1;
        self.order.insert(frame);
        self.set_sectors(frame, line.valid, line.dirty);
        self.set_checksum(frame, line.checksum);
        if line.is_lost && !line.dirty.is_empty() {
            self.states[frame.index()] |= LOST;
            self.lost_count += 1;
        }
    }

    /// Forgets what `frame` holds, or a reservation, and makes it free.
    pub fn release(&mut self, frame: FrameNumber) {
        if self.block(frame).is_some() {
            self.set_sectors(frame, Sectors::NONE, Sectors::NONE);
            self.order.remove(frame);
            self.forget(frame);
        }
        assert_eq!(self.order.list(frame), List::Reserved, "a free frame is free already");
        self.order.free(frame);
    }

    /// Never uses a reserved frame again: its medium failed.
    pub(crate) fn give_up(&mut self, frame: FrameNumber) {
        debug_assert!(self.block(frame).is_none() && self.order.list(frame) == List::Reserved);
        *self.failed.entry(self.layout.set_of_frame(frame)).or_insert(0) += 1;
    }

    /// Whether a set has frames whose medium has not failed: otherwise waiting for one is of no
    /// use.
    pub(crate) fn has_frames(&self, set: SetNumber) -> bool {
        self.failed.get(&set).is_none_or(|&failed| failed < self.layout.ways)
    }

    /// Forgets what `frame` holds, and reserves it.
    pub fn retire(&mut self, frame: FrameNumber) {
        if self.block(frame).is_some() {
            self.set_sectors(frame, Sectors::NONE, Sectors::NONE);
            self.order.remove(frame);
            self.forget(frame);
        }
    }

    /// Changes which sectors of a line are valid and dirty. A line that becomes dirty or clean counts as used now.
    pub fn set_sectors(&mut self, frame: FrameNumber, valid: Sectors, dirty: Sectors) {
        let was_dirty = !self.store_sectors(frame, valid, dirty).is_empty();
        if was_dirty && dirty.is_empty() {
            self.order.make_clean(frame);
        } else if !was_dirty && !dirty.is_empty() {
            self.order.make_dirty(frame);
        }
    }

    /// Forgets all clean sectors.
    pub fn forget_clean(&mut self) {
        for frame in self.layout.frames() {
            if self.has_clean(frame) {
                let dirty = self.line(frame).dirty;
                self.set_sectors(frame, dirty, dirty);
            }
        }
    }

    /// Keeps the frame from being given to another block.
    pub fn pin(&mut self, frame: FrameNumber) {
        let state = &mut self.states[frame.index()];
        if *state & PINS == PINS {
            *self.many_pins.entry(frame).or_insert(0) += 1;
        } else {
            *state += PIN;
        }
    }

    /// Takes back one [`Frames::pin`].
    pub fn unpin(&mut self, frame: FrameNumber) {
        if let Some(more) = self.many_pins.get_mut(&frame) {
            *more -= 1;
            if *more == 0 {
                self.many_pins.remove(&frame);
            }
            return;
        }
        let state = &mut self.states[frame.index()];
        assert!(*state & PINS != 0, "a frame is unpinned as often as it was pinned");
        *state -= PIN;
    }

    /// Whether a record about the line in `frame` is on its way to the log.
    pub fn is_busy(&self, frame: FrameNumber) -> bool {
        self.states[frame.index()] & BUSY != 0
    }

    /// Says whether a record about the line in `frame` is on its way to the log.
    pub fn set_busy(&mut self, frame: FrameNumber, is_busy: bool) {
        assert_ne!(self.is_busy(frame), is_busy, "one record about a line at a time");
        self.states[frame.index()] ^= BUSY;
    }

    /// Whether the device may say that this frame holds clean sectors of its line.
    pub(crate) fn is_mapped(&self, frame: FrameNumber) -> bool {
        self.states[frame.index()] & MAPPED != 0
    }

    /// Sets whether the device may say so. When it must not any more, the page becomes urgent, and
    /// a record has to be durable before.
    pub(crate) fn set_mapped(&mut self, frame: FrameNumber, is_mapped: bool) {
        let page = self.layout.page_of(frame);
        let state = &mut self.states[frame.index()];
        if is_mapped {
            *state |= MAPPED;
        } else if *state & MAPPED != 0 {
            *state &= !MAPPED;
            self.changed.insert(page);
            self.urgent.insert(page);
        }
    }

    /// From now on clean lines do not count after a crash.
    pub(crate) fn void_mappings(&mut self) {
        self.states.iter_mut().for_each(|state| *state &= !MAPPED);
        self.mappings.void();
    }

    fn has_clean(&self, frame: FrameNumber) -> bool {
        self.valid.has_beyond(frame, &self.dirty)
    }

    /// Takes the table pages that have to be written: the urgent ones, or all that changed. They
    /// count as written from now on.
    pub fn take_pages(&mut self, is_complete: bool) -> Vec<PageNumber> {
        let mut pages = self.urgent.take();
        if is_complete {
            pages.extend(self.changed.take());
            pages.sort_unstable();
            pages.dedup();
        }
        pages
    }

    /// Takes the urgent pages and about `count` of the changed ones; they count as written from now
    /// on.
    pub(crate) fn take_pages_lazily(&mut self, count: usize) -> Vec<PageNumber> {
        let mut pages = self.changed.take_from(self.lazy_cursor, count);
        self.lazy_cursor = pages.last().map_or(PageNumber::FIRST, |page| page.next());
        pages.extend(self.urgent.take());
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Whether a changed page waits that is not urgent.
    pub(crate) fn has_changed_pages(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Takes back [`Frames::take_pages`] for pages that could not be written.
    pub fn put_pages_back(&mut self, pages: &[PageNumber]) {
        for &page in pages {
            self.urgent.insert(page);
            self.changed.insert(page);
        }
    }

    /// The lines of a table page as it is to be stored. Where clean lines count after a crash,
    /// those that might prove untrue then are left out; the page stays a changed one.
    pub fn page_to_store(&mut self, page: PageNumber) -> Vec<Line> {
        self.layout.frames_of_page(page).map(|frame| self.line_to_store(frame)).collect()
    }

    fn line_to_store(&mut self, frame: FrameNumber) -> Line {
        let line = self.line(frame);
        if self.mappings.is_doubtful(frame) {
            return Line { valid: line.dirty, ..line };
        }
        if !self.mappings.is_kept || !self.has_clean(frame) {
            return line;
        }
        if self.mappings.is_unflushed(frame) || self.mappings.is_unmapped(line.block) {
            self.changed.insert(self.layout.page_of(frame));
            return Line { valid: line.dirty, ..line };
        }
        self.set_mapped(frame, true);
        line
    }

    /// The block in a frame.
    pub(crate) fn block(&self, frame: FrameNumber) -> Option<BlockNumber> {
        let tag = self.tags.get(frame.index())?;
        Some(self.layout.block_of(self.layout.set_of_frame(frame), tag))
    }

    /// Takes the clean line of a reserved frame out of the index and the counts.
    fn forget(&mut self, frame: FrameNumber) {
        self.store_sectors(frame, Sectors::NONE, Sectors::NONE);
        if self.is_mapped(frame)
            && let Some(block) = self.block(frame)
        {
            self.mappings.unmap(block, frame);
            self.set_mapped(frame, false);
        }
        self.index.remove(&self.tags, frame);
        self.tags.clear(frame.index());
        self.states[frame.index()] &= PINS;
        self.counts.resident_lines -= 1;
    }

    /// Changes sectors, counts and pages. Returns the dirty sectors of before.
    fn store_sectors(&mut self, frame: FrameNumber, valid: Sectors, dirty: Sectors) -> Sectors {
        assert!(valid.contains(dirty), "a dirty sector is a valid one");
        let at = frame.index();
        let (valid_before, dirty_before) = (self.valid.get(frame), self.dirty.get(frame));
        self.valid.set(frame, valid);
        self.dirty.set(frame, dirty);
        if !self.checksums.is_empty() && valid != self.layout.line_size.all_sectors() {
            self.checksums[at] = 0;
        }
        self.counts.valid_sectors += u64::from(valid.count());
        self.counts.valid_sectors -= u64::from(valid_before.count());
        self.counts.dirty_sectors += u64::from(dirty.count());
        self.counts.dirty_sectors -= u64::from(dirty_before.count());
        self.counts.dirty_lines += u64::from(!dirty.is_empty());
        self.counts.dirty_lines -= u64::from(!dirty_before.is_empty());
        if dirty.is_empty() && self.states[at] & LOST != 0 {
            self.states[at] &= !LOST;
            self.lost_count -= 1;
        }
        self.changed.insert(self.layout.page_of(frame));
        if dirty_before != dirty {
            self.urgent.insert(self.layout.page_of(frame));
        }
        dirty_before
    }
}

/// A frame taken by [`Frames::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The reserved frame.
    pub frame: FrameNumber,
    /// Whether a clean line had to leave.
    pub has_evicted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Associativity, FormatOptions};
    use proptest::prelude::*;

    fn frames(associativity: Associativity, frames_max: u64) -> Frames {
        let options = FormatOptions { associativity, frames_max: Some(frames_max), ..FormatOptions::default() };
        Frames::new(Layout::new(4 << 20, &options).unwrap(), Replacement::Lru)
    }

    fn sectors(mask: u8) -> Sectors {
        Sectors::from_bytes(&[mask])
    }

    fn insert(frames: &mut Frames, block: u64, dirty: u8) -> Option<FrameNumber> {
        let block = BlockNumber(block);
        let Reserved { frame, .. } = frames.reserve(block)?;
        frames.attach(frame, Line { block, valid: sectors(0xff), dirty: sectors(dirty), ..Line::default() });
        Some(frame)
    }

    #[test]
    fn consecutive_blocks_find_consecutive_frames() {
        let mut frames = frames(Associativity::Full, 64);
        let placed: Vec<_> = (100..120).map(|block| insert(&mut frames, block, 0).unwrap()).collect();
        assert!(placed.windows(2).all(|pair| pair[1] == pair[0].next()));
    }

    #[test]
    fn a_checksum_that_changes_is_stored_and_at_once_where_a_dirty_line_had_another() {
        let known = |byte: u8| LineChecksum::of(&[byte; 4096]);
        for (dirty, is_urgent) in [(0xff, true), (0x01, true), (0, false)] {
            let mut frames = frames(Associativity::Full, 16).with_checksums();
            let frame = insert(&mut frames, 7, dirty).unwrap();
            let page = vec![frames.layout.page_of(frame)];
            let take = |frames: &mut Frames| (frames.take_pages(false), frames.take_pages(true));
            take(&mut frames);
            frames.set_checksum(frame, known(1));
            assert_eq!(take(&mut frames), (vec![], page.clone()), "no stored one is wrong");
            frames.set_checksum(frame, known(1));
            assert_eq!(take(&mut frames), (vec![], vec![]));
            for changed in [known(2), LineChecksum::UNKNOWN] {
                frames.set_checksum(frame, changed);
                let urgent = if is_urgent { page.clone() } else { vec![] };
                assert_eq!(take(&mut frames), (urgent, page.clone()), "{dirty:#x}");
            }
        }
    }

    #[test]
    fn victims_are_free_then_clean_and_never_dirty_or_pinned() {
        let mut frames = frames(Associativity::Full, 16);
        for block in 0..16 {
            insert(&mut frames, block, u8::from(block < 13)).unwrap();
        }
        let pinned = frames.lookup(BlockNumber(13)).unwrap();
        frames.pin(pinned);
        assert!(insert(&mut frames, 100, 1).is_some());
        assert_eq!((frames.lookup(BlockNumber(13)), frames.lookup(BlockNumber(14))), (Some(pinned), None));
        assert!(insert(&mut frames, 101, 1).is_some());
        assert_eq!(frames.lookup(BlockNumber(15)), None);
        assert!(insert(&mut frames, 102, 1).is_none(), "what is left is dirty or pinned");
        frames.unpin(pinned);
        assert_eq!(insert(&mut frames, 102, 1), Some(pinned));
        assert_eq!(frames.dirty_blocks_of(SetNumber::FIRST).take(3).collect::<Vec<_>>(), [0, 1, 2].map(BlockNumber));
    }

    /// The naive model: vectors, scanned.
    #[derive(Default)]
    struct Twin {
        /// Per set, most recently used last.
        clean: Vec<Vec<BlockNumber>>,
        dirty: Vec<Vec<BlockNumber>>,
    }

    proptest! {
        #[test]
        fn replacement_equals_a_naive_twin(
            ways in 1u32..20,
            steps in proptest::collection::vec((0u64..400, 0u8..4), 1..400),
        ) {
            let mut frames = frames(Associativity::Ways(ways), 64);
            let layout = frames.layout;
            let mut twin = Twin::default();
            twin.clean.resize(layout.set_count as usize, Vec::new());
            twin.dirty.resize(layout.set_count as usize, Vec::new());
            for (block, action) in steps {
                let block = BlockNumber(block);
                let set = layout.set_of(block).index();
                let (clean, dirty) = (&mut twin.clean[set], &mut twin.dirty[set]);
                let is_resident = clean.contains(&block) || dirty.contains(&block);
                prop_assert_eq!(frames.lookup(block).is_some(), is_resident);
                match (frames.lookup(block), action) {
                    (Some(frame), 0) => {
                        frames.touch(frame);
                        for list in [clean, dirty] {
                            if let Some(at) = list.iter().position(|&other| other == block) {
                                list.remove(at);
                                list.push(block);
                            }
                        }
                    }
                    (Some(frame), 1) => {
                        frames.release(frame);
                        clean.retain(|&other| other != block);
                        dirty.retain(|&other| other != block);
                    }
                    (Some(frame), _) => {
                        let is_dirty = action == 2;
                        frames.set_sectors(frame, sectors(0xff), sectors(u8::from(is_dirty)));
                        let (from, to) = if is_dirty { (clean, dirty) } else { (dirty, clean) };
                        if let Some(at) = from.iter().position(|&other| other == block) {
                            from.remove(at);
                            to.push(block);
                        }
                    }
                    (None, _) => {
                        let is_dirty = action == 2;
                        let is_full = clean.len() + dirty.len() == ways as usize;
                        let has_room = !(is_full && clean.is_empty());
                        prop_assert_eq!(insert(&mut frames, block.0, u8::from(is_dirty)).is_some(), has_room);
                        if has_room {
                            if is_full {
                                clean.remove(0);
                            }
                            if is_dirty { dirty.push(block) } else { clean.push(block) }
                        }
                    }
                }
                let dirty_count: usize = twin.dirty.iter().map(Vec::len).sum();
                let clean_count: usize = twin.clean.iter().map(Vec::len).sum();
                prop_assert_eq!(frames.counts().dirty_lines as usize, dirty_count);
                prop_assert_eq!(frames.counts().resident_lines as usize, dirty_count + clean_count);
            }
            for set in layout.sets() {
                let listed: Vec<BlockNumber> = frames.dirty_blocks_of(set).collect();
                prop_assert_eq!(&listed, &twin.dirty[set.index()]);
            }
        }
    }
}
