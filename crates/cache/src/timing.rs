//! Response times of requests: the load shown to a user, and the pace of cleaning, follow from
//! them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::clock::Instant;

use crate::core::Core;
use crate::counters::RequestKind;
use crate::limits::TIMED_ONE_OF;

/// A request whose response time is measured.
pub(crate) struct Timed {
    core: Arc<Core>,
    kind: RequestKind,
    /// Count of requests that it stands for in the sample.
    stands_for: u64,
    start: Instant,
}

/// Starts to measure a request, if it is in the sample.
pub(crate) fn start_timing(core: &Arc<Core>, kind: RequestKind) -> Option<Timed> {
    let is_one_of_many = core.counters.next_request().is_multiple_of(TIMED_ONE_OF);
    let stands_for = if core.cleaner.is_cleaning() { 1 } else { u64::from(TIMED_ONE_OF) };
    let is_timed = is_one_of_many || stands_for == 1;
    is_timed.then(|| Timed { core: Arc::clone(core), kind, stands_for, start: core.clock.now() })
}

/// Notes the response time of an answered request.
pub(crate) fn finish_timing(timed: Option<Timed>) {
    if let Some(Timed { core, kind, stands_for, start }) = timed {
        let taken = core.clock.now() - start;
        let taken_ns = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        core.counters.served_ns.fetch_add(taken_ns.saturating_mul(stands_for), Ordering::Relaxed);
        core.cleaner.pace().note(kind, taken, core.cleaner.is_cleaning());
    }
}
