//! A job in an engine.

use block::completion::SlotSender;
use block::range_lock::RangeGuard;
use block::{Error, Response};

use crate::job::Job;

/// A job with its range guard and its completion.
pub(crate) struct Work {
    pub(crate) job: Job,
    pub(crate) guard: Option<RangeGuard>,
    pub(crate) sender: SlotSender,
}

impl Work {
    /// Releases the range to the next request, then answers.
    pub(crate) fn finish(self, result: Result<(), Error>) {
        let Self { job, guard, sender } = self;
        drop(guard);
        sender.complete(Response { result, buffer: job.into_buffer(), extents: Vec::new() });
    }
}
