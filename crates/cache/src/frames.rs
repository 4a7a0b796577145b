//! What every frame holds, which frame holds a block, and which frame goes next.
//!
//! What it keeps true:
//! - A block is held by at most one frame, of its set. A frame is in exactly one list of its set: free, clean or dirty, each in the order
//!   of use; or in none while a write that nobody has acknowledged yet is under way to it (*reserved*), or because its
//!   medium failed.
//! - A victim is a free frame, else the clean one used least recently (paper 2.3). A dirty line is never a victim: it has to be cleaned
//!   first. A frame that is *pinned* (somebody reads or writes its bytes now) is never a victim either.
//! - Everything takes constant time, with sets of one frame and with one set of a million.
//! - The table pages that no longer agree with this are known, apart for changes that must reach the device with the next checkpoint
//!   (*urgent*: dirty lines) and for those that can wait until the cache is closed.
//!
//! All of it lives under the cache's one mutex; nothing here waits.

use std::collections::BTreeSet;

use hashbrown::HashTable;

use crate::format::{ENTRIES_PER_PAGE, Line};
use crate::layout::Layout;
use crate::limits::VICTIM_SEARCH_MAX;

/// No frame, and the end of a list.
pub use crate::format::FRAME_NONE;

/// No block.
const BLOCK_NONE: u64 = u64::MAX;

/// Which list a frame is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Free,
    Clean,
    Dirty,
    /// In none: a write to it is under way, or its medium failed.
    Reserved,
}

/// 24 bytes.
#[derive(Clone, Copy, Debug)]
struct Frame {
    block: u64,
    /// Towards the recently used.
    newer: u32,
    /// Towards the least recently used.
    older: u32,
    pins: u16,
    valid: u8,
    dirty: u8,
    list: List,
    /// A record about this line is on its way to the log.
    is_busy: bool,
    is_lost: bool,
}
const _: () = assert!(size_of::<Frame>() == 24);

#[derive(Clone, Copy, Debug)]
struct Ends {
    newest: u32,
    oldest: u32,
}

const EMPTY: Ends = Ends { newest: FRAME_NONE, oldest: FRAME_NONE };

/// Counts that a user may see.
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
    frames: Vec<Frame>,
    /// Three lists per set: free, clean, dirty.
    lists: Vec<[Ends; 3]>,
    /// Resident frames by block.
    index: HashTable<u32>,
    dirty_blocks: BTreeSet<u64>,
    counts: Counts,
    changed: PageSet,
    urgent: PageSet,
}

impl Frames {
    /// Empty frames.
    pub fn new(layout: Layout) -> Self {
        let empty = Frame {
            block: BLOCK_NONE,
            newer: FRAME_NONE,
            older: FRAME_NONE,
            pins: 0,
            valid: 0,
            dirty: 0,
            list: List::Reserved,
            is_busy: false,
            is_lost: false,
        };
        let mut frames = Self {
            layout,
            frames: vec![empty; layout.frame_count() as usize],
            lists: vec![[EMPTY; 3]; layout.set_count as usize],
            index: HashTable::with_capacity(layout.frame_count() as usize),
            dirty_blocks: BTreeSet::new(),
            counts: Counts::default(),
            changed: PageSet::new(layout.page_count),
            urgent: PageSet::new(layout.page_count),
        };
        for frame in 0..layout.frame_count() {
            frames.push_newest(frame, List::Free);
        }
        frames
    }

    /// The frame that holds `block`.
    pub fn lookup(&self, block: u64) -> Option<u32> {
        self.index.find(hash(block), |&frame| self.at(frame).block == block).copied()
    }

    /// What `frame` holds.
    pub fn line(&self, frame: u32) -> Line {
        let at = self.at(frame);
        if at.block == BLOCK_NONE {
            return Line::default();
        }
        Line { block: at.block, valid: at.valid, dirty: at.dirty, is_lost: at.is_lost }
    }

    /// What the cache holds of `block`, and where.
    pub fn find(&self, block: u64) -> Option<(u32, Line)> {
        self.lookup(block).map(|frame| (frame, self.line(frame)))
    }

    /// Counts now.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Dirty blocks from `from` on, ascending.
    pub fn dirty_blocks_from(&self, from: u64) -> impl Iterator<Item = u64> + '_ {
        self.dirty_blocks.range(from..).copied()
    }

    /// Dirty blocks of a set, least recently used first.
    pub fn dirty_blocks_of(&self, set: u32) -> impl Iterator<Item = u64> + '_ {
        let mut frame = self.lists[set as usize][List::Dirty as usize].oldest;
        std::iter::from_fn(move || {
            let at = self.frames.get(frame as usize)?;
            frame = at.newer;
            Some(at.block)
        })
    }

    /// Dirty lines that are known to be unreadable.
    pub fn lost_count(&self) -> usize {
        self.dirty_blocks.iter().filter(|&&block| self.find(block).is_some_and(|(_, line)| line.is_lost)).count()
    }

    /// Resident blocks in `blocks`, in no particular order.
    pub fn resident_in(&self, blocks: std::ops::Range<u64>) -> Vec<u64> {
        if blocks.end.saturating_sub(blocks.start) <= self.counts.resident_lines {
            return blocks.filter(|&block| self.lookup(block).is_some()).collect();
        }
        self.index.iter().map(|&frame| self.at(frame).block).filter(|block| blocks.contains(block)).collect()
    }

    /// Makes the line of `frame` the most recently used of its kind.
    pub fn touch(&mut self, frame: u32) {
        let list = self.at(frame).list;
        if list != List::Reserved {
            self.unlink(frame);
            self.push_newest(frame, list);
        }
    }

    /// Takes a frame for `block` out of its set: a free one, else the clean line used least recently, which is then resident no more.
    /// `None` when the set has neither. The frame is reserved until [`Frames::attach`] or [`Frames::release`].
    pub fn reserve(&mut self, block: u64) -> Option<Reserved> {
        let set = self.layout.set_of(block);
        if let Some(frame) = self.free_frame(set, block) {
            self.unlink(frame);
            return Some(Reserved { frame, has_evicted: false });
        }
        let frame = self.oldest_unpinned(set, List::Clean)?;
        self.evict(frame);
        self.unlink(frame);
        Some(Reserved { frame, has_evicted: true })
    }

    /// Lets a reserved frame hold `line`, as the most recently used.
    pub fn attach(&mut self, frame: u32, line: Line) {
        debug_assert_eq!(line.dirty & !line.valid, 0);
        assert!(self.lookup(line.block).is_none(), "a block is held by at most one frame");
        assert_eq!(self.layout.set_of(line.block), frame / self.layout.ways, "a block is held in its set");
        let at = self.at_mut(frame);
        assert!(at.list == List::Reserved && at.block == BLOCK_NONE, "only a reserved frame can be attached");
        at.block = line.block;
        at.is_lost = line.is_lost;
        at.is_busy = false;
        let hash_of = |frames: &[Frame], frame: u32| frames.get(frame as usize).map_or(0, |at| hash(at.block));
        let frames = &self.frames;
        self.index.insert_unique(hash(line.block), frame, |&frame| hash_of(frames, frame));
        self.counts.resident_lines += 1;
        self.push_newest(frame, List::Clean);
        self.set_sectors(frame, line.valid, line.dirty);
    }

    /// Lets a free frame hold `line`, as a table says.
    pub fn restore(&mut self, frame: u32, line: Line) {
        assert_eq!(self.at(frame).list, List::Free, "a table is restored into empty frames");
        self.unlink(frame);
        self.attach(frame, line);
    }

    /// Says that the table on the device agrees with this, but for `changed` frames, of which the `urgent` ones differ in what is dirty.
    pub fn set_stored(&mut self, changed: &[u32], urgent: &[u32]) {
        self.take_pages(true);
        changed.iter().for_each(|&frame| self.changed.insert(page_of(frame)));
        urgent.iter().for_each(|&frame| self.urgent.insert(page_of(frame)));
    }

    /// Forgets what `frame` holds, or a reservation, and makes it free.
    pub fn release(&mut self, frame: u32) {
        if self.at(frame).block == BLOCK_NONE {
            assert_eq!(self.at(frame).list, List::Reserved, "a free frame is free already");
        } else {
            self.evict(frame);
            self.unlink(frame);
        }
        self.push_newest(frame, List::Free);
    }

    /// Forgets what `frame` holds and never uses it again: its medium failed.
    pub fn retire(&mut self, frame: u32) {
        if self.at(frame).block != BLOCK_NONE {
            self.evict(frame);
            self.unlink(frame);
        }
    }

    /// Changes which sectors of a line are valid and dirty. A line that becomes dirty or clean is the most recently used of its new kind.
    pub fn set_sectors(&mut self, frame: u32, valid: u8, dirty: u8) {
        assert_eq!(dirty & !valid, 0, "a dirty sector is a valid one");
        let before = *self.at(frame);
        self.counts.valid_sectors += u64::from(valid.count_ones());
        self.counts.valid_sectors -= u64::from(before.valid.count_ones());
        self.counts.dirty_sectors += u64::from(dirty.count_ones());
        self.counts.dirty_sectors -= u64::from(before.dirty.count_ones());
        let at = self.at_mut(frame);
        (at.valid, at.dirty) = (valid, dirty);
        at.is_lost &= dirty != 0;
        self.changed.insert(page_of(frame));
        if before.dirty != dirty {
            self.urgent.insert(page_of(frame));
        }
        if (before.dirty == 0) != (dirty == 0) {
            self.unlink(frame);
            if dirty == 0 {
                self.counts.dirty_lines -= 1;
                self.dirty_blocks.remove(&before.block);
                self.push_newest(frame, List::Clean);
            } else {
                self.counts.dirty_lines += 1;
                self.dirty_blocks.insert(before.block);
                self.push_newest(frame, List::Dirty);
            }
        }
    }

    /// Keeps the frame's bytes from being given to another block.
    pub fn pin(&mut self, frame: u32) {
        let at = self.at_mut(frame);
        at.pins = at.pins.checked_add(1).expect("requests in flight are far fewer than 65535");
    }

    /// Takes back one [`Frames::pin`].
    pub fn unpin(&mut self, frame: u32) {
        let at = self.at_mut(frame);
        at.pins = at.pins.checked_sub(1).expect("a frame is unpinned as often as it was pinned");
    }

    /// Whether a record about the line in `frame` is on its way to the log.
    pub fn is_busy(&self, frame: u32) -> bool {
        self.at(frame).is_busy
    }

    /// Says whether a record about the line in `frame` is on its way to the log.
    pub fn set_busy(&mut self, frame: u32, is_busy: bool) {
        let at = self.at_mut(frame);
        assert_ne!(at.is_busy, is_busy, "one record about a line at a time");
        at.is_busy = is_busy;
    }

    /// The table pages that have to be written: only the urgent ones, or all that changed. They count as written from now on.
    pub fn take_pages(&mut self, is_complete: bool) -> Vec<u64> {
        let mut pages = self.urgent.take();
        if is_complete {
            pages.extend(self.changed.take());
            pages.sort_unstable();
            pages.dedup();
        }
        pages
    }

    /// Takes back [`Frames::take_pages`] for pages that could not be written.
    pub fn put_pages_back(&mut self, pages: &[u64]) {
        for &page in pages {
            self.urgent.insert(page);
            self.changed.insert(page);
        }
    }

    /// The lines of a table page.
    pub fn page(&self, page: u64) -> impl Iterator<Item = Line> + '_ {
        let first = page as usize * ENTRIES_PER_PAGE;
        let last = (first + ENTRIES_PER_PAGE).min(self.frames.len());
        (first..last).map(|frame| self.line(frame as u32))
    }

    fn at(&self, frame: u32) -> &Frame {
        &self.frames[frame as usize]
    }

    fn at_mut(&mut self, frame: u32) -> &mut Frame {
        &mut self.frames[frame as usize]
    }

    /// Takes the line out of the index and the counts; the frame stays in its list.
    fn evict(&mut self, frame: u32) {
        self.set_sectors(frame, 0, 0);
        let block = self.at(frame).block;
        let found = self.index.find_entry(hash(block), |&other| other == frame);
        found.expect("a resident block is in the index").remove();
        self.counts.resident_lines -= 1;
        let at = self.at_mut(frame);
        at.block = BLOCK_NONE;
        at.is_busy = false;
    }

    /// A free frame, if possible the one behind the frame of the block before.
    fn free_frame(&self, set: u32, block: u64) -> Option<u32> {
        let beside = block.checked_sub(1).and_then(|before| self.lookup(before)).map(|frame| frame + 1);
        let is_usable = |frame: u32| {
            let at = self.frames.get(frame as usize);
            at.is_some_and(|at| at.list == List::Free && at.pins == 0) && frame / self.layout.ways == set
        };
        beside.filter(|&frame| is_usable(frame)).or_else(|| self.oldest_unpinned(set, List::Free))
    }

    fn oldest_unpinned(&self, set: u32, list: List) -> Option<u32> {
        let mut frame = self.lists[set as usize][list as usize].oldest;
        for _ in 0..VICTIM_SEARCH_MAX {
            let at = self.frames.get(frame as usize)?;
            if at.pins == 0 && !at.is_busy {
                return Some(frame);
            }
            frame = at.newer;
        }
        None
    }

    fn push_newest(&mut self, frame: u32, list: List) {
        let set = (frame / self.layout.ways) as usize;
        let ends = &mut self.lists[set][list as usize];
        let older = std::mem::replace(&mut ends.newest, frame);
        if older == FRAME_NONE {
            ends.oldest = frame;
        } else {
            self.frames[older as usize].newer = frame;
        }
        let at = self.at_mut(frame);
        (at.older, at.newer, at.list) = (older, FRAME_NONE, list);
    }

    fn unlink(&mut self, frame: u32) {
        let Frame { older, newer, list, .. } = *self.at(frame);
        assert_ne!(list, List::Reserved, "a reserved frame is in no list");
        let set = (frame / self.layout.ways) as usize;
        let ends = &mut self.lists[set][list as usize];
        if older == FRAME_NONE {
            ends.oldest = newer;
        } else {
            self.frames[older as usize].newer = newer;
        }
        if newer == FRAME_NONE {
            ends.newest = older;
        } else {
            self.frames[newer as usize].older = older;
        }
        self.at_mut(frame).list = List::Reserved;
    }
}

/// What [`Frames::reserve`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Which frame.
    pub frame: u32,
    /// Whether a clean line had to leave.
    pub has_evicted: bool,
}

fn page_of(frame: u32) -> u64 {
    u64::from(frame) / ENTRIES_PER_PAGE as u64
}

/// Spreads blocks over the index. A fixed function, so that a run with one seed is one run.
fn hash(block: u64) -> u64 {
    let mixed = block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

/// A set of table pages: one bit each.
struct PageSet(Vec<u64>);

impl PageSet {
    fn new(page_count: u64) -> Self {
        Self(vec![0; (page_count as usize).div_ceil(64)])
    }

    fn insert(&mut self, page: u64) {
        self.0[page as usize / 64] |= 1 << (page % 64);
    }

    /// Its pages, ascending; it is empty afterwards.
    fn take(&mut self) -> Vec<u64> {
        let mut pages = Vec::new();
        for (index, word) in self.0.iter_mut().enumerate() {
            let mut bits = std::mem::take(word);
            while bits != 0 {
                pages.push(index as u64 * 64 + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Associativity, FormatOptions};
    use proptest::prelude::*;

    fn frames(associativity: Associativity, frames_max: u64) -> Frames {
        let options = FormatOptions { associativity, frames_max: Some(frames_max), ..FormatOptions::default() };
        Frames::new(Layout::new(4 << 20, &options).unwrap())
    }

    fn insert(frames: &mut Frames, block: u64, dirty: u8) -> Option<u32> {
        let Reserved { frame, .. } = frames.reserve(block)?;
        frames.attach(frame, Line { block, valid: 0xff, dirty, is_lost: false });
        Some(frame)
    }

    #[test]
    fn consecutive_blocks_find_consecutive_frames() {
        let mut frames = frames(Associativity::Full, 64);
        let placed: Vec<_> = (100..120).map(|block| insert(&mut frames, block, 0).unwrap()).collect();
        assert!(placed.windows(2).all(|pair| pair[1] == pair[0] + 1));
    }

    #[test]
    fn victims_are_free_then_clean_and_never_dirty_or_pinned() {
        let mut frames = frames(Associativity::Full, 16);
        for block in 0..16 {
            insert(&mut frames, block, u8::from(block < 13)).unwrap();
        }
        let pinned = frames.lookup(13).unwrap();
        frames.pin(pinned);
        assert!(insert(&mut frames, 100, 1).is_some());
        assert_eq!((frames.lookup(13), frames.lookup(14)), (Some(pinned), None));
        assert!(insert(&mut frames, 101, 1).is_some());
        assert_eq!(frames.lookup(15), None);
        assert!(insert(&mut frames, 102, 1).is_none(), "what is left is dirty or pinned");
        frames.unpin(pinned);
        assert_eq!(insert(&mut frames, 102, 1), Some(pinned));
        assert_eq!(frames.dirty_blocks_of(0).take(3).collect::<Vec<_>>(), [0, 1, 2]);
    }

    /// The naive twin: vectors, scanned.
    #[derive(Default)]
    struct Twin {
        /// Per set, most recently used last.
        clean: Vec<Vec<u64>>,
        dirty: Vec<Vec<u64>>,
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
                let set = layout.set_of(block) as usize;
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
                        frames.set_sectors(frame, 0xff, u8::from(is_dirty));
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
                        prop_assert_eq!(insert(&mut frames, block, u8::from(is_dirty)).is_some(), has_room);
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
            for set in 0..layout.set_count {
                let listed: Vec<u64> = frames.dirty_blocks_of(set).collect();
                prop_assert_eq!(&listed, &twin.dirty[set as usize]);
            }
        }
    }
}
