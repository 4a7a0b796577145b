//! The copies that clients may hold: the paper's callback records.

use std::collections::BTreeMap;

use crate::blocks::BlockRange;
use crate::identity::{ClientId, Generation};

/// The age of a range, in the order of registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Age(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Entry {
    end: u64,
    age: Age,
    /// The purge that called it back. Until that is answered nothing in it is registered anew, and
    /// no other purge includes it.
    leaving: Option<Generation>,
}

/// The ranges of all clients. Those of one client do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Registrations {
    of_client: BTreeMap<ClientId, BTreeMap<u64, Entry>>,
    count: usize,
    by_age: BTreeMap<Age, (ClientId, u64)>,
    age_next: u64,
}

impl Registrations {
    /// Count of ranges.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Registers a range. Returns `false` where there is no room, or while part of it is leaving:
    /// the client must not keep a copy.
    pub fn insert(&mut self, client: ClientId, range: BlockRange, max: usize) -> bool {
        let near = self.near(client, range);
        if near.iter().any(|(_, entry)| entry.leaving.is_some()) {
            return false;
        }
        if near.is_empty() && self.count >= max {
            return false;
        }
        let first = near.iter().map(|(first, _)| *first).min().unwrap_or(range.first()).min(range.first());
        let end = near.iter().map(|(_, entry)| entry.end).max().unwrap_or(range.end()).max(range.end());
        near.into_iter().for_each(|(first, _)| self.take(client, first));
        let age = Age(self.age_next);
        self.age_next += 1;
        self.put(client, first, Entry { end, age, leaving: None });
        true
    }

    /// The ranges of a client that share a block with `range`.
    fn near(&self, client: ClientId, range: BlockRange) -> Vec<(u64, Entry)> {
        let Some(entries) = self.of_client.get(&client) else { return Vec::new() };
        let before_end = entries.range(..range.end()).rev();
        before_end.take_while(|(_, entry)| entry.end > range.first()).map(|(first, entry)| (*first, *entry)).collect()
    }

    fn take(&mut self, client: ClientId, first: u64) {
        let Some(entries) = self.of_client.get_mut(&client) else { return };
        if let Some(entry) = entries.remove(&first) {
            self.count -= 1;
            self.by_age.remove(&entry.age);
        }
        if entries.is_empty() {
            self.of_client.remove(&client);
        }
    }

    fn put(&mut self, client: ClientId, first: u64, entry: Entry) {
        self.count += 1;
        if entry.leaving.is_none() {
            self.by_age.insert(entry.age, (client, first));
        }
        self.of_client.entry(client).or_default().insert(first, entry);
    }

    /// Removes what a client has dropped for a purge. What was registered since stays, and what
    /// another purge called back.
    pub fn remove(&mut self, client: ClientId, range: BlockRange, purge: Generation) {
        for (first, _) in self.near(client, range).into_iter().filter(|(_, entry)| entry.leaving == Some(purge)) {
            self.take(client, first);
        }
    }

    /// Keeps the parts of an entry that are outside of a range.
    fn split(&mut self, client: ClientId, first: u64, entry: Entry, range: BlockRange) {
        self.take(client, first);
        for (from, to) in [(first, range.first()), (range.end().max(first), entry.end)] {
            let Some(left) = BlockRange::between(from, to) else { continue };
            let age = Age(self.age_next);
            self.age_next += 1;
            self.put(client, left.first(), Entry { end: left.end(), age, ..entry });
        }
    }

    /// The clients but `except` that may hold copies of blocks of a range.
    pub fn holders(&self, range: BlockRange, except: Option<ClientId>) -> Vec<ClientId> {
        let others = self.of_client.keys().copied().filter(|client| Some(*client) != except);
        others.filter(|client| !self.near(*client, range).is_empty()).collect()
    }

    /// The oldest range that is not leaving.
    pub fn oldest(&self) -> Option<(ClientId, BlockRange)> {
        let (client, first) = *self.by_age.first_key_value()?.1;
        let end = self.of_client.get(&client)?.get(&first)?.end;
        BlockRange::between(first, end).map(|range| (client, range))
    }

    /// Count of ranges that are called back.
    pub fn leaving_count(&self) -> usize {
        self.count - self.by_age.len()
    }

    /// Marks a client's copies of a range as called back by a purge. Returns what has to be
    /// dropped: where the table has no room for the rests on both sides, the whole entry. `None`
    /// when other purges have called all of it back.
    pub fn begin_leaving(
        &mut self,
        client: ClientId,
        range: BlockRange,
        purge: Generation,
        max: usize,
    ) -> Option<BlockRange> {
        let near = self.staying(client, range);
        let first = near.iter().map(|(first, _)| *first).min()?;
        let end = near.iter().map(|(_, entry)| entry.end).max()?;
        let parts_left = usize::from(first < range.first()) + usize::from(end > range.end());
        let whole = BlockRange::between(first.min(range.first()), end.max(range.end()));
        let range = whole.filter(|_| self.count + parts_left > max).unwrap_or(range);
        self.begin_leaving_exactly(client, range, purge);
        Some(range)
    }

    fn staying(&self, client: ClientId, range: BlockRange) -> Vec<(u64, Entry)> {
        self.near(client, range).into_iter().filter(|(_, entry)| entry.leaving.is_none()).collect()
    }

    fn begin_leaving_exactly(&mut self, client: ClientId, range: BlockRange, purge: Generation) {
        for (first, entry) in self.staying(client, range) {
            self.split(client, first, entry, range);
            let Some(inside) = BlockRange::between(first.max(range.first()), entry.end.min(range.end())) else {
                continue;
            };
            self.put(client, inside.first(), Entry { end: inside.end(), leaving: Some(purge), ..entry });
        }
    }

    /// Removes the ranges of a client whose life is over.
    pub fn forget(&mut self, client: ClientId) {
        for entry in self.of_client.remove(&client).into_iter().flatten().map(|(_, entry)| entry) {
            self.count -= 1;
            self.by_age.remove(&entry.age);
        }
    }

    /// All ranges.
    pub fn all(&self) -> impl Iterator<Item = (ClientId, BlockRange)> {
        self.of_client.iter().flat_map(|(client, entries)| {
            entries
                .iter()
                .filter_map(|(first, entry)| BlockRange::between(*first, entry.end).map(|range| (*client, range)))
        })
    }
}
