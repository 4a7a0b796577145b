//! Flush: the barrier.
//!
//! What write-back acknowledged is durable on the cache device already, so there is nothing to do for it. What was
//! acknowledged by the origin (write-through) may sit in its volatile cache, so the flush goes on to the origin when
//! there was such a write since the last one; and the first time after an open, since nobody knows what was
//! acknowledged before.
//!
//! A failure of a flush of the origin that no client has been told yet is told here, whoever asked for that flush: see
//! [`flush_failures`](crate::flush_failures). How the origin is flushed is said in [`origin`](crate::origin).

use std::future::Future;
use std::sync::Arc;

use base::buffer::Buffer;
use block::Response;

use crate::core::Core;

/// Answers a client's flush. It stands for what was acknowledged when it is called, so failures count from then on.
pub(crate) fn flush(core: Arc<Core>) -> impl Future<Output = Response> + Send + use<> {
    let (reported_before, is_unreported) = core.origin.flushes.failures.begin();
    async move {
        let flushed = if is_unreported { Ok(()) } else { core.origin.flush().await };
        // What the origin reports with its answer is handled before this flush is answered.
        core.handle_origin_events();
        let reported = core.origin.flushes.failures.tell(reported_before);
        match flushed.and(reported) {
            Ok(()) => Response::done(Buffer::empty()),
            Err(error) => Response::failed(error, Buffer::empty()),
        }
    }
}
