//! Registration, leases, fencing, and the time after a start.

use std::time::Duration;

use base::clock::Instant;

use super::{FenceReason, Grace, LockManager, Output};
use crate::error::LockError;
use crate::identity::ClientId;
use crate::message::Registration;

impl LockManager {
    /// Gives a client an identity and a lease; `previous` is the life of the start before whose locks it wants to
    /// reclaim.
    ///
    /// # Errors
    /// When there is no room, or that life cannot reclaim.
    pub fn register(&mut self, now: Instant, previous: Option<ClientId>) -> Result<Registration, LockError> {
        if let Some(previous) = previous {
            let reclaimable = self.start.reclaimable_from..self.start.boot_epoch;
            if !reclaimable.contains(&previous.boot_epoch()) || !self.is_in_grace() {
                return Err(LockError::NotReclaimable(previous));
            }
        }
        let lease = self.settings.lease;
        let client = self.clients.register(now + lease, previous, &self.settings.limits)?;
        Ok(Registration { client, lease, boot_epoch: self.start.boot_epoch, is_in_grace: self.is_in_grace() })
    }

    /// Prolongs a client's lease.
    ///
    /// # Errors
    /// When its life is over.
    pub fn renew(&mut self, now: Instant, client: ClientId) -> Result<(), LockError> {
        self.clients.renew(now, client, self.settings.lease)
    }

    /// The target was not run for `pause`: it heard nobody, and granted nothing. So leases, callbacks and the time for
    /// reclaims have that much more. Who is being fenced has not: it counts its lease by itself.
    pub fn make_up_for(&mut self, pause: Duration) {
        self.clients.prolong(pause);
        self.callbacks.prolong(pause);
        if let Grace::Until(end) = &mut self.grace {
            *end = *end + pause;
        }
    }

    /// Whether a command of a client may be looked at now.
    ///
    /// # Errors
    /// When its life is over.
    pub fn check_life(&mut self, now: Instant, client: ClientId) -> Result<(), LockError> {
        self.clients.live(now, client).map(|_| ())
    }

    /// A client leaves and gives up all it has. Its commands are ended first, as with a fence.
    ///
    /// # Errors
    /// When its life is over.
    pub fn leave(&mut self, now: Instant, client: ClientId) -> Result<(), LockError> {
        self.check_life(now, client)?;
        self.begin_fence(client, FenceReason::Left);
        self.clients.end_lease(now, client);
        self.settle(now);
        Ok(())
    }

    /// The administrator ends a client's life.
    ///
    /// # Errors
    /// When it is not registered.
    pub fn fence(&mut self, now: Instant, client: ClientId) -> Result<(), LockError> {
        if !self.clients.is_served(client) {
            return Err(LockError::Fenced(client));
        }
        self.begin_fence(client, FenceReason::Administrator);
        self.settle(now);
        Ok(())
    }

    /// A client does not take its messages: it no longer hears what it must give back.
    pub fn overflow(&mut self, now: Instant, client: ClientId) {
        self.begin_fence(client, FenceReason::MailboxFull);
        self.settle(now);
    }

    /// All commands of a client that was to be fenced have ended. What it held passes on when its lease is over as
    /// well: it may not have heard, and serves copies until then. Ignored for any other client.
    pub fn fenced(&mut self, now: Instant, client: ClientId) {
        self.clients.end_commands(client);
        self.pass_on(now);
    }

    /// What clients held that are fenced for good is free.
    fn pass_on(&mut self, now: Instant) {
        let fenced = self.clients.take_fenced(now);
        for client in fenced.iter().copied() {
            for owner in self.table.owners_of(client) {
                self.release_all(owner);
            }
            self.gate.forget(client);
            let closed = self.open_files.forget(client);
            self.outputs.extend(closed.into_iter().map(Output::LastClose));
        }
        self.settle(now);
        if !fenced.is_empty() {
            self.advance_gate(now);
        }
    }

    /// From now on nothing of the client is served. What it holds stays held.
    pub(super) fn begin_fence(&mut self, client: ClientId, reason: FenceReason) {
        if !self.clients.begin_fence(client) {
            return;
        }
        for ticket in self.table.tickets_of_client(client).collect::<Vec<_>>() {
            // Others may be next now: whoever called looks at that, or the next timeout, which is due.
            self.table.withdraw(ticket);
        }
        self.transactions.forget(client);
        self.callbacks.forget(client);
        self.outputs.push_back(Output::Fence(client, reason));
    }

    /// Does what is due: leases that are over, callbacks without an answer, locks that were held for long enough, the
    /// end of the grace period.
    pub fn handle_timeout(&mut self, now: Instant) {
        for client in self.clients.silent(now) {
            self.begin_fence(client, FenceReason::LeaseOver);
        }
        for client in self.callbacks.overdue(now) {
            self.begin_fence(client, FenceReason::CallbackUnanswered);
        }
        if matches!(self.grace, Grace::Until(end) if end <= now) {
            self.grace = Grace::Ending;
            self.outputs.push_back(Output::KeepGraceEnd(self.start.boot_epoch));
        }
        self.look_at_long_held(now);
        self.pass_on(now);
    }

    /// The end of the grace period is durable: everything is granted from now on.
    pub fn grace_end_kept(&mut self, now: Instant) {
        if self.grace == Grace::Ending {
            self.grace = Grace::Over;
            self.gate.end_grace();
            self.settle(now);
            self.advance_gate(now);
        }
    }

    /// What is left of the time in which only reclaims are granted; none when it is over, or when its end is being made
    /// durable.
    pub fn grace_left(&self, now: Instant) -> Option<Duration> {
        match self.grace {
            Grace::Until(end) => Some(end.since(now)),
            Grace::Ending | Grace::Over => None,
        }
    }

    /// Whether only reclaims are granted.
    pub fn is_in_grace(&self) -> bool {
        self.grace != Grace::Over
    }
}
