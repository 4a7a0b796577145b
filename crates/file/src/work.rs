//! A job on its way through an engine.

use block::completion::SlotSender;
use block::range_lock::RangeGuard;
use block::{Error, Response};

use crate::job::Job;

/// A job with what it holds and whom it answers.
pub(crate) struct Work {
    pub(crate) job: Job,
    pub(crate) guard: Option<RangeGuard>,
    pub(crate) sender: SlotSender,
}

impl Work {
    /// Opens the range to the next in line, then answers.
    pub(crate) fn finish(self, result: Result<(), Error>) {
        let Self { job, guard, sender } = self;
        drop(guard);
        sender.complete(Response { result, buffer: job.into_buffer(), extents: Vec::new() });
    }
}
