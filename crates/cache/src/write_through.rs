//! Writes acknowledged by the origin.
//!
//! The write goes to the origin and, at the same time, a copy of it to the cache device; the
//! acknowledgement waits for the origin alone (paper 2.5). The written sectors are invalid in the
//! cache until both are done, and the range lock is kept until then, so no request reads a copy
//! that the origin does not have.
//!
//! Dirty sectors from a time of write-back that are written again: the origin gets the new data durably, then a log
//! record says that they are not dirty any more, then the write is acknowledged. The other order would, after a crash
//! in between, show what the origin had before the dirty data.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::Response;
use block::range_lock::RangeGuard;
use futures_util::future::{Either, select};

use crate::core::Core;
use crate::counters::{RequestKind, Serving};
use crate::insertion::{Insertion, Wanted};

/// What the cache does with the written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// Inserts it, where the lines have frames.
    Keep,
    /// Forgets its copy of the range.
    Drop,
}

pub(crate) async fn write(
    core: Arc<Core>,
    range: ByteRange,
    buffer: Buffer,
    fua: bool,
    copy: Copy,
    guard: RangeGuard,
) -> Response {
    let since = core.since();
    if let Err(error) = core.journal.prepare_supersede(range).await {
        return Response::failed(error, buffer);
    }
    let insertion = match copy {
        Copy::Keep => core.plan_insertion(range, &buffer, Wanted::All),
        Copy::Drop => {
            core.lines.release_empty(range);
            Some(Insertion::nothing(&core.lines))
        }
    };
    if insertion.is_none() {
        core.counters.insertions_dropped.fetch_add(1, Ordering::Relaxed);
    }
    let Insertion { parts, writes, pins } = insertion.unwrap_or_else(|| Insertion::nothing(&core.lines));
    let cached = {
        let core = Arc::clone(&core);
        Box::pin(async move {
            let is_cached = core.write_clean(&parts, &pins, writes).await;
            (is_cached, parts, pins)
        })
    };
    let written = Box::pin(core.write_origin(range, buffer, fua));
    let response = match select(written, cached).await {
        Either::Left((response, cached)) => {
            let (core, is_written) = (Arc::clone(&core), response.result.is_ok());
            core.clone().start(async move {
                let (is_cached, parts, pins) = cached.await;
                if is_cached && is_written {
                    core.admit(&parts, since).await;
                }
                drop((pins, guard));
            });
            response
        }
        Either::Right(((is_cached, parts, pins), written)) => {
            let response = written.await;
            let (core, is_written) = (Arc::clone(&core), response.result.is_ok());
            core.clone().start(async move {
                if is_cached && is_written {
                    core.admit(&parts, since).await;
                }
                drop((pins, guard));
            });
            response
        }
    };
    core.counters.of(RequestKind::Write).served(Serving::Miss);
    response
}
