//! The ranges of the unit that this client holds alone: what is wanted of them is asked for, and what is called back is
//! cleaned and given up.
//!
//! A range is in use from the moment that it is held, so that a callback waits until the layers above have brought to
//! the target what only they have. While they get on with that, the target is told so.

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

fn group(part: u64) -> Resource {
    Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(part))
}

/// A range that is called back.
struct Leaving {
    release: Dropped,
    tell_at: Instant,
    /// How far the layers above had come when the target was told last.
    progress: u64,
}

/// See the top of this file.
pub(super) struct Holding {
    copies: Copies,
    asked: BTreeMap<RequestId, u64>,
    leaving: BTreeMap<u64, Leaving>,
    /// How often the target is told that a range is being cleaned.
    tell_interval: Duration,
    /// When what was asked is asked again.
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

    /// Asks for what the layers above want.
    pub(super) fn ask(&mut self, context: &Context<'_>, now: Instant, holder: &mut Holder) {
        let Some(grants) = self.copies.grants() else { return };
        for part in grants.take_wanted(LOCKS_ASKED_MAX.saturating_sub(self.asked.len()), context.waker()) {
            let batch = vec![(UNIT, Mode::D_IX), (group(part), Mode::D_X)];
            match holder.request(now, TransactionId::OWN, batch) {
                Some(request) => drop(self.asked.insert(request, part)),
                None => grants.remove(part, true),
            }
        }
    }

    /// What was asked may not have come, or not now: it is asked again, a little later.
    pub(super) fn ask_again(&mut self, at: Instant) {
        self.retry_at = Some(at);
    }

    /// What was asked could not be answered now.
    pub(super) fn ask_later(&mut self, now: Instant) {
        self.ask_again(now + LOCK_RETRY_TIME);
    }

    /// Gets on with what is called back. Whether anything was done.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, now: Instant, holder: &mut Holder) -> bool {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            holder.waiting().collect::<Vec<_>>().into_iter().for_each(|request| holder.resend(now, request));
        }
        let Some(grants) = self.copies.grants() else { return false };
        let count = self.leaving.len();
        self.leaving.retain(|part, leaving| {
            if leaving.release.as_mut().poll(context) == Poll::Ready(()) {
                grants.remove(*part, true);
                holder.end_use(group(*part), Mode::D_X);
                return false;
            }
            if leaving.tell_at <= now {
                leaving.tell_at = now + self.tell_interval;
                let progress = grants.progress();
                if std::mem::replace(&mut leaving.progress, progress) != progress {
                    holder.tell_progress(group(*part));
                }
            }
            true
        });
        self.leaving.len() < count
    }

    /// The locks of a request are held.
    pub(super) fn granted(&mut self, now: Instant, holder: &mut Holder, request: RequestId, locks: &[GrantedLock]) {
        let Some(grants) = self.copies.grants() else { return };
        if let Some(part) = self.asked.remove(&request) {
            // It may have been called back already.
            match holder.begin_use(now, group(part), Mode::D_X) {
                true => grants.set(part, Standing::Held),
                false => grants.remove(part, true),
            }
            return;
        }
        for lock in locks {
            if let Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(part)) = lock.resource
                && lock.mode == Mode::D_X
                && grants.standing(part) == Some(Standing::Claimed)
            {
                grants.set(part, Standing::Held);
            }
        }
    }

    /// The locks of a request will not be held.
    pub(super) fn refused(&mut self, request: RequestId) {
        if let (Some(grants), Some(part)) = (self.copies.grants(), self.asked.remove(&request)) {
            grants.remove(part, true);
        }
    }

    /// A lock is called back that is in use.
    pub(super) fn begin_leaving(&mut self, now: Instant, resource: Resource) {
        let Some(grants) = self.grants() else { return };
        let parts = match resource {
            UNIT => grants.all(&[Standing::Held]),
            Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(part)) => vec![part],
            _ => Vec::new(),
        };
        let held = parts.into_iter().filter(|part| grants.standing(*part) == Some(Standing::Held));
        for part in held.collect::<Vec<_>>() {
            let Some(grants) = self.copies.grants() else { return };
            grants.set(part, Standing::Leaving);
            let (release, progress) = (self.copies.release(grants.range_of(part)), grants.progress());
            self.leaving.insert(part, Leaving { release, tell_at: now + self.tell_interval, progress });
        }
    }

    /// A lock is held no more. Whether something is lost with it: it was claimed back, and others have it.
    #[must_use]
    pub(super) fn give_up(&mut self, resource: Resource) -> bool {
        let Resource::Group(FileId::LOGICAL_UNIT, GroupIndex(part)) = resource else { return false };
        let Some(grants) = self.grants().filter(|grants| grants.standing(part) == Some(Standing::Claimed)) else {
            return false;
        };
        if self.copies.are_dirty(grants.range_of(part)) {
            grants.set(part, Standing::Lost);
            return true;
        }
        grants.remove(part, false);
        false
    }

    /// The target has started again: what was held is claimed back.
    pub(super) fn begin_claiming(&mut self) {
        self.leaving.clear();
        if let Some(grants) = self.grants() {
            grants.turn(&[Standing::Held, Standing::Leaving], Some(Standing::Claimed));
        }
    }

    /// The client's life is over: nothing is held.
    pub(super) fn lapse(&mut self) {
        self.leaving.clear();
        self.asked.clear();
        if let Some(grants) = self.grants() {
            grants.turn(&[Standing::Asked], None);
            grants.turn(&[Standing::Held, Standing::Leaving, Standing::Claimed], Some(Standing::Lost));
        }
    }

    /// Ends when nothing of what was lost is used any more, and what is clean is dropped.
    pub(super) fn drop_all(&self) -> Dropped {
        let (copies, all) = (self.copies.clone(), ByteRange { offset: 0, length: u64::MAX });
        Box::pin(async move {
            if let Some(grants) = copies.grants() {
                grants.unused(all).await;
            }
            copies.revoke(all).await;
        })
    }

    /// Behind [`drop_all`](Self::drop_all): whether something that was written is with this host alone. If not, nothing
    /// is lost.
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
