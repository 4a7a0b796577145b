//! Flush: the barrier.
//!
//! What write-back acknowledged is durable on the cache device already, so there is nothing to do for it. What was acknowledged by the origin
//! (write-through) may sit in its volatile cache, so the flush goes on to the origin when there was such a write since the last one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use block::Response;
use block::device::DeviceExt;

use crate::core::Core;

pub(crate) async fn flush(core: Arc<Core>) -> Response {
    match core.flush_origin().await {
        Ok(()) => Response::done(Buffer::empty()),
        Err(error) => Response::failed(error, Buffer::empty()),
    }
}

impl Core {
    /// Makes durable what the origin acknowledged to us, if there is any.
    pub(crate) async fn flush_origin(&self) -> Result<(), block::Error> {
        let written = {
            let mappings = &mut self.state().frames.mappings;
            let written = self.origin_writes.load(Ordering::Acquire);
            if written == self.origin_writes_flushed.load(Ordering::Acquire) && !mappings.has_unflushed() {
                return Ok(());
            }
            mappings.start_flush();
            written
        };
        let result = self.origin.flush().await;
        self.state().frames.mappings.finish_flush(result.is_ok());
        result?;
        self.origin_writes_flushed.fetch_max(written, Ordering::AcqRel);
        Ok(())
    }

    /// Whether the origin could still lose something that it acknowledged to us.
    pub(crate) fn has_unflushed_writes(&self) -> bool {
        self.origin_writes.load(Ordering::Acquire) != self.origin_writes_flushed.load(Ordering::Acquire)
    }

    /// Notes a change that the origin acknowledged and may still lose.
    pub(crate) fn note_origin_write(&self) {
        self.origin_writes.fetch_add(1, Ordering::AcqRel);
    }
}
