//! The loop that drives one session with all its connections.
//!
//! One future, no tasks of its own. A turn of the loop:
//!
//! ```text
//! events ──► execute; answered in place? ──► complete     (else among the running)
//! running executions that ended ──► complete
//! connections that join
//! each connection: queued bytes ──► one vectored write; socket ──► the buffer that the protocol names
//! ```
//!
//! A slow initiator is not read from, and its next commands are not started, while its queued and
//! expected bytes reach its quota: it holds no more buffers than that. When others wait for room,
//! it must take some of its queued bytes within a time, or its session ends.
//!
//! A session works in portions: a turn moves a bounded count of bytes, a poll ends after a bounded
//! time, and then the runtime looks at all sockets and all other sessions before this one goes on.

mod new_units;
mod sharing;
mod units;
mod wire;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use base::busy_poll::{BusyPoll, depth_of};
use base::clock::{Instant, Sleep};
use block::PollWakes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};
use iscsi::target as protocol;
use iscsi::target::{CloseReason, Event, SessionRequest, TaskId, TaskManagement, TaskManagementId};
use logical_unit::{Execution, LunMap, NexusId, Outcome};
use scsi::cdb::Traffic;
use scsi::sharing::action_out;
use scsi::{Cdb, CdbError};

use crate::connections::host;
use crate::control::{Control, Directive, Handle};
use crate::data_in::buffer_bytes;
use crate::limits::{
    COMMANDS_PER_LOOK, DATA_IN_FIRST_BYTES, DRAIN_GRACE, LIGHT_BYTES, LIGHT_TURNS, LINGER_TIMEOUT, SETTLING_TIMEOUT,
    TURNS_PER_POLL_MAX, UNREAD_CHECK_INTERVAL, UNREAD_TIMEOUT,
};
use crate::sessions::{Inbox, Joining};
use crate::shared::Shared;
use crate::status::{ConnectionReport, SessionActivity, SessionReport};
use crate::tally::{Tally, failure_kind};
use crate::target::{data_out_of, lun_number};
use crate::turns::{Place, Turns};

use self::new_units::Refusal;
use self::sharing::Sharing;
use self::units::Units;
use self::wire::{Exchange, Wire, send_last_words};

/// A session being served.
pub(crate) struct Session {
    server: Arc<Shared>,
    tsih: u16,
    protocol: protocol::Session,
    /// The session's own control, that of its first connection. It outlives that connection.
    control: Control,
    handle: Handle,
    inbox: Inbox,
    wires: Vec<Wire>,
    /// `None` in a discovery session.
    units: Option<Units>,
    running: FuturesUnordered<Running>,
    managing: FuturesUnordered<Managing>,
    /// Bytes of data-in that commands under way may bring.
    expected_bytes: usize,
    /// The bytes queued or expected that were last reported to the server.
    charged_bytes: usize,
    /// An event that must wait until the initiator has taken queued data.
    delayed: Option<Event>,
    sharing: Sharing,
    /// Whether it waits for room, and is woken when other sessions have freed some.
    waits_for_room: bool,
    /// Whether the table of sessions knows that it has no connection.
    is_unconnected: bool,
    /// When it last checked whether others wait for the buffers that this initiator does not empty.
    unread_checked: Option<Instant>,
    timer: Option<(Instant, Sleep)>,
    drain_deadline: Option<Instant>,
    closed: Option<CloseReason>,
    /// The deadline of an ended session for its I/O under way, while the server goes on.
    settling_deadline: Option<Instant>,
    counted_pdus: (u64, u64),
    counted_digest_errors: u64,
    busy_poll: BusyPoll,
    /// Bytes transferred until the last pause.
    paused_bytes: u64,
    place: Place,
    /// What becomes ready while it is polled waits for the session's next turn: the runtime would poll
    /// it again before it looks at any socket.
    own_wakes: PollWakes,
    /// Whether commands under way have done a piece, and continue after other sessions have had
    /// their turn.
    can_go_on: bool,
    /// Whether a command of this poll did more work, or may have, than its bytes show.
    has_worked_hard: bool,
    /// When the last command was answered, if that was just now: the next one counts from then,
    /// without reading the clock.
    answered_at: Option<Instant>,
}

/// The data for counting a command when it ends.
struct Ticket {
    task: TaskId,
    lun: u64,
    tally: Arc<Tally>,
    traffic: Traffic,
    data_out_bytes: usize,
    /// When the command had arrived with its data.
    begun: Instant,
    expected_bytes: usize,
}

/// The cost of a command so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    /// As much as its bytes show, and a microsecond.
    OfBytes,
    /// Only the clock tells: it has a list of things to do, has done the first of many pieces, or reads and compares
    /// as well as it writes.
    Unknown,
}

/// A command that was not answered in place.
struct Running {
    ticket: Option<Ticket>,
    execution: Execution,
}

impl Future for Running {
    type Output = (Option<Ticket>, Outcome);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = std::task::ready!(Pin::new(&mut self.execution).poll(context));
        Poll::Ready((self.ticket.take(), outcome))
    }
}

type Managing = Pin<Box<dyn Future<Output = (TaskManagementId, TaskManagementFunction, TaskManagementOutcome)> + Send>>;

impl Session {
    /// Makes a session of a login.
    pub(crate) fn begin(
        server: Arc<Shared>,
        joining: Joining,
        tsih: u16,
        request: &SessionRequest,
        turns: Arc<Turns>,
    ) -> Option<Self> {
        let Joining { stream, addresses, mut protocol, control, entered, .. } = joining;
        let luns = LunMap::new();
        let units = request.target_name.as_ref().map(|name| {
            let nexus = NexusId::new(&format!(
                "{},i,0x{},{},t,0x{:04x}",
                request.initiator_name, request.isid, name, request.portal_group_tag
            ));
            luns.add_nexus(&nexus);
            protocol.set_data_out_of(data_out_of(&luns));
            (name.clone(), luns.clone(), nexus)
        });
        tracing::info!(
            connection = %addresses.peer, session = tsih, initiator = %request.initiator_name,
            target = request.target_name.as_deref().unwrap_or("(discovery)"),
            user = request.authenticated_name.as_deref(), "session began"
        );
        let handle = control.handle();
        let inbox = server.sessions.begin(tsih, &handle, luns, |name| server.target(name));
        let units = units.map(|(target_name, luns, nexus)| Units::new(target_name, luns, nexus));
        let busy_poll = BusyPoll::new(server.busy_poll);
        let (protocol, link) = protocol::Session::begin(server.clock.now(), protocol, tsih)?;
        let place = Place::new(turns, &host(&addresses.peer), &request.initiator_name);
        let wire = Wire::new(link, stream, addresses, entered);
        Some(Self {
            server,
            tsih,
            protocol,
            control,
            handle,
            inbox,
            wires: vec![wire],
            units,
            running: FuturesUnordered::new(),
            managing: FuturesUnordered::new(),
            expected_bytes: 0,
            charged_bytes: 0,
            delayed: None,
            sharing: Sharing::new(request.may_share),
            waits_for_room: false,
            is_unconnected: false,
            unread_checked: None,
            timer: None,
            drain_deadline: None,
            closed: None,
            settling_deadline: None,
            counted_pdus: (0, 0),
            counted_digest_errors: 0,
            busy_poll,
            paused_bytes: 0,
            place,
            own_wakes: PollWakes::default(),
            can_go_on: false,
            has_worked_hard: false,
            answered_at: None,
        })
    }

    /// Drives it to its end.
    pub(crate) async fn run(mut self) -> CloseReason {
        poll_fn(|context| self.poll(context)).await
    }

    /// One wake-up: turns while there is progress.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<CloseReason> {
        if !self.place.begin(context) {
            return Poll::Pending;
        }
        let portion = self.place.portion();
        let begun = self.server.clock.now();
        let until = begun + portion.time;
        let before = self.transferred_bytes();
        self.has_worked_hard = false;
        for turn in 0..TURNS_PER_POLL_MAX {
            let mut has_moved = self.handle_events((portion.bytes, until), context);
            has_moved |= self.poll_running(until, context);
            has_moved |= self.poll_control(context);
            has_moved |= self.poll_inbox(context);
            has_moved |= self.poll_messages(context);
            has_moved |= self.poll_held(context);
            has_moved |= self.poll_wires((portion.bytes, until), context);
            if let Some(reason) = self.closed.clone().filter(|_| self.wires.is_empty() && self.is_settled()) {
                return Poll::Ready(reason);
            }
            has_moved |= self.poll_timer(context);
            self.count_pdus();
            self.charge();
            self.note_unconnected();
            self.answer_inquirers();
            if !has_moved {
                self.place.rest(|| self.server.clock.now().since(begun));
                return self.pause(context);
            }
            self.busy_poll.note_traffic();
            if turn == 0 {
                self.place.note_work();
            }
            // A turn carries out what the last one received: a small command is answered in one
            // poll, whatever time the system takes.
            let is_light = turn < LIGHT_TURNS
                && !self.can_go_on
                && !self.has_worked_hard
                && self.transferred_bytes().saturating_sub(before) <= LIGHT_BYTES;
            if !is_light && self.server.clock.now() >= until {
                break;
            }
        }
        self.place.stand_in_line(context, || self.server.clock.now().since(begun));
        Poll::Pending
    }

    /// Without progress: waits for a wake-up, or polls the sockets again after the other sessions
    /// of the shard have had their turn.
    fn pause(&mut self, context: &Context<'_>) -> Poll<CloseReason> {
        let depth = self.awaited_depth();
        let server = &self.server;
        if self.busy_poll.goes_on(depth, || server.clock.now()) {
            context.waker().wake_by_ref();
        } else if let Some(counts) = self.busy_poll.take_counts() {
            server.counters.count_busy_poll(counts);
        }
        Poll::Pending
    }

    /// An estimate of how many commands the initiator keeps under way; zero unless only the
    /// initiator can act next. What it has not acknowledged it has received just now, at most.
    fn awaited_depth(&mut self) -> usize {
        let unacknowledged: u32 = self.wires.iter().map(|wire| self.protocol.unacknowledged_responses(wire.link)).sum();
        let can_look = self.wires.iter().all(|wire| wire.stream.can_receive_now() && wire.closed.is_none());
        let transferred = self.transferred_bytes();
        let bytes = transferred.saturating_sub(std::mem::replace(&mut self.paused_bytes, transferred));
        match unacknowledged {
            1.. if self.running.is_empty() && can_look => depth_of(unacknowledged as usize, bytes as usize),
            _ => 0,
        }
    }

    /// Handles events until a portion of bytes is moved or the time is over.
    fn handle_events(&mut self, (bytes_max, until): (usize, Instant), context: &Context<'_>) -> bool {
        let mut has_moved = false;
        let mut moved_bytes = 0;
        let mut count = 0;
        let mut next_look = COMMANDS_PER_LOOK;
        self.answered_at = None;
        while moved_bytes < bytes_max
            && let Some(event) = self.next_event()
        {
            let event = match event {
                Event::Command(command) if !self.has_room_for(command.data_in_bytes_max, context) => {
                    let task = command.task;
                    // One that was aborted meanwhile needs no room, and later events must not wait for it; nor for one
                    // that they may abort.
                    if !self.protocol.is_wanted(task) {
                        self.protocol.handle_completion(self.server.clock.now(), task, protocol::Outcome::default());
                        continue;
                    }
                    if self.protocol.is_suspended(task) {
                        self.protocol.take_back(command);
                        continue;
                    }
                    self.delayed = Some(Event::Command(command));
                    has_moved |= self.carry_out_answers(until);
                    break;
                }
                event => event,
            };
            has_moved = true;
            count += 1;
            if !matches!(event, Event::Command(_)) {
                self.answered_at = None;
            }
            match event {
                Event::Command(command) => {
                    moved_bytes += command.data_in_bytes_max as usize + command.data_out.len();
                    if self.execute(command) == Cost::Unknown {
                        self.has_worked_hard = true;
                        next_look = count;
                    }
                }
                Event::DataHeld(held) => {
                    if self.is_refused_later(&held) || !self.sharing.hold_data(&held, self.units.as_ref()) {
                        self.protocol.ask_for_data(self.server.clock.now(), held.task);
                    }
                }
                Event::TaskManagement(request) => self.manage(request),
                Event::CommandsCleared(luns) => {
                    if let Some(units) = &self.units {
                        luns.iter().for_each(|&lun| units.luns.tell_of_cleared_commands(&units.nexus, lun_number(lun)));
                    }
                }
                Event::Logout => self.leave_units(),
                Event::LinkClosed(link, reason) => {
                    let until = self.server.clock.now() + LINGER_TIMEOUT;
                    if let Some(wire) = self.wires.iter_mut().find(|wire| wire.link == link) {
                        wire.closed.get_or_insert((reason, until));
                    }
                    self.sharing.rewind_messages(self.units.as_ref());
                }
                Event::Closed(reason) => {
                    let until = self.server.clock.now() + LINGER_TIMEOUT;
                    for wire in &mut self.wires {
                        wire.closed.get_or_insert((reason.clone(), until));
                    }
                    self.closed = Some(reason);
                    self.settling_deadline = Some(self.server.clock.now() + SETTLING_TIMEOUT);
                    self.leave_units();
                }
            }
            if count >= next_look {
                if self.answered_at.unwrap_or_else(|| self.server.clock.now()) >= until {
                    break;
                }
                next_look = count + COMMANDS_PER_LOOK;
            }
        }
        if count > 0 {
            self.place.note_commands(moved_bytes);
        }
        has_moved
    }

    fn next_event(&mut self) -> Option<Event> {
        let earlier = self.delayed.take().or_else(|| self.sharing.next_postponed());
        earlier.or_else(|| self.protocol.poll_event())
    }

    /// Carries out the answers of a client of a shared unit although earlier commands wait for
    /// room: the commands that have the room may wait for the answer. Answers for which there is no
    /// time stay queued.
    fn carry_out_answers(&mut self, until: Instant) -> bool {
        let mut has_moved = false;
        while !(has_moved && self.server.clock.now() >= until)
            && let Some(command) = self.sharing.next_answer(&mut self.protocol)
        {
            has_moved = true;
            self.execute(command);
        }
        has_moved
    }

    /// Requests data that other hosts held back, and may come now.
    fn poll_held(&mut self, context: &mut Context<'_>) -> bool {
        let free = self.sharing.poll_free(&self.protocol, context);
        if free.is_empty() {
            return false;
        }
        let now = self.server.clock.now();
        free.iter().for_each(|task| self.protocol.ask_for_data(now, *task));
        true
    }

    /// Sends the messages of shared units to this initiator.
    fn poll_messages(&mut self, context: &Context<'_>) -> bool {
        let Some(units) = self.units.as_ref().filter(|_| self.sharing.is_negotiated()) else { return false };
        let now = || self.server.clock.now();
        self.sharing.send_messages(units, &mut self.protocol, now, context.waker())
    }

    /// The deadline of an ended session for its I/O under way. At the end of the server no session
    /// replaces it.
    fn settling_end(&self) -> Option<Instant> {
        let server_end = self.drain_deadline.map(|deadline| deadline + LINGER_TIMEOUT);
        self.settling_deadline.map(|deadline| server_end.map_or(deadline, |end| deadline.min(end)))
    }

    /// Whether an ended session has no more I/O with its backends. A session that replaces it waits
    /// for this (RFC 7143 6.3.5): no write of the old session lands after the new one began.
    fn is_settled(&self) -> bool {
        let is_late = || self.settling_end().is_some_and(|end| self.server.clock.now() >= end);
        if !self.running.is_empty() && is_late() {
            tracing::warn!(
                tsih = self.tsih,
                commands = self.running.len(),
                "a session is left with I/O that does not end"
            );
            return true;
        }
        self.running.is_empty()
    }

    /// Whether a command with this much data-in can start now. If it must wait for others, it is
    /// woken when they have freed room.
    fn has_room_for(&mut self, data_in_bytes_max: u32, context: &Context<'_>) -> bool {
        let bytes = buffer_bytes(data_in_bytes_max);
        let used = self.used_bytes();
        let data_in = &self.server.data_in;
        let has_room = || data_in.has_room_for(bytes, used, self.charged_bytes);
        if has_room() {
            self.stop_waiting();
            return true;
        }
        if used > 0 {
            return false;
        }
        data_in.wait(self.tsih, context.waker());
        self.waits_for_room = true;
        if has_room() {
            self.stop_waiting();
            return true;
        }
        false
    }

    fn stop_waiting(&mut self) {
        if std::mem::take(&mut self.waits_for_room) {
            self.server.data_in.leave(self.tsih);
        }
    }

    /// Bytes received and sent on the connections that are there.
    fn transferred_bytes(&self) -> u64 {
        self.wires.iter().map(|wire| wire.bytes_received + wire.bytes_sent).sum()
    }

    /// Bytes of memory of data-in queued or under way.
    fn used_bytes(&self) -> usize {
        let queued: usize = self.wires.iter().map(|wire| self.protocol.data_bytes_held(wire.link)).sum();
        self.expected_bytes + queued + self.protocol.held_answer_bytes()
    }

    /// Starts a command, which completes at once if the device answers at once.
    fn execute(&mut self, command: protocol::Command) -> Cost {
        let may_share = self.sharing.is_negotiated();
        let Some(units) = self.units.as_mut() else { return Cost::OfBytes };
        let lun = lun_number(command.lun);
        let cdb = match command.cdb {
            Ok(cdb) if cdb.is_of_sharing() && !may_share => Err(CdbError::UnknownOperationCode(cdb.code().0)),
            cdb => cdb,
        };
        let class = cdb.as_ref().map(Cdb::class).ok();
        if let Ok(Cdb::SharingOut { service_action: action_out::REGISTER, .. }) = cdb {
            self.sharing.register_on(self.protocol.link_of(command.task), units);
        }
        let ticket = Ticket {
            task: command.task,
            lun,
            tally: units.tally(lun, &self.server),
            traffic: class.map_or(Traffic::Other, |class| class.traffic),
            data_out_bytes: command.data_out.len(),
            begun: self.answered_at.take().unwrap_or_else(|| self.server.clock.now()),
            expected_bytes: buffer_bytes(command.data_in_bytes_max),
        };
        let command = logical_unit::Command {
            cdb,
            data_out: command.data_out,
            data_in_bytes_max: command.data_in_bytes_max,
            attribute: command.attribute,
            task_tag: u64::from(command.task.initiator_task_tag.get()),
        };
        let mapped = units.luns.mapped(lun);
        let refusal = units.refuse((lun, mapped.as_ref()), (ticket.task, &command.cdb), &mut self.protocol);
        if let Some(Refusal { outcome, news }) = refusal {
            self.answered_at = Some(self.complete_with_news(&ticket, outcome, news));
            return Cost::OfBytes;
        }
        let mut execution = units.luns.execute_at(&units.nexus, mapped.as_ref(), command);
        let outcome = execution.try_take();
        let cost = match ticket.traffic {
            _ if class.is_some_and(|class| class.reads_what_it_writes) => Cost::Unknown,
            Traffic::Other if outcome.is_none() || ticket.data_out_bytes > 0 => Cost::Unknown,
            Traffic::Read | Traffic::Write | Traffic::Other => Cost::OfBytes,
        };
        match outcome {
            Some(outcome) => self.answered_at = Some(self.complete(&ticket, outcome)),
            None => {
                self.expected_bytes += ticket.expected_bytes;
                self.running.push(Running { ticket: Some(ticket), execution });
            }
        }
        cost
    }

    /// Whether a command whose data is not requested yet will be refused: it has no business at the gate of its unit.
    fn is_refused_later(&mut self, held: &protocol::HeldData) -> bool {
        let Some(units) = &mut self.units else { return false };
        let lun = lun_number(held.lun);
        let mapped = units.luns.mapped(lun);
        mapped.is_some_and(|mapped| units.new_units.is_unknown(lun, &mapped, held.task, &mut self.protocol))
    }

    /// Sense data in the format the logical unit is set to.
    fn sense_bytes(&self, lun: u64, sense: &scsi::Sense) -> Vec<u8> {
        let units = self.units.as_ref();
        units.map_or_else(|| sense.emit_fixed().to_vec(), |units| units.luns.sense_bytes(lun, sense))
    }

    /// Completes a command. Returns the time, which it reads for that.
    fn complete(&mut self, ticket: &Ticket, outcome: Outcome) -> Instant {
        self.complete_with_news(ticket, outcome, Vec::new())
    }

    /// Completes a command that has waited: its unit may have gone meanwhile.
    fn complete_late(&mut self, ticket: &Ticket, outcome: Outcome) {
        let place = (ticket.lun, ticket.task);
        let units = self.units.as_mut();
        let refusal = units.and_then(|units| units.refuse_left_behind(place, &outcome, &mut self.protocol));
        let Refusal { outcome, news } = refusal.unwrap_or(Refusal { outcome, news: Vec::new() });
        self.complete_with_news(ticket, outcome, news);
    }

    /// The same, with news that the response brings ([`new_units`]).
    fn complete_with_news(&mut self, ticket: &Ticket, outcome: Outcome, news: Vec<u64>) -> Instant {
        let now = self.server.clock.now();
        let bytes = match ticket.traffic {
            Traffic::Read => outcome.data_in.len(),
            Traffic::Write => ticket.data_out_bytes,
            Traffic::Other => 0,
        };
        ticket.tally.count(ticket.traffic, bytes, now.since(ticket.begun));
        if outcome.status != scsi::Status::Good {
            self.note_failure(ticket, &outcome);
        }
        let outcome = protocol::Outcome {
            status: outcome.status.code(),
            sense: outcome.sense.map(|sense| self.sense_bytes(ticket.lun, &sense)).unwrap_or_default(),
            data_in: outcome.data_in,
            data_in_bytes_cut: outcome.data_in_bytes_cut,
            is_silent: outcome.is_silent,
            news,
        };
        self.protocol.handle_completion(now, ticket.task, outcome);
        now
    }

    /// Counts a command that did not end with GOOD, and logs it if a disk is the cause.
    fn note_failure(&self, ticket: &Ticket, outcome: &Outcome) {
        let kind = failure_kind(outcome.status, outcome.sense.as_ref());
        ticket.tally.count_failure(kind);
        let request = self.protocol.request();
        let (initiator, target) = (&request.initiator_name, request.target_name.as_deref());
        let (session, lun) = (self.tsih, ticket.lun);
        let sense = outcome.sense.as_ref().map(tracing::field::display);
        if matches!(kind, "medium_error" | "hardware_error") {
            if let Some(others) = self.server.failures.note(self.server.clock.now()) {
                tracing::error!(session, initiator, target, lun, kind, sense, others, "a command failed");
            }
        } else {
            tracing::debug!(session, initiator, target, lun, kind, sense, "a command ended with an error");
        }
    }

    /// Reports the bytes queued or expected to the server, in steps.
    fn charge(&mut self) {
        self.charged_bytes = self.server.data_in.tell(self.charged_bytes, self.used_bytes());
    }

    /// Reports to the table of sessions that the last connection is lost, or that there is one
    /// again.
    fn note_unconnected(&mut self) {
        let is_unconnected = self.wires.is_empty() && self.closed.is_none();
        if std::mem::replace(&mut self.is_unconnected, is_unconnected) != is_unconnected {
            self.server.sessions.set_unconnected(self.tsih, &self.handle, is_unconnected);
        }
    }

    fn answer_inquirers(&self) {
        for inquirer in self.control.inquirers() {
            // An inquirer that has given up does not receive it.
            let _ = inquirer.send(self.report());
        }
    }

    fn report(&self) -> SessionReport {
        let now = self.server.clock.now();
        let tickets = || self.running.iter().filter_map(|running| running.ticket.as_ref());
        let oldest = tickets().map(|ticket| ticket.begun).min();
        let connection = |wire: &Wire| {
            let link = self.protocol.link_report(wire.link)?;
            let (bytes_received, bytes_sent) = (wire.bytes_received, wire.bytes_sent);
            Some((wire.entered.number, ConnectionReport { link, bytes_received, bytes_sent }))
        };
        SessionReport {
            activity: SessionActivity {
                commands_under_way: tickets().count(),
                oldest_command_ms: oldest.map(|begun| now.since(begun).as_millis() as u64),
                tasks: self.protocol.task_count(),
                outstanding_data_in_bytes: self.used_bytes(),
            },
            connections: self.wires.iter().filter_map(connection).collect(),
        }
    }

    /// Continues commands under way, until the time is over.
    fn poll_running(&mut self, until: Instant, outer: &Context<'_>) -> bool {
        if self.running.is_empty() && self.managing.is_empty() {
            self.can_go_on = false;
            return false;
        }
        let mut has_moved = false;
        let mut is_time_over = false;
        let waker = self.own_wakes.waker().clone();
        let context = &mut Context::from_waker(&waker);
        self.own_wakes.register(outer.waker());
        self.own_wakes.begin();
        while !is_time_over && let Poll::Ready(Some((ticket, outcome))) = self.running.poll_next_unpin(context) {
            has_moved = true;
            is_time_over = self.server.clock.now() >= until;
            if let Some(ticket) = ticket {
                self.expected_bytes -= ticket.expected_bytes;
                self.complete_late(&ticket, outcome);
            }
        }
        while let Poll::Ready(Some((id, function, outcome))) = self.managing.poll_next_unpin(context) {
            has_moved = true;
            self.protocol.handle_task_management(self.server.clock.now(), id, outcome);
            if function == TaskManagementFunction::TargetColdReset
                && let Some(units) = &self.units
            {
                // A power-on event: all sessions end (RFC 7143 11.5.1); those of others only if
                // this initiator may write.
                if units.luns.is_confined(&units.nexus) {
                    self.handle.ask(Directive::Stop);
                } else {
                    self.server.sessions.ask_target(&units.target_name, Directive::Stop);
                }
            }
        }
        // Other executions may have been woken already, and will not wake the session again.
        self.can_go_on = self.own_wakes.end() || is_time_over;
        self.can_go_on || has_moved
    }

    fn manage(&mut self, request: TaskManagement) {
        let TaskManagement { id, function, lun, task } = request;
        let Some(units) = self.units.as_ref() else {
            let outcome = TaskManagementOutcome::FunctionNotSupported;
            return self.protocol.handle_task_management(self.server.clock.now(), id, outcome);
        };
        if let Some(outcome) = units.manage(function, lun, &self.protocol) {
            tracing::debug!(nexus = ?units.nexus, %function, %outcome, "task management");
            return self.protocol.handle_task_management(self.server.clock.now(), id, outcome);
        }
        let tag = task.map(|task| u64::from(task.initiator_task_tag.get()));
        // It takes effect at the call; the wait is for the end of I/O under way.
        let managing = units.luns.task_management(&units.nexus, function, Some(lun_number(lun)), tag);
        match managing.outcome() {
            // Of the latter the task ended before the abort.
            TaskManagementOutcome::FunctionComplete | TaskManagementOutcome::TaskDoesNotExist => {
                self.protocol.handle_carrying_out(self.server.clock.now(), id);
                self.managing.push(Box::pin(async move {
                    managing.await;
                    (id, function, TaskManagementOutcome::FunctionComplete)
                }));
            }
            refused => self.protocol.handle_task_management(self.server.clock.now(), id, refused),
        }
    }

    fn poll_control(&mut self, context: &Context<'_>) -> bool {
        let server = &self.server;
        // Almost every turn ends here without reading the clock.
        let now = || server.clock.now();
        let mut directive = self.control.poll_directive(context);
        // A connection that joined gets the same directive as its session.
        for wire in &self.wires {
            if let Some(control) = &wire.control {
                directive = directive.max(control.poll_directive(context));
            }
        }
        match directive {
            Directive::Run => return false,
            Directive::Drain if self.drain_deadline.is_none() => {
                let drain_seconds = server.options.drain_seconds;
                self.drain_deadline = Some(now() + Duration::from_secs(drain_seconds.into()) + DRAIN_GRACE);
                self.protocol.request_logout(now(), drain_seconds);
            }
            // Also a connection that is logging out and waits for I/O that does not end.
            Directive::Drain
                if self.drain_deadline.is_some_and(|deadline| now() >= deadline) && !self.protocol.is_closed() =>
            {
                self.protocol.drop_session(now());
            }
            Directive::Stop if !self.protocol.is_closed() => self.protocol.close(now(), CloseReason::Local),
            Directive::Drain | Directive::Stop => return false,
        }
        true
    }

    /// Takes connections that logged in to this session.
    fn poll_inbox(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_moved = false;
        while let Poll::Ready(Some(joining)) = self.inbox.poll_recv(context) {
            has_moved = true;
            self.take_in(*joining);
        }
        has_moved
    }

    fn take_in(&mut self, joining: Joining) {
        let Joining { stream, addresses, mut protocol, control, entered, ended } = joining;
        let now = self.server.clock.now();
        let Some(request) = protocol.request().cloned() else { return };
        if let Err((status, detail)) = self.protocol.check_join(&request) {
            self.server.counters.count_refused_login(status);
            protocol.refuse_session(now, status, detail);
            send_last_words(stream, &protocol);
            let _ = ended.send(CloseReason::LoginRefused { status, detail: detail.to_owned() });
            return;
        }
        let stream = match stream.rehome() {
            Ok(stream) => stream,
            Err(error) => {
                return tracing::debug!(connection = %addresses.peer, %error, "a connection was lost on its way");
            }
        };
        let Some(link) = self.protocol.join(now, protocol) else { return };
        tracing::info!(connection = %addresses.peer, session = self.tsih, cid = request.cid, "connection joined");
        let (ended, control) = (Some(ended), Some(control));
        self.wires.push(Wire { control, ended, ..Wire::new(link, stream, addresses, entered) });
    }

    fn poll_wires(&mut self, (bytes_max, until): (usize, Instant), context: &mut Context<'_>) -> bool {
        let mut has_moved = false;
        // This session's own commands may wait for an answer of its client of a shared unit.
        let may_share = self.sharing.is_negotiated();
        // So may its answers, for an acknowledgement.
        let may_wait = if may_share { self.expected_bytes } else { 0 } + self.protocol.held_answer_bytes();
        let used = self.used_bytes() - may_wait;
        let data_in = &self.server.data_in;
        // A session that waits for others is read from: otherwise its answers to pings would be
        // missed.
        let may_read = (self.delayed.is_none() || self.waits_for_room || may_share || self.protocol.holds_answers())
            && used <= data_in.session_bytes()
            && (used <= DATA_IN_FIRST_BYTES || !data_in.is_exceeded());
        let mut index = 0;
        while let Some(wire) = self.wires.get_mut(index) {
            let how = Exchange { may_read, is_looking: self.busy_poll.is_under_way(), bytes_max, until };
            let moved = wire.exchange(&mut self.protocol, &self.server, how, context);
            let is_over = match (&moved, &wire.closed) {
                (Err(_), _) => true,
                (Ok(_), Some((_, until))) => {
                    self.protocol.transmit_bytes(wire.link) == 0 || self.server.clock.now() >= *until
                }
                (Ok(_), None) => false,
            };
            has_moved |= is_over || matches!(moved, Ok(true));
            if !is_over {
                index += 1;
                if matches!(moved, Ok(true)) && index < self.wires.len() && self.server.clock.now() >= until {
                    // The others are first in the next turn.
                    self.wires.rotate_left(index);
                    break;
                }
                continue;
            }
            let mut wire = self.wires.remove(index);
            if let Err(error) = moved {
                tracing::debug!(connection = %wire.addresses.peer, %error, "the transport failed");
                self.protocol.handle_lost(self.server.clock.now(), wire.link);
            }
            self.protocol.release(wire.link);
            let reason = wire.closed.take().map_or(CloseReason::TransportLost, |(reason, _)| reason);
            if let Some(ended) = wire.ended.take() {
                let _ = ended.send(reason);
            }
        }
        has_moved
    }

    /// Removes the nexus, with its reservations and unit attentions. At a logout this comes before
    /// the Logout Response is written, which states that the clean-up is completed (RFC 7143
    /// 4.6.3.3): the initiator's next commands, in another session, must not meet them. Commands
    /// under way finish without a response.
    fn leave_units(&mut self) {
        self.sharing.release_held();
        if let Some(units) = self.units.take() {
            units.luns.remove_nexus(&units.nexus);
        }
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> bool {
        let drain_deadline = self.drain_deadline.filter(|_| !self.protocol.is_closed());
        let lingering = self.wires.iter().filter_map(|wire| wire.closed.as_ref().map(|(_, until)| *until)).min();
        let unread = self.unread_deadline();
        let deadlines = [self.protocol.poll_timeout(), drain_deadline, lingering, self.settling_end(), unread];
        let Some(deadline) = deadlines.into_iter().flatten().min() else {
            self.timer = None;
            return false;
        };
        // Deadlines mostly move away; a timer that fires early costs less than a new one per PDU.
        if self.timer.as_ref().is_none_or(|(set_to, _)| deadline < *set_to) {
            self.timer = Some((deadline, self.server.clock.sleep_until(deadline)));
        }
        let Some((_, sleep)) = &mut self.timer else { return false };
        if sleep.as_mut().poll(context).is_pending() {
            return false;
        }
        self.timer = None;
        let now = self.server.clock.now();
        self.end_if_unread(now);
        self.protocol.handle_timeout(now);
        true
    }

    /// When to check whether the initiator takes its queued data.
    fn unread_deadline(&self) -> Option<Instant> {
        let since = self.wires.iter().filter_map(|wire| wire.unread).map(|(since, _)| since).min()?;
        let deadline = since + UNREAD_TIMEOUT;
        Some(deadline.max(self.unread_checked.map_or(deadline, |checked| checked + UNREAD_CHECK_INTERVAL)))
    }

    /// Ends the session if its initiator does not take its queued data while others wait for the
    /// buffers.
    fn end_if_unread(&mut self, now: Instant) {
        let is_late = |wire: &Wire| wire.unread.is_some_and(|(since, _)| now >= since + UNREAD_TIMEOUT);
        if !self.wires.iter().any(is_late) {
            return;
        }
        self.unread_checked = Some(now);
        if self.server.data_in.has_waiting() && !self.waits_for_room && !self.protocol.is_closed() {
            self.protocol.close(now, CloseReason::Unread);
        }
    }

    fn count_pdus(&mut self) {
        let (received, sent) = self.protocol.pdu_counts();
        let counters = &self.server.counters;
        if received != self.counted_pdus.0 {
            counters.pdus_received.fetch_add(received - self.counted_pdus.0, Ordering::Relaxed);
        }
        if sent != self.counted_pdus.1 {
            counters.pdus_sent.fetch_add(sent - self.counted_pdus.1, Ordering::Relaxed);
        }
        self.counted_pdus = (received, sent);
        let digest_errors = self.protocol.digest_errors();
        if digest_errors != self.counted_digest_errors {
            counters.digest_errors.fetch_add(digest_errors - self.counted_digest_errors, Ordering::Relaxed);
            if let Some(others) = self.server.digests.note(self.server.clock.now()) {
                tracing::warn!(session = self.tsih, digest_errors, others, "a digest did not match");
            }
        }
        self.counted_digest_errors = digest_errors;
    }
}

impl Drop for Session {
    /// Removes the session from the tables. The control is dropped after this, so that a session
    /// which waits for the end finds the nexus gone.
    fn drop(&mut self) {
        self.count_pdus();
        self.stop_waiting();
        self.server.data_in.tell(self.charged_bytes, 0);
        self.leave_units();
        self.server.sessions.remove(self.tsih, &self.handle);
    }
}
