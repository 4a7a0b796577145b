//! Dispatch of requests to the code that carries them out.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::{Completion, Operation, Request, Response};

use crate::core::Core;
use crate::extents::extents;
use crate::place::Zeroed;

impl Core {
    pub(crate) fn submit(&self, request: Request) -> Completion {
        // What has been reported by now is true for this request.
        if self.origin.reports.may_have_event() {
            self.origin_events.handle_received();
        }
        let range = match self.geometry().check(&request) {
            Ok(range) => range,
            Err(error) => return Completion::ready(request.fail(error)),
        };
        if !self.life.is_open() {
            return Completion::ready(request.fail(self.life.closed()));
        }
        self.activity.note_request();
        let (workers, submitter) = (&self.workers, request.submitter);
        match request.operation {
            Operation::Flush => {
                let flusher = Arc::clone(&self.flusher);
                Completion::task(workers, async move {
                    Response { result: flusher.flush().await, buffer: Buffer::empty(), extents: Vec::new() }
                })
            }
            Operation::Read { buffer } => {
                let place = self.ranges.shared(range);
                Completion::task(workers, Arc::clone(&self.reader).read(range, buffer, place))
            }
            Operation::Write { buffer, fua } => {
                self.counters.written(range.length);
                let entrance = self.admission.enter(submitter, range, range.length);
                Completion::task(workers, Arc::clone(&self.writer).write(range, buffer, fua, entrance))
            }
            Operation::Discard { .. } => {
                let entrance = self.admission.enter(submitter, self.range_of_zeroes(range), 0);
                // Where the origin does not promise zeroes after a discard, the log does not
                // either.
                let promises_zeroes = self.origin.device().geometry().discard_reads_zeroes;
                let zeroed = if promises_zeroes { Zeroed::MayDiscard } else { Zeroed::Discarded };
                Completion::task(workers, Arc::clone(&self.writer).write_zeroes(range, zeroed, entrance))
            }
            Operation::WriteZeroes { may_discard, .. } => {
                let entrance = self.admission.enter(submitter, self.range_of_zeroes(range), 0);
                let zeroed = if may_discard { Zeroed::MayDiscard } else { Zeroed::Kept };
                Completion::task(workers, Arc::clone(&self.writer).write_zeroes(range, zeroed, entrance))
            }
            Operation::Extents { .. } => {
                let place = self.ranges.shared(range);
                Completion::task(workers, extents(Arc::clone(&self.log), Arc::clone(&self.origin), range, place))
            }
        }
    }

    /// Zeroes go to the log, not to slots. Where the order is kept they wait until the slots are
    /// empty, with all other changes held back.
    fn range_of_zeroes(&self, range: ByteRange) -> ByteRange {
        if self.settings.is_staged() && self.settings.keeps_order() {
            ByteRange { offset: 0, length: u64::MAX }
        } else {
            range
        }
    }
}
