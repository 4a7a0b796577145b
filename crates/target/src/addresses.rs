//! The two ends of a connection.

/// Both ends of a connection, as text for people; addresses that are not IP are fine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The local address that the initiator connected to.
    pub local: String,
    /// The initiator's address.
    pub peer: String,
}
