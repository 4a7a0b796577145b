//! What the full feature phase of a session goes by.

use super::event::SessionRequest;
use super::parameters::DataOutBytes;
use crate::negotiation::Negotiated;

/// What was agreed for the session.
pub(super) struct FullFeature {
    pub(super) request: SessionRequest,
    pub(super) negotiated: Negotiated,
    pub(super) data_out_bytes: Option<DataOutBytes>,
    /// The initiator was asked to log out; new commands are rejected (RFC 7143 11.9.1).
    pub(super) is_draining: bool,
}
