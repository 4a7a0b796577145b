//! What the target of a shared LUN has taken, and is to answer by a message.
//!
//! An honest target answers within a time that does not depend on other hosts: of a request for
//! locks it says at least that it waits. So who hears nothing for longer does not wait for ever.
//! One that says that a request waits is asked again now and then, and believed as long as it says
//! so.

use std::collections::BTreeMap;
use std::time::Duration;

use base::clock::Instant;
use locks::identity::RequestId;
use scsi::sharing::Support;

use crate::limits::{WITHHELD_MARGIN, WITHHELD_TIME_MAX};

/// The time that whatever waits for other hosts may take at a target that keeps to its own bounds.
pub(crate) fn withheld_time(support: &Support) -> Duration {
    let withheld_ms = u64::from(support.callback_ms_max) + u64::from(support.lease_ms);
    (Duration::from_millis(withheld_ms) + WITHHELD_MARGIN).min(WITHHELD_TIME_MAX)
}

/// A registration and requests for locks that the target has taken and not answered.
pub(super) struct Unanswered {
    time_max: Duration,
    /// When the answer to a registration is missed.
    registration: Option<Instant>,
    locks: BTreeMap<RequestId, Taken>,
}

#[derive(Clone, Copy)]
struct Taken {
    /// When the answer is missed, or the target is asked again.
    until: Instant,
    /// Whether the target has said that it waits.
    is_queued: bool,
}

impl Unanswered {
    pub(super) fn new(support: &Support) -> Self {
        Self { time_max: withheld_time(support), registration: None, locks: BTreeMap::new() }
    }

    /// Notes that the target has taken a registration.
    pub(super) fn take_registration(&mut self, now: Instant) {
        self.registration.get_or_insert(now + self.time_max);
    }

    /// Notes that the target has taken a request for locks.
    pub(super) fn take_request(&mut self, now: Instant, request: RequestId) {
        self.locks.entry(request).or_insert(Taken { until: now + self.time_max, is_queued: false });
    }

    /// Notes that the target has said of a request that it waits.
    pub(super) fn queue(&mut self, now: Instant, request: RequestId) {
        self.locks.insert(request, Taken { until: now + self.time_max, is_queued: true });
    }

    /// Notes that a request is answered.
    pub(super) fn end(&mut self, request: RequestId) {
        self.locks.remove(&request);
    }

    /// Notes that the registration is answered.
    pub(super) fn end_registration(&mut self) {
        self.registration = None;
    }

    /// Notes that nothing more is to be answered: all is sent again, or there is no session.
    pub(super) fn clear(&mut self) {
        self.registration = None;
        self.locks.clear();
    }

    /// The requests of which the target is to be asked again.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<RequestId> {
        let due = self.locks.extract_if(.., |_, taken| taken.is_queued && taken.until <= now);
        due.map(|(request, _)| request).collect()
    }

    /// Whether the answer to anything is missed.
    pub(super) fn is_overdue(&self, now: Instant) -> bool {
        let mut missed = self.locks.values().filter(|taken| !taken.is_queued).map(|taken| taken.until);
        self.registration.is_some_and(|until| until <= now) || missed.any(|until| until <= now)
    }

    /// When there is something to be done.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.locks.values().map(|taken| taken.until).chain(self.registration).min()
    }
}
