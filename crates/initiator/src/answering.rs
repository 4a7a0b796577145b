//! Whether a logical unit answers.

use block::Error;
use scsi::Cdb;

use crate::raw_command::RawCommand;
use crate::remote_lun::RemoteLun;
use crate::verdict::{Verdict, judge_status};

impl RemoteLun {
    /// Waits until the unit answers, with TEST UNIT READY. It is told of no lost data, as a flush
    /// would be: the next flush is.
    ///
    /// # Errors
    /// Why nothing can be done with the unit. [`status`](Self::status) tells whether that is for
    /// good.
    pub async fn check_answers(&self) -> Result<(), Error> {
        let outcome = self.carry_out(RawCommand::reading(Cdb::TestUnitReady)).await?;
        let what = || format!("asking {} whether it answers", self.place());
        match judge_status(outcome.status, &outcome.sense, &what) {
            Verdict::Failed(error) | Verdict::Elsewhere(error) | Verdict::Fenced(error) => Err(error),
            // It is busy, or the driver looks for it.
            _ => Ok(()),
        }
    }
}
