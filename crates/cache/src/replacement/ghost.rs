//! Ghosts: tags of lines that were evicted not long ago, oldest first. A line that is used again
//! soon was evicted too early.

use std::collections::{BTreeMap, VecDeque};

use crate::numbers::{SetNumber, Tag};
use crate::tags::Tags;

/// Entries of a set up to which they are searched and moved rather than indexed.
const SCANNED_MAX: usize = 256;

/// The ghosts of all sets.
pub(super) enum Ghosts {
    /// This many places for each set, the oldest first.
    Scanned {
        capacity: usize,
        tags: Tags,
        lengths: Vec<u16>,
    },
    Indexed {
        capacity: usize,
        sets: Vec<Indexed>,
    },
}

/// The ghosts of a large set.
#[derive(Clone, Default)]
pub(super) struct Indexed {
    /// Each with a number; only the entry with the tag's newest number counts.
    queue: VecDeque<(Tag, u64)>,
    current: BTreeMap<Tag, u64>,
    number_next: u64,
}

impl Ghosts {
    /// Room for `capacity` ghosts in each set.
    pub(super) fn new(capacity: usize, set_count: u32) -> Self {
        let set_count = set_count as usize;
        if capacity <= SCANNED_MAX {
            Self::Scanned { capacity, tags: Tags::new(capacity * set_count), lengths: vec![0; set_count] }
        } else {
            Self::Indexed { capacity, sets: vec![Indexed::default(); set_count] }
        }
    }

    /// Adds the newest. The oldest makes room.
    pub(super) fn push(&mut self, set: SetNumber, tag: Tag) {
        let set = set.index();
        match self {
            Self::Scanned { capacity: 0, .. } => {}
            Self::Scanned { capacity, tags, lengths } => {
                let (first, length) = (set * *capacity, usize::from(lengths[set]));
                if length == *capacity {
                    tags.copy_within(first + 1..first + length, first);
                    tags.set(first + length - 1, tag);
                } else {
                    tags.set(first + length, tag);
                    lengths[set] += 1;
                }
            }
            Self::Indexed { capacity, sets } => sets[set].push(*capacity, tag),
        }
    }

    /// Removes a ghost. Returns whether it was there.
    pub(super) fn take(&mut self, set: SetNumber, tag: Tag) -> bool {
        let set = set.index();
        match self {
            Self::Scanned { capacity, tags, lengths } => {
                let first = set * *capacity;
                let end = first + usize::from(lengths[set]);
                let Some(place) = tags.position(first..end, tag) else { return false };
                tags.copy_within(place + 1..end, place);
                lengths[set] -= 1;
                true
            }
            Self::Indexed { sets, .. } => sets[set].current.remove(&tag).is_some(),
        }
    }
}

impl Indexed {
    fn push(&mut self, capacity: usize, tag: Tag) {
        while self.current.len() >= capacity
            && let Some((oldest, number)) = self.queue.pop_front()
        {
            if self.current.get(&oldest) == Some(&number) {
                self.current.remove(&oldest);
            }
        }
        self.number_next += 1;
        self.queue.push_back((tag, self.number_next));
        self.current.insert(tag, self.number_next);
        // Removed entries leave the queue only at its end: they must not become many.
        if self.queue.len() > 2 * capacity {
            self.queue.retain(|(tag, number)| self.current.get(tag) == Some(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ghosts_equal_a_vector(
            is_indexed in any::<bool>(),
            steps in proptest::collection::vec((0u64..2000, any::<bool>()), 1..3000),
        ) {
            let capacity = if is_indexed { 300 } else { 40 };
            let mut ghosts = Ghosts::new(capacity, 2);
            let mut twin: Vec<Tag> = Vec::new();
            for (tag, is_push) in steps {
                let tag = Tag(tag);
                let was_there = twin.contains(&tag);
                if is_push && !was_there {
                    if twin.len() == capacity {
                        twin.remove(0);
                    }
                    twin.push(tag);
                    ghosts.push(SetNumber(1), tag);
                } else {
                    twin.retain(|&other| other != tag);
                    prop_assert_eq!(ghosts.take(SetNumber(1), tag), was_there);
                }
                prop_assert!(!ghosts.take(SetNumber(0), tag), "sets know nothing of each other");
            }
        }
    }
}
