//! A flush that somebody asks for by the control socket, beside the applications.
//!
//! It is one more client of the device: a loss fails its first flush after that, also where a flush
//! of an application has reported it. It takes no report away from any of these: nobody here can
//! write again what is lost.

use block::Error as DeviceError;
use block::device::DeviceExt;

use super::Stack;
use crate::control::Progress;
use crate::ending_time::telling;
use crate::error::{Error, Result};
use crate::status::{Flushed, Report};

impl Stack {
    /// Makes durable all that was acknowledged before. It is ended with the attachment, and does not
    /// delay its end.
    ///
    /// # Errors
    /// `InUse` while it is being detached; what the device says, with what becomes of the data.
    pub(crate) async fn flush(&self, progress: Progress) -> Result<Flushed> {
        self.check_stays()?;
        self.flush_losses.borrow_mut().begin();
        let device = self.device();
        let flushed = tokio::select! {
            flushed = telling(device.flush(), Some(&progress), || self.missing()) => flushed,
            () = self.wait_for_stop() => return Err(self.is_being_detached()),
        };
        let told = self.flush_losses.borrow_mut().end(flushed);
        told.map_err(|error| self.not_flushed(error))?;
        Ok(Flushed {
            name: self.name.clone(),
            durable_in: self.takes_writes_in().to_owned(),
            dirty_bytes: self.dirty_bytes(),
        })
    }

    /// The target that is waited for, where it is away.
    fn missing(&self) -> Option<Report> {
        let waits_for = self.ending_time.missed_target(&self.remotes)?;
        Some(Report::Waits { waits_for, dirty_bytes: self.dirty_bytes(), is_file_gone: false, pid: None })
    }

    fn not_flushed(&self, error: DeviceError) -> Error {
        let (name, may_have_lost) = (&self.name, error.kind().may_have_lost());
        let error = Error::from(error);
        match may_have_lost {
            true => error.context(format_args!(
                "what was written to \"{name}\" since its last flush may be lost, also where that was acknowledged, \
                 and applications are told at their next flush"
            )),
            false => error.context(format_args!(
                "\"{name}\" was not flushed: what was acknowledged may not be durable yet, and goes on its way once \
                 its target is back"
            )),
        }
    }

    /// Where a write is durable first.
    fn takes_writes_in(&self) -> &'static str {
        let has_log = self.log.as_ref().is_some_and(|log| log.status().failure.is_none());
        let has_cache =
            self.cache().is_some_and(|cache| cache.mode().delays_writes() && cache.status().failure.is_none());
        match (self.difference.is_some(), has_log, has_cache) {
            (true, ..) => "difference",
            (false, true, _) => "log",
            (false, false, true) => "cache",
            (false, false, false) => "logical-unit",
        }
    }
}
