//! Flush: the barrier.
//!
//! A write acknowledged in write-back is durable on the cache device already, so a flush has
//! nothing to do for it. A write acknowledged by the origin (write-through) may sit in the origin's
//! volatile cache. So the flush goes on to the origin when there was such a write since the last
//! flush. So does the first flush after an open, since it is not known what was acknowledged
//! before.
//!
//! A failed flush of the origin that no client has been notified of is returned to this client,
//! whatever caused that flush: see [`flush_failures`](crate::flush_failures). How the origin is
//! flushed: [`origin`](crate::origin).

use std::future::Future;
use std::sync::Arc;

use base::buffer::Buffer;
use block::Response;

use crate::core::Core;

/// Answers a client's flush. It covers what was acknowledged before this call, so failures count
/// from the call on.
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
