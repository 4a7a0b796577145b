//! The export that a server serves.

use crate::wire::handshake::BlockSize;
use crate::wire::transmission::Abilities;

/// The export that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; clients that give none get it too. At most [`STRING_BYTES_MAX`](crate::limits::STRING_BYTES_MAX).
    pub name: String,
    /// A description for people, perhaps empty.
    pub description: String,
    /// Bytes, a multiple of `block_size.min`.
    pub size_bytes: u64,
    /// Size constraints.
    pub block_size: BlockSize,
    /// The abilities of the export. `can_dont_fragment` is set by the server itself.
    pub abilities: Abilities,
}
