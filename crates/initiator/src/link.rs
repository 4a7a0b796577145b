//! One open session: its connections and its commands.
//!
//! [`Link::poll_io`] does everything that can be done without waiting: gives commands to the connection with the fewest
//! bytes under way, reads into the buffers the connections name, writes all that is queued in one vectored write each,
//! tells them the time, and brings the session to the connections it is to have. Nothing here spawns a task.
//!
//! A connection that is lost takes the session with it, unless others are there and the error recovery level is 1 or 2
//! ([`Recoveries`]). One that is still logging in never does.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::AtomicU16;
use std::task::{Context, Poll};

use base::clock::{Clock, Instant};
use base::serial::Serial32;
use iscsi::initiator::{
    Command, Completed, Connection, ConnectionError, DiscoveredTarget, Event, LoggedIn, LoginConfig, LoginError,
    Session,
};
use iscsi::pdu::{Isid, LoginStatus};
use iscsi::url::Portal;
use scsi::Sense;

use crate::alarm::{Alarm, within};
use crate::connector::Connector;
use crate::error::LinkError;
use crate::growth::{Growth, Opened};
use crate::limits::{LOGOUT_TIMEOUT, MOVES_MAX, REDIRECTIONS_MAX};
use crate::options::InitiatorOptions;
use crate::recovery::Recoveries;
use crate::wire::{Counters, Role, Wire};

/// An open session.
pub(crate) struct Link {
    /// The leading one first, as long as it is there; never empty.
    wires: Vec<Wire>,
    /// Events of connections that are gone.
    events: VecDeque<Event>,
    pub(crate) session: Session,
    pub(crate) logged_in: Option<LoggedIn>,
    pub(crate) counters: Counters,
    /// Unit attentions and deferred errors that came while the unit's properties were read; a unit
    /// reports each only once.
    pub(crate) senses: Vec<Sense>,
    /// Whether its streams are polled without the runtime while nothing moves.
    pub(crate) is_looking: bool,
    /// Times in a row that bytes moved, with deadlines and the count of connections left for later.
    moves: u32,
    growth: Growth,
    recoveries: Recoveries,
    clock: Arc<dyn Clock>,
    alarm: Alarm,
}

/// What a session is opened with.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) options: Arc<InitiatorOptions>,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) isid: Isid,
    /// Connections or pairs that the user wants.
    pub(crate) wanted: Arc<AtomicU16>,
}

impl Link {
    /// Connects and logs in, following redirections. The portal of a permanent move is in `portal` afterwards.
    pub(crate) async fn open(opener: &Opener, is_discovery: bool, portal: &mut Portal) -> Result<Self, LinkError> {
        let mut place = portal.clone();
        for _ in 0..=REDIRECTIONS_MAX {
            let config = opener.options.login(opener.isid, is_discovery).map_err(LinkError::Unit)?;
            match Self::open_one(opener, config, &place).await {
                Err(LinkError::Connection(ConnectionError::Login(LoginError::Moved { is_permanent, addresses }))) => {
                    let parsed = addresses.iter().find_map(|address| address.parse::<Portal>().ok());
                    place = parsed.ok_or(ConnectionError::Protocol("a redirection to nowhere"))?;
                    if is_permanent {
                        *portal = place.clone();
                    }
                }
                other => return other,
            }
        }
        Err(LinkError::Redirections)
    }

    async fn open_one(opener: &Opener, config: LoginConfig, portal: &Portal) -> Result<Self, LinkError> {
        let Opener { options, connector, isid, wanted } = opener.clone();
        let clock = Arc::clone(&options.clock);
        let connecting = connector.connect(portal);
        let stream = within(&clock, options.connect_timeout, connecting).await.ok_or(LinkError::ConnectTimedOut)?;
        let stream = stream.map_err(LinkError::Connect)?;
        let session = Session::new(Serial32(1));
        let mut connection = Connection::new(clock.now(), &session, config, options.timing());
        connection.count_sizes(&options.pdu_sizes);
        let mut link = Self {
            wires: vec![Wire::new(stream, connection, Role::Serving)],
            events: VecDeque::new(),
            session,
            logged_in: None,
            counters: Counters::default(),
            senses: Vec::new(),
            growth: Growth::new(options, connector, isid, portal.clone(), wanted),
            is_looking: false,
            moves: 0,
            recoveries: Recoveries::default(),
            clock,
            alarm: Alarm::default(),
        };
        let logged_in = link.until(|event| match event {
            Event::LoggedIn(logged_in) => Some(*logged_in),
            _ => None,
        });
        link.logged_in = Some(logged_in.await?);
        link.growth.set_allowed(link.session.negotiated().max_connections, link.session.may_split());
        Ok(link)
    }

    /// Whether answers may overtake each other, because there are several connections.
    pub(crate) fn is_wide(&self) -> bool {
        self.wires.len() > 1
    }

    /// The portal of the session.
    pub(crate) fn portal(&self) -> &Portal {
        &self.growth.portal
    }

    /// TCP connections that are logged in, and how many of them are halves of pairs.
    pub(crate) fn connection_counts(&self) -> (usize, usize) {
        let serving = self.wires.iter().filter(|wire| !matches!(wire.role, Role::Joining { .. }));
        serving.fold((0, 0), |(all, halves), wire| {
            let count = wire.stream_count();
            (all + count, halves + if count > 1 { count } else { 0 })
        })
    }

    /// Count of lost connections that the session survived.
    pub(crate) fn recovered_count(&self) -> u64 {
        self.recoveries.done_count()
    }

    /// The portal group that the target named at login (RFC 7143 13.9).
    pub(crate) fn portal_group_tag(&self) -> Option<u16> {
        self.logged_in.as_ref()?.portal_group_tag.as_ref()?.parse().ok()
    }

    /// Asks for all targets.
    pub(crate) async fn send_targets(&mut self) -> Result<Vec<DiscoveredTarget>, LinkError> {
        self.wires[0].connection.send_targets(&mut self.session);
        let answer = self.until(|event| match event {
            Event::Targets(targets) => Some(targets),
            _ => None,
        });
        answer.await
    }

    /// Logs out, or gives up after [`LOGOUT_TIMEOUT`]; either way the connection is of no more use.
    pub(crate) async fn logout(&mut self) {
        let session = &self.session;
        self.wires.retain(|wire| !matches!(wire.role, Role::Joining { .. }));
        if let Some(wire) = self.wires.iter_mut().find(|wire| wire.connection.is_established()) {
            wire.connection.logout(session);
        }
        let clock = Arc::clone(&self.clock);
        let answer = self.until(|event| matches!(event, Event::LoggedOut(_)).then_some(()));
        if !matches!(within(&clock, LOGOUT_TIMEOUT, answer).await, Some(Ok(()))) {
            tracing::debug!("the logout was not answered");
        }
    }

    /// Carries out one command while nothing else is under way.
    pub(crate) async fn execute(&mut self, command: Command) -> Result<Completed, LinkError> {
        self.session.submit(self.clock.now(), command);
        self.next_completed().await
    }

    /// Waits for the next command that ends.
    pub(crate) async fn next_completed(&mut self) -> Result<Completed, LinkError> {
        poll_fn(|context| {
            loop {
                if let Some(completed) = self.session.poll_completed() {
                    return Poll::Ready(Ok(completed));
                }
                if !self.poll_io(context)? {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Bytes of commands under way, both ways.
    pub(crate) fn bytes_under_way(&self) -> usize {
        self.wires.iter().map(|wire| self.session.load(wire.connection.cid()).bytes).sum()
    }

    /// Whether all its streams can be looked at without the runtime.
    pub(crate) fn can_receive_now(&self) -> bool {
        self.wires.iter().all(Wire::can_receive_now)
    }

    /// The next event.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let serving = |wire: &&mut Wire| wire.role == Role::Serving;
        self.events
            .pop_front()
            .or_else(|| self.wires.iter_mut().filter(serving).find_map(|wire| wire.connection.poll_event()))
    }

    /// PDUs sent and received.
    pub(crate) fn pdu_counts(&self) -> (u64, u64) {
        self.wires.iter().fold(self.counters.gone_pdus, |(sent, received), wire| {
            let (wire_sent, wire_received) = wire.connection.pdu_counts();
            (sent + wire_sent, received + wire_received)
        })
    }

    /// The commands that were under way, with their buffers, in the order in which they were sent.
    pub(crate) fn into_unfinished(self) -> Vec<(u64, block::Buffer)> {
        let Self { wires, mut session, .. } = self;
        // The wires share the buffers that are being written.
        drop(wires);
        session.take_all()
    }

    /// Does what can be done without waiting. Returns whether anything was; if not, the task is woken when something
    /// can be.
    pub(crate) fn poll_io(&mut self, context: &mut Context<'_>) -> Result<bool, LinkError> {
        let now = self.clock.now();
        self.hand_out(now);
        let mut has_progressed = false;
        let mut index = 0;
        while index < self.wires.len() {
            match self.poll_wire(index, context, now) {
                Ok(has_moved) => {
                    has_progressed |= has_moved;
                    index += 1;
                }
                // The connection that was being made is tried again later.
                Err(error) if self.does_without(index, &error, now) => has_progressed = true,
                Err(error) => return Err(error),
            }
        }
        // The caller comes again at once. In a flood that never ends, what follows has its turn, too.
        if has_progressed && self.moves < MOVES_MAX {
            self.moves += 1;
            return Ok(true);
        }
        self.moves = 0;
        has_progressed |= self.recover(now)?;
        let deadlines = self.wires.iter().filter_map(|wire| wire.connection.poll_timeout(&self.session));
        let deadline = deadlines.chain(self.recoveries.deadline()).min();
        if self.alarm.poll(context, &*self.clock, now, deadline) {
            self.handle_timeouts()?;
            has_progressed = true;
        }
        if self.logged_in.is_some() {
            has_progressed |= self.settle_joined();
            has_progressed |= self.grow(context);
        }
        Ok(has_progressed)
    }

    /// Gives commands to connections, each to the one with the fewest bytes under way. One that has brought nothing for
    /// a while, though commands are under way there, comes behind the others: it may be dead, and what must not wait,
    /// such as the renewal of a lease, would be stuck there. Ordinary commands of the others wait for a number that is
    /// stuck, so where all are silent, the one that was heard last comes first.
    fn hand_out(&mut self, now: Instant) {
        let Self { wires, session, growth, .. } = self;
        while session.has_to_send() {
            let is_usable = |wire: &&mut Wire| {
                let is_of_use = !growth.is_splitting || wire.connection.is_split();
                wire.role == Role::Serving && is_of_use && wire.connection.takes_commands(session)
            };
            let burden = |wire: &&mut Wire| (wire.silence(now, session), session.load(wire.connection.cid()).bytes);
            let least = wires.iter_mut().filter(is_usable).min_by_key(burden);
            match least {
                Some(wire) => wire.send_next(now, session),
                None => return,
            };
        }
    }

    fn poll_wire(&mut self, index: usize, context: &mut Context<'_>, now: Instant) -> Result<bool, LinkError> {
        let Self { wires, session, counters, is_looking, .. } = self;
        let Some(wire) = wires.get_mut(index) else { return Ok(false) };
        let mut has_progressed = wire.poll_write(context, session, counters)?;
        has_progressed |= wire.poll_read(context, now, session, counters, *is_looking)?;
        Ok(has_progressed)
    }

    fn handle_timeouts(&mut self) -> Result<(), LinkError> {
        let now = self.clock.now();
        let mut index = 0;
        while let Some(wire) = self.wires.get_mut(index) {
            match wire.connection.handle_timeout(now, &mut self.session).map_err(LinkError::from) {
                Ok(()) => index += 1,
                Err(error) if self.does_without(index, &error, now) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Handles the failure of a connection. Returns whether the session goes on without it.
    fn does_without(&mut self, index: usize, error: &LinkError, now: Instant) -> bool {
        self.give_up_joining(index, error) || self.let_go(index) || self.lose(index, error, now)
    }

    /// Drops a connection whose tasks others take over. Returns `false` when no other connection
    /// can.
    fn lose(&mut self, index: usize, error: &LinkError, now: Instant) -> bool {
        if self.logged_in.is_none() || !Recoveries::can_do_without(&self.session, &self.wires, index) {
            return false;
        }
        let cid = self.wires[index].connection.cid();
        tracing::warn!(%error, cid, portal = %self.growth.portal, "a connection is lost; the session goes on");
        let wire = self.remove_wire(index);
        wire.connection.abandon(&mut self.session);
        self.recoveries.begin(now, cid);
        true
    }

    /// Continues the recovery of lost connections. Returns whether there was progress.
    fn recover(&mut self, now: Instant) -> Result<bool, LinkError> {
        let mut has_progressed = false;
        // A connection that the target says it dropped is of no use, whatever the state of our end.
        let dropped: Vec<u16> = self.wires.iter_mut().filter_map(|wire| wire.connection.poll_dropped()).collect();
        for cid in dropped {
            let is_it = |wire: &Wire| wire.connection.cid() == cid && wire.role == Role::Serving;
            let Some(index) = self.wires.iter().position(is_it) else { continue };
            let error = LinkError::Connection(ConnectionError::Dropped { wait_seconds: 0 });
            if !self.does_without(index, &error, now) {
                return Err(error);
            }
            has_progressed = true;
        }
        let Self { recoveries, session, wires, .. } = self;
        Ok(recoveries.advance(now, session, wires)? || has_progressed)
    }

    /// Drops a connection that was still logging in to the session. False when it is another one, which the session
    /// cannot do without.
    fn give_up_joining(&mut self, index: usize, error: &LinkError) -> bool {
        let Some(Role::Joining { answers_for }) = self.wires.get(index).map(|wire| wire.role) else { return false };
        self.drop_wire(index);
        let refused = match error {
            LinkError::Connection(ConnectionError::Login(LoginError::Refused(status))) => Some(*status),
            _ => None,
        };
        match (refused, answers_for) {
            (Some(LoginStatus::TOO_MANY_CONNECTIONS), None) => self.growth.settle_for(self.wires.len()),
            // The session goes on as a standard one.
            (Some(status), Some(_)) => {
                tracing::warn!(status = status.name(), "the target refuses to split a connection");
                let pairs = self.wires.iter().filter(|wire| wire.connection.is_split()).count();
                self.growth.stop_splitting(pairs);
            }
            (_, _) => self.growth.note_failure(&error.to_string()),
        }
        true
    }

    /// Drops a connection that asked for its logout: it may be closed before the answer is read. False when it is
    /// another one.
    fn let_go(&mut self, index: usize) -> bool {
        let is_over = |wire: &Wire| {
            let is_idle = self.session.load(wire.connection.cid()).commands == 0;
            wire.role == Role::Leaving && !wire.connection.is_established() && is_idle
        };
        let is_gone = self.wires.get(index).is_some_and(is_over);
        if is_gone {
            self.drop_wire(index);
        }
        is_gone
    }

    /// Puts connections to use that have logged in.
    fn settle_joined(&mut self) -> bool {
        let mut has_progressed = false;
        let mut index = 0;
        while let Some(wire) = self.wires.get_mut(index) {
            match wire.role {
                Role::Joining { answers_for } if wire.connection.is_established() => {
                    has_progressed = true;
                    self.growth.note_success();
                    while wire.connection.poll_event().is_some() {}
                    let Some(cid) = answers_for else {
                        wire.role = Role::Serving;
                        continue;
                    };
                    let half = self.wires.remove(index);
                    // The request half is always found: losing it would have ended the session.
                    if let Some(wire) = self.wires.iter_mut().find(|wire| wire.connection.cid() == cid) {
                        wire.take_response_half(half);
                    }
                }
                Role::Leaving => {
                    if wire.connection.is_closed() {
                        self.drop_wire(index);
                        has_progressed = true;
                    } else {
                        index += 1;
                    }
                }
                Role::Joining { .. } | Role::Serving => index += 1,
            }
        }
        has_progressed
    }

    /// One step towards the connections that the session is to have.
    fn grow(&mut self, context: &mut Context<'_>) -> bool {
        let Self { growth, wires, .. } = self;
        if let Some(opened) = growth.poll_opened(context, |cid| wires.iter().any(|wire| wire.connection.cid() == cid)) {
            self.join(opened);
            return true;
        }
        let target_count = self.growth.target_count();
        let mut has_progressed = self.shrink(target_count);
        let is_joining = self.wires.iter().any(|wire| matches!(wire.role, Role::Joining { .. }));
        // The target may still count a lost connection among those it allows.
        if is_joining || !self.recoveries.is_empty() || !self.growth.is_idle(context) {
            return has_progressed;
        }
        let (session, is_splitting) = (&self.session, self.growth.is_splitting);
        let mut serving = self.wires.iter().filter(|wire| wire.role == Role::Serving);
        let unsplit = serving.find(|wire| is_splitting && !wire.connection.is_split());
        if let Some(wire) = unsplit {
            // Every command that was sent there must have been answered first.
            if session.load(wire.connection.cid()).commands == 0 && wire.connection.is_transmit_empty() {
                self.growth.open(Some(wire.connection.cid()));
                has_progressed = true;
            }
        } else if self.wires.len() < target_count {
            self.growth.open(None);
            has_progressed = true;
        }
        has_progressed
    }

    /// Logs surplus connections out, the youngest first, each when nothing is under way there.
    fn shrink(&mut self, target_count: usize) -> bool {
        let serving = self.wires.iter().filter(|wire| wire.role == Role::Serving).count();
        let too_many = serving.saturating_sub(target_count);
        let youngest = self.wires.iter_mut().rev().filter(|wire| wire.role == Role::Serving).take(too_many);
        youngest.for_each(|wire| wire.role = Role::Leaving);
        let mut has_progressed = too_many > 0;
        for wire in self.wires.iter_mut().filter(|wire| wire.role == Role::Leaving && wire.connection.is_established())
        {
            if self.session.load(wire.connection.cid()).commands == 0 {
                wire.connection.leave(&self.session);
                has_progressed = true;
            }
        }
        has_progressed
    }

    fn join(&mut self, opened: Opened) {
        let Opened { stream, cid, answers_for } = opened;
        let options = &self.growth.options;
        match options.login(self.growth.isid, false) {
            Ok(config) => {
                let config = LoginConfig { tsih: self.session.tsih(), cid, answers_for, ..config };
                let mut connection = Connection::new(self.clock.now(), &self.session, config, options.timing());
                connection.count_sizes(&options.pdu_sizes);
                self.wires.push(Wire::new(stream, connection, Role::Joining { answers_for }));
            }
            Err(error) => self.growth.note_failure(&error.to_string()),
        }
    }

    fn drop_wire(&mut self, index: usize) {
        let cid = self.remove_wire(index).connection.cid();
        self.session.forget_connection(cid);
    }

    fn remove_wire(&mut self, index: usize) -> Wire {
        let mut wire = self.wires.remove(index);
        let is_news = |event: &Event| !matches!(event, Event::LoggedIn(_) | Event::LoggedOut(_));
        self.events.extend(std::iter::from_fn(|| wire.connection.poll_event()).filter(is_news));
        let (sent, received) = wire.connection.pdu_counts();
        self.counters.gone_pdus.0 += sent;
        self.counters.gone_pdus.1 += received;
        wire
    }

    /// Drives the session until `pick` takes an event; other events are dropped.
    async fn until<T>(&mut self, mut pick: impl FnMut(Event) -> Option<T>) -> Result<T, LinkError> {
        poll_fn(|context| {
            loop {
                while let Some(event) = self.poll_event() {
                    if let Some(picked) = pick(event) {
                        return Poll::Ready(Ok(picked));
                    }
                }
                if !self.poll_io(context)? {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}
