//! The changes that wait for admission.

use std::sync::{Arc, Mutex};

use base::range::ByteRange;
use block::FairQueue;
use block::completion::SlotSender;
use block::range_lock::Acquire;

/// The queue of waiting changes.
pub(crate) struct Line {
    pub(crate) waiting: FairQueue<Waiting>,
    /// Whether a task runs that admits them.
    pub(crate) is_served: bool,
}

impl Line {
    pub(crate) fn new() -> Self {
        Self { waiting: FairQueue::new(), is_served: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Place of a change among overlapping requests; set at its admission.
pub(crate) type SharedPlace = Arc<Mutex<Option<Acquire>>>;

/// A change that waits.
pub(crate) struct Waiting {
    pub(crate) range: ByteRange,
    pub(crate) bytes_needed: ChangeBytes,
    pub(crate) turn: SlotSender,
    pub(crate) place: SharedPlace,
}

/// Bytes that a change takes.
#[derive(Clone, Copy)]
pub(crate) struct ChangeBytes {
    pub(crate) data: u64,
    /// Bytes of the log; 0 for a write to slots, which may be superseded there and never reach the
    /// log.
    pub(crate) log: u64,
    pub(crate) slots: u64,
}
