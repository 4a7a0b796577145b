//! Discards and writes of zeroes: they go to the origin, and the cache forgets its copy of the
//! range.
//!
//! The order is the origin first, durably where dirty data is concerned, then the record that the sectors are not dirty
//! any more, then the acknowledgement. A crash in between shows the state before or the state after, and never what the
//! origin had before the dirty data. In write-back all of it is durable when acknowledged, as everything is.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::range_lock::Acquire;
use block::{Error, Response};

use crate::core::Core;

pub(crate) async fn discard(core: Arc<Core>, range: ByteRange, place: Acquire) -> Response {
    let changed = async {
        let _guard = core.enter(place).await?;
        core.succession.tell(range, core.origin.padding).await;
        core.clean_before_change(range).await?;
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
        core.succession.tell(range, core.origin.padding).await;
        core.clean_before_change(range).await?;
        core.zero_range(range, fua, may_discard).await
    };
    answer(changed.await)
}

fn answer(result: Result<(), Error>) -> Response {
    Response { result, ..Response::done(Buffer::empty()) }
}

impl Core {
    async fn discard_range(self: &Arc<Self>, range: ByteRange) -> Result<(), Error> {
        self.journal.prepare_supersede(range).await?;
        let must_be_durable = self.lines.mode().delays_writes() || self.lines.has_dirty(range);
        let losses = self.origin.losses.count();
        let change = async {
            let failures = self.origin.flushes.failures.count();
            let discarded = self.origin.device().discard(range.offset, range.length).await;
            self.origin.note_change(&discarded, false, failures);
            discarded?;
            if must_be_durable { self.flush_origin_since(losses).await } else { Ok(()) }
        };
        self.replace_on_origin(range, change).await
    }

    async fn zero_range(&self, range: ByteRange, fua: bool, may_discard: bool) -> Result<(), Error> {
        self.journal.prepare_supersede(range).await?;
        let fua = fua || self.lines.mode().delays_writes() || self.lines.has_dirty(range);
        let change = async {
            let failures = self.origin.flushes.failures.count();
            let zeroed = self.origin.device().write_zeroes(range.offset, range.length, fua, may_discard).await;
            self.origin.note_change(&zeroed, fua, failures);
            zeroed
        };
        self.replace_on_origin(range, change).await
    }
}
