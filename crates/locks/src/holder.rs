//! The client's end: its locks, their uses, and its answers to callbacks.
//!
//! What it keeps true:
//! - It never believes that it holds a lock that the target may have granted to another. It may
//!   hold less than the target thinks: a callback of a lock that it does not have is answered with
//!   *done*.
//! - A callback is answered at once when no use would lose its lock by that; otherwise when the
//!   last such use ends. New uses wait until after it.
//! - Its lease ends before the target's does: it counts from when the renewal was sent, and is
//!   shorter by what two clocks may run apart.
//!
//! Messages and replies may overtake each other. A callback that comes before the grant that it
//! concerns makes that grant void, by the grant's number. The request is then sent again.
//!
//! Locks of explicit transactions are not cached and not called back: only the answers to their
//! requests matter.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use base::clock::Instant;

use crate::blocks::BlockRange;
use crate::error::LockError;
use crate::fetches::{FetchId, Fetches};
use crate::identity::{CallbackNumber, ClientId, Generation, GrantNumber, RequestId, TransactionId};
use crate::limits::{BATCH_MAX, CLOCK_DRIFT_PERCENT, RENEWALS_PER_LEASE};
use crate::message::{CallbackAnswer, FromClient, GrantedLock, Registration, Release, Reply, ToClient, Wanted};
use crate::mode::Mode;
use crate::resource::Resource;
use crate::rules;
use crate::settings::Profile;

/// An action that the client has to do; they are to be done in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HolderOutput {
    /// Send this, remember the time, and pass the reply to [`Holder::handle_reply`].
    Send(FromClient),
    /// The locks of a request are held.
    Granted(RequestId, Vec<GrantedLock>),
    /// The request is refused.
    Refused(RequestId, LockError),
    /// A lock is called back and in use: end its uses, and make durable what was changed under it.
    InUse(Resource),
    /// Drop what is cached under a lock, down to what the mode allows, before the next output is
    /// sent.
    GiveUp(Resource, Option<Mode>),
    /// Drop all copies of these blocks before the next output is sent.
    Purge(BlockRange),
    /// The target has restarted: drop all copies but those that were changed under an exclusive
    /// lock.
    PurgeAll,
    /// The client's life is over: drop everything. What was changed and is not durable is lost.
    Over(LockError),
}

/// A life of the client at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Life {
    client: ClientId,
    lease: Duration,
    lease_until: Instant,
    renew_at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Held {
    mode: Mode,
    number: GrantNumber,
    callback: Option<Pending>,
}

/// A callback that is answered when the last use ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pending {
    number: CallbackNumber,
    grant: GrantNumber,
    to: Option<Mode>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Request {
    transaction: TransactionId,
    batch: Vec<Wanted>,
    is_reclaim: bool,
}

/// A client's locks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    profile: Profile,
    life: Option<Life>,
    held: BTreeMap<Resource, Held>,
    /// Count of uses of each resource, by mode.
    uses: BTreeMap<Resource, BTreeMap<Mode, u32>>,
    requests: BTreeMap<RequestId, Request>,
    request_last: u64,
    /// The former life whose locks are being reclaimed, until the last of these requests is
    /// answered.
    reclaims_of: Option<ClientId>,
    /// Grants up to these numbers were called back before they arrived here.
    void: BTreeMap<Resource, GrantNumber>,
    fetches: Fetches,
    outputs: VecDeque<HolderOutput>,
}

impl Holder {
    /// A holder that keeps what a profile keeps. [`Holder::default`] is the usual one.
    pub fn of(profile: Profile) -> Self {
        Self { profile, ..Self::default() }
    }

    /// Begins a life.
    pub fn register(&mut self) {
        self.send(FromClient::Register { previous: None });
    }

    /// The next action. Call it after every other call until it returns `None`.
    pub fn poll_output(&mut self) -> Option<HolderOutput> {
        self.outputs.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.life.map(|life| life.renew_at.min(life.lease_until))
    }

    /// Renews the lease, or ends the life when it is over.
    pub fn handle_timeout(&mut self, now: Instant) {
        let Some(life) = &mut self.life else { return };
        let client = life.client;
        if life.lease_until <= now {
            self.end_life(LockError::LeaseOver(client));
        } else if life.renew_at <= now {
            life.renew_at = now + life.lease / RENEWALS_PER_LEASE;
            self.send(FromClient::Renew(client));
        }
    }

    /// The client's id, while its lease lasts. Without one nothing that is cached may be used.
    pub fn client(&self, now: Instant) -> Option<ClientId> {
        self.life.filter(|life| life.lease_until > now).map(|life| life.client)
    }

    /// When the lease ends if it is not renewed.
    pub fn lease_until(&self) -> Option<Instant> {
        self.life.map(|life| life.lease_until)
    }

    /// The locks that the client holds of its own.
    pub fn held(&self) -> impl Iterator<Item = (Resource, Mode)> {
        self.held.iter().map(|(resource, held)| (*resource, held.mode))
    }

    /// Requests that wait for an answer.
    pub fn waiting(&self) -> impl Iterator<Item = RequestId> {
        self.requests.keys().copied()
    }

    /// Requests locks, files before their block groups. Returns `None` without a life.
    pub fn request(&mut self, now: Instant, transaction: TransactionId, batch: Vec<Wanted>) -> Option<RequestId> {
        let client = self.client(now)?;
        Some(self.send_request(client, Request { transaction, batch, is_reclaim: false }))
    }

    fn send_request(&mut self, client: ClientId, request: Request) -> RequestId {
        self.request_last += 1;
        let number = RequestId(self.request_last);
        self.requests.insert(number, request);
        self.repeat(client, number);
        number
    }

    /// Sends a request again whose answer may be lost.
    pub fn resend(&mut self, now: Instant, request: RequestId) {
        if let Some(client) = self.client(now) {
            self.repeat(client, request);
        }
    }

    fn repeat(&mut self, client: ClientId, number: RequestId) {
        if let Some(Request { transaction, batch, is_reclaim }) = self.requests.get(&number).cloned() {
            self.send(FromClient::Lock { client, transaction, request: number, batch, is_reclaim });
        }
    }

    /// Withdraws a request for locks. If they are granted meanwhile they stay unused, and are given
    /// up when they are called back.
    pub fn cancel(&mut self, now: Instant, request: RequestId) {
        if self.requests.remove(&request).is_some()
            && let Some(client) = self.client(now)
        {
            self.send(FromClient::Cancel(client, request));
        }
        self.forget_void();
    }

    /// Begins a use of a locked resource, or one whose file is locked. Returns `false` when the
    /// lock is not held in such a mode, or is about to be given up.
    #[must_use]
    pub fn begin_use(&mut self, now: Instant, resource: Resource, mode: Mode) -> bool {
        let may = self.client(now).is_some() && self.allows(resource, mode);
        if may {
            *self.uses.entry(resource).or_default().entry(mode).or_insert(0) += 1;
        }
        may
    }

    /// Ends a use. A callback that waited for it is answered.
    pub fn end_use(&mut self, resource: Resource, mode: Mode) {
        let Some(modes) = self.uses.get_mut(&resource) else { return };
        if let Some(count) = modes.get_mut(&mode) {
            *count -= 1;
        }
        modes.retain(|_, count| *count > 0);
        if modes.is_empty() {
            self.uses.remove(&resource);
        }
        for at in [Some(resource), resource.root()].into_iter().flatten() {
            match self.held.get(&at) {
                Some(held) if held.callback.is_some() => self.answer_if_unused(at),
                Some(held) if !self.profile.keeps(held.mode) => {
                    let client = self.life.map(|life| life.client);
                    client.map(|client| self.give_back(client, at, None));
                }
                _ => {}
            }
        }
    }

    /// Reports to the target that a lock being called back, or its file's, is in use and its
    /// cleaning has progressed.
    pub fn tell_progress(&mut self, resource: Resource) {
        for at in [Some(resource), resource.root()].into_iter().flatten() {
            if let Some(pending) = self.held.get(&at).and_then(|held| held.callback) {
                self.acknowledge(pending.number, CallbackAnswer::GettingOn);
            }
        }
    }

    /// Gives back an unused lock, or part of it. Returns `false` when it is in use, or called back
    /// already.
    pub fn release(&mut self, now: Instant, resource: Resource, to: Option<Mode>) -> bool {
        self.client(now).is_some_and(|client| self.give_back(client, resource, to))
    }

    fn give_back(&mut self, client: ClientId, resource: Resource, to: Option<Mode>) -> bool {
        let Some(held) = self.held.get(&resource).copied().filter(|held| held.callback.is_none()) else { return false };
        if to.is_some_and(|to| to == held.mode || !held.mode.covers(to)) || self.leaves(resource).next().is_some() {
            return false;
        }
        let trial = Pending { number: CallbackNumber(0), grant: held.number, to };
        self.held.insert(resource, Held { callback: Some(trial), ..held });
        let is_used = self.is_used(resource);
        self.held.insert(resource, held);
        if !is_used {
            self.outputs.push_back(HolderOutput::GiveUp(resource, to));
            self.demote(resource, to);
            self.send(FromClient::Unlock(client, vec![Release { resource, number: held.number, to }]));
        }
        !is_used
    }

    /// The mode that is left of a lock when all open callbacks are answered.
    pub fn kept(&self, resource: Resource) -> Option<Mode> {
        let held = self.held.get(&resource)?;
        match held.callback {
            Some(pending) => pending.to.map(|to| held.mode.meet(to)),
            None => Some(held.mode),
        }
    }

    /// Whether the mode that is left of a resource, or of its file, allows a use.
    fn allows(&self, resource: Resource, mode: Mode) -> bool {
        let itself = self.kept(resource).is_some_and(|kept| kept.covers(mode));
        match resource.root().map(|root| self.kept(root)) {
            Some(Some(root)) if root.is_intention() => itself && root.covers(mode.intention()),
            Some(root) => root.is_some_and(|root| root.covers(mode)),
            None => itself,
        }
    }

    /// Whether a use of a resource, or of one below it, would lose its lock by an open callback.
    fn is_used(&self, resource: Resource) -> bool {
        let below = rules::leaves_below(resource).into_iter().flat_map(|leaves| self.uses.range(leaves));
        let mut used = self.uses.get_key_value(&resource).into_iter().chain(below);
        used.any(|(at, modes)| modes.keys().any(|mode| !self.allows(*at, *mode)))
    }

    fn leaves(&self, root: Resource) -> impl Iterator<Item = Resource> {
        rules::leaves_below(root).into_iter().flat_map(|leaves| self.held.range(leaves)).map(|(leaf, _)| *leaf)
    }

    fn answer_if_unused(&mut self, resource: Resource) {
        if self.is_used(resource) {
            return;
        }
        let Some(pending) = self.held.get_mut(&resource).and_then(|held| held.callback.take()) else { return };
        self.note_void(resource, pending.grant);
        self.outputs.push_back(HolderOutput::GiveUp(resource, pending.to));
        self.demote(resource, pending.to);
        self.acknowledge(pending.number, CallbackAnswer::Done);
    }

    /// Lowers the mode of a resource, and those of the block groups below it.
    fn demote(&mut self, resource: Resource, to: Option<Mode>) {
        let to = to.and_then(|to| self.held.get(&resource).map(|held| held.mode.meet(to)));
        for leaf in self.leaves(resource).collect::<Vec<_>>() {
            let Some(kept) = self.held.get(&leaf).map(|held| rules::leaf_below(to, held.mode)) else { continue };
            self.set_mode(leaf, kept);
        }
        self.set_mode(resource, to);
    }

    fn set_mode(&mut self, resource: Resource, mode: Option<Mode>) {
        match (mode, self.held.get_mut(&resource)) {
            (Some(mode), Some(held)) => held.mode = mode,
            (None, Some(_)) => self.drop_held(resource),
            (_, None) => {}
        }
    }

    /// Removes a lock with its open callback.
    fn drop_held(&mut self, resource: Resource) {
        if let Some(pending) = self.held.remove(&resource).and_then(|held| held.callback) {
            self.note_void(resource, pending.grant);
            self.acknowledge(pending.number, CallbackAnswer::Done);
        }
    }

    /// Notes that a grant was given up which may still be on its way.
    fn note_void(&mut self, resource: Resource, grant: GrantNumber) {
        let void = self.void.entry(resource).or_insert(grant);
        *void = grant.max(*void);
        self.forget_void();
    }

    /// Forgets void grants that no waiting request can bring. A request of a block group brings its
    /// file, too.
    fn forget_void(&mut self) {
        let asked = |at: Resource| {
            let mut wanted = self.requests.values().flat_map(|request| &request.batch);
            wanted.any(|(resource, _)| *resource == at || resource.root() == Some(at))
        };
        let mut void = std::mem::take(&mut self.void);
        void.retain(|resource, _| asked(*resource));
        self.void = void;
    }

    /// Handles a message that the target sends `to` a client.
    pub fn handle_message(&mut self, to: ClientId, message: ToClient) {
        if self.life.is_none_or(|life| life.client != to) {
            return;
        }
        match message {
            ToClient::Granted { request, locks, .. } => self.granted(to, request, locks),
            ToClient::Refused { request, error } => self.refused(request, error),
            ToClient::Callback { number, resource, grant, to } => {
                self.called_back(resource, Pending { number, grant, to })
            }
            ToClient::Purge { number, range, generation } => {
                self.fetches.purge(range, generation);
                self.outputs.push_back(HolderOutput::Purge(range));
                self.acknowledge(number, CallbackAnswer::Done);
            }
        }
    }

    fn called_back(&mut self, resource: Resource, pending: Pending) {
        match self.held.get_mut(&resource) {
            // The target has granted it anew since: it knows that the former grant was given up.
            Some(held) if held.number > pending.grant => self.acknowledge(pending.number, CallbackAnswer::Done),
            Some(held) => {
                held.callback = Some(pending);
                if self.is_used(resource) {
                    self.acknowledge(pending.number, CallbackAnswer::InUse);
                    self.outputs.push_back(HolderOutput::InUse(resource));
                } else {
                    self.answer_if_unused(resource);
                }
            }
            None => {
                self.note_void(resource, pending.grant);
                self.acknowledge(pending.number, CallbackAnswer::Done);
            }
        }
    }

    /// Handles the reply to a message that was sent at `sent`.
    pub fn handle_reply(&mut self, now: Instant, message: &FromClient, sent: Instant, reply: Result<Reply, LockError>) {
        let concerns = match message {
            FromClient::Register { .. } => None,
            FromClient::Renew(client)
            | FromClient::Lock { client, .. }
            | FromClient::Cancel(client, _)
            | FromClient::Unlock(client, _)
            | FromClient::Acknowledge(client, ..) => Some(*client),
        };
        if concerns.is_some_and(|client| self.life.is_none_or(|life| life.client != client)) {
            return;
        }
        match (message, reply) {
            (FromClient::Register { previous }, Ok(Reply::Registered(life))) => {
                self.registered(now, sent, *previous, life)
            }
            (FromClient::Register { previous }, Err(LockError::NotReclaimable(_))) if self.is_older(*previous) => {
                self.give_up_reclaims();
                self.register_again();
            }
            (FromClient::Register { .. }, Err(error)) => self.end_life(error),
            (FromClient::Renew(_), Ok(_)) => self.renewed(sent),
            (FromClient::Lock { client, request, .. }, Ok(Reply::Granted(locks))) => {
                self.granted(*client, *request, locks)
            }
            (_, Err(LockError::WrongEpoch(_))) => self.register_again(),
            (_, Err(error @ (LockError::Fenced(_) | LockError::LeaseOver(_)))) => self.end_life(error),
            (FromClient::Lock { request, .. }, Err(error)) => self.refused(*request, error),
            // A repeated release or answer has no effect.
            _ => {}
        }
    }

    fn registered(&mut self, now: Instant, sent: Instant, previous: Option<ClientId>, registration: Registration) {
        let Registration { client, lease, .. } = registration;
        let before = self.life.map(|life| life.client);
        // A reply to a request of another life, or a repeated one: that life ends by itself.
        if previous != self.reclaimable_life() || before == Some(client) {
            return;
        }
        self.life = Some(Life {
            client,
            lease,
            lease_until: sent + shortened(lease),
            renew_at: sent + lease / RENEWALS_PER_LEASE,
        });
        self.void.clear();
        let unreclaimed = self.take_reclaims();
        for request in std::mem::take(&mut self.requests).into_keys() {
            self.outputs.push_back(HolderOutput::Refused(request, LockError::WrongEpoch(registration.boot_epoch)));
        }
        self.reclaims_of = previous;
        if previous.is_some() {
            self.fetches.void_all();
            self.outputs.push_back(HolderOutput::PurgeAll);
            self.reclaim(client, unreclaimed);
        }
        self.handle_timeout(now);
    }

    /// The life from which locks are reclaimed when the target has started again, to be named to it. Where those of an
    /// older one are not reclaimed yet, that one: the target takes it only if nothing of them was given to others
    /// since, and then nothing of this one was, either.
    pub fn reclaimable_life(&self) -> Option<ClientId> {
        let is_reclaiming = self.requests.values().any(|request| request.is_reclaim);
        self.reclaims_of.filter(|_| is_reclaiming).or(self.life.map(|life| life.client))
    }

    fn register_again(&mut self) {
        let previous = self.reclaimable_life();
        self.send(FromClient::Register { previous });
    }

    /// Whether the life that a request named as the one before is not the last.
    fn is_older(&self, previous: Option<ClientId>) -> bool {
        previous.is_some() && self.life.is_some_and(|life| Some(life.client) != previous)
    }

    /// Removes the requests of locks that were to be reclaimed and are not.
    fn take_reclaims(&mut self) -> Vec<Wanted> {
        self.requests.extract_if(.., |_, request| request.is_reclaim).flat_map(|(_, request)| request.batch).collect()
    }

    fn give_up_reclaims(&mut self) {
        let lost = self.take_reclaims().into_iter().map(|(resource, _)| HolderOutput::GiveUp(resource, None));
        self.outputs.extend(lost);
    }

    /// Reclaims what was held before the target restarted, and what was still to be reclaimed then.
    /// It is not used until it is granted.
    fn reclaim(&mut self, client: ClientId, unreclaimed: Vec<Wanted>) {
        let mut wanted: BTreeMap<Resource, Mode> = unreclaimed.into_iter().collect();
        for (resource, held) in std::mem::take(&mut self.held) {
            wanted.entry(resource).and_modify(|mode| *mode = mode.join(held.mode)).or_insert(held.mode);
        }
        let wanted: Vec<Wanted> = wanted.into_iter().collect();
        for batch in wanted.chunks(BATCH_MAX).map(<[Wanted]>::to_vec) {
            self.send_request(client, Request { transaction: TransactionId::OWN, batch, is_reclaim: true });
        }
    }

    fn renewed(&mut self, sent: Instant) {
        if let Some(life) = &mut self.life {
            life.lease_until = life.lease_until.max(sent + shortened(life.lease));
        }
    }

    fn granted(&mut self, client: ClientId, number: RequestId, locks: Vec<GrantedLock>) {
        let Some(request) = self.requests.get(&number) else { return };
        if request.transaction == TransactionId::OWN {
            if locks.iter().any(|lock| self.void.get(&lock.resource).is_some_and(|void| lock.number <= *void)) {
                return self.repeat(client, number);
            }
            locks.iter().for_each(|lock| self.hold(*lock));
        }
        self.requests.remove(&number);
        self.forget_void();
        self.outputs.push_back(HolderOutput::Granted(number, locks));
    }

    fn hold(&mut self, GrantedLock { resource, mode, number }: GrantedLock) {
        let held = self.held.entry(resource).or_insert(Held { mode, number, callback: None });
        if held.number <= number {
            held.mode = mode;
            held.number = number;
        }
        if resource.is_root() && !held.mode.is_intention() {
            // The target does not distinguish the block groups any more.
            for leaf in self.leaves(resource).collect::<Vec<_>>() {
                self.drop_held(leaf);
            }
        }
    }

    fn refused(&mut self, number: RequestId, error: LockError) {
        let Some(request) = self.requests.remove(&number) else { return };
        if request.is_reclaim {
            let lost = request.batch.iter().map(|(resource, _)| HolderOutput::GiveUp(*resource, None));
            self.outputs.extend(lost);
        }
        self.forget_void();
        self.outputs.push_back(HolderOutput::Refused(number, error));
    }

    fn end_life(&mut self, error: LockError) {
        self.life = None;
        self.reclaims_of = None;
        self.held.clear();
        self.uses.clear();
        self.void.clear();
        self.fetches.void_all();
        self.outputs.push_back(HolderOutput::Over(error));
        let refused =
            std::mem::take(&mut self.requests).into_keys().map(|request| HolderOutput::Refused(request, error));
        self.outputs.extend(refused);
    }

    fn acknowledge(&mut self, number: CallbackNumber, answer: CallbackAnswer) {
        if let Some(life) = self.life {
            self.send(FromClient::Acknowledge(life.client, number, answer));
        }
    }

    fn send(&mut self, message: FromClient) {
        self.outputs.push_back(HolderOutput::Send(message));
    }

    /// Begins a change by the client itself, whose copies of the blocks were dropped.
    pub fn begin_change(&mut self, range: BlockRange) -> FetchId {
        self.fetches.begin_change(range)
    }

    /// Begins a fetch of blocks.
    pub fn begin_fetch(&mut self, range: BlockRange) -> FetchId {
        self.fetches.begin(range)
    }

    /// Ends a fetch or a change, with the generation that the target gave it. Returns whether a
    /// copy may be kept.
    pub fn end_fetch(&mut self, fetch: FetchId, generation: Option<Generation>) -> bool {
        self.fetches.end(fetch, generation)
    }
}

/// The length of a lease for the client: it ends before the target's end of the lease in any case.
fn shortened(lease: Duration) -> Duration {
    lease * (100 - CLOCK_DRIFT_PERCENT) / 100
}
