//! Circles of requests that wait for each other.
//!
//! A ticket waits for the tickets ahead of it, and for those of the holders in its way that give
//! nothing up by themselves: explicit transactions, which keep their locks until they end, and
//! clients that deferred a callback because the lock is in use. Metadata and data are in one table,
//! so that a circle over both is found. The graph does not distinguish the requests of one client:
//! the operation that defers a callback may be another than the one that waits. So now and then a
//! request is refused that would have been granted later.
//!
//! An edge from each ticket to each one ahead of it would be half a million edges in a queue of a thousand. So a ticket
//! has two edges: to the nearest ticket ahead, and to a node that stands for all before that one. Tickets that want the
//! same mode of a resource share these nodes, unless an owner has another ticket there that is to be left out. Holders
//! are treated alike: one node stands for those before an owner in their order, and one for those behind it.
//!
//! A search is made in steps, and may be interrupted between steps: a search of hundreds of clients
//! would hold up every caller of the lock manager. What changes meanwhile is searched after it. A
//! node names a place, not the ticket there, so a circle that existed when the search began, and
//! still exists, is found whatever else changes. A circle that is found over an interruption may be
//! gone by then: it is searched once more.

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

use crate::identity::Owner;
use crate::lock_table::{Blockers, LockTable};
use crate::message::Wanted;
use crate::queue::{TicketNumber, Turn};

/// Steps that it takes to find the holders and the tickets ahead at one resource of a ticket.
const STEPS_OF_LOCK: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Node {
    Ticket(TicketNumber),
    /// The tickets ahead of a place at a resource whose modes conflict with the wanted one, without
    /// those of an owner.
    Ahead(Turn, Option<Owner>, Wanted),
    /// The holders of a resource before an owner that conflict with the wanted mode, and give
    /// nothing up by themselves.
    HoldersBefore(Owner, Wanted),
    /// The same holders after the owner.
    HoldersBehind(Owner, Wanted),
    /// All tickets of an owner.
    Of(Owner),
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The ticket to refuse so that the others of a circle can go on: its youngest.
    Victim(TicketNumber),
    /// No circle contains any of the tickets that the search began with. A circle that forms later
    /// contains a ticket about which something has changed.
    Nothing,
    /// The circle consists of parts seen at different times: a new search shows whether it exists
    /// now.
    Perhaps,
    /// All steps are used, and nodes are left to visit.
    NotYet,
}

/// A search for circles that contain any of some tickets. Each node is visited once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    starts: BTreeSet<TicketNumber>,
    /// Tickets met on the way that are not among `starts`.
    ahead: BTreeSet<TicketNumber>,
    /// Visited nodes: whether all that a node waits for was visited; otherwise it is on the current
    /// path.
    is_done: HashMap<Node, bool>,
    way: Vec<(Node, Vec<Node>)>,
    /// Whether it was interrupted since it began.
    was_left: bool,
}

impl Hash for Search {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Equal searches have equal values of these; a map without order cannot be hashed itself.
        (&self.starts, &self.ahead, &self.way, self.was_left, self.is_done.len()).hash(state);
    }
}

impl Search {
    /// A search that begins with these tickets.
    pub fn new(starts: BTreeSet<TicketNumber>) -> Self {
        Self { ahead: starts.clone(), starts, ..Self::default() }
    }

    /// Whether no tickets are left to search.
    pub fn is_over(&self) -> bool {
        self.starts.is_empty()
    }

    /// Ends the search. Returns the tickets that it began with.
    pub fn end(&mut self) -> BTreeSet<TicketNumber> {
        std::mem::take(self).starts
    }

    /// Continues for at most `steps` steps, not counting the rest of the last node: one for a node,
    /// one for each node that it waits for, and a few for each lock of a ticket. The steps that are
    /// left are returned in `steps`.
    pub fn go_on(&mut self, table: &LockTable, steps: &mut usize) -> Found {
        loop {
            if *steps == 0 {
                self.was_left = true;
                return Found::NotYet;
            }
            let next = match self.way.last_mut() {
                Some((_, others)) => others.pop(),
                None => match self.ahead.pop_first() {
                    Some(start) => {
                        *steps = steps.saturating_sub(1 + lock_count(table, start));
                        if !table.may_be_waited_for(start) {
                            continue;
                        }
                        Some(Node::Ticket(start))
                    }
                    None => return Found::Nothing,
                },
            };
            match next.map(|node| (node, self.is_done.get(&node))) {
                Some((node, Some(false))) => return self.close(table, node, steps),
                Some((_, Some(true))) => {}
                Some((node, None)) => {
                    let others = waits_for(table, node);
                    let locks = ticket(node).map_or(0, |number| lock_count(table, number));
                    *steps = steps.saturating_sub(1 + others.len() + STEPS_OF_LOCK * locks);
                    self.is_done.insert(node, false);
                    self.way.push((node, others));
                }
                None => self.is_done.extend(self.way.pop().map(|(node, _)| (node, true))),
            }
        }
    }

    /// Handles a path that has come back to one of its own nodes.
    fn close(&self, table: &LockTable, first: Node, steps: &mut usize) -> Found {
        let circle: Vec<Node> = self.way.iter().map(|(node, _)| *node).skip_while(|node| *node != first).collect();
        if self.was_left {
            *steps = steps.saturating_sub(circle.len());
            let next = circle.iter().skip(1).chain([&first]);
            if !circle.iter().zip(next).all(|(node, next)| waits_for(table, *node).contains(next)) {
                return Found::Perhaps;
            }
        }
        let age = |number: &TicketNumber| table.ticket(*number).map(|ticket| (ticket.birth, *number));
        circle.into_iter().filter_map(ticket).max_by_key(age).map_or(Found::Perhaps, Found::Victim)
    }
}

fn lock_count(table: &LockTable, number: TicketNumber) -> usize {
    table.ticket(number).map_or(0, |ticket| ticket.wanted.len())
}

fn ticket(node: Node) -> Option<TicketNumber> {
    match node {
        Node::Ticket(number) => Some(number),
        Node::Ahead(..) | Node::HoldersBefore(..) | Node::HoldersBehind(..) | Node::Of(_) => None,
    }
}

fn waits_for(table: &LockTable, node: Node) -> Vec<Node> {
    let mut others = Vec::new();
    match node {
        Node::Ticket(number) => {
            let Some(ticket) = table.ticket(number) else { return others };
            let has_others = table.tickets_of(ticket.owner).nth(1).is_some();
            let (turn, left_out) = (table.turn(number), has_others.then_some(ticket.owner));
            for wanted in ticket.wanted.iter().copied() {
                match table.blockers(ticket.owner, wanted) {
                    None => continue,
                    Some(Blockers::Others) => {
                        others.extend(holders_before(table, ticket.owner, wanted));
                        others.extend(holders_behind(table, ticket.owner, wanted));
                    }
                    Some(Blockers::Nobody) => {}
                    Some(Blockers::Itself) => others.push(node),
                }
                others.extend(ahead(table, turn, left_out, wanted));
            }
        }
        Node::Ahead(turn, left_out, wanted) => others.extend(ahead(table, turn, left_out, wanted)),
        Node::HoldersBefore(owner, wanted) => others.extend(holders_before(table, owner, wanted)),
        Node::HoldersBehind(owner, wanted) => others.extend(holders_behind(table, owner, wanted)),
        Node::Of(owner) => others.extend(table.tickets_of(owner).map(Node::Ticket)),
    }
    others
}

/// The nearest ticket ahead of a place, and the node of those before it.
fn ahead(table: &LockTable, turn: Turn, left_out: Option<Owner>, wanted: Wanted) -> impl Iterator<Item = Node> {
    let nearest = table.nearest_ahead(turn, left_out, wanted);
    nearest.into_iter().flat_map(move |turn| [Node::Ahead(turn, left_out, wanted), Node::Ticket(turn.number())])
}

/// The nearest holder before an owner, if it gives nothing up by itself, and the node of those
/// before it.
fn holders_before(table: &LockTable, owner: Owner, wanted: Wanted) -> impl Iterator<Item = Node> {
    let holder = table.holder_before(owner, wanted.0);
    holder.into_iter().flat_map(move |holder| {
        let stays = table.stays(holder, wanted).then_some(Node::Of(holder));
        [Some(Node::HoldersBefore(holder, wanted)), stays].into_iter().flatten()
    })
}

/// The same after the owner.
fn holders_behind(table: &LockTable, owner: Owner, wanted: Wanted) -> impl Iterator<Item = Node> {
    let holder = table.holder_behind(owner, wanted.0);
    holder.into_iter().flat_map(move |holder| {
        let stays = table.stays(holder, wanted).then_some(Node::Of(holder));
        [Some(Node::HoldersBehind(holder, wanted)), stays].into_iter().flatten()
    })
}
