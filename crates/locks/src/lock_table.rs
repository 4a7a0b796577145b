//! The granted locks and the waiting requests, and the places that a change of either touches.
//!
//! Two holders of `M_S` that both want `M_X`: the first ticket waits for the other's `M_S`, which
//! is called back. When that is given up the first is granted, and the other's ticket goes on as a
//! plain one behind it. While a holder has not answered a callback, its own tickets on that
//! resource wait as plain ones, too.
//!
//! The ticket of a block group names the file, too, so that the file is held whenever the block
//! group is granted, even if it was given up meanwhile.

use std::collections::BTreeSet;
use std::ops::{Bound, RangeInclusive};

use base::clock::Instant;

use crate::error::LockError;
use crate::grants::{Grant, Grants, PendingCallback};
use crate::identity::{CallbackNumber, ClientId, GrantNumber, Owner, RequestId};
use crate::message::{GrantedLock, Wanted};
use crate::mode::Mode;
use crate::queue::{Queues, Ticket, TicketNumber, Turn};
use crate::resource::Resource;
use crate::rules;

/// The changes since the last examination. Examining these alone finds all that follows from them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Touched {
    /// Tickets that arrived, moved forward, or whose owner's locks changed: they may be granted, be
    /// first in a queue, or be in a circle.
    pub tickets: BTreeSet<TicketNumber>,
    /// Resources of which less is held or wanted: other tickets may be granted.
    pub freed: BTreeSet<Resource>,
    /// Resources of which more is held, or that were held for long enough: holders may be called
    /// back.
    pub taken: BTreeSet<Resource>,
}

impl Touched {
    /// Adds the changes of another.
    pub fn extend(&mut self, other: Self) {
        self.tickets.extend(other.tickets);
        self.freed.extend(other.freed);
        self.taken.extend(other.taken);
    }
}

/// The holders in the way of a request that give nothing up by themselves.
pub enum Blockers {
    /// Other holders, some of which may stay.
    Others,
    /// None: the wanted mode is free, but for the tickets ahead.
    Nobody,
    /// The waiting owner deferred a callback itself: the use may depend on this very request.
    Itself,
}

/// Holders and queues of all resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockTable {
    grants: Grants,
    queues: Queues,
    touched: Touched,
}

impl LockTable {
    /// The modes that an owner would finally hold for a batch, with the files of its block groups.
    ///
    /// # Errors
    /// When the batch breaks a rule between files and block groups.
    pub fn plan(&self, owner: Owner, batch: &[Wanted]) -> Result<Vec<Wanted>, LockError> {
        rules::plan(batch, |resource| self.grant(owner, resource).map(|grant| grant.mode))
    }

    /// An owner's grant of a resource.
    pub fn grant(&self, owner: Owner, resource: Resource) -> Option<&Grant> {
        self.grants.get(owner, resource)
    }

    /// All grants of an owner.
    pub fn grants_of(&self, owner: Owner) -> impl Iterator<Item = (Resource, &Grant)> {
        self.grants.of(owner)
    }

    /// All grants.
    pub fn all_grants(&self) -> impl Iterator<Item = (Owner, Resource, &Grant)> {
        self.grants.all()
    }

    /// Owners of a client that hold a lock.
    pub fn owners_of(&self, client: ClientId) -> Vec<Owner> {
        self.grants.owners_of(client).collect()
    }

    /// Count of locks that a client holds and waits for.
    pub fn lock_count(&self, client: ClientId) -> usize {
        self.grants.count_of(client) + self.queues.lock_count_of(client)
    }

    /// Count of locks that all clients hold or wait for.
    pub fn lock_count_of_all(&self) -> usize {
        self.grants.count() + self.queues.lock_count()
    }

    /// The block groups that an owner holds in a mode below a file.
    pub fn leaves_in(&self, owner: Owner, root: Resource, mode: Mode) -> impl Iterator<Item = Resource> {
        self.grants.leaves_in(owner, root, mode)
    }

    /// Other owners that hold a resource in a mode that conflicts.
    pub fn conflicting_holders(&self, owner: Owner, wanted: Wanted) -> impl Iterator<Item = Owner> {
        self.grants.conflicting_holders(owner, wanted)
    }

    /// The holders of each resource in a range of resources.
    pub fn holders_among(&self, resources: RangeInclusive<Resource>) -> impl Iterator<Item = (Resource, Owner)> {
        self.grants.holders_among(resources)
    }

    /// All tickets, in order of arrival.
    pub fn tickets(&self) -> impl Iterator<Item = (TicketNumber, &Ticket)> {
        self.queues.tickets()
    }

    /// A waiting ticket.
    pub fn ticket(&self, number: TicketNumber) -> Option<&Ticket> {
        self.queues.ticket(number)
    }

    /// The ticket of a client's request.
    pub fn ticket_of_request(&self, client: ClientId, request: RequestId) -> Option<TicketNumber> {
        self.queues.ticket_of_request(client, request)
    }

    /// The tickets of an owner.
    pub fn tickets_of(&self, owner: Owner) -> impl Iterator<Item = TicketNumber> {
        self.queues.tickets_of(owner)
    }

    /// The tickets of a client, its transactions' included.
    pub fn tickets_of_client(&self, client: ClientId) -> impl Iterator<Item = TicketNumber> {
        self.queues.tickets_of_client(client)
    }

    /// Count of waiting requests of a client.
    pub fn waiting_count(&self, client: ClientId) -> usize {
        self.queues.count_of(client)
    }

    /// Count of locks that a client waits for.
    pub fn waiting_lock_count(&self, client: ClientId) -> usize {
        self.queues.lock_count_of(client)
    }

    /// Whether all that a ticket wants is free.
    pub fn is_ready(&self, number: TicketNumber) -> bool {
        let turn = self.queues.turn(number);
        self.ticket(number).is_some_and(|ticket| {
            ticket.wanted.iter().all(|wanted| {
                let lacks = self.lacks(ticket.owner, *wanted);
                lacks == Some(false)
                    || lacks == Some(true)
                        && self.conflicting_holders(ticket.owner, *wanted).next().is_none()
                        && self.queues.ahead(turn, Some(ticket.owner), *wanted).next().is_none()
            })
        })
    }

    /// Whether an owner lacks what it wants; `None` while it has not answered a callback of the
    /// resource.
    fn lacks(&self, owner: Owner, (resource, mode): Wanted) -> Option<bool> {
        match self.grant(owner, resource) {
            Some(held) if held.callback.is_some() => None,
            held => Some(held.is_none_or(|held| !held.mode.covers(mode))),
        }
    }

    /// Whether one owner holds a resource in a mode that excludes all others. Every ticket there
    /// waits for that owner, whoever else gives up.
    pub fn is_held_alone(&self, resource: Resource) -> bool {
        let holders = self.grants.holders_of(resource).filter(|holders| holders.len() == 1);
        let holder = holders.and_then(|holders| self.grant(*holders.first()?, resource));
        holder.is_some_and(|grant| grant.mode.excludes_all())
    }

    /// Whether some holder of a resource can be called back and has not been.
    pub fn has_somebody_to_call(&self, resource: Resource) -> bool {
        let can_be_called = |owner: &Owner| {
            owner.is_own() && self.grant(*owner, resource).is_some_and(|grant| grant.callback.is_none())
        };
        self.grants.holders_of(resource).is_some_and(|holders| holders.iter().any(can_be_called))
    }

    /// Those of a ticket's resources where it is first in the queue, and where a holder can be
    /// called back.
    pub fn first_places(&self, number: TicketNumber) -> Vec<(Owner, Wanted)> {
        let Some(ticket) = self.ticket(number) else { return Vec::new() };
        let turn = self.queues.turn(number);
        let is_first = |wanted: &&Wanted| {
            self.has_somebody_to_call(wanted.0)
                && self.lacks(ticket.owner, **wanted) == Some(true)
                && self.queues.ahead(turn, Some(ticket.owner), **wanted).next().is_none()
        };
        ticket.wanted.iter().filter(is_first).map(|wanted| (ticket.owner, *wanted)).collect()
    }

    /// The tickets that are first at a resource: none ahead of them conflicts.
    pub fn first_at(&self, resource: Resource) -> Vec<(TicketNumber, Owner, Wanted)> {
        // For each mode, the owner of the tickets ahead with it; `None` for several owners.
        let mut ahead = Vec::<(Mode, Option<Owner>)>::new();
        let mut first = Vec::new();
        for (number, owner, mode) in self.queues.queue(resource) {
            let is_behind = |(other, whose): &(Mode, Option<Owner>)| other.conflicts(mode) && *whose != Some(owner);
            if !ahead.iter().any(is_behind) && self.lacks(owner, (resource, mode)) == Some(true) {
                first.push((number, owner, (resource, mode)));
            }
            if ahead.iter().any(|(other, whose)| whose.is_none() && other.excludes_all()) {
                break;
            }
            match ahead.iter_mut().find(|(other, _)| *other == mode) {
                Some((_, whose)) => *whose = whose.filter(|whose| *whose == owner),
                None => ahead.push((mode, Some(owner))),
            }
        }
        first
    }

    /// The holders for which a ticket waits at one of its resources, without the tickets ahead;
    /// `None` where it has what it wants.
    pub fn blockers(&self, owner: Owner, wanted: Wanted) -> Option<Blockers> {
        match self.lacks(owner, wanted) {
            Some(false) => None,
            Some(true) => Some(Blockers::Others),
            None if self.has_deferred(owner, wanted.0) => Some(Blockers::Itself),
            None => Some(Blockers::Nobody),
        }
    }

    /// Whether a holder conflicts with the wanted mode and gives nothing up by itself: an explicit
    /// transaction, or a client that deferred a callback.
    pub fn stays(&self, holder: Owner, (resource, mode): Wanted) -> bool {
        (!holder.is_own() || self.has_deferred(holder, resource))
            && self.grant(holder, resource).is_some_and(|grant| grant.mode.conflicts(mode))
    }

    fn has_deferred(&self, owner: Owner, resource: Resource) -> bool {
        let called = self.grant(owner, resource).and_then(|grant| grant.callback);
        called.is_some_and(|called| called.is_deferred)
    }

    /// The nearest holder of a resource before an owner, in the order of owners.
    pub fn holder_before(&self, owner: Owner, resource: Resource) -> Option<Owner> {
        self.grants.holders_of(resource)?.range(..owner).next_back().copied()
    }

    /// The nearest holder after it.
    pub fn holder_behind(&self, owner: Owner, resource: Resource) -> Option<Owner> {
        self.grants.holders_of(resource)?.range((Bound::Excluded(owner), Bound::Unbounded)).next().copied()
    }

    /// Other holders, without explicit transactions, that hold a resource in a mode that conflicts.
    pub fn conflicting_clients(&self, owner: Owner, wanted: Wanted) -> impl Iterator<Item = Owner> {
        self.grants.conflicting_clients(owner, wanted)
    }

    /// The place of a ticket in its queues.
    pub fn turn(&self, number: TicketNumber) -> Turn {
        self.queues.turn(number)
    }

    /// The nearest place before one at a resource whose ticket conflicts, without those of an
    /// owner.
    pub fn nearest_ahead(&self, turn: Turn, left_out: Option<Owner>, wanted: Wanted) -> Option<Turn> {
        self.queues.ahead(turn, left_out, wanted).next_back()
    }

    /// Whether another ticket may wait for a ticket, or for its owner.
    pub fn may_be_waited_for(&self, number: TicketNumber) -> bool {
        let stays = |owner: Owner| !owner.is_own() || self.grants.defers(owner);
        self.ticket(number).is_some_and(|ticket| stays(ticket.owner)) || self.queues.has_followers(number)
    }

    /// Takes the changes; `None` when there are none.
    pub fn take_touched(&mut self) -> Option<Touched> {
        self.is_touched().then(|| std::mem::take(&mut self.touched))
    }

    /// Whether there are changes that were not examined.
    pub fn is_touched(&self) -> bool {
        let Touched { tickets, freed, taken } = &self.touched;
        !(tickets.is_empty() && freed.is_empty() && taken.is_empty())
    }

    /// Marks a resource whose holders have held it for long enough: they may be called back.
    pub fn touch(&mut self, resource: Resource) {
        self.touched.taken.insert(resource);
    }

    /// Marks a ticket that may be ready now for a reason outside of this table.
    pub fn touch_ticket(&mut self, number: TicketNumber) {
        self.touched.tickets.insert(number);
    }

    /// Puts a request into the queues.
    pub fn enqueue(&mut self, ticket: Ticket) -> TicketNumber {
        let Self { grants, queues, .. } = self;
        let owner = ticket.owner;
        let number = queues.enqueue(ticket, |wanted| wants_more(grants, owner, wanted));
        self.touched.tickets.insert(number);
        number
    }

    /// Takes a request out of the queues.
    pub fn withdraw(&mut self, number: TicketNumber) -> Option<Ticket> {
        self.touched.freed.extend(self.queues.held_up(number));
        self.queues.withdraw(number)
    }

    /// Grants a ticket what it waits for, with grant numbers after `number_last`.
    pub fn fulfil(
        &mut self,
        number: TicketNumber,
        now: Instant,
        number_last: &mut GrantNumber,
    ) -> Option<(Ticket, Vec<GrantedLock>)> {
        let ticket = self.queues.withdraw(number)?;
        let mut locks = Vec::new();
        for wanted in ticket.wanted.iter().copied() {
            number_last.0 += 1;
            let mode = self.hold(ticket.owner, wanted, now, *number_last);
            locks.push(GrantedLock { resource: wanted.0, mode, number: *number_last });
        }
        if !ticket.owner.is_own() {
            // From now on others wait for it until it ends.
            self.touched.tickets.extend(self.queues.tickets_of(ticket.owner));
        }
        Some((ticket, locks))
    }

    fn hold(&mut self, owner: Owner, (resource, mode): Wanted, now: Instant, number: GrantNumber) -> Mode {
        let held = self.grant(owner, resource).copied();
        let mode = held.map_or(mode, |held| held.mode.join(mode));
        let since = held.filter(|held| held.mode == mode).map_or(now, |held| held.since);
        self.grants.set(owner, resource, Grant { mode, number, since, callback: None });
        // Also a resource whose mode stays: the ticket itself holds up no other any more.
        self.touched.taken.insert(resource);
        if held.is_some_and(|held| held.mode == mode && held.callback.is_none()) {
            return mode;
        }
        self.look_at_own(owner, resource);
        // A lock on all of a file that is no intention is one on each block group: its own grants
        // of these are merged into it.
        if resource.is_root() && !mode.is_intention() {
            let leaves = rules::LEAF_MODES.into_iter().flat_map(|mode| self.leaves_in(owner, resource, mode));
            for leaf in leaves.collect::<Vec<_>>() {
                self.drop_grant(owner, leaf);
            }
        }
        mode
    }

    fn drop_grant(&mut self, owner: Owner, resource: Resource) -> Option<Grant> {
        let grant = self.grants.remove(owner, resource)?;
        self.look_at_own(owner, resource);
        self.touched.freed.insert(resource);
        Some(grant)
    }

    /// Marks an owner's tickets at a resource whose grant has changed: grants decide about the
    /// turns in all queues.
    fn look_at_own(&mut self, owner: Owner, resource: Resource) {
        for (number, mode) in self.queues.own_at(owner, resource).collect::<Vec<_>>() {
            self.touched.tickets.insert(number);
            let more = wants_more(&self.grants, owner, (resource, mode));
            if self.queues.set_conversion(number, resource, more)
                && let Some(ticket) = self.queues.ticket(number)
            {
                // The ticket moved forward or backward: others may be first now, or no longer.
                self.touched.freed.extend(ticket.wanted.iter().map(|(resource, _)| *resource));
            }
        }
    }

    /// Notes a callback to a holder, or its deferral.
    pub fn set_callback(&mut self, owner: Owner, resource: Resource, callback: PendingCallback) {
        let Some(grant) = self.grant(owner, resource).copied() else { return };
        self.grants.set(owner, resource, Grant { callback: Some(callback), ..grant });
        self.look_at_own(owner, resource);
        if callback.is_deferred {
            // From now on others wait for what its use needs.
            self.touched.tickets.extend(self.queues.tickets_of(owner));
        }
    }

    /// Lowers an owner's mode of a resource to `to`, and those of the block groups below to what
    /// that allows; leaves first. Returns the callbacks that this answers.
    pub fn demote(&mut self, owner: Owner, resource: Resource, to: Option<Mode>) -> Vec<CallbackNumber> {
        let to = to.and_then(|to| self.grant(owner, resource).map(|grant| grant.mode.meet(to)));
        let mut answered = Vec::new();
        for mode in rules::LEAF_MODES {
            let kept = rules::leaf_below(to, mode);
            if kept == Some(mode) {
                continue;
            }
            for leaf in self.leaves_in(owner, resource, mode).collect::<Vec<_>>() {
                answered.extend(self.demote_alone(owner, leaf, kept));
            }
        }
        answered.extend(self.demote_alone(owner, resource, to));
        answered
    }

    /// Removes all locks of an owner, leaves first.
    pub fn release_all(&mut self, owner: Owner) {
        let held: Vec<Resource> = self.grants_of(owner).map(|(resource, _)| resource).collect();
        for resource in held.into_iter().rev() {
            self.demote(owner, resource, None);
        }
    }

    fn demote_alone(&mut self, owner: Owner, resource: Resource, to: Option<Mode>) -> Option<CallbackNumber> {
        let Some(mode) = to else {
            return self.drop_grant(owner, resource)?.callback.map(|callback| callback.number);
        };
        let grant = self.grant(owner, resource).copied()?;
        let is_answered = |callback: &PendingCallback| callback.to.is_some_and(|asked| asked.covers(mode));
        let answered = grant.callback.filter(is_answered);
        let callback = grant.callback.filter(|callback| !is_answered(callback));
        self.grants.set(owner, resource, Grant { mode, callback, ..grant });
        self.look_at_own(owner, resource);
        self.touched.freed.insert(resource);
        answered.map(|callback| callback.number)
    }
}

/// Whether an owner holds less than it wants of a resource, so that its ticket is a conversion.
fn wants_more(grants: &Grants, owner: Owner, (resource, mode): Wanted) -> bool {
    let held = grants.get(owner, resource);
    held.is_some_and(|held| held.callback.is_none() && !held.mode.covers(mode))
}
