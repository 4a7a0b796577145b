//! The jobs that are not answered yet, each by the number of its arrival, and what each waits for.
//!
//! A job waits in at most one of four places: *blocked* by an earlier job of an overlapping range, *ready* to be
//! issued, *delayed* until a time, or *stalled* until copies of acknowledged changes make room. In none of them its
//! commands are under way.

use std::collections::{BTreeMap, BTreeSet};

use base::clock::Instant;
use block::range_lock::{Acquire, RangeLock};

use crate::job::{Job, Reply};
use crate::limits::BUSY_WAIT_MAX;

/// The jobs, and which of them may be issued.
#[derive(Default)]
pub(super) struct Jobs {
    /// By order of arrival. Boxed, because the map moves what is in it.
    all: BTreeMap<u64, Box<Job>>,
    ready: BTreeSet<u64>,
    delayed: BTreeSet<(Instant, u64)>,
    stalled: BTreeSet<u64>,
    ranges: RangeLock,
    /// Requests that wait for earlier ones of overlapping ranges.
    blocked: BTreeMap<u64, Acquire>,
    /// The number of the next one that arrives.
    next: u64,
}

impl Jobs {
    /// Adds a job; it is ready unless an earlier one of an overlapping range blocks it.
    pub(super) fn add(&mut self, mut job: Box<Job>) {
        let range = job.range();
        if !range.is_empty() {
            let mut place = if job.is_exclusive() { self.ranges.exclusive(range) } else { self.ranges.shared(range) };
            job.place = place.try_take();
            if job.place.is_none() {
                self.blocked.insert(self.next, place);
            }
        }
        if !self.blocked.contains_key(&self.next) {
            self.ready.insert(self.next);
        }
        self.all.insert(self.next, job);
        self.next += 1;
    }

    /// Adds a retained write that is written again; it is ready at once, since nothing else leaves before it.
    pub(super) fn add_replay(&mut self, job: Box<Job>) {
        self.ready.insert(self.next);
        self.all.insert(self.next, job);
        self.next += 1;
    }

    pub(super) fn get(&self, order: u64) -> Option<&Job> {
        self.all.get(&order).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, order: u64) -> Option<&mut Job> {
        self.all.get_mut(&order).map(Box::as_mut)
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.all.values().map(Box::as_ref)
    }

    /// Takes a job out that ends now.
    pub(super) fn remove(&mut self, order: u64) -> Option<Box<Job>> {
        self.ready.remove(&order);
        self.blocked.remove(&order);
        self.all.remove(&order)
    }

    /// Takes all jobs out, each with its number. What they wait for is kept, and they may come back.
    pub(super) fn take_all(&mut self) -> BTreeMap<u64, Box<Job>> {
        std::mem::take(&mut self.all)
    }

    /// Puts back a job that was taken out.
    pub(super) fn put_back(&mut self, order: u64, job: Box<Job>) {
        self.all.insert(order, job);
    }

    /// The jobs that may be issued now, the earliest first.
    pub(super) fn ready(&self) -> impl Iterator<Item = u64> {
        self.ready.iter().copied()
    }

    /// The retained writes that may be issued now.
    pub(super) fn ready_replays(&self) -> Vec<u64> {
        let is_replay = |order: &u64| self.get(*order).is_some_and(|job| matches!(job.reply, Reply::Replay));
        self.ready().filter(is_replay).collect()
    }

    pub(super) fn make_ready(&mut self, order: u64) {
        self.ready.insert(order);
    }

    /// Takes a job off the ready ones: it is issued, or was given up.
    pub(super) fn take_ready(&mut self, order: u64) {
        self.ready.remove(&order);
    }

    /// Lets a job wait until copies of acknowledged changes make room.
    pub(super) fn stall(&mut self, order: u64) {
        self.stalled.insert(order);
    }

    pub(super) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Makes ready what waited for room.
    pub(super) fn end_stall(&mut self) {
        self.ready.append(&mut self.stalled);
    }

    /// Takes off what waits for room: it is given up.
    pub(super) fn take_stalled(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.stalled)
    }

    /// Delays what a job has still to issue, longer each time.
    pub(super) fn delay(&mut self, now: Instant, order: u64) {
        let Some(job) = self.all.get_mut(&order) else { return };
        if !std::mem::replace(&mut job.is_delayed, true) {
            self.ready.remove(&order);
            self.delayed.insert((now + job.busy_wait, order));
            job.busy_wait = (job.busy_wait * 2).min(BUSY_WAIT_MAX);
        }
    }

    /// When the first of the delayed ones may be issued.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Makes ready the jobs whose delay is over.
    pub(super) fn wake_delayed(&mut self, now: Instant) {
        while let Some(&(at, order)) = self.delayed.first()
            && at <= now
        {
            self.delayed.pop_first();
            if let Some(job) = self.all.get_mut(&order) {
                job.is_delayed = false;
                self.ready.insert(order);
            }
        }
    }

    /// Makes ready the requests that are not blocked any more. A place in the range lock is freed
    /// only where a job ends.
    pub(super) fn wake_unblocked(&mut self) {
        if self.blocked.is_empty() {
            return;
        }
        let Self { blocked, all, ready, .. } = self;
        blocked.retain(|order, place| {
            let Some(guard) = place.try_take() else { return true };
            if let Some(job) = all.get_mut(order) {
                job.place = Some(guard);
                ready.insert(*order);
            }
            false
        });
    }

    /// Whether an earlier job of an overlapping range blocks it.
    pub(super) fn is_blocked(&self, order: u64) -> bool {
        self.blocked.contains_key(&order)
    }

    /// Forgets what the jobs wait for, but for the blocked ones: the session is lost.
    pub(super) fn end_waits(&mut self) {
        self.delayed.clear();
        self.stalled.clear();
        self.ready.clear();
    }

    /// Takes all jobs out for good.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Box<Job>> {
        self.end_waits();
        self.blocked.clear();
        self.take_all().into_values()
    }

    /// The requests to the device, in order.
    pub(super) fn requests(&self) -> Vec<u64> {
        let requests = self.all.iter().filter(|(_, job)| matches!(job.reply, Reply::Request(_)));
        requests.map(|(order, _)| *order).collect()
    }

    /// The oldest request of a caller, and when it arrived.
    pub(super) fn oldest_request(&self) -> Option<(u64, Instant)> {
        let mut requests = self.all.iter().filter(|(_, job)| matches!(job.reply, Reply::Request(_) | Reply::Raw(_)));
        requests.next().map(|(order, job)| (*order, job.since))
    }

    /// The oldest job of which no command is under way, and when it arrived.
    pub(super) fn oldest_idle(&self) -> Option<(u64, Instant)> {
        self.all.iter().find(|(_, job)| job.is_idle()).map(|(order, job)| (*order, job.since))
    }

    /// When the oldest request arrived.
    pub(super) fn waits_since(&self) -> Option<Instant> {
        self.iter().map(|job| job.since).min()
    }
}
