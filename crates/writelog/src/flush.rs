//! Flush: the barrier.
//!
//! What `log` and `nvram` acknowledged is durable already, and what the origin had before the log came was flushed when
//! it was opened, so there is nothing to do. With `unsafe-volatile` it is the
//! moment at which slots must reach the log. When the log device has failed, writes went to the origin with force unit
//! access.

use std::sync::Arc;

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::{Error, ErrorKind, Response};

use crate::core::Core;
use crate::options::Durability;

pub(crate) async fn flush(core: Arc<Core>) -> Response {
    Response { result: core.flush().await, buffer: Buffer::empty(), extents: Vec::new() }
}

impl Core {
    /// How often the origin has lost what it had not flushed, as it has said until now.
    pub(crate) fn losses_until_now(self: &Arc<Self>) -> u64 {
        self.handle_origin_events();
        self.origin.reports.losses().count()
    }

    /// Makes durable what the origin has taken since it had lost something so many times ([`Core::losses_until_now`]).
    ///
    /// # Errors
    /// `OutcomeUnknown` when it lost something meanwhile, as it says with the answer to the flush at the latest: what
    /// it took may be gone.
    pub(crate) async fn flush_origin_since(self: &Arc<Self>, losses: u64) -> Result<(), Error> {
        self.origin.device().flush().await?;
        match self.losses_until_now() == losses {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::OutcomeUnknown, "the LUN lost what it had not flushed yet")),
        }
    }

    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), Error> {
        if self.options.durability != Durability::UnsafeVolatile {
            return Ok(());
        }
        let is_empty = self.state().contents.stage.as_ref().is_none_or(|stage| stage.is_empty());
        if !is_empty {
            match self.move_round(1.0).await {
                // RAM that no log takes goes to the origin.
                Err(_) if self.has_failed() => self.destage_all(|_| {}).await?,
                result => result?,
            }
        }
        // What the log has below slots that went to the origin counts no more.
        if self.has_failed() { self.keep_failure_note().await } else { Ok(()) }
    }
}
