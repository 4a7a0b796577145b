//! The index of a set: which frame holds a tag.
//!
//! Sets of up to 256 frames are searched by one byte a frame, a fingerprint of the tag: a few vector compares, and no
//! table to keep. Larger sets have a hash table.

use std::ops::Range;

use hashbrown::HashTable;

use crate::numbers::{FrameNumber, Tag};
use crate::tags::Tags;

/// Frames of a set up to which fingerprints are searched.
pub(crate) const SCANNED_WAYS_MAX: u32 = 256;

pub(crate) enum Index {
    Scan(Vec<u8>),
    Hash(HashTable<FrameNumber>),
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
    pub(crate) fn find(&self, tags: &Tags, set: Range<FrameNumber>, tag: Tag) -> Option<FrameNumber> {
        match self {
            Self::Scan(fingerprints) => {
                let all = &fingerprints[set.start.index()..set.end.index()];
                memchr::memchr_iter(fingerprint(tag), all)
                    .map(|at| set.start + at as u32)
                    .find(|&frame| tags.get(frame.index()) == Some(tag))
            }
            Self::Hash(table) => {
                let is_it = |&frame: &FrameNumber| set.contains(&frame) && tags.get(frame.index()) == Some(tag);
                table.find(hash(tag), is_it).copied()
            }
        }
    }

    /// Enters a frame whose tag is set.
    pub(crate) fn insert(&mut self, tags: &Tags, frame: FrameNumber) {
        self.insert_tag(tags, frame, tags.get(frame.index()).unwrap_or(Tag::NONE));
    }

    /// [`Index::insert`] for a caller that knows the tag.
    #[inline]
    pub(crate) fn insert_tag(&mut self, tags: &Tags, frame: FrameNumber, tag: Tag) {
        match self {
            Self::Scan(fingerprints) => fingerprints[frame.index()] = fingerprint(tag),
            Self::Hash(table) => {
                let of = |frame: &FrameNumber| tags.get(frame.index()).unwrap_or(Tag::NONE);
                table.insert_unique(hash(tag), frame, |other| hash(of(other)));
            }
        }
    }

    /// Takes out a frame whose tag is still set.
    pub(crate) fn remove(&mut self, tags: &Tags, frame: FrameNumber) {
        match self {
            Self::Scan(fingerprints) => fingerprints[frame.index()] = 0,
            Self::Hash(table) => {
                let tag = tags.get(frame.index()).unwrap_or(Tag::NONE);
                if let Ok(entry) = table.find_entry(hash(tag), |&other| other == frame) {
                    entry.remove();
                }
            }
        }
    }
}

/// Never zero, which means *nothing*.
fn fingerprint(tag: Tag) -> u8 {
    (hash(tag) >> 57) as u8 | 0x80
}

/// Spreads tags. A fixed function, so that a run with one seed is one run.
#[inline]
pub(crate) fn hash(tag: Tag) -> u64 {
    let mixed = tag.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}
