//! The control requests to the daemon.

use std::rc::Rc;

use stack::control::{ControlRequest, Handler, Progress};
use stack::status::daemon::KeptStatus;
use stack::status::{Answer, Left, ProcessStatus};
use stack::{Error, Failure, Result};

use crate::NAME;
use crate::keeper::Keeper;

/// Answers them.
pub(crate) struct Requests(pub(crate) Rc<Keeper>);

impl Requests {
    fn status_of(&self, name: &str) -> KeptStatus {
        let all = self.0.status().attachments;
        all.into_iter().find(|kept| kept.name == name).unwrap_or_default()
    }
}

impl Handler for Requests {
    async fn handle(&self, request: ControlRequest, _progress: Progress) -> Result<Answer> {
        let keeper = &self.0;
        match request {
            ControlRequest::Status => Ok(Answer::Status(Box::new(ProcessStatus::Daemon(Box::new(keeper.status()))))),
            ControlRequest::Events { after } => Ok(keeper.events.answer(after)),
            ControlRequest::Reload => Ok(Answer::FilesRead(Box::new(keeper.reload().await?))),
            ControlRequest::Start { attachment } => {
                keeper.start_as_asked(&attachment).await?;
                Ok(Answer::Kept(Box::new(self.status_of(&attachment))))
            }
            ControlRequest::Hold { attachment } => {
                keeper.tell(|supervisor, now| supervisor.hold(&attachment, now))?;
                Ok(Answer::Kept(Box::new(self.status_of(&attachment))))
            }
            // The daemon alone: its attachments go on.
            ControlRequest::Detach { keep_dirty: false, remove_cache: false } => {
                keeper.ended.send_replace(true);
                Ok(Answer::Left(Left { name: Some(NAME.to_owned()), ..Left::default() }))
            }
            ControlRequest::Flush
            | ControlRequest::Clean
            | ControlRequest::Set { .. }
            | ControlRequest::Detach { .. } => {
                let message = "this is the daemon: it has no settings, and no data to flush, to clean, to keep or to \
                               remove";
                Err(Error::new(Failure::Usage, message))
            }
        }
    }
}
