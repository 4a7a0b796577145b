//! The two ends of a connection.

/// Both ends of a connection, as text for people; addresses that are not IP are fine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Where the initiator reached us.
    pub local: String,
    /// Where it is.
    pub peer: String,
}
