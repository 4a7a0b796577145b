//! Who holds what, and who waits for it.
//!
//! A request waits as one ticket, in the queue of each resource that it names, and holds nothing of it until all of it is free: two requests that wait can
//! so never hold each other up for ever. A ticket of whoever holds something of it already and wants more (a *conversion*) comes first, then the
//! others in the order they came, in each queue alike; nobody passes a ticket that it conflicts with.
//!
//! Two holders of `M_S` that both want `M_X`: the ticket that came first waits for the other's `M_S`, which is called back; when it is given up the
//! first is granted, and the other's ticket goes on as a plain one behind it. While a holder has not answered a callback, its own tickets on that resource
//! wait as plain ones, too.
//!
//! The ticket of a block group names the file, too, so that the file is held whenever the block group is granted, whatever was given up meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use base::clock::Instant;

use crate::error::LockError;
use crate::identity::{Birth, CallbackNumber, ClientId, GrantNumber, Owner, RequestId};
use crate::message::{GrantedLock, Wanted};
use crate::mode::Mode;
use crate::resource::Resource;
use crate::rules;

/// The place of a request in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketNumber(pub u64);

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// Who waits.
    pub owner: Owner,
    /// The client's number of it.
    pub request: RequestId,
    /// How old it is.
    pub birth: Birth,
    /// What it needs to be held, files before their block groups.
    pub wanted: Vec<Wanted>,
}

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// How.
    pub mode: Mode,
    /// Its number.
    pub number: GrantNumber,
    /// Since when.
    pub since: Instant,
    /// What its holder was asked to give up.
    pub callback: Option<Called>,
}

/// A holder was asked to come down, and has not done so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Called {
    /// The number of the callback.
    pub number: CallbackNumber,
    /// What may be kept.
    pub to: Option<Mode>,
    /// Whether the holder said that the lock is in use.
    pub is_deferred: bool,
}

/// What a ticket waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Obstacle {
    /// Another owner holds it.
    Holder(Owner),
    /// Another ticket comes first.
    Ahead(TicketNumber),
    /// The owner itself was called back, and has not answered.
    OwnCallback,
}

/// Holders and queues of all resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockTable {
    grants: BTreeMap<Owner, BTreeMap<Resource, Grant>>,
    holders: BTreeMap<Resource, BTreeSet<Owner>>,
    tickets: BTreeMap<TicketNumber, Ticket>,
    /// The tickets again, by who waits and by the client's number.
    by_owner: BTreeMap<Owner, BTreeSet<TicketNumber>>,
    by_request: BTreeMap<(ClientId, RequestId), TicketNumber>,
    queues: BTreeMap<Resource, BTreeSet<TicketNumber>>,
    ticket_next: u64,
}

impl LockTable {
    /// What an owner would hold of a batch in the end, with the files of its block groups.
    ///
    /// # Errors
    /// When the batch breaks a rule between files and block groups.
    pub fn plan(&self, owner: Owner, batch: &[Wanted]) -> Result<Vec<Wanted>, LockError> {
        rules::plan(batch, |resource| self.grant(owner, resource).map(|grant| grant.mode))
    }

    /// How an owner holds a resource.
    pub fn grant(&self, owner: Owner, resource: Resource) -> Option<&Grant> {
        self.grants.get(&owner)?.get(&resource)
    }

    /// All that an owner holds.
    pub fn grants_of(&self, owner: Owner) -> impl Iterator<Item = (Resource, &Grant)> {
        self.grants.get(&owner).into_iter().flatten().map(|(resource, grant)| (*resource, grant))
    }

    /// Everything that is held.
    pub fn all_grants(&self) -> impl Iterator<Item = (Owner, Resource, &Grant)> {
        self.grants.iter().flat_map(|(owner, held)| held.iter().map(|(resource, grant)| (*owner, *resource, grant)))
    }

    /// Owners of a client that hold something.
    pub fn owners_of(&self, client: ClientId) -> Vec<Owner> {
        self.grants.range(Owner::all_of(client)).map(|(owner, _)| *owner).collect()
    }

    /// How many locks a client holds and waits for.
    pub fn lock_count(&self, client: ClientId) -> usize {
        let held = self.owners_of(client).into_iter().map(|owner| self.grants[&owner].len());
        let waiting = self.tickets_of_client(client).filter_map(|number| self.ticket(number));
        held.chain(waiting.map(|ticket| ticket.wanted.len())).sum()
    }

    /// All tickets, in the order they came.
    pub fn tickets(&self) -> impl Iterator<Item = (TicketNumber, &Ticket)> {
        self.tickets.iter().map(|(number, ticket)| (*number, ticket))
    }

    /// A ticket that waits.
    pub fn ticket(&self, number: TicketNumber) -> Option<&Ticket> {
        self.tickets.get(&number)
    }

    /// The tickets of an owner.
    pub fn tickets_of(&self, owner: Owner) -> impl Iterator<Item = TicketNumber> {
        self.by_owner.get(&owner).into_iter().flatten().copied()
    }

    /// The tickets of a client, its transactions' included.
    pub fn tickets_of_client(&self, client: ClientId) -> impl Iterator<Item = TicketNumber> {
        self.by_owner.range(Owner::all_of(client)).flat_map(|(_, numbers)| numbers).copied()
    }

    /// The ticket of a client's request.
    pub fn ticket_of_request(&self, client: ClientId, request: RequestId) -> Option<TicketNumber> {
        self.by_request.get(&(client, request)).copied()
    }

    /// The tickets in the queue of a resource.
    pub fn queue(&self, resource: Resource) -> Vec<TicketNumber> {
        self.queues.get(&resource).into_iter().flatten().copied().collect()
    }

    /// Puts a request into the queues.
    pub fn enqueue(&mut self, ticket: Ticket) -> TicketNumber {
        let number = TicketNumber(self.ticket_next);
        self.ticket_next += 1;
        for (resource, _) in &ticket.wanted {
            self.queues.entry(*resource).or_default().insert(number);
        }
        self.by_owner.entry(ticket.owner).or_default().insert(number);
        self.by_request.insert((ticket.owner.client, ticket.request), number);
        self.tickets.insert(number, ticket);
        number
    }

    /// Takes a request out of the queues.
    pub fn withdraw(&mut self, number: TicketNumber) -> Option<Ticket> {
        let ticket = self.tickets.remove(&number)?;
        remove_from(&mut self.by_owner, ticket.owner, &number);
        self.by_request.remove(&(ticket.owner.client, ticket.request));
        for (resource, _) in &ticket.wanted {
            remove_from(&mut self.queues, *resource, &number);
        }
        Some(ticket)
    }

    /// Whatever keeps a ticket from being granted, by resource.
    pub fn obstacles(&self, number: TicketNumber) -> Vec<(Wanted, Obstacle)> {
        let Some(ticket) = self.tickets.get(&number) else { return Vec::new() };
        ticket.wanted.iter().flat_map(|wanted| self.obstacles_at(number, ticket.owner, *wanted)).collect()
    }

    fn obstacles_at(&self, number: TicketNumber, owner: Owner, wanted: Wanted) -> Vec<(Wanted, Obstacle)> {
        let (resource, mode) = wanted;
        let held = self.grant(owner, resource);
        if held.is_some_and(|held| held.callback.is_some()) {
            let ahead = self.ahead(number, owner, wanted).map(|other| (wanted, Obstacle::Ahead(other)));
            return [(wanted, Obstacle::OwnCallback)].into_iter().chain(ahead).collect();
        }
        if held.is_some_and(|held| held.mode.covers(mode)) {
            return Vec::new();
        }
        let holders = self.in_the_way(owner, wanted).map(|holder| (wanted, Obstacle::Holder(holder)));
        holders.chain(self.ahead(number, owner, wanted).map(|other| (wanted, Obstacle::Ahead(other)))).collect()
    }

    /// Other owners that hold a resource in a mode that conflicts.
    pub fn in_the_way(&self, owner: Owner, (resource, mode): Wanted) -> impl Iterator<Item = Owner> {
        self.holders.get(&resource).into_iter().flatten().copied().filter(move |holder| {
            *holder != owner && self.grant(*holder, resource).is_some_and(|grant| grant.mode.conflicts(mode))
        })
    }

    /// Tickets that come first at a resource, and conflict.
    fn ahead(
        &self,
        number: TicketNumber,
        owner: Owner,
        (resource, mode): Wanted,
    ) -> impl Iterator<Item = TicketNumber> {
        let turn = self.tickets.get(&number).map(|ticket| self.turn(number, ticket));
        self.queues.get(&resource).into_iter().flatten().copied().filter(move |other| {
            let ticket = &self.tickets[other];
            ticket.owner != owner
                && Some(self.turn(*other, ticket)) < turn
                && ticket.wanted.iter().any(|(at, wanted)| *at == resource && wanted.conflicts(mode))
        })
    }

    /// The order in all queues: conversions, then the others as they came. It is the same in each, so that no two tickets wait for each other.
    fn turn(&self, number: TicketNumber, ticket: &Ticket) -> (bool, TicketNumber) {
        let wants_more = |(resource, mode): &Wanted| {
            let held = self.grant(ticket.owner, *resource);
            held.is_some_and(|held| held.callback.is_none() && !held.mode.covers(*mode))
        };
        (!ticket.wanted.iter().any(wants_more), number)
    }

    /// Gives a ticket what it waits for. Grants are counted on from `number_last`.
    pub fn fulfil(
        &mut self,
        number: TicketNumber,
        now: Instant,
        number_last: &mut GrantNumber,
    ) -> Option<(Ticket, Vec<GrantedLock>)> {
        let ticket = self.withdraw(number)?;
        let mut locks = Vec::new();
        for (resource, mode) in ticket.wanted.iter().copied() {
            number_last.0 += 1;
            self.hold(ticket.owner, resource, mode, now, *number_last);
            let mode = self.grants[&ticket.owner][&resource].mode;
            locks.push(GrantedLock { resource, mode, number: *number_last });
        }
        Some((ticket, locks))
    }

    fn hold(&mut self, owner: Owner, resource: Resource, mode: Mode, now: Instant, number: GrantNumber) {
        let held = self.grants.entry(owner).or_default();
        match held.get_mut(&resource) {
            Some(grant) => {
                let mode = grant.mode.join(mode);
                let since = if mode == grant.mode { grant.since } else { now };
                *grant = Grant { mode, number, since, callback: None };
            }
            None => {
                held.insert(resource, Grant { mode, number, since: now, callback: None });
                self.holders.entry(resource).or_default().insert(owner);
            }
        }
        // A lock on all of a file that is no intention is one on each block group: those of its own are no longer told apart.
        if resource.is_root() && !self.grants[&owner][&resource].mode.is_intention() {
            for leaf in self.leaves(owner, resource) {
                self.drop_grant(owner, leaf);
            }
        }
    }

    /// The block groups that an owner holds below a file.
    pub fn leaves(&self, owner: Owner, root: Resource) -> Vec<Resource> {
        let Some(held) = self.grants.get(&owner) else { return Vec::new() };
        rules::leaves_below(root).map_or_else(Vec::new, |range| held.range(range).map(|(leaf, _)| *leaf).collect())
    }

    fn drop_grant(&mut self, owner: Owner, resource: Resource) -> Option<Grant> {
        let held = self.grants.get_mut(&owner)?;
        let grant = held.remove(&resource)?;
        if held.is_empty() {
            self.grants.remove(&owner);
        }
        remove_from(&mut self.holders, resource, &owner);
        Some(grant)
    }

    /// Notes that a holder was asked to come down, or that it defers that.
    pub fn set_callback(&mut self, owner: Owner, resource: Resource, called: Called) {
        if let Some(grant) = self.grants.get_mut(&owner).and_then(|held| held.get_mut(&resource)) {
            grant.callback = Some(called);
        }
    }

    /// An owner keeps no more of a resource than `to`, and no more of the block groups below than that allows; leaves first.
    /// Returns what that touches, and the callbacks that it answers.
    pub fn demote(&mut self, owner: Owner, resource: Resource, to: Option<Mode>) -> Demoted {
        let mut demoted = Demoted::default();
        let to = to.and_then(|to| self.grant(owner, resource).map(|grant| grant.mode.meet(to)));
        for leaf in self.leaves(owner, resource) {
            let Some(mode) = self.grant(owner, leaf).map(|grant| grant.mode) else { continue };
            self.demote_alone(owner, leaf, rules::leaf_below(to, mode), &mut demoted);
        }
        self.demote_alone(owner, resource, to, &mut demoted);
        demoted
    }

    fn demote_alone(&mut self, owner: Owner, resource: Resource, to: Option<Mode>, demoted: &mut Demoted) {
        let Some(grant) = self.grants.get_mut(&owner).and_then(|held| held.get_mut(&resource)) else { return };
        demoted.touched.insert(resource);
        let answered = match to {
            Some(to) => {
                grant.mode = to;
                grant.callback.take_if(|called| called.to.is_some_and(|asked| asked.covers(to)))
            }
            None => self.drop_grant(owner, resource).and_then(|grant| grant.callback),
        };
        demoted.answered.extend(answered.map(|called| called.number));
    }
}

/// What a holder's coming down leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demoted {
    /// Where others may be next.
    pub touched: BTreeSet<Resource>,
    /// Callbacks that need no other answer.
    pub answered: Vec<CallbackNumber>,
}

fn remove_from<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: &V) {
    if let Some(set) = map.get_mut(&key) {
        set.remove(value);
        if set.is_empty() {
            map.remove(&key);
        }
    }
}
