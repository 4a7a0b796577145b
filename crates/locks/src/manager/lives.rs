//! Registration, leases, fencing, and the time after a start.

use std::time::Duration;

use base::clock::Instant;

use super::{FenceReason, Grace, LockManager, Output};
use crate::error::LockError;
use crate::identity::{BootEpoch, ClientId};
use crate::message::Registration;

impl LockManager {
    /// Gives a client an id and a lease; `previous` is its life of an earlier start, whose locks it
    /// wants to reclaim.
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

    /// Extends leases, callbacks and the grace period by a pause in which the target was not run:
    /// it received nothing and granted nothing. A client being fenced gets no more time: it counts
    /// its lease by itself.
    pub fn make_up_for(&mut self, pause: Duration) {
        self.clients.prolong(pause);
        self.callbacks.prolong(pause);
        if let Grace::Until(end) = &mut self.grace {
            *end = *end + pause;
        }
    }

    /// Whether a command of a client may be handled now.
    ///
    /// # Errors
    /// When its life is over.
    pub fn check_life(&mut self, now: Instant, client: ClientId) -> Result<(), LockError> {
        self.clients.live(now, client).map(|_| ())
    }

    /// Ends a client that leaves and gives up all it has. Its commands are ended first, as with a
    /// fence.
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

    /// Ends a client's life, on an administrator's request.
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

    /// Fences a client that does not take its messages: it does not receive what it must give back.
    pub fn overflow(&mut self, now: Instant, client: ClientId) {
        self.begin_fence(client, FenceReason::MailboxFull);
        self.settle(now);
    }

    /// Notes that all commands of a client being fenced have ended. Its locks pass on when its
    /// lease is over as well: it may not know of the fence, and uses copies until then. Ignored for
    /// any other client.
    pub fn fenced(&mut self, now: Instant, client: ClientId) {
        self.clients.end_commands(client);
        self.pass_on(now);
    }

    /// Frees the locks of clients whose fence is complete.
    fn pass_on(&mut self, now: Instant) {
        let fenced = self.clients.take_fenced(now);
        let mut has_last_close = false;
        for (client, has_left) in fenced.iter().copied() {
            for owner in self.table.owners_of(client) {
                self.table.release_all(owner);
            }
            self.gate.forget(client);
            // Who leaves has closed what others are to hear of.
            has_last_close |= self.open_files.forget(client) && !has_left;
        }
        if has_last_close {
            self.outputs.push_back(Output::LastClose);
        }
        self.settle(now);
        if !fenced.is_empty() {
            self.advance_gate(now);
        }
    }

    /// Handles what is due: ended leases, unanswered callbacks, locks held for long enough, the end
    /// of the grace period.
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

    /// Notes that the end of the grace period is durable: all requests are granted from now on.
    pub fn grace_end_kept(&mut self, now: Instant) {
        if self.grace == Grace::Ending {
            self.grace = Grace::Over;
            self.gate.end_grace();
            self.settle(now);
            self.advance_gate(now);
        }
    }

    /// Stands for all clients of before the start, if there may have been any: those that have not come back may live
    /// all the same, also when they can reclaim nothing any more. Registrations count from one.
    pub fn clients_before(&self) -> Option<ClientId> {
        let before = BootEpoch(self.start.boot_epoch.0.saturating_sub(1));
        self.start.longest_lease.map(|_| ClientId::new(before, 0))
    }

    /// The rest of the grace period; `None` when it is over, or when its end is being made durable.
    pub fn grace_left(&self, now: Instant) -> Option<Duration> {
        match self.grace {
            Grace::Until(end) => Some(end.since(now)),
            Grace::Ending | Grace::Over => None,
        }
    }
}
