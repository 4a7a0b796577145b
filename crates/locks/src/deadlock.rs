//! Circles of requests that wait for each other.
//!
//! A ticket waits for the tickets ahead of it, and for those of the holders in its way that will not give way of themselves: explicit transactions, which keep
//! their locks until they end, and clients that deferred a callback, since something of theirs is in use. One table has metadata and data, so that a circle
//! over both is seen. A client's own requests are not told apart: what defers a callback may be another operation than the one that waits, so now and then
//! a request is refused that would have been granted later.

use std::collections::BTreeSet;

use crate::queue::{LockTable, Obstacle, TicketNumber};

/// The ticket to be refused so that one that `start` is in a circle with can go on: the youngest of the circle. None where there is no circle.
pub fn victim(table: &LockTable, start: TicketNumber) -> Option<TicketNumber> {
    let circle = circle_of(table, start)?;
    circle.into_iter().max_by_key(|number| table.ticket(*number).map(|ticket| (ticket.birth, *number)))
}

/// A way from `start` back to it.
fn circle_of(table: &LockTable, start: TicketNumber) -> Option<Vec<TicketNumber>> {
    let mut way = vec![(start, waits_for(table, start))];
    let mut seen = BTreeSet::new();
    while let Some((_, next)) = way.last_mut() {
        match next.pop() {
            Some(ticket) if ticket == start => return Some(way.iter().map(|(ticket, _)| *ticket).collect()),
            Some(ticket) if seen.insert(ticket) => way.push((ticket, waits_for(table, ticket))),
            Some(_) => {}
            None => drop(way.pop()),
        }
    }
    None
}

fn waits_for(table: &LockTable, number: TicketNumber) -> Vec<TicketNumber> {
    let mut others = Vec::new();
    for ((resource, _), obstacle) in table.obstacles(number) {
        match obstacle {
            Obstacle::Ahead(other) => others.push(other),
            Obstacle::Holder(holder) => {
                let is_deferred = table
                    .grant(holder, resource)
                    .and_then(|grant| grant.callback)
                    .is_some_and(|called| called.is_deferred);
                if !holder.is_own() || is_deferred {
                    others.extend(table.tickets_of(holder));
                }
            }
            Obstacle::OwnCallback => {
                let owner = table.ticket(number).map(|ticket| ticket.owner);
                let called = owner.and_then(|owner| table.grant(owner, resource)).and_then(|grant| grant.callback);
                // What is in use may be what this very request is for: it would wait for itself.
                others.extend(called.filter(|called| called.is_deferred).map(|_| number));
            }
        }
    }
    others
}
