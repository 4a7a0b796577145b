//! Tells the user of a LUN whether its content is still the same.
//!
//! A user that only reads the LUN, and keeps what depends on its content, asks for the id of that.
//! Each new session asks again before any other command: where it is another one, the user is told
//! before it reads anything there.
//!
//! | the answer in a new session | the user is notified of |
//! |---|---|
//! | the id | the same |
//! | another id, or none | another content |
//! | that there is no such command any more | nothing is known |
//! | any other error (25h: there is no such LUN), or data that make no sense | not yet: that says nothing, and the next session asks; requests wait for it as for any |

use scsi::change_mark::{CONTENT_BYTES, ContentId, action_in, parse_content};
use scsi::{Cdb, Sense, SenseKey};

use crate::error::{LinkError, malformed, sense_error};
use crate::unit::Probe;

/// What a new session says of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentAnswer {
    /// It is the same.
    Same,
    /// It is another one, or nothing is known of it there.
    Another,
    /// The target cannot tell any more.
    Unsupported,
}

/// Tells the user of a LUN whether its content is still the same.
pub struct ContentGuard {
    id: ContentId,
    notify: Box<dyn Fn(ContentAnswer) + Send + Sync>,
}

impl ContentGuard {
    /// A guard for the content with this id. `notify` must not block, and is called in each new
    /// session.
    pub fn new(id: ContentId, notify: impl Fn(ContentAnswer) + Send + Sync + 'static) -> Self {
        Self { id, notify: Box::new(notify) }
    }

    /// Asks the unit, first of all in a new session.
    ///
    /// # Errors
    /// Those of the link; what the unit answers instead. One that cannot tell any more says nothing of
    /// its content.
    pub(crate) async fn ask(&self, probe: &mut Probe<'_>) -> Result<(), LinkError> {
        let answer = match probe.ask(&report_cdb()).await? {
            Ok(data) => {
                let found = parse_content(&data).map_err(|error| LinkError::Unit(malformed(error)))?;
                if found == Some(self.id) { ContentAnswer::Same } else { ContentAnswer::Another }
            }
            Err(sense) if cannot_tell(&sense) => {
                tracing::warn!("the target does not tell any more whether its content was changed");
                ContentAnswer::Unsupported
            }
            Err(sense) => return Err(LinkError::Unit(sense_error(&sense, "REPORT CONTENT"))),
        };
        (self.notify)(answer);
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
