//! Which frame holds a tag of a set.
//!
//! Sets of up to 256 frames are searched by one byte a frame, a fingerprint of the tag: a few vector compares, and no
//! table to keep. Larger sets have a hash table.

use std::ops::Range;

use hashbrown::HashTable;

use crate::tags::Tags;

/// Frames of a set up to which fingerprints are searched.
pub(crate) const SCANNED_WAYS_MAX: u32 = 256;

pub(crate) enum Index {
    Scan(Vec<u8>),
    Hash(HashTable<u32>),
}

impl Index {
    pub(crate) fn new(ways: u32, frame_count: u32) -> Self {
        if ways <= SCANNED_WAYS_MAX {
            Self::Scan(vec![0; frame_count as usize])
        } else {
            Self::Hash(HashTable::with_capacity(frame_count as usize))
        }
    }

    /// The frame of `set` that holds `tag`.
    pub(crate) fn find(&self, tags: &Tags, set: Range<u32>, tag: u64) -> Option<u32> {
        match self {
            Self::Scan(fingerprints) => {
                let all = &fingerprints[set.start as usize..set.end as usize];
                memchr::memchr_iter(fingerprint(tag), all)
                    .map(|at| set.start + at as u32)
                    .find(|&frame| tags.get(frame as usize) == Some(tag))
            }
            Self::Hash(table) => {
                let is_it = |&frame: &u32| set.contains(&frame) && tags.get(frame as usize) == Some(tag);
                table.find(hash(tag), is_it).copied()
            }
        }
    }

    /// Enters a frame whose tag is set.
    pub(crate) fn insert(&mut self, tags: &Tags, frame: u32) {
        self.insert_tag(tags, frame, tags.get(frame as usize).unwrap_or(u64::MAX));
    }

    /// [`Index::insert`] for one who knows the tag.
    #[inline]
    pub(crate) fn insert_tag(&mut self, tags: &Tags, frame: u32, tag: u64) {
        match self {
            Self::Scan(fingerprints) => fingerprints[frame as usize] = fingerprint(tag),
            Self::Hash(table) => {
                let of = |frame: &u32| tags.get(*frame as usize).unwrap_or(u64::MAX);
                table.insert_unique(hash(tag), frame, |other| hash(of(other)));
            }
        }
    }

    /// Takes out a frame whose tag is still set.
    pub(crate) fn remove(&mut self, tags: &Tags, frame: u32) {
        match self {
            Self::Scan(fingerprints) => fingerprints[frame as usize] = 0,
            Self::Hash(table) => {
                let tag = tags.get(frame as usize).unwrap_or(u64::MAX);
                if let Ok(entry) = table.find_entry(hash(tag), |&other| other == frame) {
                    entry.remove();
                }
            }
        }
    }
}

/// Never zero, which means *nothing*.
fn fingerprint(tag: u64) -> u8 {
    (hash(tag) >> 57) as u8 | 0x80
}

/// Spreads tags. A fixed function, so that a run with one seed is one run.
#[inline]
pub(crate) fn hash(tag: u64) -> u64 {
    let mixed = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}
