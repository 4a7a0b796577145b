//! Sizes of PDUs as they go over the wire: headers, data, padding and digests.
//!
//! Several connections count into one place, which is read while they work. Reads are rare, so the
//! locks are hardly ever contended.

use std::sync::{Mutex, MutexGuard, PoisonError};

use base::sizes::SizeHistogram;

/// Histograms of the sizes of PDUs, sent and received.
#[derive(Debug, Default)]
pub struct PduSizes {
    /// Never held together with `received`.
    sent: Mutex<SizeHistogram>,
    received: Mutex<SizeHistogram>,
}

impl PduSizes {
    /// Sizes of the PDUs queued to be sent so far.
    pub fn sent(&self) -> SizeHistogram {
        lock(&self.sent).clone()
    }

    /// Sizes of the PDUs received so far.
    pub fn received(&self) -> SizeHistogram {
        lock(&self.received).clone()
    }

    pub(super) fn count_sent(&self, bytes: usize) {
        lock(&self.sent).record(bytes);
    }

    pub(super) fn count_received(&self, bytes: usize) {
        lock(&self.received).record(bytes);
    }
}

fn lock(sizes: &Mutex<SizeHistogram>) -> MutexGuard<'_, SizeHistogram> {
    sizes.lock().unwrap_or_else(PoisonError::into_inner)
}
