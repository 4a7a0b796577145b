//! Those who wait until they may change something.

use std::sync::{Arc, Mutex};

use base::range::ByteRange;
use block::FairQueue;
use block::completion::SlotSender;
use block::range_lock::Acquire;

/// Those who wait.
pub(crate) struct Line {
    pub(crate) waiting: FairQueue<Waiting>,
    /// Whether somebody lets them in.
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

/// Where one who is let in finds its place among overlapping requests.
pub(crate) type SharedPlace = Arc<Mutex<Option<Acquire>>>;

/// One that waits.
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
    /// Of the log. What goes to slots may be written again there, and never take any.
    pub(crate) log: u64,
    pub(crate) slots: u64,
}
