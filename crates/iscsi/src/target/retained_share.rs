//! What one session keeps for recovery: its share of what all sessions keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::parameters::RetainedData;
use crate::limits::RETAINED_DATA_BYTES_MAX;

/// The account of a session, to which its answers and the responses of each of its connections report. Atomic only
/// since a session may go from one thread to another.
pub(super) struct RetainedShare {
    all: Arc<RetainedData>,
    /// Bytes of memory.
    bytes: AtomicUsize,
    responses: AtomicUsize,
}

impl RetainedShare {
    pub(super) fn new(all: Arc<RetainedData>) -> Self {
        Self { all, bytes: AtomicUsize::new(0), responses: AtomicUsize::new(0) }
    }

    /// Whether who has reported `told` bytes may keep `bytes`.
    pub(super) fn has_room_for(&self, bytes: usize, told: usize) -> bool {
        let of_session = self.bytes.load(Ordering::Relaxed);
        let wanted = of_session.saturating_sub(told) + bytes;
        wanted <= RETAINED_DATA_BYTES_MAX && self.all.has_room_for(wanted, of_session)
    }

    /// Notes that who had reported `told` bytes keeps `bytes` now.
    pub(super) fn tell(&self, told: usize, bytes: usize) {
        self.all.tell(told, bytes);
        let others = self.bytes.load(Ordering::Relaxed).saturating_sub(told);
        self.bytes.store(others + bytes, Ordering::Relaxed);
    }

    /// Responses of all connections that are not acknowledged.
    pub(super) fn responses(&self) -> usize {
        self.responses.load(Ordering::Relaxed)
    }

    /// Notes that a connection with `told` of these has `count` now.
    pub(super) fn tell_responses(&self, told: usize, count: usize) {
        self.responses.store(self.responses().saturating_sub(told) + count, Ordering::Relaxed);
    }
}
