//! The replacement policies: which frame of a set is the next victim.
//!
//! | policy | lists | a hit | the victim |
//! |---|---|---|---|
//! | LRU (paper 002, 2.3) | one | becomes the newest | the oldest |
//! | CLOCK | one | is marked | the oldest that is not marked; those that are lose the mark and become the newest |
//! | 2Q | *in* (a quarter), *main* | in *main*: becomes newest | the oldest of *in* above its share, or of *main* |
//! | S3-FIFO | *small* (a tenth), *main* | is counted, to 3 | the oldest of *main* above its share, else of *small* |
//!
//! In 2Q a victim of *in* leaves a ghost (half as many as frames); its block comes back into *main*.
//! In S3-FIFO a line of *small* with two hits moves to *main* instead of being evicted. A victim of
//! *small* leaves a ghost (nine tenths); its block comes back into *main*. There the oldest is evicted
//! unless it was hit: then it loses a hit and becomes the newest.
//!
//! Sources: Johnson and Shasha, *2Q*, VLDB 1994; Yang et al., *FIFO queues are all you need for cache eviction*,
//! SOSP 2023. On a real trace all four give the miss ratios published for them (`tests/replacement.rs`).
//!
//! What it keeps true, whatever the policy:
//! - a free frame is used before any line is evicted;
//! - a dirty line is never evicted: it stands apart, in the order of use, until it is clean. Then it counts as used
//!   just now: S3-FIFO puts it into *main*, 2Q only when it was used again since it came into the cache, else
//!   into *in*;
//! - the shares of the lists are shares of the *clean* lines of the set, since only these can be evicted. Of all
//!   frames, *main* would stay below its share while much is dirty, and S3-FIFO would evict what is new, always, and 2Q
//!   what is old (`docs/decisions/0004-replacement.md` has the figures);
//! - a frame that the caller cannot spare (a request reads or writes its bytes) is passed over and
//!   keeps its place.

mod ghost;
mod lists;
mod policy;

use std::ops::Range;

use self::ghost::Ghosts;
use self::lists::Lists;
pub use self::policy::Replacement;
use crate::layout::Layout;
use crate::numbers::{FrameNumber, SetNumber, Tag};
use crate::tags::Tags;

/// Hits in *small* with which S3-FIFO keeps a line.
const S3_HITS_TO_STAY: u8 = 2;

/// The list that a frame is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum List {
    Free = 0,
    /// Dirty lines.
    Dirty = 1,
    /// Clean lines: all, *in*, or *small*.
    First = 2,
    /// Clean lines: *main*.
    Second = 3,
    /// No list: a write to the frame is under way, or its medium failed.
    Reserved = 4,
}

/// The state of one frame: its list, its count of hits, and whether its line is proven.
///
/// A dirty line is *proven* when it was used again since it came into the cache. The block of a
/// reserved frame is proven when it had a ghost.
#[derive(Clone, Copy, Debug)]
struct Mark(u8);

impl Mark {
    const HITS_SHIFT: u32 = 3;
    const HITS_MASK: u8 = 0b11 << Self::HITS_SHIFT;
    const PROVEN: u8 = 1 << 5;

    fn list(self) -> List {
        match self.0 & 0b111 {
            0 => List::Free,
            1 => List::Dirty,
            2 => List::First,
            3 => List::Second,
            _ => List::Reserved,
        }
    }

    fn hits(self) -> u8 {
        (self.0 & Self::HITS_MASK) >> Self::HITS_SHIFT
    }

    fn is_proven(self) -> bool {
        self.0 & Self::PROVEN != 0
    }

    fn set_proven(&mut self, is_proven: bool) {
        self.0 = self.0 & !Self::PROVEN | if is_proven { Self::PROVEN } else { 0 };
    }

    fn set_list(&mut self, list: List) {
        self.0 = self.0 & !0b111 | list as u8;
    }

    fn set_hits(&mut self, hits: u8) {
        self.0 = self.0 & !Self::HITS_MASK | hits << Self::HITS_SHIFT & Self::HITS_MASK;
    }
}

/// The lists of all frames, and the ghosts.
pub(crate) struct Order {
    policy: Replacement,
    layout: Layout,
    lists: Lists,
    marks: Vec<Mark>,
    ghosts: Ghosts,
}

/// A frame that was taken out of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was free.
    Free(FrameNumber),
    /// It holds a clean line, which is evicted.
    Evicted(FrameNumber),
}

impl Order {
    /// All frames free.
    pub(crate) fn new(policy: Replacement, layout: Layout) -> Self {
        let mut order = Self::reserved(policy, layout);
        for frame in layout.frames() {
            order.push(List::Free, frame);
        }
        order
    }

    /// All frames reserved.
    pub(crate) fn reserved(policy: Replacement, layout: Layout) -> Self {
        Self {
            policy,
            layout,
            lists: Lists::new(layout.ways, layout.set_count),
            marks: vec![Mark(List::Reserved as u8); layout.frame_count() as usize],
            ghosts: Ghosts::new(policy.ghosts_max(layout.ways), layout.set_count),
        }
    }

    /// The policy in force.
    pub(crate) fn policy(&self) -> Replacement {
        self.policy
    }

    /// Sets the policy. Clean lines keep their order as far as the new policy has lists for it.
    pub(crate) fn set_policy(&mut self, policy: Replacement) {
        self.policy = policy;
        self.ghosts = Ghosts::new(policy.ghosts_max(self.layout.ways), self.layout.set_count);
        for set in self.layout.sets() {
            let clean: Vec<FrameNumber> = self.clean(set).collect();
            for frame in clean {
                self.unlink(frame);
                self.marks[frame.index()].set_hits(0);
                self.push(self.list_of_proven(), frame);
            }
        }
    }

    /// The list a frame is in.
    pub(crate) fn list(&self, frame: FrameNumber) -> List {
        self.mark(frame).list()
    }

    /// Dirty frames of a set, used least recently first.
    pub(crate) fn dirty(&self, set: SetNumber) -> impl Iterator<Item = FrameNumber> + '_ {
        self.lists.iter(set, List::Dirty as usize)
    }

    /// Clean frames of a set, the next victim first, as far as the lists say.
    pub(crate) fn clean(&self, set: SetNumber) -> impl Iterator<Item = FrameNumber> + '_ {
        [List::First, List::Second].into_iter().flat_map(move |list| self.lists.iter(set, list as usize))
    }

    /// Notes a use of the line in a frame.
    pub(crate) fn hit(&mut self, frame: FrameNumber) {
        let mark = self.mark(frame);
        let moves = match mark.list() {
            List::Free | List::Reserved => return,
            List::Dirty => true,
            List::First => self.policy == Replacement::Lru,
            List::Second => self.policy == Replacement::TwoQueue,
        };
        if moves {
            self.unlink(frame);
            self.push(mark.list(), frame);
            self.marks[frame.index()].set_proven(mark.list() == List::Dirty);
        } else {
            let hits = (mark.hits() + 1).min(self.policy.hits_max());
            self.marks[frame.index()].set_hits(hits);
        }
    }

    /// Takes a frame for `tag` out of `set`: a free one, `beside` if that is one, else a victim among the clean lines
    /// that `can_spare` allows.
    pub(crate) fn take(
        &mut self,
        set: SetNumber,
        tag: Tag,
        tags: &Tags,
        beside: Option<FrameNumber>,
        can_spare: impl Fn(FrameNumber) -> bool,
    ) -> Option<Taken> {
        let is_remembered = self.ghosts.take(set, tag);
        let beside = beside.filter(|&frame| self.marks.get(frame.index()).is_some_and(|it| it.list() == List::Free));
        let free = beside.filter(|&frame| self.layout.set_of_frame(frame) == set && can_spare(frame));
        let free = free.or_else(|| self.first_spare(set, List::Free, &can_spare));
        let taken = match free {
            Some(frame) => Taken::Free(frame),
            None => Taken::Evicted(self.victim(set, tags, &can_spare)?),
        };
        let (Taken::Free(frame) | Taken::Evicted(frame)) = taken;
        self.unlink(frame);
        self.marks[frame.index()].set_proven(is_remembered);
        Some(taken)
    }

    /// The line in `from` will move to `to`, a frame that was taken; it arrives proven if it was
    /// used again.
    pub(crate) fn follow(&mut self, from: FrameNumber, to: FrameNumber) {
        let is_proven = self.is_used_again(from);
        self.marks[to.index()].set_proven(is_proven);
    }

    /// A line was put into a frame that was taken.
    pub(crate) fn insert(&mut self, frame: FrameNumber) {
        self.push(self.list_of(self.mark(frame).is_proven()), frame);
    }

    /// A line was restored into a reserved frame of `set`, as a table has it.
    #[inline]
    pub(crate) fn restore(&mut self, set: SetNumber, frame: FrameNumber) {
        self.marks[frame.index()] = Mark(List::First as u8);
        self.lists.push_newest_of(set, List::First as usize, frame);
    }

    /// Frees all reserved frames.
    pub(crate) fn free_reserved(&mut self) {
        for set in self.layout.sets() {
            let Range { start, end } = self.layout.frames_of(set);
            for frame in start.up_to(end) {
                if self.list(frame) == List::Reserved {
                    self.marks[frame.index()] = Mark(List::Free as u8);
                    self.lists.push_newest_of(set, List::Free as usize, frame);
                }
            }
        }
    }

    /// A line became dirty.
    pub(crate) fn make_dirty(&mut self, frame: FrameNumber) {
        let is_proven = self.is_used_again(frame);
        self.unlink(frame);
        self.push(List::Dirty, frame);
        self.marks[frame.index()].set_proven(is_proven);
    }

    /// A dirty line became clean.
    pub(crate) fn make_clean(&mut self, frame: FrameNumber) {
        let is_proven = self.policy != Replacement::TwoQueue || self.mark(frame).is_proven();
        self.unlink(frame);
        self.push(self.list_of(is_proven), frame);
    }

    /// A line left its frame, which becomes reserved.
    pub(crate) fn remove(&mut self, frame: FrameNumber) {
        self.unlink(frame);
    }

    /// Frees a reserved frame.
    pub(crate) fn free(&mut self, frame: FrameNumber) {
        self.push(List::Free, frame);
    }

    /// The list for lines that are proven.
    fn list_of_proven(&self) -> List {
        match self.policy {
            Replacement::Lru | Replacement::Clock => List::First,
            Replacement::TwoQueue | Replacement::S3Fifo => List::Second,
        }
    }

    /// The list for a line that is proven or not.
    fn list_of(&self, is_proven: bool) -> List {
        if is_proven { self.list_of_proven() } else { List::First }
    }

    /// Whether a line was used since it came into the cache, or had a ghost.
    fn is_used_again(&self, frame: FrameNumber) -> bool {
        let mark = self.mark(frame);
        mark.list() == List::Second || mark.hits() > 0 || mark.is_proven()
    }

    fn victim(&mut self, set: SetNumber, tags: &Tags, can_spare: &impl Fn(FrameNumber) -> bool) -> Option<FrameNumber> {
        let [first_count, second_count] = [List::First, List::Second].map(|list| self.lists.length(set, list as usize));
        let first_max = self.policy.first_max(first_count + second_count);
        let is_first_full = first_count > first_max;
        let is_second_empty = second_count == 0;
        match self.policy {
            Replacement::Lru => self.first_spare(set, List::First, can_spare),
            Replacement::Clock => self.sweep(set, List::First, can_spare),
            Replacement::TwoQueue => {
                let lists = if is_first_full || is_second_empty {
                    [List::First, List::Second]
                } else {
                    [List::Second, List::First]
                };
                let victim = lists.into_iter().find_map(|list| self.first_spare(set, list, can_spare))?;
                self.remember(set, victim, tags);
                Some(victim)
            }
            Replacement::S3Fifo => {
                let is_second_full = first_count < first_max;
                let first = if is_second_full { None } else { self.sift(set, can_spare) };
                let victim = first.or_else(|| self.sweep(set, List::Second, can_spare));
                let victim = victim.or_else(|| self.sift(set, can_spare))?;
                self.remember(set, victim, tags);
                Some(victim)
            }
        }
    }

    /// Leaves a ghost for a victim of the first of two lists.
    fn remember(&mut self, set: SetNumber, victim: FrameNumber, tags: &Tags) {
        if self.list(victim) == List::First
            && let Some(tag) = tags.get(victim.index())
        {
            self.ghosts.push(set, tag);
        }
    }

    fn first_spare(&self, set: SetNumber, list: List, can_spare: &impl Fn(FrameNumber) -> bool) -> Option<FrameNumber> {
        self.lists.iter(set, list as usize).find(|&frame| can_spare(frame))
    }

    /// The oldest without hits; those with hits lose one and become the newest.
    fn sweep(&mut self, set: SetNumber, list: List, can_spare: &impl Fn(FrameNumber) -> bool) -> Option<FrameNumber> {
        let mut next = self.lists.oldest(set, list as usize);
        while let Some(frame) = next {
            next = self.lists.newer(frame);
            if !can_spare(frame) {
                continue;
            }
            let hits = self.mark(frame).hits();
            if hits == 0 {
                return Some(frame);
            }
            self.unlink(frame);
            self.push(list, frame);
            self.marks[frame.index()].set_hits(hits - 1);
            next = next.or(Some(frame));
        }
        None
    }

    /// The oldest of *small* that was not hit often enough; the others move to *main*.
    fn sift(&mut self, set: SetNumber, can_spare: &impl Fn(FrameNumber) -> bool) -> Option<FrameNumber> {
        let mut next = self.lists.oldest(set, List::First as usize);
        while let Some(frame) = next {
            next = self.lists.newer(frame);
            if !can_spare(frame) {
                continue;
            }
            if self.mark(frame).hits() < S3_HITS_TO_STAY {
                return Some(frame);
            }
            self.unlink(frame);
            self.push(List::Second, frame);
        }
        None
    }

    fn mark(&self, frame: FrameNumber) -> Mark {
        self.marks[frame.index()]
    }

    /// Puts a reserved frame into a list, without hits.
    fn push(&mut self, list: List, frame: FrameNumber) {
        self.marks[frame.index()] = Mark(list as u8);
        self.lists.push_newest(list as usize, frame);
    }

    /// Takes a frame out of its list; it is reserved then.
    fn unlink(&mut self, frame: FrameNumber) {
        let list = self.list(frame);
        assert_ne!(list, List::Reserved, "a reserved frame is in no list");
        self.lists.unlink(list as usize, frame);
        self.marks[frame.index()].set_list(List::Reserved);
    }
}
