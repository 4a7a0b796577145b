//! The registered clients, their leases and their mailboxes.
//!
//! A client is live, then being fenced, then gone. While it is being fenced its locks do not pass
//! on: its commands may still be under way, and it may not know of the fence, and use locks and
//! copies until its lease is over. Its number is never used again, so those that are gone need not
//! be remembered.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use base::clock::Instant;

use crate::error::{LockError, Table};
use crate::identity::{BootEpoch, ClientId, GrantNumber};
use crate::limits::{FENCED_REMEMBERED_MAX, Limits};
use crate::message::ToClient;

/// A registered client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// When its lease is over.
    pub lease_until: Instant,
    /// Its last grant.
    pub grant_last: GrantNumber,
    /// Its registration before the target restarted, whose locks it may reclaim.
    pub previous: Option<ClientId>,
    /// Whether its registration has ended and its fence is not complete.
    pub is_being_fenced: bool,
    /// Whether no command of it is under way at the device server any more, so that its fence is complete.
    has_no_commands: bool,
    /// Whether it unregistered by itself.
    has_left: bool,
    mailbox: VecDeque<ToClient>,
}

/// All registered clients, and those being fenced.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Clients {
    boot_epoch: BootEpoch,
    registration_next: u32,
    registered: BTreeMap<ClientId, Client>,
    fenced: VecDeque<ClientId>,
}

impl Clients {
    /// No clients, after a start.
    pub fn new(boot_epoch: BootEpoch) -> Self {
        Self { boot_epoch, registration_next: 1, registered: BTreeMap::new(), fenced: VecDeque::new() }
    }

    /// Registers a client.
    ///
    /// # Errors
    /// When there is no room, or no number is left.
    pub fn register(
        &mut self,
        lease_until: Instant,
        previous: Option<ClientId>,
        limits: &Limits,
    ) -> Result<ClientId, LockError> {
        let is_taken = previous.is_some() && self.registered.values().any(|client| client.previous == previous);
        if let Some(previous) = previous.filter(|_| is_taken) {
            return Err(LockError::NotReclaimable(previous));
        }
        let next = self.registration_next.checked_add(1).filter(|_| self.registered.len() < limits.clients_max);
        let client = ClientId::new(self.boot_epoch, self.registration_next);
        self.registration_next = next.ok_or(LockError::Full(Table::Clients))?;
        let grant_last = GrantNumber(0);
        let fresh = Client {
            lease_until,
            grant_last,
            previous,
            is_being_fenced: false,
            has_no_commands: false,
            has_left: false,
            mailbox: VecDeque::new(),
        };
        self.registered.insert(client, fresh);
        Ok(client)
    }

    /// Finds a client whose lease is not over at `now`.
    ///
    /// # Errors
    /// When it is not registered, belongs to an earlier start, is being fenced, or was silent for
    /// too long.
    pub fn live(&mut self, now: Instant, client: ClientId) -> Result<&mut Client, LockError> {
        if client.boot_epoch() != self.boot_epoch {
            return Err(LockError::WrongEpoch(self.boot_epoch));
        }
        match self.registered.get_mut(&client) {
            Some(found) if !found.is_being_fenced && found.lease_until > now => Ok(found),
            Some(found) if !found.is_being_fenced => Err(LockError::LeaseOver(client)),
            _ => Err(LockError::Fenced(client)),
        }
    }

    /// Moves the end of a lease; never backwards.
    ///
    /// # Errors
    /// As [`live`](Self::live).
    pub fn renew(&mut self, now: Instant, client: ClientId, lease: Duration) -> Result<(), LockError> {
        let found = self.live(now, client)?;
        found.lease_until = found.lease_until.max(now + lease);
        Ok(())
    }

    /// Moves the end of the leases of all clients that are not being fenced.
    pub fn prolong(&mut self, time: Duration) {
        for client in self.registered.values_mut().filter(|client| !client.is_being_fenced) {
            client.lease_until = client.lease_until + time;
        }
    }

    /// Whether a client is registered and not being fenced, whatever its lease.
    pub fn is_served(&self, client: ClientId) -> bool {
        self.registered.get(&client).is_some_and(|client| !client.is_being_fenced)
    }

    /// Whether a client is registered, or its fence is not complete.
    pub fn is_registered(&self, client: ClientId) -> bool {
        self.registered.contains_key(&client)
    }

    /// The client's grant counter.
    pub fn grant_last(&mut self, client: ClientId) -> Option<&mut GrantNumber> {
        self.registered.get_mut(&client).map(|client| &mut client.grant_last)
    }

    /// Begins to fence a client. Returns `false` when there is no such client or its fence has
    /// begun before.
    pub fn begin_fence(&mut self, client: ClientId) -> bool {
        let Some(found) = self.registered.get_mut(&client).filter(|client| !client.is_being_fenced) else {
            return false;
        };
        found.is_being_fenced = true;
        found.mailbox.clear();
        true
    }

    /// Ends the lease of a client that has said itself that it uses nothing any more.
    pub fn end_lease(&mut self, now: Instant, client: ClientId) {
        if let Some(found) = self.registered.get_mut(&client) {
            found.lease_until = found.lease_until.min(now);
            found.has_left = true;
        }
    }

    /// Notes that the commands of a client have ended, if it is being fenced.
    pub fn end_commands(&mut self, client: ClientId) {
        if let Some(found) = self.registered.get_mut(&client).filter(|client| client.is_being_fenced) {
            found.has_no_commands = true;
        }
    }

    /// Removes the clients whose fence is complete: commands ended and lease over. Their locks pass
    /// on. Each with whether it unregistered by itself.
    pub fn take_fenced(&mut self, now: Instant) -> Vec<(ClientId, bool)> {
        let is_over = |client: &Client| client.is_being_fenced && client.has_no_commands && client.lease_until <= now;
        let over: Vec<ClientId> = self.all().filter(|(_, client)| is_over(client)).map(|(id, _)| id).collect();
        let mut taken = Vec::with_capacity(over.len());
        for client in over {
            let has_left = self.registered.remove(&client).is_some_and(|found| found.has_left);
            taken.push((client, has_left));
            if has_left {
                continue;
            }
            if self.fenced.len() == FENCED_REMEMBERED_MAX {
                self.fenced.pop_front();
            }
            self.fenced.push_back(client);
        }
        taken
    }

    /// Puts a message into a client's mailbox. Returns `false` when that is full, and the client is
    /// to be fenced.
    pub fn post(&mut self, client: ClientId, message: ToClient, limits: &Limits) -> bool {
        match self.registered.get_mut(&client) {
            Some(found) if !found.is_being_fenced && found.mailbox.len() >= limits.mailbox_max => false,
            Some(found) if !found.is_being_fenced => {
                found.mailbox.push_back(message);
                true
            }
            _ => true,
        }
    }

    /// The next message for a client.
    pub fn take_mail(&mut self, client: ClientId) -> Option<ToClient> {
        self.registered.get_mut(&client)?.mailbox.pop_front()
    }

    /// Messages in a client's mailbox.
    pub fn mail(&self, client: ClientId) -> impl Iterator<Item = &ToClient> {
        self.registered.get(&client).into_iter().flat_map(|client| &client.mailbox)
    }

    /// All that are registered.
    pub fn all(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        self.registered.iter().map(|(id, client)| (*id, client))
    }

    /// The clients that were fenced last; clients that left by themselves are not among them.
    pub fn fenced(&self) -> impl Iterator<Item = ClientId> {
        self.fenced.iter().copied()
    }

    /// Clients whose lease is over.
    pub fn silent(&self, now: Instant) -> Vec<ClientId> {
        let is_silent = |client: &Client| !client.is_being_fenced && client.lease_until <= now;
        self.all().filter(|(_, client)| is_silent(client)).map(|(id, _)| id).collect()
    }

    /// When the next lease ends whose end has a consequence.
    pub fn next_deadline(&self) -> Option<Instant> {
        let waits = |client: &&Client| !client.is_being_fenced || client.has_no_commands;
        self.registered.values().filter(waits).map(|client| client.lease_until).min()
    }
}
