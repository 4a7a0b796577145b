//! The content id of a LUN (`docs/protocol/change-marks.md`): the target gives what it has now an
//! id, which is void from the first change on, by whatever host.

use block::Error;
use scsi::change_mark::{Parameters, action_out, parse_content};

pub use scsi::change_mark::{ContentId, is_content_id};

use crate::change_marks::check;
use crate::content_guard::{ContentGuard, report_cdb};
use crate::error::malformed;
use crate::raw_command::Repeat;
use crate::remote_lun::RemoteLun;

impl RemoteLun {
    /// The id of the content; `None` where it has none, or where it was changed since it got one.
    ///
    /// # Errors
    /// `Unsupported` where the target cannot tell, `Corrupt` when the answer is malformed, else the
    /// errors of commands.
    pub async fn content_id(&self) -> Result<Option<ContentId>, Error> {
        self.support()?;
        let data = self.change_mark_in(report_cdb()).await?;
        parse_content(&data).map_err(malformed)
    }

    /// Has the target give the content an id, unless it has one. It is the id of the content that
    /// every later read finds, until somebody changes it.
    ///
    /// # Errors
    /// As [`content_id`](Self::content_id).
    pub async fn name_content(&self) -> Result<(), Error> {
        self.support()?;
        let parameters = Parameters { id: [0; 16], token: 0, sequence: 0 };
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
