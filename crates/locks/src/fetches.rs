//! Blocks that are on their way to a client, and whether they may be kept when they come.
//!
//! A purge and the data that it concerns come on different connections, in any order. So what is on its way when a purge comes is *void* if it was read with a
//! smaller generation than the purge has: it goes to whoever waits for it, and into no cache.

use std::collections::BTreeMap;

use crate::blocks::BlockRange;
use crate::identity::Generation;

/// A read, or a write that is to be kept, that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Fetch {
    range: BlockRange,
    /// The generation of the last purge of any of its blocks since it began.
    purged: Option<Generation>,
}

/// All that are under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fetches {
    under_way: BTreeMap<FetchId, Fetch>,
    next: u64,
}

impl Fetches {
    /// Begins one. To be called before the command is sent.
    pub fn begin(&mut self, range: BlockRange) -> FetchId {
        let id = FetchId(self.next);
        self.next += 1;
        self.under_way.insert(id, Fetch { range, purged: None });
        id
    }

    /// One has come, with the generation that the target gave it. True when it may be kept.
    pub fn end(&mut self, id: FetchId, generation: Option<Generation>) -> bool {
        match (self.under_way.remove(&id), generation) {
            (Some(fetch), Some(generation)) => fetch.purged.is_none_or(|purged| generation >= purged),
            _ => false,
        }
    }

    /// Copies of a range that are older than `generation` are purged.
    pub fn purge(&mut self, range: BlockRange, generation: Generation) {
        for fetch in self.under_way.values_mut().filter(|fetch| fetch.range.overlaps(&range)) {
            fetch.purged = fetch.purged.max(Some(generation));
        }
    }

    /// Nothing that is under way may be kept.
    pub fn void_all(&mut self) {
        self.under_way.clear();
    }
}
