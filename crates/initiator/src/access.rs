//! How a session's target port reaches the logical unit: asymmetric logical unit access (SPC-4 5.15).

use block::{Error, ErrorKind};
use scsi::target_port_groups::{self, AccessState};
use scsi::{Cdb, Sense, SenseKey, Status, vpd};

use crate::limits::CONTROL_DATA_BYTES;
use crate::raw_command::RawCommand;
use crate::remote_lun::RemoteLun;

impl RemoteLun {
    /// The state of the target port group that the session uses; `None` where the target does not
    /// report one.
    ///
    /// Without a session the request waits for one, like every other request.
    ///
    /// # Errors
    /// `Gone` or `TimedOut` when there is no session for too long; `TimedOut` when the unit stays
    /// busy or not ready.
    pub async fn access_state(&self) -> Result<Option<AccessState>, Error> {
        let length = CONTROL_DATA_BYTES as u16;
        let cdb = Cdb::Inquiry { is_vpd: true, page: vpd::page::DEVICE_IDENTIFICATION, allocation_length: length };
        let Some(page) = self.ask(cdb).await? else { return Ok(None) };
        let Ok(Some(own)) = vpd::parse_target_port_group(&page) else { return Ok(None) };
        let cdb = Cdb::ReportTargetPortGroups { is_extended: false, allocation_length: length.into() };
        let Some(report) = self.ask(cdb).await? else { return Ok(None) };
        let groups = target_port_groups::parse(&report).unwrap_or_default();
        Ok(groups.iter().find(|group| group.number == own).map(|group| group.access))
    }

    /// Sends a command that only reads, and returns its data; `None` where the unit does not know
    /// the command.
    async fn ask(&self, cdb: Cdb) -> Result<Option<Vec<u8>>, Error> {
        let outcome = self.carry_out(RawCommand::reading(cdb)).await?;
        if Status::from_code(outcome.status) == Some(Status::Good) {
            return Ok(Some(outcome.data_in));
        }
        match Sense::parse(&outcome.sense) {
            Ok(sense) if sense.key == SenseKey::IllegalRequest => Ok(None),
            Ok(sense) => Err(Error::new(
                ErrorKind::TimedOut,
                format!("{} does not say how it is reached: {sense}", self.place()),
            )),
            Err(_) => {
                let words = format!("{} does not say how it is reached: status {:02x}h", self.place(), outcome.status);
                Err(Error::new(ErrorKind::TimedOut, words))
            }
        }
    }
}
