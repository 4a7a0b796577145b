//! The mount that commits, and how far its records are.

use ext2::mount_state::Stamp;
use uuid::Uuid;

use crate::commit::Changes;
use crate::record::Record;

/// The mount that commits, for its records.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Author {
    pub(crate) uuid: Uuid,
    pub(crate) stamp: Stamp,
}

/// An area whose blocks are all in their places.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begun {
    pub(crate) author: Author,
    /// Sequence number of the last record.
    pub(crate) sequence: u64,
    /// Whether that is empty.
    pub(crate) is_empty: bool,
}

impl Author {
    /// A record that changes nothing.
    pub(crate) fn empty_record(&self, sequence: u64) -> Record {
        let Self { uuid, stamp } = *self;
        Record { uuid, stamp, sequence, makes_area: false, changes: Changes::new() }
    }
}
