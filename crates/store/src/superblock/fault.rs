//! Why a copy is not used, and the errors of a device on which none is, or two that do not belong together.

use block::{Error, ErrorKind};
use uuid::Uuid;

use super::copies::CopyState;
use super::header::StoreKind;

/// Why a copy is not used.
pub(super) enum Fault {
    /// It could not be read.
    Unreadable(Error),
    /// All zero: never written, or erased.
    Empty,
    /// Not a copy of a store, or damaged.
    Damaged,
    /// Whole, but of another kind or version, or for a device of another size; with the uuid of
    /// that store.
    Foreign(Error, Uuid),
}

impl Fault {
    pub(super) fn state(&self) -> CopyState {
        match self {
            Self::Unreadable(_) => CopyState::Unreadable,
            Self::Empty => CopyState::Empty,
            Self::Damaged | Self::Foreign(..) => CopyState::Damaged,
        }
    }
}

/// The two copies are of two stores: what lies between them belongs to one of these, or to both.
pub(super) fn of_two_stores(kind: StoreKind, first: Uuid, last: Uuid) -> Error {
    let context = format!(
        "the two copies of the superblock are of two {}s, {first} and {last}: one lies over the other",
        kind.name
    );
    Error::new(ErrorKind::Corrupt, context)
}

/// Likewise, where one copy is of a store that this program does not open.
pub(super) fn beside_another(error: &Error) -> Error {
    let context =
        format!("the two copies of the superblock are of two stores, one of which lies over the other: {error}");
    Error::new(ErrorKind::Corrupt, context)
}

/// The one message for a device without a valid copy. The most telling fault comes first.
pub(super) fn no_copy(kind: StoreKind, first: Fault, last: Fault) -> Error {
    match (first, last) {
        (Fault::Foreign(error, _), _) | (_, Fault::Foreign(error, _)) => error,
        (Fault::Unreadable(error), Fault::Unreadable(_)) => error,
        (Fault::Empty, Fault::Empty) => {
            Error::new(ErrorKind::Corrupt, format!("not a forebay {}: there is no superblock", kind.name))
        }
        _ => {
            let context = format!(
                "no valid superblock: not a forebay {}, or both copies (first and last 4 KiB) are damaged",
                kind.name
            );
            Error::new(ErrorKind::Corrupt, context)
        }
    }
}
