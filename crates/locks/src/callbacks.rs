//! Callbacks that wait for an answer, with their deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::clock::Instant;

use crate::blocks::BlockRange;
use crate::error::LockError;
use crate::identity::{CallbackNumber, ClientId, Generation};
use crate::mode::Mode;
use crate::resource::Resource;
use crate::settings::Settings;

/// The subject of a callback: a lock or copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A lock of the client's own, down to a mode.
    Lock(Resource, Option<Mode>),
    /// Copies of blocks that are older than a generation.
    Copies(BlockRange, Generation),
}

/// A callback that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Callback {
    /// What is called back.
    pub subject: Subject,
    /// When the client is fenced for not answering.
    pub deadline: Instant,
    /// The latest deadline that deferring it can give.
    pub deadline_max: Instant,
}

/// The callbacks of all clients. Those of a client are numbered from 1 on, so that an answer with a number that was
/// never sent is recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Callbacks {
    last: BTreeMap<ClientId, CallbackNumber>,
    open: BTreeMap<(ClientId, CallbackNumber), Callback>,
    /// The same callbacks as in `open`, ordered by deadline.
    deadlines: BTreeSet<(Instant, ClientId, CallbackNumber)>,
}

impl Callbacks {
    /// Notes that `subject` is called back from a client.
    pub fn send(&mut self, now: Instant, client: ClientId, subject: Subject, settings: &Settings) -> CallbackNumber {
        let last = self.last.entry(client).or_insert(CallbackNumber(0));
        last.0 += 1;
        let deadline_max = now + settings.callback_time_max;
        let deadline = now + settings.callback_time;
        self.open.insert((client, *last), Callback { subject, deadline, deadline_max });
        self.deadlines.insert((deadline, client, *last));
        *last
    }

    /// The callback that a client answers; `None` when it was answered before.
    ///
    /// # Errors
    /// When the client was never sent one of that number.
    pub fn get(&self, client: ClientId, number: CallbackNumber) -> Result<Option<Callback>, LockError> {
        if number.0 == 0 || self.last.get(&client).is_none_or(|last| number > *last) {
            return Err(LockError::UnknownCallback(number));
        }
        Ok(self.open.get(&(client, number)).copied())
    }

    /// Removes a callback, which is answered.
    pub fn close(&mut self, client: ClientId, number: CallbackNumber) {
        if let Some(callback) = self.open.remove(&(client, number)) {
            self.deadlines.remove(&(callback.deadline, client, number));
        }
    }

    /// Defers a callback because its holder needs more time: moves the deadline by a step, up to
    /// its bound.
    pub fn defer(&mut self, now: Instant, client: ClientId, number: CallbackNumber, settings: &Settings) {
        if let Some(callback) = self.open.get_mut(&(client, number)) {
            self.deadlines.remove(&(callback.deadline, client, number));
            callback.deadline = (now + settings.deferral_step).max(callback.deadline).min(callback.deadline_max);
            self.deadlines.insert((callback.deadline, client, number));
        }
    }

    /// Moves all deadlines, and their bounds.
    pub fn prolong(&mut self, time: Duration) {
        for callback in self.open.values_mut() {
            callback.deadline = callback.deadline + time;
            callback.deadline_max = callback.deadline_max + time;
        }
        self.deadlines = self.open.iter().map(|((client, number), open)| (open.deadline, *client, *number)).collect();
    }

    /// Removes the callbacks of a client whose life is over.
    pub fn forget(&mut self, client: ClientId) {
        self.last.remove(&client);
        self.open.retain(|(of, _), _| *of != client);
        self.deadlines.retain(|(_, of, _)| *of != client);
    }

    /// All open callbacks, client by client.
    pub fn open(&self) -> impl Iterator<Item = (ClientId, CallbackNumber, &Callback)> {
        self.open.iter().map(|((client, number), callback)| (*client, *number, callback))
    }

    /// Clients with a callback whose deadline has passed.
    pub fn overdue(&self, now: Instant) -> Vec<ClientId> {
        let overdue = self.deadlines.iter().take_while(|(deadline, ..)| *deadline <= now);
        overdue.map(|(_, client, _)| *client).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The earliest deadline.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, ..)| *deadline)
    }
}
