//! Blocks on their way to a client, and whether the client may keep copies of them.
//!
//! A purge and the data that it concerns come on different connections, in any order. So a fetch
//! under way when a purge comes is *void* if its generation is smaller than the purge's: its data
//! goes to the waiting reader, and into no cache.
//!
//! A change by the client itself purges none of its own copies at the target, and the client does
//! not know whether a read or another change of the same blocks passes before or after it. So every
//! fetch and change that is under way at the same time as a change, and shares a block with it, is
//! void, the change included.

use std::collections::BTreeMap;

use crate::blocks::BlockRange;
use crate::identity::Generation;

/// A read under way, or a write whose data is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Fetch {
    range: BlockRange,
    is_change: bool,
    /// The generation of the last purge of any of its blocks since it began.
    purged: Option<Generation>,
    /// Whether a change of the client itself was under way at the same time.
    is_void: bool,
}

/// All fetches under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fetches {
    under_way: BTreeMap<FetchId, Fetch>,
    next: u64,
}

impl Fetches {
    /// Begins a read. To be called before the command is sent.
    pub fn begin(&mut self, range: BlockRange) -> FetchId {
        self.start(range, false)
    }

    /// Begins a change whose data may be kept. To be called before the command is sent, and after
    /// copies of the range were dropped.
    pub fn begin_change(&mut self, range: BlockRange) -> FetchId {
        self.start(range, true)
    }

    fn start(&mut self, range: BlockRange, is_change: bool) -> FetchId {
        let id = FetchId(self.next);
        self.next += 1;
        let mut is_void = false;
        for other in self.under_way.values_mut().filter(|other| other.range.overlaps(&range)) {
            other.is_void |= is_change;
            is_void |= other.is_change;
        }
        self.under_way.insert(id, Fetch { range, is_change, purged: None, is_void });
        id
    }

    /// Ends a fetch, with the generation that the target gave it. Returns whether a copy may be
    /// kept.
    pub fn end(&mut self, id: FetchId, generation: Option<Generation>) -> bool {
        match (self.under_way.remove(&id), generation) {
            (Some(fetch), Some(generation)) if !fetch.is_void => fetch.purged.is_none_or(|purged| generation >= purged),
            _ => false,
        }
    }

    /// Notes a purge of copies of a range that are older than `generation`.
    pub fn purge(&mut self, range: BlockRange, generation: Generation) {
        for fetch in self.under_way.values_mut().filter(|fetch| fetch.range.overlaps(&range)) {
            fetch.purged = fetch.purged.max(Some(generation));
        }
    }

    /// Makes all fetches under way void.
    pub fn void_all(&mut self) {
        self.under_way.clear();
    }
}
