//! The ranges of the unit that this client holds alone: locks on wanted ranges are requested, and
//! ranges that are called back are cleaned and given up. Where the only range is the whole unit,
//! its lock is that of the unit itself: it may also be held to read, as others do, and what others
//! want to read is held on to read when it is clean.
//!
//! A range counts as used from the moment that it is granted. So the answer to a callback waits
//! until the layers above have written their dirty data of it to the target. Their progress is
//! reported to the target meanwhile.

use std::collections::BTreeMap;
use std::task::{Context, Poll};
use std::time::Duration;

use base::clock::Instant;
use block::grants::{Right, Standing};
use block::{ByteRange, Copies, Dropped, Grants};
use locks::error::LockError;
use locks::holder::Holder;
use locks::identity::{RequestId, TransactionId};
use locks::message::GrantedLock;
use locks::mode::Mode;
use locks::resource::{FileId, GroupIndex, Resource};

use crate::limits::{LOCK_RETRY_TIME, LOCKS_ASKED_MAX};

const UNIT: Resource = Resource::File(FileId::LOGICAL_UNIT);

/// The lock of a part.
fn resource_of(grants: &Grants, part: u64) -> Resource {
    match grants.is_whole() {
        true => UNIT,
        false => Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(part)),
    }
}

/// The part of a lock; `None` for one that is not of a part.
fn part_of(grants: &Grants, resource: Resource) -> Option<u64> {
    match resource {
        UNIT if grants.is_whole() => Some(0),
        Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(part)) if !grants.is_whole() => Some(part),
        _ => None,
    }
}

/// The mode of the lock of a part that is held for this.
fn mode_of(right: Right) -> Mode {
    match right {
        Right::Read => Mode::D_S,
        Right::Change => Mode::D_X,
    }
}

/// Whether a part that was called back is left to others for a while. The whole unit is not: all
/// work of this host waits for it, and the target grants it by turns.
fn rests(grants: &Grants) -> bool {
    !grants.is_whole()
}

/// A range that is called back.
struct Leaving {
    release: Dropped,
    /// Whether it is held to read afterwards.
    stays_to_read: bool,
    tell_at: Instant,
    /// The progress of the layers above at the last report to the target.
    progress: u64,
}

/// The ranges held alone, with the pending lock requests and callbacks.
pub(super) struct Holding {
    copies: Copies,
    asked: BTreeMap<RequestId, u64>,
    leaving: BTreeMap<u64, Leaving>,
    /// The interval of progress reports to the target while a range is being cleaned.
    tell_interval: Duration,
    /// When unanswered lock requests are sent again.
    retry_at: Option<Instant>,
    /// How often ranges were asked for.
    asks: u64,
    /// How often ranges in use were called back.
    callbacks: u64,
}

impl Holding {
    pub(super) fn new(copies: Copies, callback_time: Duration) -> Self {
        let (asked, leaving) = (BTreeMap::new(), BTreeMap::new());
        Self { copies, asked, leaving, tell_interval: callback_time / 4, retry_at: None, asks: 0, callbacks: 0 }
    }

    fn grants(&self) -> Option<&Grants> {
        self.copies.grants()
    }

    /// How often ranges were asked for, and how often such in use were called back.
    pub(super) fn traffic(&self) -> (u64, u64) {
        (self.asks, self.callbacks)
    }

    /// When [`poll`](Self::poll) has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.leaving.values().map(|leaving| leaving.tell_at).chain(self.retry_at).min()
    }

    /// Requests locks on the ranges that the layers above want.
    pub(super) fn ask(&mut self, context: &Context<'_>, now: Instant, holder: &mut Holder) {
        let Some(grants) = self.copies.grants() else { return };
        for part in grants.take_wanted(LOCKS_ASKED_MAX.saturating_sub(self.asked.len()), context.waker()) {
            self.asks += 1;
            let mode = mode_of(grants.asked_right(part));
            let batch = match grants.is_whole() {
                true => vec![(UNIT, mode)],
                false => vec![(UNIT, mode.intention()), (resource_of(grants, part), mode)],
            };
            match holder.request(now, TransactionId::OWN, batch) {
                Some(request) => drop(self.asked.insert(request, part)),
                None => grants.refuse(part, true),
            }
        }
    }

    /// Sends unanswered lock requests again at `at`: they may be lost, or could not be granted.
    pub(super) fn ask_again(&mut self, at: Instant) {
        self.retry_at = Some(at);
    }

    /// Sends lock requests again after [`LOCK_RETRY_TIME`]: the target could not answer them.
    pub(super) fn ask_later(&mut self, now: Instant) {
        self.ask_again(now + LOCK_RETRY_TIME);
    }

    /// Advances the ranges that are called back. Returns whether one was given up.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, now: Instant, holder: &mut Holder) -> bool {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            holder.waiting().collect::<Vec<_>>().into_iter().for_each(|request| holder.resend(now, request));
        }
        let copies = &self.copies;
        let Some(grants) = copies.grants() else { return false };
        let count = self.leaving.len();
        self.leaving.retain(|part, leaving| {
            while leaving.release.as_mut().poll(context) == Poll::Ready(()) {
                if leave(grants, *part, leaving.stays_to_read, now, holder) {
                    return false;
                }
                // More was called back meanwhile.
                (leaving.release, leaving.stays_to_read) = (copies.release(grants.range_of(*part)), false);
            }
            if leaving.tell_at <= now {
                leaving.tell_at = now + self.tell_interval;
                let progress = grants.progress();
                if std::mem::replace(&mut leaving.progress, progress) != progress {
                    holder.tell_progress(resource_of(grants, *part));
                }
            }
            true
        });
        self.leaving.len() < count
    }

    /// Notes that the locks of a request are held.
    pub(super) fn granted(&mut self, now: Instant, holder: &mut Holder, request: RequestId, locks: &[GrantedLock]) {
        let Some(grants) = self.copies.grants() else { return };
        if let Some(part) = self.asked.remove(&request) {
            let Some(standing) = grants.standing(part) else { return };
            let resource = resource_of(grants, part);
            // The lock may have been called back already.
            match holder.begin_use(now, resource, mode_of(grants.asked_right(part))) {
                true if standing == Standing::Asked => grants.set(part, Standing::Held),
                true => {
                    grants.raise(part);
                    holder.end_use(resource, Mode::D_S);
                }
                false => grants.refuse(part, rests(grants)),
            }
            return;
        }
        for lock in locks {
            if let Some(part) = part_of(grants, lock.resource)
                && grants.right(part).is_some_and(|right| lock.mode.covers(mode_of(right)))
                && grants.standing(part) == Some(Standing::Claimed)
            {
                grants.set(part, Standing::Held);
            }
        }
    }

    /// Notes that the locks of a request will not be granted. One that others want to change as
    /// well is asked for again at once: they are served in turn.
    pub(super) fn refused(&mut self, request: RequestId, error: LockError) {
        if let (Some(grants), Some(part)) = (self.copies.grants(), self.asked.remove(&request)) {
            grants.refuse(part, rests(grants) || error != LockError::Deadlock);
        }
    }

    /// Starts to clean the ranges of a lock that is called back, down to a mode, and in use.
    pub(super) fn begin_leaving(&mut self, now: Instant, resource: Resource, to: Option<Mode>) {
        let Some(grants) = self.grants() else { return };
        let may_be_read = grants.is_whole() && to.is_some_and(|to| to.covers(Mode::D_S));
        let parts = match (resource, part_of(grants, resource)) {
            (UNIT, _) => grants.all(&[Standing::Held]),
            (_, part) => part.into_iter().collect(),
        };
        let held = parts.into_iter().filter(|part| grants.standing(*part) == Some(Standing::Held));
        for part in held.collect::<Vec<_>>() {
            let Some(grants) = self.copies.grants() else { return };
            grants.set(part, Standing::Leaving);
            let (range, progress) = (grants.range_of(part), grants.progress());
            let release = if may_be_read { self.copies.clean(range) } else { self.copies.release(range) };
            let (tell_at, stays_to_read) = (now + self.tell_interval, may_be_read);
            self.callbacks += 1;
            self.leaving.insert(part, Leaving { release, stays_to_read, tell_at, progress });
        }
    }

    /// Begins to give up a lock that could not be reclaimed. The whole unit is lost until no request of the layers
    /// above uses it any more: what such a request goes on to write must not follow what others have written. Returns
    /// the wait for that.
    pub(super) fn begin_giving_up(&self, resource: Resource) -> Option<Dropped> {
        let grants = self.grants().filter(|grants| grants.is_whole())?;
        let part = part_of(grants, resource).filter(|part| grants.standing(*part) == Some(Standing::Claimed))?;
        grants.set(part, Standing::Lost);
        let (grants, range) = (grants.clone(), grants.range_of(part));
        Some(Box::pin(async move { grants.unused(range).await }))
    }

    /// Notes that a lock is lost, because reclaiming it failed. Returns whether dirty data is lost with it.
    #[must_use]
    pub(super) fn give_up(&mut self, resource: Resource) -> bool {
        let Some(grants) = self.grants() else { return false };
        let is_given_up = |part: &u64| match grants.is_whole() {
            true => grants.standing(*part) == Some(Standing::Lost),
            false => grants.standing(*part) == Some(Standing::Claimed),
        };
        let Some(part) = part_of(grants, resource).filter(is_given_up) else { return false };
        if self.copies.are_dirty(grants.range_of(part)) {
            grants.set(part, Standing::Lost);
            return true;
        }
        grants.remove(part, false);
        false
    }

    /// Marks what was held to be reclaimed, because the target has restarted.
    pub(super) fn begin_claiming(&mut self) {
        self.leaving.clear();
        if let Some(grants) = self.grants() {
            grants.turn(&[Standing::Held, Standing::Leaving], Some(Standing::Claimed));
        }
    }

    /// Marks all ranges as lost, because the client's life is over.
    pub(super) fn lapse(&mut self) {
        self.leaving.clear();
        self.asked.clear();
        if let Some(grants) = self.grants() {
            grants.turn(&[Standing::Asked], None);
            grants.turn(&[Standing::Held, Standing::Leaving, Standing::Claimed], Some(Standing::Lost));
        }
    }

    /// A future that ends when no lost range is used any more and all clean copies are dropped.
    pub(super) fn drop_all(&self) -> Dropped {
        let (copies, all) = (self.copies.clone(), ByteRange { offset: 0, length: u64::MAX });
        Box::pin(async move {
            if let Some(grants) = copies.grants() {
                grants.unused(all).await;
            }
            copies.revoke(all).await;
        })
    }

    /// After [`drop_all`](Self::drop_all): whether this host has dirty data of lost ranges. Lost
    /// ranges without any are forgotten.
    #[must_use]
    pub(super) fn settle_lost(&self) -> bool {
        let Some(grants) = self.grants() else { return false };
        let lost = grants.all(&[Standing::Lost]);
        if lost.into_iter().any(|part| self.copies.are_dirty(grants.range_of(part))) {
            return true;
        }
        grants.turn(&[Standing::Lost], None);
        false
    }
}

/// Gives up a part that is clean, or what is more than to read it. Returns `false` when that is
/// called back as well.
fn leave(grants: &Grants, part: u64, stays_to_read: bool, now: Instant, holder: &mut Holder) -> bool {
    let (resource, right) = (resource_of(grants, part), grants.right(part).unwrap_or(Right::Change));
    if stays_to_read {
        if !holder.begin_use(now, resource, Mode::D_S) {
            return false;
        }
        grants.lower(part);
    } else {
        grants.remove(part, rests(grants));
    }
    holder.end_use(resource, mode_of(right));
    true
}
