//! Discards and writes of zeroes go to the origin, and what the cache holds of the range is forgotten.
//!
//! The order is the origin first, durably where dirty data is concerned, then the record that the sectors are not dirty any more, then the
//! acknowledgement. A crash in between shows the state before or the state after, and never what the origin had before the dirty
//! data. In write-back all of it is durable when acknowledged, as everything is.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::range_lock::Acquire;
use block::{Error, Response};

use crate::core::Core;

pub(crate) async fn discard(core: Arc<Core>, range: ByteRange, place: Acquire) -> Response {
    let changed = async {
        let _guard = core.enter(place).await?;
        core.tell_successor(range).await;
        core.discard_range(range).await
    };
    answer(changed.await)
}

pub(crate) async fn write_zeroes(
    core: Arc<Core>,
    range: ByteRange,
    fua: bool,
    may_discard: bool,
    place: Acquire,
) -> Response {
    let changed = async {
        let _guard = core.enter(place).await?;
        core.tell_successor(range).await;
        core.zero_range(range, fua, may_discard).await
    };
    answer(changed.await)
}

fn answer(result: Result<(), Error>) -> Response {
    Response { result, ..Response::done(Buffer::empty()) }
}

impl Core {
    async fn discard_range(self: &Arc<Self>, range: ByteRange) -> Result<(), Error> {
        self.prepare_supersede(range).await?;
        let must_be_durable = self.mode().delays_writes() || self.has_dirty(range);
        let losses = self.origin_losses.load(Ordering::Acquire);
        let change = async {
            let failures = self.origin_flushes.failures.count();
            self.origin.discard(range.offset, range.length).await?;
            self.note_origin_write(failures);
            if must_be_durable { self.flush_origin_since(losses).await } else { Ok(()) }
        };
        self.replace_on_origin(range, change).await
    }

    async fn zero_range(&self, range: ByteRange, fua: bool, may_discard: bool) -> Result<(), Error> {
        self.prepare_supersede(range).await?;
        let fua = fua || self.mode().delays_writes() || self.has_dirty(range);
        let change = async {
            let failures = self.origin_flushes.failures.count();
            self.origin.write_zeroes(range.offset, range.length, fua, may_discard).await?;
            if !fua {
                self.note_origin_write(failures);
            }
            Ok(())
        };
        self.replace_on_origin(range, change).await
    }

    /// Runs a change of the origin in its order, and forgets what it replaced.
    async fn replace_on_origin(
        &self,
        range: ByteRange,
        change: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let order = self.origin_ranges.exclusive(self.line_size().whole_lines(range)).await;
        let mut result = self.unmap_cleaned(range).await;
        if result.is_ok() {
            result = change.await;
        }
        if result.is_ok() {
            result = self.forget_superseded(range).await;
        }
        // Not before: a line that is still dirty would be picked for cleaning and sent over the newer data.
        drop(order);
        self.changed.notify();
        result
    }
}
