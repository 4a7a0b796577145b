//! Tells the user of a LUN that its content is another one.
//!
//! A user that only reads the LUN, and keeps what depends on its content, asks for the id of that.
//! Each new session asks again before any other command: where it is another one, the user is told
//! before it reads anything there. A unit that does not answer is asked again in another session, for
//! which requests wait as for any: that it did not says nothing of its content.

use scsi::change_mark::{CONTENT_BYTES, ContentId, action_in, parse_content};
use scsi::{Cdb, Sense, SenseKey};

use crate::change_marks::malformed;
use crate::error::{LinkError, sense_error};
use crate::unit::Probe;

/// Tells the user of a LUN that its content is another one.
pub struct ContentGuard {
    id: ContentId,
    tell: Box<dyn Fn() + Send + Sync>,
}

impl ContentGuard {
    /// A guard for the content with this id. `tell` must not block, and is called again in each
    /// session in which the content is not that.
    pub fn new(id: ContentId, tell: impl Fn() + Send + Sync + 'static) -> Self {
        Self { id, tell: Box::new(tell) }
    }

    /// Asks the unit, first of all in a new session.
    ///
    /// # Errors
    /// Those of the link; what the unit answers instead. One that cannot tell any more says nothing of
    /// its content.
    pub(crate) async fn ask(&self, probe: &mut Probe<'_>) -> Result<(), LinkError> {
        let found = match probe.ask(&report_cdb()).await? {
            Ok(data) => parse_content(&data).map_err(|error| LinkError::Unit(malformed(error)))?,
            Err(sense) if cannot_tell(&sense) => {
                tracing::warn!("the target does not tell any more whether its content was changed");
                return Ok(());
            }
            Err(sense) => return Err(LinkError::Unit(sense_error(&sense, "REPORT CONTENT"))),
        };
        if found != Some(self.id) {
            (self.tell)();
        }
        Ok(())
    }
}

/// Whether there is no such command any more, or not with this service action.
fn cannot_tell(sense: &Sense) -> bool {
    sense.key == SenseKey::IllegalRequest && matches!(sense.asc, 0x20 | 0x24)
}

/// REPORT CONTENT.
pub(crate) fn report_cdb() -> Cdb {
    Cdb::ChangeMarkIn {
        service_action: action_in::REPORT_CONTENT,
        slot: 0,
        first_range: 0,
        allocation_length: CONTENT_BYTES as u32,
    }
}
