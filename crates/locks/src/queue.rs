//! The waiting requests, and their order.
//!
//! A request waits as one ticket, in the queue of each resource that it names, and holds none of
//! these until all are free: so two waiting requests can never block each other for ever. A ticket
//! whose owner holds some of a resource already and wants more (a *conversion*) comes first, then
//! the others in order of arrival, in each queue alike. No ticket passes one that it conflicts
//! with.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::identity::{Birth, ClientId, Owner, RequestId};
use crate::message::Wanted;
use crate::mode::Mode;
use crate::resource::Resource;

/// The place of a request in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketNumber(pub u64);

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The waiting owner.
    pub owner: Owner,
    /// The client's number of the request.
    pub request: RequestId,
    /// Its age.
    pub birth: Birth,
    /// The locks that it requests, files before their block groups.
    pub wanted: Vec<Wanted>,
}

/// The place of a ticket in all its queues: conversions, then the others in order of arrival. It is
/// the same in each, so that no two tickets wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Turn {
    is_plain: bool,
    number: TicketNumber,
}

impl Turn {
    /// The ticket's number; the ticket may have another turn by now.
    pub fn number(self) -> TicketNumber {
        self.number
    }
}

/// The tickets that wait at one resource, with owner and wanted mode.
type Queue = BTreeMap<Turn, (Owner, Mode)>;

/// The tickets of all clients, and the queues of all resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queues {
    tickets: BTreeMap<TicketNumber, Ticket>,
    /// The tickets by owner, and by the client's request number.
    by_owner: BTreeMap<Owner, BTreeSet<TicketNumber>>,
    by_request: BTreeMap<(ClientId, RequestId), TicketNumber>,
    /// Count of locks that each client waits for.
    lock_counts: BTreeMap<ClientId, usize>,
    queues: BTreeMap<Resource, Queue>,
    /// The places of each owner's tickets at each resource.
    places: BTreeMap<(Owner, Resource), BTreeMap<TicketNumber, Mode>>,
    /// Resources of which a ticket's owner holds less than the ticket wants: with one of these it
    /// is a conversion.
    conversions: BTreeSet<(TicketNumber, Resource)>,
    number_next: u64,
}

impl Queues {
    /// All tickets, in order of arrival.
    pub fn tickets(&self) -> impl Iterator<Item = (TicketNumber, &Ticket)> {
        self.tickets.iter().map(|(number, ticket)| (*number, ticket))
    }

    /// A waiting ticket.
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

    /// Count of waiting requests of a client.
    pub fn count_of(&self, client: ClientId) -> usize {
        self.by_owner.range(Owner::all_of(client)).map(|(_, numbers)| numbers.len()).sum()
    }

    /// Count of locks that a client waits for.
    pub fn lock_count_of(&self, client: ClientId) -> usize {
        self.lock_counts.get(&client).copied().unwrap_or(0)
    }

    /// Count of locks that all clients wait for.
    pub fn lock_count(&self) -> usize {
        self.lock_counts.values().sum()
    }

    /// The ticket of a client's request.
    pub fn ticket_of_request(&self, client: ClientId, request: RequestId) -> Option<TicketNumber> {
        self.by_request.get(&(client, request)).copied()
    }

    /// The tickets at a resource, in their turn, with owner and wanted mode.
    pub fn queue(&self, resource: Resource) -> impl Iterator<Item = (TicketNumber, Owner, Mode)> {
        self.queues.get(&resource).into_iter().flatten().map(|(turn, (owner, mode))| (turn.number, *owner, *mode))
    }

    /// An owner's tickets at a resource, with their wanted modes.
    pub fn own_at(&self, owner: Owner, resource: Resource) -> impl Iterator<Item = (TicketNumber, Mode)> {
        self.places.get(&(owner, resource)).into_iter().flatten().map(|(number, mode)| (*number, *mode))
    }

    /// Places before one at a resource whose tickets conflict, without those of an owner.
    pub fn ahead(
        &self,
        turn: Turn,
        left_out: Option<Owner>,
        (resource, mode): Wanted,
    ) -> impl DoubleEndedIterator<Item = Turn> {
        let ahead = self.queues.get(&resource).map(|queue| queue.range(..turn));
        ahead
            .into_iter()
            .flatten()
            .filter(move |(_, (other, wanted))| Some(*other) != left_out && wanted.conflicts(mode))
            .map(|(turn, _)| *turn)
    }

    /// Those of a ticket's resources where a later ticket conflicts with it.
    pub fn held_up(&self, number: TicketNumber) -> Vec<Resource> {
        let Some(ticket) = self.ticket(number) else { return Vec::new() };
        let turn = self.turn(number);
        let holds_up = |(resource, mode): &&Wanted| {
            let behind = self.queues.get(resource).map(|queue| queue.range((Bound::Excluded(turn), Bound::Unbounded)));
            let mut behind = behind.into_iter().flatten();
            behind.any(|(_, (owner, wanted))| *owner != ticket.owner && wanted.conflicts(*mode))
        };
        ticket.wanted.iter().filter(holds_up).map(|(resource, _)| *resource).collect()
    }

    /// Whether another ticket comes after it in one of its queues.
    pub fn has_followers(&self, number: TicketNumber) -> bool {
        let turn = self.turn(number);
        let is_last = |resource| {
            self.queues.get(resource).and_then(BTreeMap::last_key_value).is_none_or(|(last, _)| *last == turn)
        };
        self.ticket(number).is_some_and(|ticket| !ticket.wanted.iter().all(|(resource, _)| is_last(resource)))
    }

    /// The place of a ticket in all its queues.
    pub fn turn(&self, number: TicketNumber) -> Turn {
        let first = (number, Resource::Metadata(0));
        let converts = self.conversions.range(first..).next().is_some_and(|(converting, _)| *converting == number);
        Turn { is_plain: !converts, number }
    }

    /// Puts a request into the queues. `wants_more` returns for each resource whether its owner
    /// holds some of it, and less than it wants.
    pub fn enqueue(&mut self, ticket: Ticket, wants_more: impl Fn(Wanted) -> bool) -> TicketNumber {
        let number = TicketNumber(self.number_next);
        self.number_next += 1;
        let more = ticket.wanted.iter().filter(|wanted| wants_more(**wanted));
        self.conversions.extend(more.map(|(resource, _)| (number, *resource)));
        self.by_owner.entry(ticket.owner).or_default().insert(number);
        self.by_request.insert((ticket.owner.client, ticket.request), number);
        *self.lock_counts.entry(ticket.owner.client).or_default() += ticket.wanted.len();
        self.stand_in_line(self.turn(number), &ticket);
        for (resource, mode) in ticket.wanted.iter().copied() {
            self.places.entry((ticket.owner, resource)).or_default().insert(number, mode);
        }
        self.tickets.insert(number, ticket);
        number
    }

    /// Takes a request out of the queues.
    pub fn withdraw(&mut self, number: TicketNumber) -> Option<Ticket> {
        let ticket = self.tickets.remove(&number)?;
        self.leave_line(self.turn(number), &ticket);
        let Ticket { owner, request, .. } = ticket;
        if let Some(numbers) = self.by_owner.get_mut(&owner) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
        self.by_request.remove(&(owner.client, request));
        if let Some(count) = self.lock_counts.get_mut(&owner.client) {
            *count -= ticket.wanted.len();
            if *count == 0 {
                self.lock_counts.remove(&owner.client);
            }
        }
        for (resource, _) in &ticket.wanted {
            self.conversions.remove(&(number, *resource));
            if let Some(places) = self.places.get_mut(&(owner, *resource)) {
                places.remove(&number);
                if places.is_empty() {
                    self.places.remove(&(owner, *resource));
                }
            }
        }
        Some(ticket)
    }

    /// Sets whether the owner of a ticket holds some of a resource and less than the ticket wants.
    /// Returns whether the ticket's turn has changed.
    pub fn set_conversion(&mut self, number: TicketNumber, resource: Resource, wants_more: bool) -> bool {
        let before = self.turn(number);
        if wants_more {
            self.conversions.insert((number, resource));
        } else {
            self.conversions.remove(&(number, resource));
        }
        let after = self.turn(number);
        if before == after {
            return false;
        }
        let Some(ticket) = self.tickets.remove(&number) else { return false };
        self.leave_line(before, &ticket);
        self.stand_in_line(after, &ticket);
        self.tickets.insert(number, ticket);
        true
    }

    fn stand_in_line(&mut self, turn: Turn, ticket: &Ticket) {
        for (resource, mode) in ticket.wanted.iter().copied() {
            self.queues.entry(resource).or_default().insert(turn, (ticket.owner, mode));
        }
    }

    fn leave_line(&mut self, turn: Turn, ticket: &Ticket) {
        for (resource, _) in &ticket.wanted {
            if let Some(queue) = self.queues.get_mut(resource) {
                queue.remove(&turn);
                if queue.is_empty() {
                    self.queues.remove(resource);
                }
            }
        }
    }
}
