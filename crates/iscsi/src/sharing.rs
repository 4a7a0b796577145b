//! Names of the wire extension by which several hosts share a logical unit (`docs/protocol/sharing.md`).

/// Whether commands and messages of shared units are used on a session: a list of versions, best first; the answer is
/// one of them.
pub const SHARING: &str = "X-io.forebay.Sharing";

/// The version described in the page.
pub const VERSION: &str = "1";

/// Least MaxRecvDataSegmentLength of an initiator that agrees on the key: the longest message is
/// one segment.
pub const SEGMENT_BYTES_MIN: u32 = 2048;

/// The entry of an offer that supports the extension.
pub fn private_offer() -> (String, Vec<String>) {
    (SHARING.to_owned(), vec![VERSION.to_owned()])
}
