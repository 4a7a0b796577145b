//! The parts of a mount.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use block::SharedDevice;
use front::Volume;
use initiator::State;
use sharedfs::{Mounted, Redo, SharedBlocks};
use tokio::sync::watch::Sender;

use super::mark::MountMark;
use crate::ending_time::EndingTime;
use crate::error::Result;
use crate::events::EventLog;
use crate::registry::UnitLock;
use crate::remote::in_a_word;
use crate::remotes::Remotes;

/// The parts of a mount.
pub(super) struct MountParts {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) directory: PathBuf,
    pub(super) file_system: Arc<Mounted>,
    pub(super) volume: Volume<SharedBlocks<Redo>>,
    pub(super) device: SharedDevice,
    pub(super) remotes: Option<Remotes>,
    pub(super) mark: Option<MountMark>,
    pub(super) is_read_only: bool,
    pub(super) ending_time: EndingTime,
    pub(super) events: Rc<EventLog>,
    /// Whether all changes became durable at the end.
    pub(super) is_committed: Cell<bool>,
    /// `Some` once it has ended, with the error if it did not end well.
    pub(super) ended: Sender<Option<Result<()>>>,
    pub(super) _lock: Option<UnitLock>,
}

impl MountParts {
    /// Waits until it has ended.
    pub(super) async fn has_ended(&self) {
        let _ = self.ended.subscribe().wait_for(Option::is_some).await;
    }

    /// Why nothing is written to the LUN any more, if that is so.
    pub(super) fn trouble(&self) -> Option<String> {
        let fenced = || {
            let session = self.remotes.as_ref()?.session();
            session.last_error.filter(|_| session.state == in_a_word(State::Fenced))
        };
        let lost = || self.file_system.blocks().loss().map(|error| error.to_string());
        self.mark.as_ref().and_then(MountMark::trouble).or_else(fenced).or_else(lost)
    }
}
