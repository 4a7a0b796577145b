//! Changes of a logical unit, recorded in its change marks.

use block::{ByteRange, Device, Error, ErrorKind, Request};
use scsi::Sense;
use scsi::change_mark::{Parameters, content_id};
use uuid::Uuid;

use crate::admission::Admission;
use crate::change_marks::{Held, TURN, cannot_save};
use crate::failure::{self, DeviceAccess, Failure};
use crate::nexus::NexusId;
use crate::unit::LogicalUnit;

impl LogicalUnit {
    /// The marks that a nexus holds; captured when a command arrives.
    pub(crate) fn held_by(&self, nexus: &NexusId) -> Held {
        self.change_marks.as_ref().map_or(Held::default(), |marks| marks.held_by(nexus))
    }

    /// The marks that a nexus holds, for a command that arrived at another unit: the nexus may be
    /// gone, and holds nothing then.
    pub(crate) fn held_still_by(&self, nexus: &NexusId) -> Held {
        self.change_marks.as_ref().map_or(Held::default(), |marks| marks.held_still_by(nexus))
    }

    /// Whether a range needs no recording before it is changed. The caller holds it exclusively.
    pub(crate) fn is_change_recorded(&self, held: Held, range: ByteRange) -> bool {
        self.change_marks.as_ref().is_none_or(|marks| marks.is_recorded(held, range))
    }

    /// Records that a range changes. The caller holds the range exclusively, from before this until
    /// it has changed it.
    pub(crate) async fn record_change(&self, held: Held, range: ByteRange) -> Result<(), Failure> {
        self.record_changes(held, &[range]).await
    }

    /// Records several ranges with one durable write. [`record_change`](Self::record_change) is
    /// still needed for each of them once its range is held; it costs nothing then.
    pub(crate) async fn record_changes(&self, held: Held, ranges: &[ByteRange]) -> Result<(), Failure> {
        let Some(marks) = &self.change_marks else { return Ok(()) };
        marks.record(held, ranges).await.map_err(|error| cannot_save(&error))
    }

    /// Records in all marks that everything may have changed by something that is no command, for example a cut of the
    /// unit's file.
    ///
    /// # Errors
    /// Marks that cannot be saved.
    pub async fn note_all_changed(&self) -> Result<(), Error> {
        let Some(marks) = &self.change_marks else { return Ok(()) };
        let whole = ByteRange { offset: 0, length: self.geometry().size_bytes };
        let recorded = marks.record(Held::default(), &[whole]).await;
        recorded.map_err(|context| Error::new(ErrorKind::Media, context))
    }

    /// CLEAR: sets the recorded bits apart, flushes what is on its way to the medium, and then
    /// deletes those bits.
    pub(crate) async fn clear_mark(
        &self,
        nexus: &NexusId,
        parameters: &Parameters,
        admission: Admission,
    ) -> Result<(), Failure> {
        let marks = self.change_marks.as_ref().ok_or(Sense::INVALID_OPERATION_CODE.at_byte(0))?;
        let _turn = marks.clearing.exclusive(TURN).await;
        let _cost = marks.open_clear(nexus, parameters)?;
        {
            let _all = self.access.ranges().exclusive(ByteRange { offset: 0, length: u64::MAX }).await;
            // Changes by a sanitize that has begun since the command arrived must not be cleared.
            admission.check_sanitize(self)?;
            marks.begin_clear(nexus, parameters)?;
        }
        self.flush_changes().await?;
        marks.finish_clear(nexus, parameters, self.geometry().size_bytes).await
    }

    /// NAME CONTENT: what the unit has now gets an id, unless it has one. Nothing executes from the
    /// last flush until it has: a change is before both, or removes the id. It is drawn here: an
    /// initiator could give one a second time.
    pub(crate) async fn name_content(&self, nexus: &NexusId, admission: Admission) -> Result<(), Failure> {
        let marks = self.change_marks.as_ref().ok_or(Sense::INVALID_OPERATION_CODE.at_byte(0))?;
        let _turn = marks.clearing.exclusive(TURN).await;
        if marks.content().is_some() {
            return Ok(());
        }
        let _cost = marks.open_naming()?;
        // Most of it while others go on.
        self.flush_changes().await?;
        let _all = self.access.ranges().exclusive(ByteRange { offset: 0, length: u64::MAX }).await;
        // A sanitize that has begun since the command arrived goes on changing the unit.
        admission.check_sanitize(self)?;
        self.flush_changes().await?;
        marks.name_content(content_id(Uuid::new_v4().into_bytes()), self.protection.covers(nexus)).await
    }

    async fn flush_changes(&self) -> Result<(), Failure> {
        let response = self.device().submit(Request::flush()).await;
        response.result.map_err(|error| failure::of_block_error(&error, DeviceAccess::Writing, None))
    }
}
