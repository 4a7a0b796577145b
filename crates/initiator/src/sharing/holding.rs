//! The ranges of the unit that this client holds alone: locks on wanted ranges are requested, and
//! ranges that are called back are cleaned and given up. Where the only range is the whole unit,
//! its lock is that of the unit itself.
//!
//! A range counts as used from the moment that it is granted. So the answer to a callback waits
//! until the layers above have written their dirty data of it to the target. Their progress is
//! reported to the target meanwhile.

use std::collections::BTreeMap;
use std::task::{Context, Poll};
use std::time::Duration;

use base::clock::Instant;
use block::grants::Standing;
use block::{ByteRange, Copies, Dropped, Grants};
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

/// Whether a part that was called back is left to others for a while. The whole unit is not: all
/// work of this host waits for it, and the target grants it by turns.
fn rests(grants: &Grants) -> bool {
    !grants.is_whole()
}

/// A range that is called back.
struct Leaving {
    release: Dropped,
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
}

impl Holding {
    pub(super) fn new(copies: Copies, callback_time: Duration) -> Self {
        let (asked, leaving) = (BTreeMap::new(), BTreeMap::new());
        Self { copies, asked, leaving, tell_interval: callback_time / 4, retry_at: None }
    }

    fn grants(&self) -> Option<&Grants> {
        self.copies.grants()
    }

    /// When [`poll`](Self::poll) has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.leaving.values().map(|leaving| leaving.tell_at).chain(self.retry_at).min()
    }

    /// Requests locks on the ranges that the layers above want.
    pub(super) fn ask(&mut self, context: &Context<'_>, now: Instant, holder: &mut Holder) {
        let Some(grants) = self.copies.grants() else { return };
        for part in grants.take_wanted(LOCKS_ASKED_MAX.saturating_sub(self.asked.len()), context.waker()) {
            let batch = match grants.is_whole() {
                true => vec![(UNIT, Mode::D_X)],
                false => vec![(UNIT, Mode::D_IX), (resource_of(grants, part), Mode::D_X)],
            };
            match holder.request(now, TransactionId::OWN, batch) {
                Some(request) => drop(self.asked.insert(request, part)),
                None => grants.remove(part, true),
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
        let Some(grants) = self.copies.grants() else { return false };
        let count = self.leaving.len();
        self.leaving.retain(|part, leaving| {
            if leaving.release.as_mut().poll(context) == Poll::Ready(()) {
                grants.remove(*part, rests(grants));
                holder.end_use(resource_of(grants, *part), Mode::D_X);
                return false;
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
            // The lock may have been called back already.
            match holder.begin_use(now, resource_of(grants, part), Mode::D_X) {
                true => grants.set(part, Standing::Held),
                false => grants.remove(part, rests(grants)),
            }
            return;
        }
        for lock in locks {
            if let Some(part) = part_of(grants, lock.resource)
                && lock.mode == Mode::D_X
                && grants.standing(part) == Some(Standing::Claimed)
            {
                grants.set(part, Standing::Held);
            }
        }
    }

    /// Notes that the locks of a request will not be granted.
    pub(super) fn refused(&mut self, request: RequestId) {
        if let (Some(grants), Some(part)) = (self.copies.grants(), self.asked.remove(&request)) {
            grants.remove(part, true);
        }
    }

    /// Starts to clean the ranges of a lock that is called back and in use.
    pub(super) fn begin_leaving(&mut self, now: Instant, resource: Resource) {
        let Some(grants) = self.grants() else { return };
        let parts = match (resource, part_of(grants, resource)) {
            (UNIT, _) => grants.all(&[Standing::Held]),
            (_, part) => part.into_iter().collect(),
        };
        let held = parts.into_iter().filter(|part| grants.standing(*part) == Some(Standing::Held));
        for part in held.collect::<Vec<_>>() {
            let Some(grants) = self.copies.grants() else { return };
            grants.set(part, Standing::Leaving);
            let (release, progress) = (self.copies.release(grants.range_of(part)), grants.progress());
            self.leaving.insert(part, Leaving { release, tell_at: now + self.tell_interval, progress });
        }
    }

    /// Begins to give up a lock that could not be reclaimed. The whole unit is lost until no request of the layers above
    /// uses it any more: what such a request goes on to write must not follow what others have written. Returns the
    /// wait for that.
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
