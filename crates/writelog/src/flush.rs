//! Flush: the barrier.
//!
//! What `log` and `nvram` acknowledged is durable already, and the open flushed what the origin had
//! acknowledged before, so there is nothing to do. With `unsafe-volatile` a flush moves all slots
//! to the log. After a failure of the log device writes went to the origin with force unit access.

use std::sync::Arc;

use base::buffer::Buffer;
use block::{Error, Response};

use crate::core::Core;
use crate::options::Durability;

pub(crate) async fn flush(core: Arc<Core>) -> Response {
    Response { result: core.flush().await, buffer: Buffer::empty(), extents: Vec::new() }
}

impl Core {
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), Error> {
        if self.options.durability != Durability::UnsafeVolatile {
            return Ok(());
        }
        let is_empty = self.state().contents.stage.as_ref().is_none_or(|stage| stage.is_empty());
        if !is_empty {
            match self.move_round(1.0).await {
                // Slots in RAM that no log takes go to the origin.
                Err(_) if self.has_failed() => self.destage_all(|_| {}).await?,
                result => result?,
            }
        }
        // Data in the log below slots that went to the origin does not count any more.
        if self.has_failed() { self.keep_failure_note().await } else { Ok(()) }
    }
}
