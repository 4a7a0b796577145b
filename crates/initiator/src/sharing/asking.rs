//! Administration of a shared unit: reads its report, and fences a client.

use block::{Error, ErrorKind};
use scsi::sharing::report::{Report, ReportRecord};
use scsi::sharing::{Parameters, action_in, action_out};
use scsi::{Cdb, Sense, Status};

use crate::error::sense_error;
use crate::limits::{SHARING_REPORT_BYTES, SHARING_REPORTS_MAX};
use crate::raw_command::{RawCommand, RawOutcome, Repeat};
use crate::remote_lun::RemoteLun;

/// Methods for a LUN that this host shares with others.
impl RemoteLun {
    /// The clients, locks and waits. What changes while the report is read may appear twice or not
    /// at all.
    ///
    /// # Errors
    /// `Corrupt` when the answer makes no sense, and what else commands end with.
    pub async fn sharing_report(&self) -> Result<Vec<ReportRecord>, Error> {
        let (mut records, mut first) = (Vec::new(), 0);
        for _ in 0..SHARING_REPORTS_MAX {
            let allocation_length = SHARING_REPORT_BYTES as u32;
            let cdb = Cdb::SharingIn { service_action: action_in::REPORT, first, allocation_length };
            let outcome = self.carry_out(RawCommand::reading(cdb)).await?;
            check(&outcome, "asking who shares it")?;
            let malformed =
                |_| Error::new(ErrorKind::Corrupt, "the LUN sent a report of who shares it that makes no sense");
            let report = Report::parse(&outcome.data_in).map_err(malformed)?;
            records.extend(report.records);
            match report.next {
                Some(next) => first = next,
                None => break,
            }
        }
        Ok(records)
    }

    /// Ends the life of a client: commands that it sends afterwards have no effect, and its locks
    /// pass on.
    ///
    /// # Errors
    /// `NotFound` for one that does not live; what else commands end with.
    pub async fn fence_client(&self, client: u64) -> Result<(), Error> {
        let list = Parameters::Fence { client }.emit();
        let parameter_list_length = list.len() as u32;
        let cdb = Cdb::SharingOut { service_action: action_out::FENCE, client: 0, parameter_list_length };
        let outcome = self.carry_out(RawCommand::sending(Repeat::Always, cdb, list)).await?;
        if Sense::parse(&outcome.sense)
            .is_ok_and(|sense| sense.is_same_condition(&Sense::INVALID_FIELD_IN_PARAMETER_LIST))
        {
            return Err(Error::new(ErrorKind::NotFound, "no such client is there (any more)"));
        }
        check(&outcome, "fencing a client")
    }
}

fn check(outcome: &RawOutcome, what: &str) -> Result<(), Error> {
    match (Status::from_code(outcome.status), Sense::parse(&outcome.sense)) {
        (Some(Status::Good), _) => Ok(()),
        (_, Ok(sense)) => Err(sense_error(&sense, what)),
        _ => Err(Error::new(ErrorKind::OutcomeUnknown, format!("{what} ended with status {:02x}h", outcome.status))),
    }
}
