//! A lock manager under a clock that the test turns, with short names for its calls.
#![allow(dead_code)]

use std::time::Duration;

use base::clock::Instant;
use locks::blocks::BlockRange;
use locks::error::LockError;
use locks::gate::{Change, Passage};
use locks::holder::Holder;
use locks::identity::{CallbackNumber, ClientId, CommandId, Generation, GrantNumber, Owner, RequestId, TransactionId};
use locks::manager::{FenceReason, LockManager, Output};
use locks::message::{Answer, CallbackAnswer, FromClient, GrantedLock, Release, Reply, ToClient, Wanted};
use locks::mode::Mode;
use locks::resource::{FileId, GroupIndex, GroupSize, Resource};
use locks::settings::{Settings, Start};

pub const FILE: Resource = Resource::File(FileId(7));
pub const BLOCK: Resource = Resource::Metadata(3);

pub fn group(index: u64) -> Resource {
    Resource::Group(FileId(7), GroupIndex(index))
}

pub fn settings() -> Settings {
    let group_size = GroupSize::of_blocks(16).unwrap();
    Settings { hold_time_min: Duration::ZERO, ..Settings::new(1000, group_size) }
}

/// A manager whose times fall on few moments, and the time at which it begins.
pub fn manager_of_few_moments() -> (LockManager, Instant) {
    let (now, second) = (Instant::from_nanoseconds(1_000_000_000), Duration::from_secs(1));
    let settings =
        Settings { lease: 9 * second, callback_time: 7 * second, callback_time_max: 7 * second, ..settings() };
    (LockManager::new(settings, Start::first(), now), now)
}

/// A client that has just registered, at both ends.
pub fn registered(manager: &mut LockManager, now: Instant) -> (ClientId, Holder) {
    let registration = manager.register(now, None).unwrap();
    let mut holder = Holder::default();
    let reply = Ok(Reply::Registered(registration));
    holder.handle_reply(now, &FromClient::Register { previous: None }, now, reply);
    (registration.client, holder)
}

pub fn range(first: u64, count: u64) -> BlockRange {
    BlockRange::new(first, count).unwrap()
}

pub struct TestServer {
    pub manager: LockManager,
    pub now: Instant,
    request: u64,
    command: u64,
}

impl TestServer {
    pub fn new() -> Self {
        Self::with(settings(), Start::first())
    }

    pub fn with(settings: Settings, start: Start) -> Self {
        let now = Instant::from_nanoseconds(1_000_000_000);
        Self { manager: LockManager::new(settings, start, now), now, request: 0, command: 0 }
    }

    pub fn client(&mut self) -> ClientId {
        self.manager.register(self.now, None).unwrap().client
    }

    /// Requests locks with a new number.
    pub fn ask(&mut self, owner: Owner, batch: &[Wanted]) -> (RequestId, Result<Answer, LockError>) {
        self.request += 1;
        let request = RequestId(self.request);
        (request, self.manager.lock(self.now, owner, request, batch))
    }

    pub fn lock(&mut self, client: ClientId, batch: &[Wanted]) -> Result<Answer, LockError> {
        self.ask(Owner::own(client), batch).1
    }

    pub fn granted(&mut self, client: ClientId, batch: &[Wanted]) -> Vec<GrantedLock> {
        match self.lock(client, batch) {
            Ok(Answer::Granted(locks)) => locks,
            other => panic!("{batch:?} is not granted: {other:?}"),
        }
    }

    pub fn queued(&mut self, client: ClientId, batch: &[Wanted]) -> RequestId {
        let (request, answer) = self.ask(Owner::own(client), batch);
        assert_eq!(answer, Ok(Answer::Queued), "{batch:?}");
        request
    }

    pub fn transaction(&mut self, client: ClientId, number: u64) -> Owner {
        let transaction = TransactionId(number);
        self.manager.begin_transaction(self.now, client, transaction, None).unwrap();
        Owner { client, transaction }
    }

    pub fn mode(&self, client: ClientId, resource: Resource) -> Option<Mode> {
        self.manager.table().grant(Owner::own(client), resource).map(|grant| grant.mode)
    }

    pub fn number(&self, client: ClientId, resource: Resource) -> GrantNumber {
        self.manager.table().grant(Owner::own(client), resource).expect("it is held").number
    }

    pub fn unlock(&mut self, client: ClientId, resource: Resource, to: Option<Mode>) -> Result<(), LockError> {
        let number = self.number(client, resource);
        self.manager.unlock(self.now, Owner::own(client), &[Release { resource, number, to }])
    }

    pub fn mail(&mut self, client: ClientId) -> Vec<ToClient> {
        std::iter::from_fn(|| self.manager.poll_message(client)).collect()
    }

    /// Takes the only message, which is a callback of a lock.
    pub fn callback(&mut self, client: ClientId) -> (CallbackNumber, Resource, Option<Mode>) {
        match *self.mail(client) {
            [ToClient::Callback { number, resource, to, .. }] => (number, resource, to),
            ref other => panic!("no callback alone: {other:?}"),
        }
    }

    /// Takes the only message, which is a purge.
    pub fn purge(&mut self, client: ClientId) -> (CallbackNumber, BlockRange, Generation) {
        match *self.mail(client) {
            [ToClient::Purge { number, range, generation }] => (number, range, generation),
            ref other => panic!("no purge alone: {other:?}"),
        }
    }

    /// Takes the only message, which is a grant. Returns its request.
    pub fn told(&mut self, client: ClientId) -> RequestId {
        match *self.mail(client) {
            [ToClient::Granted { request, .. }] => request,
            ref other => panic!("no grant alone: {other:?}"),
        }
    }

    pub fn done(&mut self, client: ClientId, number: CallbackNumber) -> Result<(), LockError> {
        self.manager.acknowledge(self.now, client, number, CallbackAnswer::Done)
    }

    pub fn in_use(&mut self, client: ClientId, number: CallbackNumber) -> Result<(), LockError> {
        self.manager.acknowledge(self.now, client, number, CallbackAnswer::InUse)
    }

    pub fn read(&mut self, client: Option<ClientId>, first: u64, count: u64) -> (CommandId, Option<Passage>) {
        self.command += 1;
        let command = CommandId(self.command);
        (command, self.manager.read(self.now, command, range(first, count), client).unwrap())
    }

    pub fn change(&mut self, by: Option<ClientId>, first: u64, count: u64) -> (CommandId, Option<Passage>) {
        self.command += 1;
        let command = CommandId(self.command);
        let change = Change { range: range(first, count), by, is_under_grant: false };
        (command, self.manager.begin_change(self.now, command, change).unwrap())
    }

    pub fn end(&mut self, command: CommandId) {
        self.manager.end_change(self.now, command, false).unwrap();
    }

    /// The actions of the target, without those about mail.
    pub fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.manager.poll_output()).filter(|output| !matches!(output, Output::Mail(_))).collect()
    }

    pub fn fences(&mut self) -> Vec<(ClientId, FenceReason)> {
        let fence = |output| match output {
            Output::Fence(client, reason) => Some((client, reason)),
            _ => None,
        };
        self.outputs().into_iter().filter_map(fence).collect()
    }

    /// Ends the commands of a client, and its lease, while others renew theirs.
    pub fn end_fence(&mut self, client: ClientId, others: &[ClientId]) {
        self.manager.fenced(self.now, client);
        for _ in 0..2 {
            self.advance(self.manager.settings().lease / 2);
            others.iter().for_each(|other| self.manager.renew(self.now, *other).unwrap());
        }
    }

    pub fn advance(&mut self, duration: Duration) {
        self.now = self.now + duration;
        self.manager.handle_timeout(self.now);
    }
}
