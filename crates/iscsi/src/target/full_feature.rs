//! The parameters of a session in the full feature phase.

use scsi::{Cdb, CdbError};

use super::event::SessionRequest;
use super::parameters::{AskedDataOut, DataOutOf};
use crate::negotiation::Negotiated;

/// The negotiated parameters of the session.
pub(super) struct FullFeature {
    pub(super) request: SessionRequest,
    pub(super) negotiated: Negotiated,
    pub(super) data_out_of: Option<DataOutOf>,
    /// The initiator was asked to log out; new commands are rejected (RFC 7143 11.9.1).
    pub(super) is_draining: bool,
}

impl FullFeature {
    /// The data-out that a command to a LUN field asks for: none if its CDB is malformed, which ends with CHECK
    /// CONDITION anyway.
    pub(super) fn asked_data_out(&self, lun: u64, cdb: &Result<Cdb, CdbError>) -> AskedDataOut {
        match (&self.data_out_of, cdb) {
            (Some(of), Ok(cdb)) => of(lun, cdb),
            (None, _) | (_, Err(_)) => AskedDataOut::default(),
        }
    }
}
