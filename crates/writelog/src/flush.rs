//! Flush: the barrier.
//!
//! What `log` and `nvram` acknowledged is durable already, so there is nothing to do. With `unsafe-volatile` it is the moment at which slots
//! must reach the log. When the log device has failed, writes went to the origin with force unit access.

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
                // RAM that no log takes goes to the origin.
                Err(_) if self.has_failed() => self.destage_all(|_| {}).await?,
                result => result?,
            }
        }
        // What the log has below slots that went to the origin counts no more.
        if self.has_failed() { self.keep_failure_note().await } else { Ok(()) }
    }
}
