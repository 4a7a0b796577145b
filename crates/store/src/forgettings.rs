//! The forgetting of clean copies that events of the origin ask for, once the requests on them are done.
//!
//! Each takes a place among the requests, so that none that comes later is answered from such a copy. While one waits
//! for its place, what is asked for within its range needs no other: whatever came behind it has not begun. So an
//! origin that reports the same change again and again while a request hangs makes one of them wait. Of those that are
//! apart there are [`FORGETTINGS_MAX`]; the next one is for everything, and has room for all that follow.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::range::ByteRange;

use crate::limits::FORGETTINGS_MAX;

/// All bytes that an origin may ever have.
const EVERYTHING: ByteRange = ByteRange { offset: 0, length: u64::MAX };

/// Those of one store that have not ended.
#[derive(Clone, Default)]
pub struct Forgettings(Arc<Mutex<List>>);

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// Count of all that there were.
    count: u64,
}

struct Entry {
    number: u64,
    range: ByteRange,
    /// Whether it waits for its place.
    is_waiting: bool,
    /// Whether one of those that it stands for follows a change of the origin's size.
    is_resized: bool,
}

/// One that has not ended.
pub struct Forgetting {
    all: Forgettings,
    number: u64,
    range: ByteRange,
}

impl Forgettings {
    /// Asks for the forgetting of `range`, after a change of size if `is_resized`. `take_place` takes the place among
    /// the requests for the range that it gets. `None` where one that waits stands for it.
    #[must_use]
    pub fn add<P>(
        &self,
        range: ByteRange,
        is_resized: bool,
        take_place: impl FnOnce(ByteRange) -> P,
    ) -> Option<(Forgetting, P)> {
        // Locked until the place is taken: whoever is told that another stands for it comes behind that place.
        let list = &mut *self.lock();
        let stands_for_it = |entry: &&mut Entry| entry.is_waiting && entry.range.contains(&range);
        if let Some(entry) = list.entries.iter_mut().find(stands_for_it) {
            entry.is_resized |= is_resized;
            return None;
        }
        let range = if list.entries.len() < FORGETTINGS_MAX { range } else { EVERYTHING };
        list.count += 1;
        let number = list.count;
        list.entries.push(Entry { number, range, is_waiting: true, is_resized });
        Some((Forgetting { all: self.clone(), number, range }, take_place(range)))
    }

    /// Count of those that have not ended.
    pub fn count(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Forgetting {
    /// Begins: its place is there. From now on it stands for no others. Returns the range to be forgotten, and whether
    /// that follows a change of size.
    pub fn begin(&self) -> (ByteRange, bool) {
        let mut list = self.all.lock();
        let own = list.entries.iter_mut().find(|entry| entry.number == self.number);
        let is_resized = own.is_some_and(|entry| {
            entry.is_waiting = false;
            entry.is_resized
        });
        (self.range, is_resized)
    }
}

impl Drop for Forgetting {
    fn drop(&mut self) {
        self.all.lock().entries.retain(|entry| entry.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, length: u64) -> ByteRange {
        ByteRange { offset, length }
    }

    #[test]
    fn what_is_within_one_that_waits_needs_no_other() {
        let all = Forgettings::default();
        let (first, place) = all.add(range(0, 100), false, |range| range).expect("the first");
        assert_eq!(place, range(0, 100));
        assert!(all.add(range(10, 20), true, |range| range).is_none());
        let apart = all.add(range(90, 20), false, |range| range);
        assert_eq!((apart.is_some(), all.count()), (true, 2));
        assert_eq!(first.begin(), (range(0, 100), true), "one of them follows a change of size");
        let next = all.add(range(10, 20), false, |range| range);
        assert!(next.is_some(), "what comes while it is forgotten may be read in before that");
        drop((first, apart, next));
        assert_eq!(all.count(), 0);
    }

    #[test]
    fn those_that_are_apart_are_so_many_and_then_one_for_everything() {
        let all = Forgettings::default();
        let waiting: Vec<_> =
            (0..10_000).filter_map(|number| all.add(range(10 * number, 10), false, |it| it)).collect();
        assert_eq!((waiting.len(), all.count()), (FORGETTINGS_MAX + 1, FORGETTINGS_MAX + 1));
        assert_eq!(waiting.last().map(|(_, place)| *place), Some(EVERYTHING));
        waiting.iter().for_each(|(forgetting, _)| _ = forgetting.begin());
        // It waits for them, and all that follow for it.
        let next: Vec<_> = (0..10).filter_map(|number| all.add(range(number, 1), false, |it| it)).collect();
        assert_eq!(next.len(), 1);
    }
}
