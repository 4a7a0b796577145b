//! Circles of requests that wait for each other.
//!
//! A ticket waits for the tickets ahead of it, and for those of the holders in its way that will not give way of
//! themselves: explicit transactions, which keep their locks until they end, and clients that deferred a callback,
//! since something of theirs is in use. One table has metadata and data, so that a circle over both is seen. A client's
//! own requests are not told apart: what defers a callback may be another operation than the one that waits, so now and
//! then a request is refused that would have been granted later.
//!
//! Of the tickets ahead only the nearest is an edge of the graph, and a node for those before it the other: with an
//! edge to each, a queue of a thousand would be half a million. Those who wait for the same of a resource share these
//! nodes, but for who has another ticket of its own to leave out. Holders are gone through alike: a node stands for
//! those before an owner in their order, one for those behind it, and so no edge leads from each ticket to each holder.

use std::collections::{BTreeSet, HashMap};

use crate::identity::Owner;
use crate::lock_table::{LockTable, Stayers};
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
                match table.stayers(ticket.owner, wanted) {
                    None => continue,
                    Some(Stayers::Others) => others
                        .extend([Node::HoldersBefore(ticket.owner, wanted), Node::HoldersBehind(ticket.owner, wanted)]),
                    Some(Stayers::Nobody) => {}
                    Some(Stayers::Itself) => others.push(node),
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
