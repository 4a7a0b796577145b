//! One access of a workload: what is done to which bytes, before anybody decides with what content and when.

use base::range::ByteRange;
use serde::{Deserialize, Serialize};

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessKind {
    /// Reads the range.
    Read,
    /// Writes the range.
    Write,
    /// Makes what was written durable; its range is empty.
    Flush,
    /// Gives the range back.
    Discard,
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What is done.
    pub kind: AccessKind,
    /// To which bytes.
    pub range: ByteRange,
}

impl Access {
    /// Whether the order of the two matters: they share bytes and at least one of them changes those.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        (self.is_mutation() || other.is_mutation()) && self.range.overlaps(&other.range)
    }

    /// Whether it changes what is stored.
    pub fn is_mutation(&self) -> bool {
        matches!(self.kind, AccessKind::Write | AccessKind::Discard)
    }
}
