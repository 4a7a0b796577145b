//! Who is next, who has to give way, who is refused.

use std::collections::BTreeSet;

use base::clock::Instant;

use super::LockManager;
use crate::callbacks::Subject;
use crate::deadlock;
use crate::error::LockError;
use crate::identity::{Owner, RequestId};
use crate::message::{Answer, GrantedLock, ToClient, Wanted};
use crate::queue::{Called, Obstacle, Ticket, TicketNumber};
use crate::resource::Resource;

/// Requests that wait no longer.
#[derive(Default)]
struct Settled {
    granted: Vec<(Ticket, Vec<GrantedLock>)>,
    refused: Vec<Ticket>,
}

impl Settled {
    /// Takes the outcome of one request out.
    fn take(&mut self, asked: (Owner, RequestId)) -> Result<Answer, LockError> {
        let is_it = |ticket: &Ticket| (ticket.owner, ticket.request) == asked;
        if let Some(at) = self.refused.iter().position(is_it) {
            self.refused.remove(at);
            return Err(LockError::Deadlock);
        }
        let granted = self.granted.iter().position(|(ticket, _)| is_it(ticket));
        Ok(granted.map_or(Answer::Queued, |at| Answer::Granted(self.granted.remove(at).1)))
    }
}

impl LockManager {
    /// Grants what can be granted, ends deadlocks, and calls back what is in the way, where something has changed. Those concerned are told.
    pub(super) fn settle(&mut self, now: Instant, mut touched: BTreeSet<Resource>) {
        while self.settle_once(now, &mut touched, |_| ()) {}
    }

    /// As [`settle`](Self::settle), after a request was put into the queues: what becomes of it is the answer.
    pub(super) fn settle_request(
        &mut self,
        now: Instant,
        mut touched: BTreeSet<Resource>,
        asked: (Owner, RequestId),
    ) -> Result<Answer, LockError> {
        let mut answer = Ok(Answer::Queued);
        let mut keep = |settled: &mut Settled| {
            if answer == Ok(Answer::Queued) {
                answer = settled.take(asked);
            }
        };
        while self.settle_once(now, &mut touched, &mut keep) {}
        answer
    }

    /// One round; false when nobody was called back. Whoever was is no longer ahead of others by what it holds, so that there may be more to do.
    fn settle_once(
        &mut self,
        now: Instant,
        touched: &mut BTreeSet<Resource>,
        answer: impl FnOnce(&mut Settled),
    ) -> bool {
        let mut settled = Settled::default();
        loop {
            self.grant_ready(now, touched, &mut settled);
            self.touch_all_of_tickets(touched);
            let Some(victim) = self.deadlocked(touched) else { break };
            if let Some(ticket) = self.table.withdraw(victim) {
                self.transactions.choose_as_victim(ticket.owner);
                touched.extend(ticket.wanted.iter().map(|(resource, _)| *resource));
                settled.refused.push(ticket);
            }
        }
        answer(&mut settled);
        // A client hears of a grant before it is asked to give it up.
        self.tell(settled);
        let sent = touched.iter().filter(|&&resource| self.call_back(now, resource)).count();
        sent > 0
    }

    /// What a ticket's owner holds of one resource decides about the ticket's turn at all of them.
    fn touch_all_of_tickets(&self, touched: &mut BTreeSet<Resource>) {
        let tickets: BTreeSet<TicketNumber> = touched.iter().flat_map(|resource| self.table.queue(*resource)).collect();
        let wanted =
            tickets.into_iter().filter_map(|number| self.table.ticket(number)).flat_map(|ticket| &ticket.wanted);
        touched.extend(wanted.map(|(resource, _)| *resource));
    }

    /// Grants in the order of the queues until nothing changes. A ticket that leaves a queue may be what another one waited for elsewhere.
    fn grant_ready(&mut self, now: Instant, touched: &mut BTreeSet<Resource>, settled: &mut Settled) {
        self.touch_all_of_tickets(touched);
        let mut candidates: BTreeSet<TicketNumber> =
            touched.iter().flat_map(|resource| self.table.queue(*resource)).collect();
        while let Some(number) = candidates.pop_first() {
            if !self.table.obstacles(number).is_empty() {
                continue;
            }
            let Some(owner) = self.table.ticket(number).map(|ticket| ticket.owner) else { continue };
            let Some(last) = self.clients.grant_last(owner.client) else { continue };
            let Some((ticket, locks)) = self.table.fulfil(number, now, last) else { continue };
            touched.extend(ticket.wanted.iter().map(|(resource, _)| *resource));
            self.touch_all_of_tickets(touched);
            candidates.extend(touched.iter().flat_map(|resource| self.table.queue(*resource)));
            settled.granted.push((ticket, locks));
        }
    }

    fn deadlocked(&self, touched: &BTreeSet<Resource>) -> Option<TicketNumber> {
        let waiting: BTreeSet<TicketNumber> = touched.iter().flat_map(|resource| self.table.queue(*resource)).collect();
        waiting.into_iter().find_map(|number| deadlock::victim(&self.table, number))
    }

    /// Asks those holders of a resource to come down that are in the way of whoever is first there. True when somebody was asked.
    fn call_back(&mut self, now: Instant, resource: Resource) -> bool {
        let mut has_called = false;
        for number in self.table.queue(resource) {
            let Some(owner) = self.table.ticket(number).map(|ticket| ticket.owner) else { continue };
            let obstacles: Vec<_> =
                self.table.obstacles(number).into_iter().filter(|((at, _), _)| *at == resource).collect();
            if obstacles.iter().any(|(_, obstacle)| !matches!(obstacle, Obstacle::Holder(_))) {
                continue;
            }
            let Some(wanted) = obstacles.first().map(|(wanted, _)| *wanted) else { continue };
            let holders: Vec<Owner> = self.table.in_the_way(owner, wanted).collect();
            for holder in holders {
                has_called |= self.call_back_from(now, holder, wanted);
            }
        }
        has_called
    }

    fn call_back_from(&mut self, now: Instant, holder: Owner, (resource, requested): Wanted) -> bool {
        let Some(grant) = self.table.grant(holder, resource).copied() else { return false };
        if !holder.is_own() || grant.callback.is_some() || !self.clients.is_served(holder.client) {
            return false;
        }
        let until = grant.since + self.settings.hold_time_min;
        if until > now {
            self.looks.insert((until, resource));
            return false;
        }
        let to = grant.mode.strongest_beside(requested);
        let number = self.callbacks.send(now, holder.client, Subject::Lock(resource, to), &self.settings);
        self.table.set_callback(holder, resource, Called { number, to, is_deferred: false });
        self.post(holder.client, ToClient::Callback { number, resource, grant: grant.number, to });
        true
    }

    /// Looks at every queue.
    pub(super) fn settle_all(&mut self, now: Instant) {
        let everywhere =
            self.table.tickets().flat_map(|(_, ticket)| &ticket.wanted).map(|(resource, _)| *resource).collect();
        self.settle(now, everywhere);
    }

    /// Tells clients what became of requests that they know to be waiting.
    fn tell(&mut self, settled: Settled) {
        for (Ticket { owner, request, .. }, locks) in settled.granted {
            self.post(owner.client, ToClient::Granted { request, transaction: owner.transaction, locks });
        }
        for Ticket { owner, request, .. } in settled.refused {
            self.post(owner.client, ToClient::Refused { request, error: LockError::Deadlock });
        }
    }
}
