//! Locks requested, given back and called back; transactions.

use std::collections::BTreeMap;

use base::clock::Instant;

use super::{Grace, LockManager};
use crate::callbacks::Subject;
use crate::error::{LockError, Table};
use crate::grants::PendingCallback;
use crate::identity::{Birth, CallbackNumber, ClientId, Owner, RequestId, TransactionId};
use crate::message::{Answer, CallbackAnswer, GrantedLock, Release, Wanted};
use crate::mode::Mode;
use crate::queue::Ticket;
use crate::resource::{FileId, Resource};
use crate::rules;

impl LockManager {
    /// Requests locks, files before their block groups. Either all of them are granted or queued,
    /// or the request is refused without effect. A lock that is held already is granted again, with
    /// a new number.
    ///
    /// # Errors
    /// When a rule is broken, a table is full, there would be a deadlock, or only reclaims are granted.
    pub fn lock(
        &mut self,
        now: Instant,
        owner: Owner,
        request: RequestId,
        batch: &[Wanted],
    ) -> Result<Answer, LockError> {
        let ticket = self.admit(now, owner, request, batch)?;
        if self.is_in_grace() {
            return Err(LockError::Grace);
        }
        let Some(ticket) = ticket else { return Ok(Answer::Queued) };
        self.check_room(owner.client, &ticket)?;
        self.table.enqueue(ticket);
        self.settle_request(now, (owner, request))
    }

    /// Like [`lock`](Self::lock), for a client that gets all answers by messages:
    /// [`ToClient::Granted`](crate::message::ToClient) when all is held. Returns whether it waits.
    ///
    /// # Errors
    /// As [`lock`](Self::lock). [`ToClient::Refused`](crate::message::ToClient) reports a deadlock.
    pub fn lock_by_message(
        &mut self,
        now: Instant,
        owner: Owner,
        request: RequestId,
        batch: &[Wanted],
    ) -> Result<bool, LockError> {
        let ticket = self.admit(now, owner, request, batch)?;
        if self.is_in_grace() {
            return Err(LockError::Grace);
        }
        let Some(ticket) = ticket else { return Ok(true) };
        self.check_room(owner.client, &ticket)?;
        self.table.enqueue(ticket);
        self.settle(now);
        Ok(self.table.ticket_of_request(owner.client, request).is_some())
    }

    /// The ticket of a request that may wait; `None` when it waits already.
    fn admit(
        &mut self,
        now: Instant,
        owner: Owner,
        request: RequestId,
        batch: &[Wanted],
    ) -> Result<Option<Ticket>, LockError> {
        self.clients.live(now, owner.client)?;
        let batch_max = self.settings.limits.batch_max;
        if batch.is_empty() || batch.len() > batch_max {
            return Err(LockError::BatchLength(batch_max));
        }
        batch.iter().try_for_each(|(resource, _)| self.check_place(*resource))?;
        let birth = if owner.is_own() { self.new_birth() } else { self.transactions.usable(owner)?.birth };
        let wanted = self.table.plan(owner, batch)?;
        let waiting = self.table.ticket_of_request(owner.client, request).and_then(|number| self.table.ticket(number));
        match waiting {
            Some(waiting) if waiting.owner == owner && waiting.wanted == wanted => Ok(None),
            Some(_) => Err(LockError::RequestReused),
            None => Ok(Some(Ticket { owner, request, birth, wanted })),
        }
    }

    fn check_place(&self, resource: Resource) -> Result<(), LockError> {
        let is_there = match resource {
            Resource::Metadata(block) => block < self.settings.block_count,
            Resource::Group(FileId::LOGICAL_UNIT, group) => {
                group.0 < self.settings.group_size.group_count(self.settings.block_count)
            }
            // Only the file system knows how large a file can become.
            Resource::File(_) | Resource::Group(..) => true,
        };
        if is_there { Ok(()) } else { Err(LockError::BeyondEnd(resource)) }
    }

    fn check_room(&self, client: ClientId, ticket: &Ticket) -> Result<(), LockError> {
        let limits = &self.settings.limits;
        if self.table.lock_count(client) + ticket.wanted.len() > limits.grants_of_client_max {
            return Err(LockError::Full(Table::Grants));
        }
        let waiting_locks = self.table.waiting_lock_count(client) + ticket.wanted.len();
        if self.table.waiting_count(client) >= limits.waiting_of_client_max
            || waiting_locks > limits.waiting_locks_of_client_max
        {
            return Err(LockError::Full(Table::Waiting));
        }
        Ok(())
    }

    fn new_birth(&mut self) -> Birth {
        self.birth_next += 1;
        Birth(self.birth_next)
    }

    /// Reclaims locks of a client's own that it held before the target restarted.
    ///
    /// As [`lock`](Self::lock); when the grace period is over, the client has nothing to reclaim,
    /// or another client reclaimed a conflicting lock.
    /// reclaimed what conflicts.
    pub fn reclaim(
        &mut self,
        now: Instant,
        client: ClientId,
        request: RequestId,
        batch: &[Wanted],
    ) -> Result<Vec<GrantedLock>, LockError> {
        if self.clients.live(now, client)?.previous.is_none() {
            return Err(LockError::NotReclaimable(client));
        }
        let owner = Owner::own(client);
        let Some(ticket) = self.admit(now, owner, request, batch)? else { return Err(LockError::RequestReused) };
        // A lock that was granted, and is reclaimed again because the answer was lost, is not late.
        let holds = |(resource, mode): &Wanted| {
            let held = self.table.grant(owner, *resource);
            held.is_some_and(|held| held.callback.is_none() && held.mode.covers(*mode))
        };
        let is_held = ticket.wanted.iter().all(holds);
        if !is_held && !matches!(self.grace, Grace::Until(end) if now < end) {
            return Err(LockError::GraceOver);
        }
        self.check_room(client, &ticket)?;
        let conflict =
            ticket.wanted.iter().find(|wanted| self.table.conflicting_holders(owner, **wanted).next().is_some());
        if let Some((resource, _)) = conflict {
            return Err(LockError::ReclaimConflict(*resource));
        }
        let number = self.table.enqueue(ticket);
        let Some(last) = self.clients.grant_last(client) else { return Err(LockError::Fenced(client)) };
        let locks = self.table.fulfil(number, now, last).map(|(_, locks)| locks).unwrap_or_default();
        self.settle(now);
        Ok(locks)
    }

    /// Withdraws a request for locks. If they were granted meanwhile, the client is to give them
    /// back.
    ///
    /// # Errors
    /// When its life is over.
    pub fn cancel(&mut self, now: Instant, client: ClientId, request: RequestId) -> Result<(), LockError> {
        self.clients.live(now, client)?;
        if let Some(number) = self.table.ticket_of_request(client, request) {
            self.table.withdraw(number);
        }
        self.settle(now);
        Ok(())
    }

    /// Gives back locks of a client's own, or parts of them, in order. An error leaves all of them
    /// unchanged.
    ///
    /// # Errors
    /// When a rule is broken, or a grant is not the one that is held.
    pub fn unlock(&mut self, now: Instant, owner: Owner, batch: &[Release]) -> Result<(), LockError> {
        self.clients.live(now, owner.client)?;
        if !owner.is_own() {
            return Err(LockError::HeldUntilEnd);
        }
        let batch_max = self.settings.limits.batch_max;
        if batch.is_empty() || batch.len() > batch_max {
            return Err(LockError::BatchLength(batch_max));
        }
        self.check_releases(owner, batch)?;
        for Release { resource, to, .. } in batch.iter().copied() {
            let answered = self.table.demote(owner, resource, to);
            answered.into_iter().for_each(|number| self.callbacks.close(owner.client, number));
        }
        self.settle(now);
        Ok(())
    }

    /// Whether each release is allowed once those before it are done.
    fn check_releases(&self, owner: Owner, batch: &[Release]) -> Result<(), LockError> {
        let mut done = BTreeMap::<Resource, Option<Mode>>::new();
        for Release { resource, number, to } in batch.iter().copied() {
            let held = self.table.grant(owner, resource).filter(|grant| grant.number == number);
            let left = held.and_then(|grant| done.get(&resource).copied().unwrap_or(Some(grant.mode)));
            let mode = left.ok_or(LockError::NotHeld(resource))?;
            rules::check_release(resource, mode, to, &self.leaf_modes_left(owner, resource, &done))?;
            done.insert(resource, to);
        }
        Ok(())
    }

    /// The modes in which block groups below a file are held after the releases in `done`.
    fn leaf_modes_left(&self, owner: Owner, root: Resource, done: &BTreeMap<Resource, Option<Mode>>) -> Vec<Mode> {
        let is_left = |mode: &Mode| self.table.leaves_in(owner, root, *mode).any(|leaf| !done.contains_key(&leaf));
        let reduced = done.iter().filter(|(leaf, _)| leaf.root() == Some(root)).filter_map(|(_, to)| *to);
        rules::LEAF_MODES.into_iter().filter(is_left).chain(reduced).collect()
    }

    /// Answers a callback. Answering again does nothing.
    ///
    /// # Errors
    /// When no callback of that number was sent to the client, or it defers a purge without
    /// progress.
    pub fn acknowledge(
        &mut self,
        now: Instant,
        client: ClientId,
        number: CallbackNumber,
        answer: CallbackAnswer,
    ) -> Result<(), LockError> {
        self.clients.live(now, client)?;
        let Some(callback) = self.callbacks.get(client, number)? else { return Ok(()) };
        let owner = Owner::own(client);
        match (callback.subject, answer) {
            (Subject::Lock(resource, to), CallbackAnswer::Done) => {
                self.callbacks.close(client, number);
                let answered = self.table.demote(owner, resource, to);
                answered.iter().for_each(|number| self.callbacks.close(client, *number));
                self.settle(now);
            }
            (Subject::Lock(resource, to), CallbackAnswer::InUse | CallbackAnswer::GettingOn) => {
                self.callbacks.defer(now, client, number, &self.settings);
                self.table.set_callback(owner, resource, PendingCallback { number, to, is_deferred: true });
                self.settle(now);
            }
            (Subject::Copies(range, purge), CallbackAnswer::Done) => {
                self.callbacks.close(client, number);
                self.gate.purged(client, range, purge);
                self.advance_gate(now);
            }
            (Subject::Copies(..), CallbackAnswer::GettingOn) => {
                self.callbacks.defer(now, client, number, &self.settings);
            }
            (Subject::Copies(..), CallbackAnswer::InUse) => return Err(LockError::NotDeferrable(number)),
        }
        Ok(())
    }

    /// Begins an explicit transaction. When it is tried again its age is to be named: in a deadlock
    /// the youngest is refused, so that each is the oldest some time.
    ///
    /// # Errors
    /// When the number was used before, or the client has too many.
    pub fn begin_transaction(
        &mut self,
        now: Instant,
        client: ClientId,
        transaction: TransactionId,
        age: Option<Birth>,
    ) -> Result<Birth, LockError> {
        self.clients.live(now, client)?;
        let birth = self.new_birth();
        let birth = age.map_or(birth, |age| age.min(birth));
        self.transactions.begin(Owner { client, transaction }, birth, self.settings.limits.transactions_of_client_max)
    }

    /// Ends an explicit transaction, committed or not, and frees its locks.
    ///
    /// # Errors
    /// When there never was one of that number.
    pub fn end_transaction(
        &mut self,
        now: Instant,
        client: ClientId,
        transaction: TransactionId,
    ) -> Result<(), LockError> {
        self.clients.live(now, client)?;
        let owner = Owner { client, transaction };
        self.transactions.end(owner)?;
        self.table.release_all(owner);
        for number in self.table.tickets_of(owner).collect::<Vec<_>>() {
            self.table.withdraw(number);
        }
        self.settle(now);
        Ok(())
    }
}
