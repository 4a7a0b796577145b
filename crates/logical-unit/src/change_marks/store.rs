//! Where marks are kept over power loss.

use std::future::{Future, ready};
use std::pin::Pin;

use super::PartWords;

/// A mark as it is kept, but for its bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedMark {
    /// Drawn by the initiator.
    pub id: [u8; 16],
    /// Drawn by the initiator at each TAKE.
    pub token: u64,
    /// What it was at the last TAKE or CLEAR.
    pub sequence: u64,
    /// The iSCSI name of the initiator that made it.
    pub initiator: String,
    /// Grows with each TAKE in the unit.
    pub order: u64,
    /// Every range has changed, whatever the bits say.
    pub is_everything: bool,
    /// Nobody took it yet who may write the unit.
    pub is_of_reader: bool,
}

/// What a store had kept: slot, mark, and the words of its bitmap. Words behind the last one count as changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedMarks {
    /// Each slot once.
    pub marks: Vec<(u16, SavedMark, Vec<u64>)>,
}

/// Something to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkUpdate {
    /// The mark in a slot; none is forgotten.
    Mark {
        /// Below [`CHANGE_MARKS_MAX`](crate::limits::CHANGE_MARKS_MAX).
        slot: u16,
        /// What is there from now on.
        mark: Option<SavedMark>,
    },
    /// A part of the bitmap of the mark in a slot.
    Part {
        /// The slot.
        slot: u16,
        /// The mark it belongs to.
        id: [u8; 16],
        /// Below [`MARK_PARTS`](crate::limits::MARK_PARTS).
        part: u16,
        /// All its words.
        words: Box<PartWords>,
    },
}

/// Something on its way to be durable; an error is a sentence.
pub type Saving = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Where change marks are kept over power loss.
pub trait ChangeStore: Send + Sync {
    /// Makes all of them durable, in any order; commands wait for it. Until it has ended well, each may have been kept
    /// or not. It is not called again before it has ended, unless the future was dropped.
    fn save(&self, updates: Vec<MarkUpdate>) -> Saving;
}

/// Keeps nothing: for units that are other ones after a restart.
#[derive(Debug, Default)]
pub struct MemoryChanges;

impl ChangeStore for MemoryChanges {
    fn save(&self, _: Vec<MarkUpdate>) -> Saving {
        Box::pin(ready(Ok(())))
    }
}
