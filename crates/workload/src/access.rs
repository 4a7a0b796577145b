//! One access of a workload: kind and range, before its content and time are decided.

use base::range::ByteRange;
use serde::{Deserialize, Serialize};

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessKind {
    /// Reads the range.
    Read,
    /// Writes the range.
    Write,
    /// Makes the writes durable; its range is empty.
    Flush,
    /// Gives the range back.
    Discard,
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The kind.
    pub kind: AccessKind,
    /// The bytes.
    pub range: ByteRange,
}

impl Access {
    /// Whether the order of the two matters: they overlap and at least one of them changes bytes.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        (self.is_mutation() || other.is_mutation()) && self.range.overlaps(&other.range)
    }

    /// Whether it changes what is stored.
    pub fn is_mutation(&self) -> bool {
        matches!(self.kind, AccessKind::Write | AccessKind::Discard)
    }
}
