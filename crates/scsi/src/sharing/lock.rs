//! The lock descriptor of 24 bytes: a resource, a mode, and the number of a grant.
//!
//! | byte | holds |
//! |---|---|
//! | 0 | kind: 0 metadata block, 1 file, 2 block group of a file |
//! | 1 | mode; FFh for none |
//! | 2..8 | number of the grant; zero where none is meant |
//! | 8..16 | block, file |
//! | 16..24 | block group, else zero |

use super::reader::{Reader, WrongByte};

/// Bytes of a lock.
pub const LOCK_BYTES: usize = 24;

/// Largest number of a grant.
pub const GRANT_MAX: u64 = (1 << 48) - 1;

const KIND_METADATA: u8 = 0;
const KIND_FILE: u8 = 1;
const KIND_GROUP: u8 = 2;
const MODE_NONE: u8 = 0xff;

/// A resource that can be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A physical block of metadata.
    Metadata(u64),
    /// A file; 0 is the unit itself.
    File(u64),
    /// A block group of a file.
    Group(u64, u64),
}

/// The mode of a lock. The names are the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// `M_S`.
    MetadataShared = 0,
    /// `M_X`.
    MetadataExclusive = 1,
    /// `D_IS`.
    IntentionShared = 2,
    /// `D_IX`.
    IntentionExclusive = 3,
    /// `D_S`.
    Shared = 4,
    /// `D_X`.
    Exclusive = 5,
}

const MODES: [Mode; 6] = [
    Mode::MetadataShared,
    Mode::MetadataExclusive,
    Mode::IntentionShared,
    Mode::IntentionExclusive,
    Mode::Shared,
    Mode::Exclusive,
];

/// A lock in a parameter list, a message or a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The locked resource.
    pub resource: Resource,
    /// The mode of the lock; `None` where it is to be given back.
    pub mode: Option<Mode>,
    /// The number of the grant that is meant, at most [`GRANT_MAX`]; zero where none is.
    pub grant: u64,
}

impl Lock {
    /// Appends its bytes.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let (kind, first, group) = match self.resource {
            Resource::Metadata(block) => (KIND_METADATA, block, 0),
            Resource::File(file) => (KIND_FILE, file, 0),
            Resource::Group(file, group) => (KIND_GROUP, file, group),
        };
        out.extend([kind, self.mode.map_or(MODE_NONE, |mode| mode as u8)]);
        out.extend(&self.grant.min(GRANT_MAX).to_be_bytes()[2..]);
        out.extend(first.to_be_bytes());
        out.extend(group.to_be_bytes());
    }

    pub(super) fn parse(reader: &mut Reader<'_>) -> Result<Self, WrongByte> {
        let at = reader.at();
        let (kind, mode) = (reader.u8()?, reader.u8()?);
        let mode = match mode {
            MODE_NONE => None,
            code => Some(*MODES.get(usize::from(code)).ok_or(Reader::wrong(at + 1))?),
        };
        let [a, b, c, d, e, f] = reader.field()?;
        let grant = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let (first, group) = (reader.u64()?, reader.u64()?);
        let resource = match kind {
            KIND_METADATA => Resource::Metadata(first),
            KIND_FILE => Resource::File(first),
            KIND_GROUP => Resource::Group(first, group),
            _ => return Err(Reader::wrong(at)),
        };
        if kind != KIND_GROUP && group != 0 {
            return Err(Reader::wrong(at + 16));
        }
        Ok(Self { resource, mode, grant })
    }
}
