//! Names of the wire extension by which several hosts share a logical unit (`docs/protocol/sharing.md`).

/// Whether commands and messages of shared units are used on a session: a list of versions, best first; the answer is
/// one of them.
pub const SHARING: &str = "X-io.forebay.Sharing";

/// The version described in the page.
pub const VERSION: &str = "1";

/// Bytes of a data segment that an initiator takes at least that agrees on it: the longest message is one.
pub const SEGMENT_BYTES_MIN: u32 = 2048;

/// How an offer says that it takes the extension.
pub fn private_offer() -> (String, Vec<String>) {
    (SHARING.to_owned(), vec![VERSION.to_owned()])
}
