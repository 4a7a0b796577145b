//! What a client learns about the export.

use crate::wire::handshake::BlockSize;
use crate::wire::transmission::Abilities;

/// The result of negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Bytes.
    pub size_bytes: u64,
    /// The abilities of the export.
    pub abilities: Abilities,
    /// Size constraints; the document's defaults where the server announced none.
    pub block_size: BlockSize,
    /// The export's own name, where the server sent it.
    pub name: String,
    /// A description for people, where the server sent it.
    pub description: String,
    /// Whether structured replies are used.
    pub is_structured: bool,
    /// Whether block status requests are allowed.
    pub has_block_status: bool,
}

impl Default for ExportInfo {
    /// Nothing is known, and nothing agreed on.
    fn default() -> Self {
        Self {
            size_bytes: 0,
            abilities: Abilities::default(),
            block_size: BlockSize::DEFAULT,
            name: String::new(),
            description: String::new(),
            is_structured: false,
            has_block_status: false,
        }
    }
}
