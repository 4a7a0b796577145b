//! Tells the user of a LUN whether its content is still the same.
//!
//! A user that only reads the LUN, and keeps what depends on its content, asks for the id of that.
//! Each new session asks again before any other command: where it is another one, the user is told
//! before it reads anything there.
//!
//! | the answer in a new session | the user hears |
//! |---|---|
//! | the id | the same |
//! | another id, none, or an error | another content |
//! | that there is no such command any more | nothing is known |
//! | that there is no such LUN (25h) | not yet: that proves nothing, and the next session asks |

use scsi::change_mark::{CONTENT_BYTES, ContentId, action_in, parse_content};
use scsi::{Cdb, SenseKey};

use crate::error::{LinkError, sense_error};
use crate::unit::{Probe, is_unsupported};

/// What a new session hears of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is the same.
    Same,
    /// It is another one, or nothing is known of it there.
    Another,
    /// The target cannot tell any more.
    Nothing,
}

/// Tells the user of a LUN whether its content is still the same.
pub struct ContentGuard {
    id: ContentId,
    tell: Box<dyn Fn(Heard) + Send + Sync>,
}

impl ContentGuard {
    /// A guard for the content with this id. `tell` must not block, and is called in each new
    /// session.
    pub fn new(id: ContentId, tell: impl Fn(Heard) + Send + Sync + 'static) -> Self {
        Self { id, tell: Box::new(tell) }
    }

    /// Asks the unit, first of all in a new session.
    ///
    /// # Errors
    /// Those of the link; that the unit is not there.
    pub(crate) async fn ask(&self, probe: &mut Probe<'_>) -> Result<(), LinkError> {
        let heard = match probe.ask(&report_cdb(), CONTENT_BYTES).await? {
            Ok(data) if parse_content(&data).ok().flatten() == Some(self.id) => Heard::Same,
            Err(sense) if is_unsupported(&sense) => {
                tracing::warn!("the target does not tell any more whether its content was changed");
                Heard::Nothing
            }
            Err(sense) if sense.key == SenseKey::IllegalRequest => {
                return Err(LinkError::Unit(sense_error(&sense, "REPORT CONTENT")));
            }
            Ok(_) | Err(_) => Heard::Another,
        };
        (self.tell)(heard);
        Ok(())
    }
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
