//! Dispatch of requests to the code that carries them out.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::range::ByteRange;
use block::{Completion, Operation, Request};

use crate::core::Core;
use crate::place::Zeroed;
use crate::{extents, flush, read, write};

impl Core {
    pub(crate) fn submit(self: &Arc<Self>, request: Request) -> Completion {
        // What has been reported by now is true for this request.
        if self.origin.reports.may_have_event() {
            self.handle_origin_events();
        }
        let range = match self.geometry().check(&request) {
            Ok(range) => range,
            Err(error) => return Completion::ready(request.fail(error)),
        };
        if !self.life.is_open() {
            return Completion::ready(request.fail(self.life.closed()));
        }
        self.request_count.fetch_add(1, Ordering::Relaxed);
        self.last_request_ns.store(self.clock.now().as_nanoseconds(), Ordering::Relaxed);
        let (core, workers, submitter) = (Arc::clone(self), &self.workers, request.submitter);
        match request.operation {
            Operation::Flush => Completion::task(workers, flush::flush(core)),
            Operation::Read { buffer } => {
                let place = self.ranges.shared(range);
                Completion::task(workers, read::read(core, range, buffer, place))
            }
            Operation::Write { buffer, fua } => {
                self.counters.written(range.length);
                let entrance = self.enter(submitter, range, range.length);
                Completion::task(workers, write::write(core, range, buffer, fua, entrance))
            }
            Operation::Discard { .. } => {
                let entrance = self.enter(submitter, self.range_of_zeroes(range), 0);
                // Where the origin does not promise zeroes after a discard, the log does not
                // either.
                let promises_zeroes = self.origin.device().geometry().discard_reads_zeroes;
                let zeroed = if promises_zeroes { Zeroed::MayDiscard } else { Zeroed::Discarded };
                Completion::task(workers, write::write_zeroes(core, range, zeroed, entrance))
            }
            Operation::WriteZeroes { may_discard, .. } => {
                let entrance = self.enter(submitter, self.range_of_zeroes(range), 0);
                let zeroed = if may_discard { Zeroed::MayDiscard } else { Zeroed::Kept };
                Completion::task(workers, write::write_zeroes(core, range, zeroed, entrance))
            }
            Operation::Extents { .. } => {
                let place = self.ranges.shared(range);
                Completion::task(workers, extents::extents(core, range, place))
            }
        }
    }

    /// Zeroes go to the log, not to slots. Where the order is kept they wait until the slots are
    /// empty, with all other changes held back.
    fn range_of_zeroes(&self, range: ByteRange) -> ByteRange {
        if self.is_staged() && self.keeps_order() { ByteRange { offset: 0, length: u64::MAX } } else { range }
    }
}
