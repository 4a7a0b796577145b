//! Counters of one kind of request.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Counters; each count costs one relaxed addition.
#[derive(Default)]
pub(crate) struct KindCounters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl KindCounters {
    pub(crate) fn count_request(&self, bytes: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts now.
    pub(crate) fn snapshot(&self) -> RequestCounters {
        let [requests, bytes, errors] =
            [&self.requests, &self.bytes, &self.errors].map(|counter| counter.load(Ordering::Relaxed));
        RequestCounters { requests, bytes, errors }
    }
}

/// Requests of one kind that reached the device; those refused for their range or flags are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestCounters {
    /// Requests begun.
    pub requests: u64,
    /// Bytes they asked for.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

impl AddAssign for RequestCounters {
    fn add_assign(&mut self, other: Self) {
        let Self { requests, bytes, errors } = other;
        self.requests += requests;
        self.bytes += bytes;
        self.errors += errors;
    }
}
