//! The store of change marks, which outlives a power loss.

use std::future::{Future, ready};
use std::pin::Pin;

use super::PartWords;

/// A mark as it is stored, without its bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedMark {
    /// Drawn by the initiator.
    pub id: [u8; 16],
    /// Drawn by the initiator at each TAKE.
    pub token: u64,
    /// The content's number at the last TAKE or CLEAR.
    pub sequence: u64,
    /// The iSCSI name of the initiator that made it.
    pub initiator: String,
    /// Grows with each TAKE in the unit.
    pub order: u64,
    /// Every range has changed, whatever the bits say.
    pub is_everything: bool,
    /// No nexus that may write the unit has taken it yet.
    pub is_of_reader: bool,
}

/// What a store has kept: slot, mark, and the words of its bitmap. Words beyond the last one count
/// as changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedMarks {
    /// Each slot once.
    pub marks: Vec<(u16, SavedMark, Vec<u64>)>,
}

/// One change of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkUpdate {
    /// Sets the mark of a slot; `None` deletes it.
    Mark {
        /// Below [`CHANGE_MARKS_MAX`](crate::limits::CHANGE_MARKS_MAX).
        slot: u16,
        /// The slot's new mark.
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

/// The future of a save; its error is a sentence.
pub type Saving = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// Keeps change marks over power loss.
pub trait ChangeStore: Send + Sync {
    /// Makes all of them durable, in any order; commands wait for it. Until it has ended well, each
    /// may be stored or not. It is not called again before it has ended, unless the future was
    /// dropped.
    fn save(&self, updates: Vec<MarkUpdate>) -> Saving;
}

/// A store that keeps nothing: for units that get a new identity after a restart.
#[derive(Debug, Default)]
pub struct MemoryChanges;

impl ChangeStore for MemoryChanges {
    fn save(&self, _: Vec<MarkUpdate>) -> Saving {
        Box::pin(ready(Ok(())))
    }
}
