//! Hosts, links and the target in virtual time: one queue of events, from one seed.

use std::collections::BTreeMap;
use std::time::Duration;

use base::clock::Instant;
use base::random::Random;
use locks::blocks::BlockRange;
use locks::identity::{ClientId, CommandId};
use locks::message::Reply;

use crate::history::History;
use crate::host::{Context, Host, lock_of};
use crate::packet::{Answer, Asker, Effect, Request, SessionNumber};
use crate::plan::{Disturbance, OPEN_BLOCKS, Plan};
use crate::target::{Disk, Saved, Target};

/// All work is done within this time; otherwise some host waits for ever.
const TIME_MAX: Duration = Duration::from_secs(600);
/// Most events of a run: more mean an endless loop.
const EVENTS_MAX: u64 = 2_000_000;

#[derive(Clone, Debug)]
pub enum Event {
    ToTarget(Asker, Request),
    ToHost(Asker, Answer),
    Work(usize, usize),
    Register(usize),
    LatePurge(usize, BlockRange),
    HostTimer(usize),
    Connect(usize),
    // The following events belong to the life of the target in which they were created.
    TargetTimer,
    Land(CommandId),
    FenceEnds(ClientId),
    Saved,
    /// The state that the target needs for its next life is durable.
    Start(Saved),
    Disturbance(Disturbance),
}

impl Event {
    fn is_of_target(&self) -> bool {
        matches!(self, Self::TargetTimer | Self::Land(_) | Self::FenceEnds(_) | Self::Saved)
    }

    /// The host that acts in an event.
    fn host(&self) -> Option<usize> {
        match self {
            Self::ToHost(asker, _) => Some(asker.host),
            Self::Work(host, _)
            | Self::Register(host)
            | Self::LatePurge(host, _)
            | Self::HostTimer(host)
            | Self::Connect(host) => Some(*host),
            _ => None,
        }
    }
}

/// Counts of what happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub answered: usize,
    pub hits: usize,
    pub sessions: u64,
    pub starts: u64,
    pub messages: u64,
    pub target_writes: u64,
    pub fenced: usize,
}

pub struct World {
    plan: Plan,
    random: Random,
    now: Instant,
    events: BTreeMap<(Instant, u64), (u64, Event)>,
    event_last: u64,
    history: History,
    hosts: Vec<Host>,
    sessions: Vec<Option<SessionNumber>>,
    frozen_until: Vec<Instant>,
    /// For each frozen host, whether its sent messages are frozen, too.
    holds_sent: Vec<bool>,
    /// When the last message of a link arrives; by host, direction (to the target or from it) and
    /// connection.
    arrivals: BTreeMap<(usize, bool, u64), Instant>,
    host_timers: Vec<Option<Instant>>,
    target_timer: Option<Instant>,
    target: Option<Target>,
    disk: Disk,
    saved: Saved,
    /// Whether a start of the target is scheduled.
    is_starting: bool,
    sums: Sums,
    wrong: Option<String>,
}

impl World {
    pub fn new(seed: u64, plan: Plan) -> Self {
        let mut random = Random::new(seed);
        let count = plan.clients + plan.stock;
        let hosts = (0..count).map(|index| Host::new(index, index < plan.clients, &plan, &mut random)).collect();
        let mut world = Self {
            random,
            now: Instant::START,
            events: BTreeMap::new(),
            event_last: 0,
            history: History::default(),
            hosts,
            sessions: vec![None; count],
            frozen_until: vec![Instant::START; count],
            holds_sent: vec![false; count],
            arrivals: BTreeMap::new(),
            host_timers: vec![None; count],
            target_timer: None,
            target: None,
            disk: Disk::default(),
            saved: Saved::default(),
            is_starting: false,
            sums: Sums::default(),
            wrong: None,
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.start_target(Duration::ZERO);
        for (at, disturbance) in self.plan.disturbances.clone() {
            self.put(at, Event::Disturbance(disturbance));
        }
        for host in 0..self.hosts.len() {
            self.after(Duration::from_millis(1), Event::Connect(host));
            for worker in 0..self.plan.workers {
                let time = Duration::from_micros(self.random.below(50_000));
                self.after(time, Event::Work(host, worker));
            }
        }
    }

    fn put(&mut self, at: Instant, event: Event) {
        self.event_last += 1;
        self.events.insert((at, self.event_last), (self.sums.starts, event));
    }

    fn after(&mut self, time: Duration, event: Event) {
        self.put(self.now + time, event);
    }

    /// Runs until all is done.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub fn run(mut self) -> Result<Sums, String> {
        for _ in 0..EVENTS_MAX {
            let Some(((at, _), (life, event))) = self.events.pop_first() else { break };
            if at.since(Instant::START) > TIME_MAX {
                break;
            }
            self.now = at;
            if !event.is_of_target() || life == self.sums.starts {
                self.happen(event);
            }
            self.set_timers();
            self.check_locks();
            if let Some(wrong) = self.wrong.take() {
                return Err(wrong);
            }
            if self.is_at_rest() {
                self.history.check()?;
                return Ok(self.sums());
            }
        }
        // A wrong read is worse than a standstill, so it is checked first.
        self.history.check()?;
        let states: Vec<String> = self.hosts.iter().filter(|host| !host.is_at_rest()).map(Host::state).collect();
        let manager = self.target.as_ref().map(|target| &target.manager);
        Err(format!("somebody waits for ever at {:?}: {}\n{manager:#?}", self.now, states.join("\n")))
    }

    fn sums(mut self) -> Sums {
        self.sums.answered = self.history.answered_count();
        self.sums.hits = self.hosts.iter().map(|host| host.hits).sum();
        self.sums
    }

    fn is_at_rest(&self) -> bool {
        self.hosts.iter().all(Host::is_at_rest) && self.target.as_ref().is_some_and(Target::is_at_rest)
    }

    fn happen(&mut self, event: Event) {
        if let Some(host) = event.host()
            && self.frozen_until[host] > self.now
        {
            // Messages keep their order; a host's own actions come before or after them.
            let jitter = if matches!(event, Event::ToHost(..)) { 500 } else { self.random.below(1000) };
            return self.put(self.frozen_until[host] + Duration::from_nanos(jitter), event);
        }
        match event {
            Event::ToTarget(asker, request) => self.send_to_target(asker, request),
            Event::ToHost(asker, answer) if self.sessions[asker.host] == Some(asker.session) => {
                self.with_host(asker.host, |host, context| host.handle(context, asker.tag, answer));
            }
            Event::ToHost(..) => {}
            Event::Work(host, worker) => self.with_host(host, |host, context| host.work(context, worker)),
            Event::Register(host) => self.with_host(host, Host::register),
            Event::LatePurge(host, range) => self.hosts[host].drop_copies(range),
            Event::HostTimer(host) => self.with_host(host, Host::handle_timeout),
            Event::Connect(host) => self.connect(host),
            Event::Disturbance(disturbance) => self.disturb(disturbance),
            Event::Start(saved) => self.started(saved),
            Event::TargetTimer => self.with_target(Target::handle_timeout),
            Event::FenceEnds(client) => {
                self.with_target(|target, context, disk| target.end_fence(context, disk, client))
            }
            Event::Land(command) if self.survives_write() => {
                self.with_target(|target, context, disk| target.land(context, disk, command));
            }
            Event::Saved => self.save_ended(),
            Event::Land(_) => {}
        }
    }

    fn with_host(&mut self, index: usize, act: impl FnOnce(&mut Host, &mut Context<'_>)) {
        let mut effects = Vec::new();
        let mut context = Context {
            now: self.now,
            plan: &self.plan,
            history: &mut self.history,
            random: &mut self.random,
            effects: &mut effects,
            sessions: &self.sessions,
        };
        act(&mut self.hosts[index], &mut context);
        self.take(effects);
    }

    fn with_target(&mut self, act: impl FnOnce(&mut Target, &mut Context<'_>, &mut Disk)) {
        let Some(target) = &mut self.target else { return };
        let mut effects = Vec::new();
        let mut context = Context {
            now: self.now,
            plan: &self.plan,
            history: &mut self.history,
            random: &mut self.random,
            effects: &mut effects,
            sessions: &self.sessions,
        };
        act(target, &mut context, &mut self.disk);
        self.take(effects);
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::After(time, event) => self.after(time, event),
                Effect::Ask(asker, request) => {
                    let is_control = matches!(request, Request::Register { .. } | Request::Control(..));
                    self.send((asker, true, is_control), Event::ToTarget(asker, request));
                }
                Effect::Answer(asker, answer) => {
                    let is_mail = matches!(answer, Answer::Mail(..));
                    self.send((asker, false, is_mail), Event::ToHost(asker, answer));
                }
                Effect::Landed(host, range) => self.check_landed(host, range),
            }
        }
    }

    /// Sends a message over one of a session's connections, each of which keeps the order and has
    /// delays. Messages about locks use one connection, in each direction.
    fn send(&mut self, (asker, is_to_target, is_ordered): (Asker, bool, bool), event: Event) {
        if self.sessions[asker.host] != Some(asker.session) {
            return self.lose(event);
        }
        self.sums.messages += 1;
        let is_registered = matches!(&event, Event::ToHost(_, Answer::Control(Ok(Reply::Registered(_)))));
        let connections = self.plan.connections as u64;
        let connection = if is_ordered { 0 } else { self.random.below(connections) };
        let delay = Duration::from_nanos(1 + self.random.below(self.plan.delay_max.as_nanos() as u64));
        let last = self.arrivals.entry((asker.host, is_to_target, connection)).or_default();
        *last = (*last + Duration::from_nanos(1)).max(self.now + delay);
        let at = *last;
        self.put(at, event);
        let cuts = self.plan.registrations_cut;
        if self.plan.cut_at == Some(self.sums.messages) || (is_registered && cuts > 0.0 && self.random.chance(cuts)) {
            self.cut(asker.host);
        }
    }

    /// Handles a message that never arrives.
    fn lose(&mut self, event: Event) {
        if let Event::ToTarget(_, Request::Write(write)) = event {
            write.operations.iter().for_each(|id| self.history.end_command(*id));
        }
    }

    fn send_to_target(&mut self, asker: Asker, request: Request) {
        let host = asker.host;
        if self.frozen_until[host] > self.now && self.holds_sent[host] {
            let at = self.frozen_until[host] + Duration::from_nanos(500);
            return self.put(at, Event::ToTarget(asker, request));
        }
        if self.sessions[host] != Some(asker.session) || self.target.is_none() {
            return self.lose(Event::ToTarget(asker, request));
        }
        self.with_target(|target, context, disk| target.handle(context, disk, asker, request));
    }

    /// Cuts a session, with all messages on their way.
    fn cut(&mut self, host: usize) {
        if self.sessions[host].take().is_none() {
            return;
        }
        let is_its =
            |event: &Event| matches!(event, Event::ToTarget(asker, _) | Event::ToHost(asker, _) if asker.host == host);
        let lost: Vec<(Instant, u64)> =
            self.events.iter().filter(|(_, (_, event))| is_its(event)).map(|(key, _)| *key).collect();
        for key in lost {
            if let Some((_, event)) = self.events.remove(&key) {
                self.lose(event);
            }
        }
        self.with_target(|target, context, disk| target.lose_session(context, disk, host));
        self.with_host(host, Host::lose_session);
        let away = self.away();
        self.after(away, Event::Connect(host));
    }

    fn away(&mut self) -> Duration {
        Duration::from_nanos(1 + self.random.below(self.plan.away_max.as_nanos() as u64))
    }

    fn connect(&mut self, host: usize) {
        if self.sessions[host].is_some() {
            return;
        }
        if self.target.is_none() {
            return self.after(Duration::from_millis(30), Event::Connect(host));
        }
        self.sums.sessions += 1;
        let session = self.sums.sessions;
        self.sessions[host] = Some(session);
        self.arrivals.retain(|(of, ..), _| *of != host);
        self.with_target(|target, context, disk| target.join(context, disk, host));
        self.with_host(host, |host, context| host.connect(context, session));
    }

    fn disturb(&mut self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::Cut(host) => self.cut(host),
            Disturbance::Freeze { host, time, holds_sent } => {
                self.frozen_until[host] = self.now + time;
                self.holds_sent[host] = holds_sent;
            }
            Disturbance::Kill { is_power_loss } => self.kill(is_power_loss),
        }
    }

    fn kill(&mut self, is_power_loss: bool) {
        let Some(target) = self.target.take() else { return };
        self.sums.fenced += target.manager.clients().fenced().count();
        let mut effects = Vec::new();
        let mut context = Context {
            now: self.now,
            plan: &self.plan,
            history: &mut self.history,
            random: &mut self.random,
            effects: &mut effects,
            sessions: &self.sessions,
        };
        target.end(&mut context, &mut self.disk);
        if is_power_loss {
            self.disk.lose_power();
        }
        (0..self.hosts.len()).for_each(|host| self.cut(host));
        let away = self.away();
        self.start_target(away);
    }

    /// Makes the target's start durable, and starts it.
    fn start_target(&mut self, away: Duration) {
        if !self.is_starting {
            self.is_starting = true;
            let saved = self.saved.next_start(&self.plan);
            self.after(away + Duration::from_micros(500), Event::Start(saved));
        }
    }

    fn started(&mut self, saved: Saved) {
        self.is_starting = false;
        self.sums.target_writes += 1;
        if self.is_killed_here() {
            if self.lands_when_killed() {
                self.saved = saved;
            }
            return self.start_target(Duration::from_millis(10));
        }
        self.saved = saved;
        self.sums.starts += 1;
        self.target_timer = None;
        let mut effects = Vec::new();
        let context = Context {
            now: self.now,
            plan: &self.plan,
            history: &mut self.history,
            random: &mut self.random,
            effects: &mut effects,
            sessions: &self.sessions,
        };
        self.target = Some(Target::new(saved, &context));
    }

    fn is_killed_here(&self) -> bool {
        self.plan.kill_at == Some(self.sums.target_writes)
    }

    /// Whether a write at which the target ends is on the disk afterwards; every other one is.
    fn lands_when_killed(&mut self) -> bool {
        self.random.chance(0.5)
    }

    /// Whether the target survives a write to its disk. If not, the write may land all the same.
    fn survives_write(&mut self) -> bool {
        self.sums.target_writes += 1;
        let dies = self.is_killed_here();
        if dies {
            let is_power_loss = self.random.chance(0.5);
            self.kill(is_power_loss);
        }
        !dies
    }

    fn save_ended(&mut self) {
        let Some(saved) = self.target.as_ref().and_then(Target::being_saved) else { return };
        self.sums.target_writes += 1;
        let dies = self.is_killed_here();
        if (!dies || self.lands_when_killed()) && !self.plan.has(crate::plan::Fault::LeaseNotKept) {
            self.saved = saved;
        }
        if dies {
            return self.kill(true);
        }
        self.with_target(Target::finish_save);
    }

    fn set_timers(&mut self) {
        for host in 0..self.hosts.len() {
            let deadline = self.hosts[host].next_deadline();
            if deadline != self.host_timers[host] {
                self.host_timers[host] = deadline;
                if let Some(at) = deadline {
                    self.put(at.max(self.now), Event::HostTimer(host));
                }
            }
        }
        let deadline = self.target.as_ref().and_then(Target::next_deadline);
        if deadline != self.target_timer {
            self.target_timer = deadline;
            if let Some(at) = deadline {
                self.put(at.max(self.now), Event::TargetTimer);
            }
        }
    }

    /// Checks that no two hosts believe that they hold conflicting locks.
    fn check_locks(&mut self) {
        let believed: Vec<_> = self.hosts.iter().map(|host| host.believed(self.now)).collect();
        for (index, ours) in believed.iter().enumerate() {
            for (other, theirs) in believed.iter().enumerate().skip(index + 1) {
                let conflict = ours
                    .iter()
                    .find(|(resource, mode)| theirs.iter().any(|(at, its)| at == resource && its.conflicts(*mode)));
                if let Some((resource, mode)) = conflict {
                    self.wrong = Some(format!(
                        "host {index} believes to hold {resource} in {mode}, and host {other} in what conflicts"
                    ));
                }
            }
        }
    }

    /// Checks that a host does not change what another holds.
    fn check_landed(&mut self, host: usize, range: BlockRange) {
        for block in (range.first()..range.end()).filter(|block| *block >= OPEN_BLOCKS) {
            let (resource, mode, _) = lock_of(block, true);
            let others = self.hosts.iter().enumerate().filter(|(index, _)| *index != host);
            let holder = others
                .map(|(index, other)| (index, other.believed(self.now)))
                .find(|(_, believed)| believed.iter().any(|(at, its)| *at == resource && its.conflicts(mode)));
            if let Some((holder, _)) = holder {
                self.wrong = Some(format!("a write of host {host} lands in block {block}, which host {holder} holds"));
            }
        }
    }
}
