//! Decides what is granted, called back and refused. Only what has changed is examined: other
//! waiting requests cost a request nothing.

use std::collections::BTreeSet;

use base::clock::Instant;

use super::LockManager;
use crate::deadlock::{Found, Search};
use crate::error::LockError;
use crate::identity::{Owner, RequestId};
use crate::limits::SEARCH_REST;
use crate::lock_table::Touched;
use crate::message::{Answer, GrantedLock, ToClient};
use crate::queue::{Ticket, TicketNumber};

/// Requests that wait no longer, with their outcome.
#[derive(Default)]
struct Settled {
    granted: Vec<(Ticket, Vec<GrantedLock>)>,
    refused: Vec<Ticket>,
}

impl Settled {
    /// Removes the outcome of one request.
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
    /// Grants what can be granted, ends deadlocks, and calls back holders in the way, wherever
    /// something has changed. The clients concerned get messages.
    pub(super) fn settle(&mut self, now: Instant) {
        self.begin_settling(now);
        while self.settle_once(now, |_| ()) {}
    }

    /// Commands that wait for blocks do not come after a client that is granted these now.
    fn begin_settling(&mut self, now: Instant) {
        self.forget_clearing(now);
        self.admit_withheld(now);
    }

    /// Lets commands pass that can, and grants the tickets whose range that clears.
    pub(super) fn advance_gate(&mut self, now: Instant) {
        self.take_steps(now);
        self.settle_cleared(now);
    }

    /// Grants the tickets whose range is clear.
    pub(super) fn settle_cleared(&mut self, now: Instant) {
        if !self.cleared.is_empty() {
            self.settle(now);
        }
    }

    /// Like [`settle`](Self::settle), after a request was queued: returns the outcome of that
    /// request.
    pub(super) fn settle_request(&mut self, now: Instant, asked: (Owner, RequestId)) -> Result<Answer, LockError> {
        let mut answer = Ok(Answer::Queued);
        let mut keep = |settled: &mut Settled| {
            if answer == Ok(Answer::Queued) {
                answer = settled.take(asked);
            }
        };
        self.begin_settling(now);
        while self.settle_once(now, &mut keep) {}
        answer
    }

    /// One round. Returns `false` when nothing had changed. A holder that is called back is no
    /// longer ahead of others by what it holds, so another round may find more.
    fn settle_once(&mut self, now: Instant, answer: impl FnOnce(&mut Settled)) -> bool {
        let mut settled = Settled::default();
        let mut changed = Touched::default();
        loop {
            self.grant_ready(now, &mut changed, &mut settled);
            let Some(victim) = self.find_victim(now, &changed.tickets) else { break };
            if let Some(ticket) = self.table.withdraw(victim) {
                self.transactions.choose_as_victim(ticket.owner);
                settled.refused.push(ticket);
            }
        }
        answer(&mut settled);
        // A client gets a grant before its callback.
        self.tell(settled);
        self.call_back(now, &changed);
        self.admit_withheld(now);
        self.table.is_touched() || !self.cleared.is_empty()
    }

    /// Finds the ticket to refuse so that a circle ends, if the allowed steps find it. An
    /// unfinished search is continued after a rest, so that a client that asks again and again does
    /// not take the unit's time from all others.
    fn find_victim(&mut self, now: Instant, changed: &BTreeSet<TicketNumber>) -> Option<TicketNumber> {
        let mut steps = self.settings.limits.search_steps_max;
        self.suspects.extend(changed);
        while self.search_again <= now {
            if self.search.is_over() {
                if self.suspects.is_empty() {
                    return None;
                }
                self.search = Search::new(std::mem::take(&mut self.suspects));
            }
            match self.search.go_on(&self.table, &mut steps) {
                Found::Victim(number) => {
                    self.suspects.append(&mut self.search.end());
                    return Some(number);
                }
                Found::Nothing => drop(self.search.end()),
                Found::Perhaps => self.suspects.append(&mut self.search.end()),
                Found::NotYet => self.search_again = now + SEARCH_REST,
            }
        }
        None
    }

    /// Grants until nothing changes, the oldest first: a grant may free what another ticket waits
    /// for. What was touched is added to `changed`.
    fn grant_ready(&mut self, now: Instant, changed: &mut Touched, settled: &mut Settled) {
        let mut candidates = BTreeSet::new();
        loop {
            for (id, number) in self.take_cleared() {
                let is_ready = self.table.is_ready(number);
                let held = self.range_to_clear(number).filter(|_| is_ready);
                if is_ready {
                    self.grant(now, number, settled);
                } else if self.table.ticket(number).is_some() {
                    self.table.touch_ticket(number);
                }
                self.end_clearing(id, held);
                self.take_steps(now);
            }
            if let Some(touched) = self.table.take_touched() {
                let freed = touched.freed.iter().filter(|resource| !self.table.is_held_alone(**resource));
                let first = freed.flat_map(|resource| self.table.first_at(*resource));
                candidates.extend(first.map(|(number, ..)| number));
                candidates.extend(&touched.tickets);
                changed.extend(touched);
            }
            let Some(number) = candidates.pop_first() else {
                if self.cleared.is_empty() {
                    return;
                }
                continue;
            };
            if !self.table.is_ready(number) {
                continue;
            }
            if self.has_cleared(number) {
                self.grant(now, number, settled);
            } else {
                self.take_steps(now);
            }
        }
    }

    fn grant(&mut self, now: Instant, number: TicketNumber, settled: &mut Settled) {
        let Some(owner) = self.table.ticket(number).map(|ticket| ticket.owner) else { return };
        let Some(last) = self.clients.grant_last(owner.client) else { return };
        settled.granted.extend(self.table.fulfil(number, now, last));
    }

    /// Sends clients the outcome of requests that they know to be waiting.
    fn tell(&mut self, settled: Settled) {
        for (Ticket { owner, request, .. }, locks) in settled.granted {
            self.post(owner.client, ToClient::Granted { request, transaction: owner.transaction, locks });
        }
        for Ticket { owner, request, .. } in settled.refused {
            self.post(owner.client, ToClient::Refused { request, error: LockError::Deadlock });
        }
    }
}
