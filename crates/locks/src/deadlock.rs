//! Circles of requests that wait for each other.
//!
//! A ticket waits for the tickets ahead of it, and for those of the holders in its way that will not give way of
//! themselves: explicit transactions, which keep their locks until they end, and clients that deferred a callback
//! because the lock is in use. Metadata and data are in one table, so that a circle over both is found. The graph does
//! not tell the requests of one client apart: the operation that defers a callback may be another than the one that
//! waits, so now and then a request is refused that would have been granted later.
//!
//! An edge from each ticket to each one ahead of it would be half a million edges in a queue of a thousand. So a ticket
//! has two edges: to the nearest ticket ahead, and to a node that stands for all before that one. Tickets that want the
//! same mode of a resource share these nodes, unless an owner has another ticket there that is to be left out. Holders
//! are treated alike: one node stands for those before an owner in their order, and one for those behind it.

use std::collections::{BTreeSet, HashMap};

use crate::identity::Owner;
use crate::lock_table::{Blockers, LockTable};
use crate::message::Wanted;
use crate::queue::TicketNumber;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Node {
    Ticket(TicketNumber),
    /// The tickets ahead of one at a resource that conflict with what is wanted of it, but for those of an owner.
    Ahead(TicketNumber, Option<Owner>, Wanted),
    /// The holders of a resource before an owner that are in the way of what is wanted of it, and stay.
    HoldersBefore(Owner, Wanted),
    /// The same of those behind it.
    HoldersBehind(Owner, Wanted),
    /// All tickets of an owner.
    Of(Owner),
}

/// The ticket to be refused so that those of a circle can go on: the youngest of it. None where there is no circle that
/// a ticket of `changed` is in: whenever one comes to be, something has changed about one of its tickets. And how many
/// nodes of the graph were looked at.
pub fn victim(table: &LockTable, changed: &BTreeSet<TicketNumber>) -> (Option<TicketNumber>, usize) {
    let (circle, node_count) = circle(table, changed);
    let age = |number: &TicketNumber| table.ticket(*number).map(|ticket| (ticket.birth, *number));
    (circle.and_then(|circle| circle.into_iter().max_by_key(age)), node_count)
}

/// The tickets of a circle that can be reached from `changed`. Each node is gone through once.
fn circle(table: &LockTable, changed: &BTreeSet<TicketNumber>) -> (Option<Vec<TicketNumber>>, usize) {
    // Whether all that a node waits for has been gone through; else it is on the way.
    let mut is_done = HashMap::new();
    let mut way: Vec<(Node, Vec<Node>)> = Vec::new();
    for start in changed.iter().copied().filter(|number| table.may_be_waited_for(*number)) {
        let mut next = Some(Node::Ticket(start));
        loop {
            match next.map(|node| (node, is_done.get(&node))) {
                Some((node, Some(false))) => {
                    let circle = way.iter().map(|(node, _)| *node).skip_while(|first| *first != node);
                    return (Some(circle.filter_map(ticket).collect()), is_done.len());
                }
                Some((_, Some(true))) => {}
                Some((node, None)) => {
                    is_done.insert(node, false);
                    way.push((node, waits_for(table, node)));
                }
                None => is_done.extend(way.pop().map(|(node, _)| (node, true))),
            }
            let Some((_, others)) = way.last_mut() else { break };
            next = others.pop();
        }
    }
    (None, is_done.len())
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
            let left_out = has_others.then_some(ticket.owner);
            for wanted in ticket.wanted.iter().copied() {
                match table.blockers(ticket.owner, wanted) {
                    None => continue,
                    Some(Blockers::Others) => others
                        .extend([Node::HoldersBefore(ticket.owner, wanted), Node::HoldersBehind(ticket.owner, wanted)]),
                    Some(Blockers::Nobody) => {}
                    Some(Blockers::Itself) => others.push(node),
                }
                others.push(Node::Ahead(number, left_out, wanted));
            }
        }
        Node::Ahead(number, owner, wanted) => {
            if let Some(nearest) = table.nearest_ahead(number, owner, wanted) {
                others.extend([Node::Ahead(nearest, owner, wanted), Node::Ticket(nearest)]);
            }
        }
        Node::HoldersBefore(owner, wanted) => {
            if let Some(holder) = table.holder_before(owner, wanted.0) {
                others.push(Node::HoldersBefore(holder, wanted));
                others.extend(table.stays(holder, wanted).then_some(Node::Of(holder)));
            }
        }
        Node::HoldersBehind(owner, wanted) => {
            if let Some(holder) = table.holder_behind(owner, wanted.0) {
                others.push(Node::HoldersBehind(holder, wanted));
                others.extend(table.stays(holder, wanted).then_some(Node::Of(holder)));
            }
        }
        Node::Of(owner) => others.extend(table.tickets_of(owner).map(Node::Ticket)),
    }
    others
}
