//! The machines of *An Efficient Data Sharing Scheme for iSCSI-Based File Systems*, in virtual time: our lock manager,
//! its gate and our clients' end of both over modelled links and table 3's disk.
//!
//! ```text
//! client: transactions, one after the other ─► locks ─► its copies ─┐ 100 Mbit/s, 1 ms
//!                                                                   ├─► target: locks, gate ─► disk, one request at a time
//! client ─ ...                                                     ─┘
//! ```
//! Blocks are read and written as the paper says: a client reads a block before it writes it. Two
//! ways to do that are compared:
//!
//! | | the paper's | ours |
//! |---|---|---|
//! | locks | one a request, given back after use | a batch a request, kept until they are called back |
//! | data of a write | when R2T asks for it, after the callbacks | with the command, held at the gate |
//! | target | one request after the other, locks as well | locks wait for no disk |
//!
//! The rest is chosen, as the paper does not say it: each message has 88 bytes of headers; a block
//! that the client has a copy of costs 28 us, the time in table 4 that is not reading divided by
//! its accesses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use base::clock::Instant;
use base::random::Random;
use locks::blocks::BlockRange;
use locks::fetches::FetchId;
use locks::gate::{Change, Passage};
use locks::holder::{Holder, HolderOutput};
use locks::identity::{ClientId, CommandId, Generation, RequestId, TransactionId};
use locks::limits::Limits;
use locks::manager::{LockManager, Output};
use locks::message::{FromClient, Reply, ToClient, Wanted};
use locks::mode::Mode;
use locks::resource::{FileId, GroupIndex, GroupSize, Resource};
use locks::settings::{Profile, Settings, Start};

const FILE: Resource = Resource::File(FileId(1));
/// Latency of one way.
const LATENCY: Duration = Duration::from_millis(1);
const NANOSECONDS_OF_BYTE: u64 = 80;
/// Headers of a PDU, with those of TCP and IP.
const HEADER_BYTES: u64 = 88;
/// Table 3.
const ROTATION: Duration = Duration::from_micros(2000);
const READ_SEEK: Duration = Duration::from_micros(3600);
const WRITE_SEEK: Duration = Duration::from_micros(3900);
const DISK_BYTES_OF_SECOND: u64 = 62_000_000;
/// Time of an access to a block that its client has a copy of.
const HIT: Duration = Duration::from_micros(28);
/// Groups that a client locks together where its profile allows that.
const GROUPS_AHEAD: u64 = 63;

/// The load: its clients, and the blocks they access.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) profile: Profile,
    pub(crate) block_bytes: u64,
    pub(crate) blocks: u64,
    pub(crate) group_blocks: u64,
    /// Blocks of one command.
    pub(crate) command_blocks: u64,
    pub(crate) writers: usize,
    pub(crate) readers: usize,
    /// Whether a client accesses all blocks in one transaction, in sequence, and ends; otherwise
    /// each command is a transaction on any block, without end.
    pub(crate) is_one_transaction: bool,
    pub(crate) caches: bool,
    pub(crate) time_max: Duration,
}

/// Where the time of a client's transactions went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) accesses: u64,
    pub(crate) hits: u64,
    pub(crate) locking: Duration,
    pub(crate) reading: Duration,
    pub(crate) writing: Duration,
}

impl Spent {
    pub(crate) fn total(&self) -> Duration {
        self.locking + self.reading + self.writing
    }

    /// `time` in milliseconds per access.
    pub(crate) fn each_ms(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1000.0 / self.accesses.max(1) as f64
    }
}

#[derive(Clone, Debug)]
enum Request {
    Control(FromClient, Instant),
    Read(BlockRange),
    Write(BlockRange),
    /// The data of a write, sent when R2T asks for it.
    Data(CommandId),
}

#[derive(Clone, Debug)]
enum Answer {
    Control(FromClient, Instant, Result<Reply, locks::error::LockError>),
    Mail(ClientId, ToClient),
    Read(Option<Generation>),
    ReadyToTransfer(CommandId),
    Written(Option<Generation>),
}

#[derive(Clone, Debug)]
enum Event {
    Arrives(usize, Request),
    Answered(usize, Answer),
    Turn(usize),
    DiskDone(CommandId),
    TargetTimer,
}

/// Work that the target does one piece after the other.
#[derive(Clone, Debug)]
enum Job {
    Request(usize, Request),
    Disk(CommandId),
}

#[derive(Clone, Copy, Debug)]
struct Command {
    client: usize,
    range: BlockRange,
    is_write: bool,
    generation: Option<Generation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Rest,
    Locking,
    Reading(FetchId),
    Writing(FetchId),
}

struct Client {
    holder: Holder,
    is_writer: bool,
    /// The first block of the current access.
    at: u64,
    random: Random,
    step: Step,
    began: Instant,
    waits_for: Option<RequestId>,
    copies: BTreeSet<u64>,
    /// Locks in use.
    used: BTreeMap<Resource, Mode>,
    has_ended: bool,
    spent: Spent,
}

impl Client {
    fn drop_copies(&mut self, range: BlockRange) {
        for block in range.first()..range.end() {
            self.copies.remove(&block);
        }
    }
}

/// Clients, links and the target.
pub(crate) struct Machines {
    load: Load,
    now: Instant,
    events: BTreeMap<(Instant, u64), Event>,
    event_last: u64,
    manager: LockManager,
    clients: Vec<Client>,
    ids: BTreeMap<ClientId, usize>,
    /// When a link is free: client, to the target or from it.
    links: BTreeMap<(usize, bool), Instant>,
    jobs: VecDeque<Job>,
    is_busy: bool,
    commands: BTreeMap<CommandId, Command>,
    command_last: u64,
    timer: Option<Instant>,
}

impl Machines {
    pub(crate) fn new(load: Load) -> Self {
        let group_size = GroupSize::of_blocks(load.group_blocks.max(1)).expect("it has a block");
        let usual = match load.profile {
            Profile::Paper => Settings::paper(load.blocks, group_size),
            Profile::Usual => Settings::new(load.blocks, group_size),
        };
        let limits = Limits { grants_of_client_max: usize::MAX, ..usual.limits.clone() };
        let now = Instant::from_nanoseconds(1);
        let manager = LockManager::new(Settings { limits, ..usual }, Start::first(), now);
        let clients = (0..load.writers + load.readers).map(|index| Client {
            // In one transaction all is held until its end.
            holder: Holder::of(if load.is_one_transaction { Profile::Usual } else { load.profile }),
            is_writer: index < load.writers,
            at: 0,
            random: Random::new(index as u64),
            step: Step::Rest,
            began: now,
            waits_for: None,
            copies: BTreeSet::new(),
            used: BTreeMap::new(),
            has_ended: false,
            spent: Spent::default(),
        });
        Self {
            clients: clients.collect(),
            load,
            now,
            events: BTreeMap::new(),
            event_last: 0,
            manager,
            ids: BTreeMap::new(),
            links: BTreeMap::new(),
            jobs: VecDeque::new(),
            is_busy: false,
            commands: BTreeMap::new(),
            command_last: 0,
            timer: None,
        }
    }

    /// Runs until all have ended or the time is over. What each client spent, the writers' first.
    pub(crate) fn run(mut self) -> Vec<Spent> {
        let end = self.now + self.load.time_max;
        for index in 0..self.clients.len() {
            self.clients[index].holder.register();
            self.drain_client(index);
            self.after(Duration::from_millis(10), Event::Turn(index));
        }
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > end || self.clients.iter().all(|client| client.has_ended) {
                break;
            }
            self.now = at;
            self.happen(event);
            self.set_timer();
        }
        self.clients.into_iter().map(|client| client.spent).collect()
    }

    fn after(&mut self, time: Duration, event: Event) {
        self.event_last += 1;
        self.events.insert((self.now + time, self.event_last), event);
    }

    fn set_timer(&mut self) {
        let deadline = self.manager.next_deadline();
        if deadline != self.timer {
            self.timer = deadline;
            if let Some(at) = deadline {
                self.after(at.since(self.now), Event::TargetTimer);
            }
        }
    }

    /// The time on a link: its messages one after the other.
    fn send(&mut self, link: (usize, bool), data_bytes: u64, event: Event) {
        let transmission = Duration::from_nanos((HEADER_BYTES + data_bytes) * NANOSECONDS_OF_BYTE);
        let free = self.links.entry(link).or_default();
        *free = (*free).max(self.now) + transmission;
        let arrives = free.since(self.now) + LATENCY;
        self.after(arrives, event);
    }

    fn ask(&mut self, client: usize, data_bytes: u64, request: Request) {
        self.send((client, true), data_bytes, Event::Arrives(client, request));
    }

    fn answer(&mut self, client: usize, data_bytes: u64, answer: Answer) {
        self.send((client, false), data_bytes, Event::Answered(client, answer));
    }

    fn bytes(&self, range: BlockRange) -> u64 {
        range.count() * self.load.block_bytes
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives(client, request) if self.load.profile == Profile::Paper => {
                self.jobs.push_back(Job::Request(client, request));
                self.work();
            }
            Event::Arrives(client, request) => self.take(client, request),
            Event::Answered(client, answer) => self.answered(client, answer),
            Event::Turn(client) => self.turn(client),
            Event::DiskDone(command) => self.disk_done(command),
            Event::TargetTimer => {
                self.manager.handle_timeout(self.now);
                self.drain_target();
            }
        }
    }

    /// The target does its next jobs, as long as its disk is free.
    fn work(&mut self) {
        while !self.is_busy
            && let Some(job) = self.jobs.pop_front()
        {
            match job {
                Job::Request(client, request) => self.take(client, request),
                Job::Disk(id) => {
                    let command = self.commands[&id];
                    let seek = if command.is_write { WRITE_SEEK } else { READ_SEEK };
                    let transfer = self.bytes(command.range) * 1_000_000_000 / DISK_BYTES_OF_SECOND;
                    self.is_busy = true;
                    self.after(ROTATION + seek + Duration::from_nanos(transfer), Event::DiskDone(id));
                }
            }
        }
    }

    /// The target handles a request.
    fn take(&mut self, client: usize, request: Request) {
        match request {
            Request::Control(message, sent) => {
                let reply = self.manager.handle_message(self.now, message.clone());
                if let Ok(Reply::Registered(registration)) = &reply {
                    self.ids.insert(registration.client, client);
                }
                self.answer(client, 0, Answer::Control(message, sent, reply));
            }
            Request::Read(range) => {
                let id = self.command(client, range, false);
                let by = self.clients[client].holder.client(self.now);
                let passage = self.manager.read(self.now, id, range, by);
                self.passed(id, passage.expect("the gate has room"));
            }
            Request::Write(range) => {
                let id = self.command(client, range, true);
                let by = self.clients[client].holder.client(self.now);
                let passage = self.manager.begin_change(self.now, id, Change { range, by, is_under_grant: false });
                self.passed(id, passage.expect("the gate has room"));
            }
            Request::Data(id) => {
                self.jobs.push_front(Job::Disk(id));
                self.work();
            }
        }
        self.drain_target();
    }

    fn command(&mut self, client: usize, range: BlockRange, is_write: bool) -> CommandId {
        self.command_last += 1;
        let id = CommandId(self.command_last);
        self.commands.insert(id, Command { client, range, is_write, generation: None });
        id
    }

    fn passed(&mut self, id: CommandId, passage: Option<Passage>) {
        let Some(command) = self.commands.get_mut(&id) else { return };
        match passage {
            Some(Passage::Read(generation)) => command.generation = generation,
            // "Will not send R2T response until it receives confirmations for all callback requests".
            Some(Passage::Change) if self.load.profile == Profile::Paper => {
                let client = command.client;
                return self.answer(client, 0, Answer::ReadyToTransfer(id));
            }
            Some(Passage::Change) => {}
            None => return,
        }
        self.jobs.push_back(Job::Disk(id));
        self.work();
    }

    fn disk_done(&mut self, id: CommandId) {
        self.is_busy = false;
        if let Some(Command { client, range, is_write, generation }) = self.commands.remove(&id) {
            if is_write {
                let kept = self.manager.end_change(self.now, id, self.load.caches).expect("it is under way");
                self.answer(client, 0, Answer::Written(kept));
                self.drain_target();
            } else {
                self.answer(client, self.bytes(range), Answer::Read(generation));
            }
        }
        self.work();
    }

    fn drain_target(&mut self) {
        while let Some(output) = self.manager.poll_output() {
            match output {
                Output::Pass(id, passage) => self.passed(id, Some(passage)),
                Output::Mail(id) => {
                    let client = self.ids[&id];
                    while let Some(message) = self.manager.poll_message(id) {
                        self.answer(client, 0, Answer::Mail(id, message));
                    }
                }
                Output::Fence(id, reason) => panic!("client {id} of the model is fenced: {reason:?}"),
                Output::LastClose | Output::KeepGraceEnd(_) => {}
            }
        }
    }

    fn drain_client(&mut self, index: usize) {
        while let Some(output) = self.clients[index].holder.poll_output() {
            match output {
                HolderOutput::Send(message) => self.ask(index, 0, Request::Control(message, self.now)),
                HolderOutput::Granted(request, _) | HolderOutput::Refused(request, _) => {
                    let client = &mut self.clients[index];
                    if client.waits_for == Some(request) {
                        client.waits_for = None;
                        self.lock(index);
                    }
                }
                HolderOutput::Purge(range) => self.clients[index].drop_copies(range),
                // A copy needs no lock to be kept: its registration guards it.
                HolderOutput::GiveUp(..) | HolderOutput::InUse(_) | HolderOutput::PurgeAll | HolderOutput::Over(_) => {}
            }
        }
    }

    /// A client begins its next transaction, or the next part of its only one.
    fn turn(&mut self, index: usize) {
        let now = self.now;
        self.clients[index].holder.handle_timeout(now);
        self.drain_client(index);
        let client = &mut self.clients[index];
        if client.step != Step::Rest || client.has_ended {
            return;
        }
        if client.holder.client(now).is_none() {
            return self.after(LATENCY, Event::Turn(index));
        }
        if self.load.is_one_transaction && client.at >= self.load.blocks {
            client.has_ended = true;
            return;
        }
        if self.skip_hits(index) {
            return;
        }
        let client = &mut self.clients[index];
        client.step = Step::Locking;
        client.began = now;
        self.lock(index);
        self.drain_client(index);
    }

    /// Lets a reader that has all its blocks and locks count its hits up to the next event at once:
    /// each as an event would be a million events a minute.
    fn skip_hits(&mut self, index: usize) -> bool {
        let client = &self.clients[index];
        let groups = self.load.blocks.div_ceil(self.load.group_blocks);
        let has = |resource, mode: Mode| client.holder.held().any(|(at, held)| at == resource && held.covers(mode));
        let has_all = !client.is_writer
            && !self.load.is_one_transaction
            && client.copies.len() as u64 == self.load.blocks
            && has(FILE, Mode::D_IS)
            && (0..groups).all(|group| has(Resource::Group(FileId(1), GroupIndex(group)), Mode::D_S));
        let Some(((next, _), _)) = self.events.first_key_value().filter(|_| has_all) else { return false };
        let count = (next.since(self.now).as_nanos() / HIT.as_nanos()).max(1) as u64;
        let spent = &mut self.clients[index].spent;
        spent.accesses += count;
        spent.hits += count;
        let time = HIT * u32::try_from(count).unwrap_or(u32::MAX);
        spent.reading += time;
        self.after(time, Event::Turn(index));
        true
    }

    fn range(&self, index: usize) -> BlockRange {
        let first = self.clients[index].at;
        BlockRange::new(first, self.load.command_blocks.min(self.load.blocks - first)).expect("it has blocks")
    }

    /// Uses the locks that the client holds, and requests the first that it does not.
    fn lock(&mut self, index: usize) {
        let now = self.now;
        let range = self.range(index);
        let (first, last) = (range.first() / self.load.group_blocks, (range.end() - 1) / self.load.group_blocks);
        let client = &mut self.clients[index];
        let mode = if client.is_writer { Mode::D_X } else { Mode::D_S };
        for group in first..=last {
            let leaf = Resource::Group(FileId(1), GroupIndex(group));
            if client.used.contains_key(&leaf) {
                continue;
            }
            if client.holder.begin_use(now, leaf, mode) {
                client.used.insert(leaf, mode);
                continue;
            }
            let has_root = client.holder.held().any(|(at, held)| at == FILE && held.covers(mode.intention()));
            let groups = self.load.blocks.div_ceil(self.load.group_blocks);
            let batch = match self.load.profile {
                Profile::Paper if has_root => vec![(leaf, mode)],
                Profile::Paper => vec![(FILE, mode.intention())],
                Profile::Usual => batch_of(group..if self.load.is_one_transaction { groups } else { last + 1 }, mode),
            };
            client.waits_for = client.holder.request(now, TransactionId::OWN, batch);
            return;
        }
        client.spent.locking += now.since(client.began);
        client.began = now;
        self.read(index);
    }

    fn read(&mut self, index: usize) {
        let range = self.range(index);
        let (load, client) = (&self.load, &mut self.clients[index]);
        if load.caches && (range.first()..range.end()).all(|block| client.copies.contains(&block)) {
            client.spent.hits += 1;
            return self.have_read(index, true);
        }
        client.step = Step::Reading(client.holder.begin_fetch(range));
        self.ask(index, 0, Request::Read(range));
    }

    fn have_read(&mut self, index: usize, is_hit: bool) {
        let (now, range) = (self.now, self.range(index));
        let client = &mut self.clients[index];
        client.spent.reading += now.since(client.began) + if is_hit { HIT } else { Duration::ZERO };
        client.began = now;
        if !client.is_writer {
            return self.end(index, if is_hit { HIT } else { Duration::ZERO });
        }
        client.drop_copies(range);
        client.step = Step::Writing(client.holder.begin_change(range));
        let data_bytes = if self.load.profile == Profile::Paper { 0 } else { self.bytes(range) };
        self.ask(index, data_bytes, Request::Write(range));
    }

    /// A transaction is over, or a part of the only one.
    fn end(&mut self, index: usize, rest: Duration) {
        let load = &self.load;
        let client = &mut self.clients[index];
        client.spent.accesses += 1;
        client.step = Step::Rest;
        client.at += load.command_blocks;
        if !load.is_one_transaction {
            client.at = client.random.below(load.blocks);
            for (resource, mode) in std::mem::take(&mut client.used) {
                client.holder.end_use(resource, mode);
            }
        }
        self.drain_client(index);
        self.after(rest, Event::Turn(index));
    }

    fn answered(&mut self, index: usize, answer: Answer) {
        let (now, range) = (self.now, self.range(index));
        let client = &mut self.clients[index];
        match (answer, client.step) {
            (Answer::Control(message, sent, reply), _) => client.holder.handle_reply(now, &message, sent, reply),
            (Answer::Mail(id, message), _) => client.holder.handle_message(id, message),
            (Answer::Read(generation), Step::Reading(fetch)) => {
                if client.holder.end_fetch(fetch, generation) && self.load.caches {
                    client.copies.extend(range.first()..range.end());
                }
                self.have_read(index, false);
            }
            (Answer::ReadyToTransfer(id), _) => self.ask(index, self.bytes(range), Request::Data(id)),
            (Answer::Written(generation), Step::Writing(change)) => {
                if client.holder.end_fetch(change, generation) {
                    client.copies.extend(range.first()..range.end());
                }
                client.spent.writing += now.since(client.began);
                self.end(index, Duration::ZERO);
            }
            _ => {}
        }
        self.drain_client(index);
    }
}

/// The file, and so many of the groups as may be asked for at once.
fn batch_of(groups: std::ops::Range<u64>, mode: Mode) -> Vec<Wanted> {
    let leaves = groups.take(GROUPS_AHEAD as usize).map(|group| (Resource::Group(FileId(1), GroupIndex(group)), mode));
    [(FILE, mode.intention())].into_iter().chain(leaves).collect()
}
