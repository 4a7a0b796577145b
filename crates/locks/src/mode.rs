//! Modes of locks, and which of them conflict: tables 1 and 2 of the paper (He and Du, 2005).
//!
//! A mode *covers* another when it allows all that the other allows. The paper has no mode that is
//! shared and intends exclusive access, so the join of `D_S` and `D_IX` is `D_X`.

use std::fmt;

/// A mode of a metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetadataMode {
    /// `M_S`: to read. Kept until it is called back.
    Shared,
    /// `M_X`: to change.
    Exclusive,
}

/// A mode of a file or of a block group of it, in the order of table 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataMode {
    /// `D_S`: to read it and all below it.
    Shared,
    /// `D_X`: to change it and all below it.
    Exclusive,
    /// `D_IS`: to lock below it in `D_S`.
    IntentionShared,
    /// `D_IX`: to lock below it in `D_X` or `D_S`.
    IntentionExclusive,
}

/// Table 1: rows and columns `M_S`, `M_X`; true is the paper's `+`, a conflict.
pub const METADATA_CONFLICTS: [[bool; 2]; 2] = [[false, true], [true, true]];

/// Table 2: rows and columns `D_S`, `D_X`, `D_IS`, `D_IX`; true is the paper's `+`, a conflict.
pub const DATA_CONFLICTS: [[bool; 4]; 4] =
    [[false, true, false, true], [true, true, true, true], [false, true, false, false], [true, true, false, false]];

/// The weakest mode that covers both, in the order of table 2.
const DATA_JOINS: [[DataMode; 4]; 4] = {
    use DataMode::{Exclusive as X, IntentionExclusive as IX, IntentionShared as IS, Shared as S};
    [[S, X, S, X], [X, X, X, X], [S, X, IS, IX], [X, X, IX, IX]]
};

/// A mode of any resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Of a metadata block.
    Metadata(MetadataMode),
    /// Of a file or block group.
    Data(DataMode),
}

impl Mode {
    /// `M_S`.
    pub const M_S: Self = Self::Metadata(MetadataMode::Shared);
    /// `M_X`.
    pub const M_X: Self = Self::Metadata(MetadataMode::Exclusive);
    /// `D_S`.
    pub const D_S: Self = Self::Data(DataMode::Shared);
    /// `D_X`.
    pub const D_X: Self = Self::Data(DataMode::Exclusive);
    /// `D_IS`.
    pub const D_IS: Self = Self::Data(DataMode::IntentionShared);
    /// `D_IX`.
    pub const D_IX: Self = Self::Data(DataMode::IntentionExclusive);

    /// From the mode that allows most to the one that allows least, so that the first that fits is
    /// the one to keep.
    const BY_STRENGTH: [Self; 6] = [Self::M_X, Self::M_S, Self::D_X, Self::D_S, Self::D_IX, Self::D_IS];

    /// Whether two holders exclude each other. Modes of different kinds never stand on one resource; they count as a
    /// conflict.
    pub fn conflicts(self, other: Self) -> bool {
        match (self, other) {
            (Self::Metadata(a), Self::Metadata(b)) => METADATA_CONFLICTS[a as usize][b as usize],
            (Self::Data(a), Self::Data(b)) => DATA_CONFLICTS[a as usize][b as usize],
            _ => true,
        }
    }

    /// Whether it conflicts with every mode of its kind.
    pub fn excludes_all(self) -> bool {
        matches!(self, Self::M_X | Self::D_X)
    }

    /// The weakest mode that covers both: the result for a holder of one that requests the other.
    pub fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Metadata(a), Self::Metadata(b)) => Self::Metadata(a.max(b)),
            (Self::Data(a), Self::Data(b)) => Self::Data(DATA_JOINS[a as usize][b as usize]),
            _ => self,
        }
    }

    /// The strongest mode that both cover: what is left to a holder of one that is lowered to the
    /// other.
    pub fn meet(self, other: Self) -> Self {
        Self::BY_STRENGTH.into_iter().find(|mode| self.covers(*mode) && other.covers(*mode)).unwrap_or(self)
    }

    /// Whether its holder may do all that `other` allows.
    pub fn covers(self, other: Self) -> bool {
        matches!((self, other), (Self::Metadata(_), Self::Metadata(_)) | (Self::Data(_), Self::Data(_)))
            && self.join(other) == self
    }

    /// The strongest mode to keep when another owner is to get `requested`; `None` when all must be
    /// given up.
    pub fn strongest_beside(self, requested: Self) -> Option<Self> {
        Self::BY_STRENGTH.into_iter().find(|mode| self.covers(*mode) && !mode.conflicts(requested))
    }

    /// Whether it only announces a lock on something below.
    pub fn is_intention(self) -> bool {
        matches!(self, Self::D_IS | Self::D_IX)
    }

    /// The weakest mode of the file in which one of its block groups can be locked in this mode.
    pub fn intention(self) -> Self {
        if self == Self::D_S { Self::D_IS } else { Self::D_IX }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::Metadata(MetadataMode::Shared) => "M_S",
            Self::Metadata(MetadataMode::Exclusive) => "M_X",
            Self::Data(DataMode::Shared) => "D_S",
            Self::Data(DataMode::Exclusive) => "D_X",
            Self::Data(DataMode::IntentionShared) => "D_IS",
            Self::Data(DataMode::IntentionExclusive) => "D_IX",
        })
    }
}
