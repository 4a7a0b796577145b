//! Circles of requests that wait for each other.
//!
//! A ticket waits for the tickets ahead of it, and for those of the holders in its way that will not give way of themselves: explicit
//! transactions, which keep their locks until they end, and clients that deferred a callback, since something of theirs is in use. One table has
//! metadata and data, so that a circle over both is seen. A client's own requests are not told apart: what defers a callback may be another
//! operation than the one that waits, so now and then a request is refused that would have been granted later.

use std::collections::BTreeSet;

use crate::lock_table::LockTable;
use crate::queue::TicketNumber;

/// The ticket to be refused so that those of a circle can go on: the youngest of it. None where there is no circle that a ticket of `changed` is in:
/// whenever one comes to be, something has changed about one of its tickets.
pub fn victim(table: &LockTable, changed: &BTreeSet<TicketNumber>) -> Option<TicketNumber> {
    let circle = circle(table, changed)?;
    circle.into_iter().max_by_key(|number| table.ticket(*number).map(|ticket| (ticket.birth, *number)))
}

/// The tickets of a circle that can be reached from `changed`. Each ticket is gone through once.
fn circle(table: &LockTable, changed: &BTreeSet<TicketNumber>) -> Option<Vec<TicketNumber>> {
    let mut done = BTreeSet::new();
    let mut on_way = BTreeSet::new();
    for start in changed.iter().copied().filter(|number| table.may_be_waited_for(*number)) {
        let mut way = Vec::new();
        let mut next = Some(start);
        loop {
            match next {
                Some(ticket) if on_way.contains(&ticket) => {
                    return Some(
                        way.iter().map(|(ticket, _)| *ticket).skip_while(|on_way| *on_way != ticket).collect(),
                    );
                }
                Some(ticket) if done.contains(&ticket) => {}
                Some(ticket) => {
                    on_way.insert(ticket);
                    way.push((ticket, table.waits_for(ticket)));
                }
                None => {
                    let Some((ticket, _)) = way.pop() else { break };
                    on_way.remove(&ticket);
                    done.insert(ticket);
                }
            }
            let Some((_, others)) = way.last_mut() else { break };
            next = others.pop();
        }
    }
    None
}
