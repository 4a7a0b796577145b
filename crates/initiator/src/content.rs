//! The content id of a LUN (`docs/protocol/change-marks.md`): the target gives what it has now an
//! id, which is void from the first change on, by whatever host.
//!
//! A user that only reads the LUN, and keeps what depends on its content, asks for the id. Each new
//! session asks again before any other command: where it is another one, the user is told before it
//! reads anything there.

use block::Error;
use scsi::change_mark::{CONTENT_BYTES, Parameters, action_in, action_out, parse_content};
use scsi::{Cdb, Sense, SenseKey};

pub use scsi::change_mark::ContentId;

use crate::change_marks::{check, malformed};
use crate::error::LinkError;
use crate::job::Repeat;
use crate::remote_lun::RemoteLun;
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
    /// Those of the link. A unit that cannot tell any more says nothing of its content.
    pub(crate) async fn ask(&self, probe: &mut Probe<'_>) -> Result<(), LinkError> {
        let found = match probe.ask(&report_cdb(), CONTENT_BYTES).await? {
            Ok(data) => parse_content(&data).ok().flatten(),
            Err(sense) if cannot_tell(&sense) => {
                tracing::warn!("the target does not tell any more whether its content was changed");
                return Ok(());
            }
            Err(_) => None,
        };
        if found != Some(self.id) {
            (self.tell)();
        }
        Ok(())
    }
}

fn cannot_tell(sense: &Sense) -> bool {
    sense.key == SenseKey::IllegalRequest
}

fn report_cdb() -> Cdb {
    Cdb::ChangeMarkIn {
        service_action: action_in::REPORT_CONTENT,
        slot: 0,
        first_range: 0,
        allocation_length: CONTENT_BYTES as u32,
    }
}

impl RemoteLun {
    /// The id of the content; `None` where it has none, or where it was changed since it got one.
    ///
    /// # Errors
    /// `Unsupported` where the target cannot tell, `Corrupt` when the answer is malformed, else the
    /// errors of commands.
    pub async fn content_id(&self) -> Result<Option<ContentId>, Error> {
        self.support()?;
        let data = self.change_mark_in(&report_cdb(), CONTENT_BYTES).await?;
        parse_content(&data).map_err(malformed)
    }

    /// Gives the content this id, which must be new, unless it has one. It is the id of the content
    /// that every later read finds, until somebody changes it.
    ///
    /// # Errors
    /// As [`content_id`](Self::content_id).
    pub async fn name_content(&self, id: ContentId) -> Result<(), Error> {
        self.support()?;
        let parameters = Parameters { id, token: 0, sequence: 0 };
        // Where the first one was carried out, the second finds a content with an id.
        let outcome = self.change_mark_out(action_out::NAME_CONTENT, parameters, Repeat::Always).await?;
        check(&outcome, "naming the content")
    }

    /// Sets who is told when a later session finds another content, once.
    pub fn guard_content(&self, guard: ContentGuard) {
        if self.shared().content_guard.set(guard).is_err() {
            tracing::error!("the content of {} is guarded already", self.place());
        }
    }
}
