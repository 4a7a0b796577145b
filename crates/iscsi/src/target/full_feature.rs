//! The parameters of a session in the full feature phase.

use super::event::SessionRequest;
use super::parameters::{AskedDataOut, DataOutOf};
use crate::negotiation::Negotiated;
use crate::pdu::ScsiCommand;

/// The negotiated parameters of the session.
pub(super) struct FullFeature {
    pub(super) request: SessionRequest,
    pub(super) negotiated: Negotiated,
    pub(super) data_out_of: Option<DataOutOf>,
    /// The initiator was asked to log out; new commands are rejected (RFC 7143 11.9.1).
    pub(super) is_draining: bool,
}

impl FullFeature {
    /// The data-out that a command asks for.
    pub(super) fn asked_data_out(&self, command: &ScsiCommand) -> AskedDataOut {
        self.data_out_of.as_ref().map_or_else(AskedDataOut::default, |of| of(command.lun, &command.cdb))
    }
}
