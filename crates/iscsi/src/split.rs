//! Names of the wire extension that splits connections into requests and responses
//! (`docs/protocol/split-connections.md`).

/// Whether a session may be split: a list of versions, best first; the answer is one of them.
pub const SPLIT_CONNECTIONS: &str = "X-io.forebay.SplitConnections";

/// The CID of the connection whose responses the one that logs in will carry.
pub const ANSWERS_FOR: &str = "X-io.forebay.AnswersFor";

/// The version described in the page.
pub const VERSION: &str = "1";

/// The entry of an offer that supports the extension.
pub fn private_offer() -> (String, Vec<String>) {
    (SPLIT_CONNECTIONS.to_owned(), vec![VERSION.to_owned()])
}
