//! A flush that somebody asks for by the control socket: what `sync` does for the directory.

use super::parts::MountParts;
use crate::control::Progress;
use crate::ending_time::telling;
use crate::error::{Error, Result};
use crate::status::{Flushed, Report};

impl MountParts {
    /// Makes durable all changes that programs were told are done.
    ///
    /// # Errors
    /// What prevents it: of a host that was fenced, or whose LUN others changed, that its changes are lost.
    pub(super) async fn flush(&self, progress: &Progress) -> Result<Flushed> {
        let flushed = telling(self.file_system.commit(), Some(progress), || self.missing()).await;
        flushed.map_err(|error| self.named(Error::from(error)))?;
        let durable_in = if self.remotes.is_some() { "logical-unit" } else { "file" };
        Ok(Flushed { name: self.name.clone(), durable_in: durable_in.to_owned(), dirty_bytes: 0 })
    }

    /// The target that is waited for, where it is away.
    fn missing(&self) -> Option<Report> {
        let waits_for = self.ending_time.missed_target(self.remotes.as_ref()?)?;
        Some(Report::Waits {
            waits_for,
            dirty_bytes: self.dirty_bytes(),
            is_file_gone: false,
            pid: Some(std::process::id()),
        })
    }
}
