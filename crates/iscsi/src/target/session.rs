//! A session in the full feature phase: all its connections, from bytes to events and back.
//!
//! The driver's loop, for each of its connections:
//!
//! ```text
//! read into receive_space() ─► handle_received()            ─┐
//! a command or a task management function ended ─► handle_…  ├─► poll_event() until None
//! poll_timeout() is due ─► handle_timeout()                  │   write io_slices(), handle_transmitted()
//! a transport failed ─► handle_lost()                       ─┘
//! ```
//!
//! Commands are put in order over all connections (RFC 7143 4.2.2.1); all PDUs of a task stay on
//! the connection of its command (connection allegiance, 4.2.5.1). The end of a connection ends its
//! tasks, too, unless error recovery level 2 was negotiated: then they wait for TASK REASSIGN until
//! Time2Retain is over, and so does a session without a connection.
//!
//! | file | holds |
//! |---|---|
//! | this one | bytes to PDUs, PDUs to the parts below, the order of their turns, the end of connections |
//! | `session/management.rs` | task management |
//! | `session/logout.rs` | logout |
//! | `session/lost.rs` | connections that were lost while their tasks wait for a reassignment |
//! | `session/commands.rs` | SCSI commands, their data, SNACK |
//! | `session/stalls.rs` | deadlines of data and commands that do not come |
//! | `session/text.rs` | texts |
//!
//! Each part owns its state and uses those below it; all stand on `nexus.rs`, which has the connections. Where a part
//! finds that a connection must end, or that another part has its turn, it returns that.

use std::io::IoSlice;
use std::sync::Arc;

use base::buffer::Buffer;
use base::clock::Instant;

use super::arrived_command::ArrivedCommand;
use super::connection::{Connection, LoggedIn};
use super::event::{CloseReason, Command, Event, LinkId, Outcome, SessionRequest, TaskId, TaskManagementId};
use super::full_feature::FullFeature;
use super::granted_logout::GrantedLogout;
use super::kept_responses::KeptResponses;
use super::link::{Link, LinkReport, live};
use super::nexus::Nexus;
use super::pace;
use super::placing::{place_data_out, place_immediate_data};
use super::retained_share::RetainedShare;
use super::task_set::{Held, TaskSet};
use crate::framing::{DataSegment, Destination, FramingError, Progress, ReceivedPdu};
use crate::limits::{
    BUFFER_RETRY_INTERVAL, HELD_REQUEST_BYTES_MAX, MESSAGE_BYTES_HIGH, RESPONSE_BYTES_HIGH, SESSION_CONNECTIONS_MAX,
    WORK_PER_TURN, WORK_TEXT_BYTES,
};
use crate::negotiation::{Negotiated, SessionType};
use crate::pdu::{
    AsyncEvent, AsyncMessage, Bhs, LoginStatus, LogoutOutcome, RejectReason, TaskManagementOutcome,
    TaskManagementRequest,
};

use self::commands::{Commands, Turn};
use self::logout::Logouts;
use self::lost::LostConnections;
use self::management::{Managements, Then};
use self::text::handle_text;

mod commands;
mod logout;
mod lost;
mod management;
mod stalls;
mod text;

/// A session in the full feature phase, with all its connections.
pub struct Session {
    nexus: Nexus,
    commands: Commands,
    managements: Managements,
    logouts: Logouts,
    lost: LostConnections,
    link_next: u64,
    is_ended: bool,
}

impl Session {
    /// Makes session `tsih` (not zero) of a login, with the login's connection as its first.
    ///
    /// `None` when the connection waits for no decision.
    pub fn begin(now: Instant, connection: Connection, tsih: u16) -> Option<(Self, LinkId)> {
        let id = LinkId(1);
        let LoggedIn { parameters, session: request, first_cmd_sn, data_out_of, mut link } =
            connection.into_logged_in(id, tsih, None)?;
        link.last_moved = now;
        let negotiated = request.negotiated;
        let retained = Arc::new(RetainedShare::new(Arc::clone(&parameters.retained)));
        if negotiated.error_recovery_level > 0 {
            link.sent = KeptResponses::new(Arc::clone(&retained));
        }
        let set = TaskSet::new(first_cmd_sn, parameters.command_window, retained);
        let full = FullFeature { request, negotiated, data_out_of, is_draining: false };
        let mut session = Self {
            nexus: Nexus::new(now, parameters, full, link),
            commands: Commands::new(set),
            managements: Managements::new(),
            logouts: Logouts::default(),
            lost: LostConnections::default(),
            link_next: 1,
            is_ended: false,
        };
        // The initiator may have sent commands right after its last Login Request.
        session.drain_receiver(id);
        Some((session, id))
    }

    /// Whether a login for this session may join it.
    ///
    /// # Errors
    /// The login status, and the details for the log.
    pub fn check_join(&self, request: &SessionRequest) -> Result<(), (LoginStatus, &'static str)> {
        let own = &self.nexus.full.request;
        let is_same = own.initiator_name.eq_ignore_ascii_case(&request.initiator_name)
            && own.isid == request.isid
            && own.session_type == request.session_type
            && own.session_type == SessionType::Normal
            && own.authenticated_name == request.authenticated_name
            && match (&own.target_name, &request.target_name) {
                (Some(own), Some(other)) => own.eq_ignore_ascii_case(other),
                _ => false,
            };
        if self.is_ended || self.logouts.ends_session() || !is_same {
            return Err((LoginStatus::SESSION_DOES_NOT_EXIST, "the session is another initiator's, or over"));
        }
        // RFC 7143 4.2.6: a session stays within one portal group.
        if own.portal_group_tag != request.portal_group_tag {
            return Err((LoginStatus::CANNOT_INCLUDE_IN_SESSION, "the session is in another portal group"));
        }
        if self.nexus.full.is_draining {
            return Err((LoginStatus::SERVICE_UNAVAILABLE, "the session is asked to log out"));
        }
        let others: usize =
            self.nexus.live().filter(|link| !link.has_cid(request.cid)).map(Link::transport_count).sum();
        let connections_max = self.nexus.full.negotiated.max_connections.min(SESSION_CONNECTIONS_MAX);
        if others >= usize::from(connections_max) {
            return Err((LoginStatus::TOO_MANY_CONNECTIONS, "the session has as many connections as were agreed"));
        }
        if let Some(cid) = request.answers_for {
            self.check_pair(cid, request.cid).map_err(|why| (LoginStatus::INITIATOR_ERROR, why))?;
        }
        Ok(())
    }

    /// Whether the connection with CID `request_half` may get `response_half` as its other half.
    fn check_pair(&self, request_half: u16, response_half: u16) -> Result<(), &'static str> {
        if !self.nexus.full.request.may_split {
            return Err("split connections were not agreed on");
        }
        let link = self.nexus.live().find(|link| link.cid == request_half && !link.has_cid(response_half));
        let link = link.ok_or("the connection to answer for is not there")?;
        if link.response_half.is_some() {
            return Err("the connection to answer for is split already");
        }
        let has_tasks = self.commands.set.all().any(|task| task.link == link.id);
        let has_managements = self.managements.are_of(link.id);
        if has_tasks || has_managements || link.text.is_some() {
            return Err("the connection to answer for has requests under way");
        }
        Ok(())
    }

    /// Makes a login another connection of this session, in place of one with the same CID if there
    /// is any (RFC 7143 6.3.4). The caller checked [`Session::check_join`].
    pub fn join(&mut self, now: Instant, connection: Connection) -> Option<LinkId> {
        self.nexus.now = now;
        let (cid, answers_for) = connection.request().map(|request| (request.cid, request.answers_for))?;
        let id = LinkId(self.link_next + 1);
        let tsih = self.nexus.full.request.tsih;
        // The implicit logout: for recovery at level 2, else a close.
        let reinstated = self.nexus.live().find(|link| link.cid == cid).map(|link| link.id);
        if let Some(previous) = reinstated {
            self.log_link_out(previous, self.nexus.is_recoverable(), CloseReason::Reinstated);
        }
        // A pair does not outlive its response half.
        let pair = self.nexus.live().find(|link| link.has_cid(cid)).map(|link| link.id);
        if let Some(pair) = pair {
            self.fail_link(pair, CloseReason::Reinstated);
        }
        if self.is_ended {
            return None;
        }
        self.lost.reinstate(cid);
        let LoggedIn { mut link, .. } = connection.into_logged_in(id, tsih, Some(self.commands.numbers()))?;
        self.link_next += 1;
        link.last_moved = now;
        // The level is the session's, whatever this login proposed.
        if self.nexus.full.negotiated.error_recovery_level > 0 {
            link.sent = KeptResponses::new(self.commands.set.answers.retained());
        }
        let request_half =
            answers_for.and_then(|cid| self.nexus.links.iter_mut().find(|link| link.cid == cid && !link.is_closed));
        let Some(request_half) = request_half else {
            self.nexus.links.push(link);
            self.drain_receiver(id);
            return Some(id);
        };
        request_half.last_moved = now;
        let acknowledged = request_half.take_response_half(link);
        acknowledged.into_iter().for_each(|(tag, stat_sn)| self.commands.set.acknowledge_answer(tag, stat_sn));
        Some(id)
    }

    /// The space for the next bytes of a connection. Empty when none can be taken now.
    pub fn receive_space(&mut self, at: LinkId) -> &mut [u8] {
        let now = self.nexus.now;
        match self.nexus.with_transport(at) {
            Some(link) if link.is_closed || link.pace.is_resting(now) => &mut [],
            Some(Link { id, receiver, .. }) if *id == at => receiver.receive_space(),
            Some(Link { response_half: Some(half), .. }) => half.receive_space(),
            Some(_) | None => &mut [],
        }
    }

    /// `length` bytes were read into the space last given.
    pub fn handle_received(&mut self, now: Instant, at: LinkId, length: usize) {
        self.nexus.now = now;
        let Some(link) = self.nexus.with_transport(at).filter(|link| !link.is_closed) else { return };
        if link.id != at {
            let pair = link.id;
            return self.fail_link(pair, CloseReason::Protocol("a request on a connection that carries responses"));
        }
        link.last_moved = now;
        link.receiver.handle_received(length);
        self.drain_receiver(at);
    }

    /// Whether a portion of the received bytes of a connection was handled, and there may be more:
    /// [`Session::go_on`] must be called before more is read.
    pub fn is_behind(&self, at: LinkId) -> bool {
        self.nexus.live().any(|link| link.id == at && link.is_behind)
    }

    /// Handles the next portion of the received bytes.
    pub fn go_on(&mut self, now: Instant, at: LinkId) {
        self.nexus.now = now;
        self.drain_receiver(at);
    }

    /// The next at most `bytes_max` bytes to write: fills `out` and returns how many slices that
    /// took.
    pub fn io_slices<'a>(&'a self, at: LinkId, bytes_max: usize, out: &mut [IoSlice<'a>]) -> usize {
        self.nexus.any(at).map_or(0, |link| link.queue(at).io_slices_of(bytes_max, out))
    }

    /// `length` bytes were written. A peer that takes our data is alive, however long it takes to
    /// answer a ping that is queued behind it.
    pub fn handle_transmitted(&mut self, now: Instant, at: LinkId, length: usize) {
        self.nexus.now = now;
        let ping_timeout = self.nexus.parameters.ping_timeout;
        let Some(link) = self.nexus.with_transport(at) else { return };
        link.last_moved = now;
        if let Some((_, until)) = &mut link.ping {
            *until = now + ping_timeout;
        }
        let was_high = link.transmit.answer_bytes() > RESPONSE_BYTES_HIGH;
        link.queue_mut(at).handle_transmitted(length);
        if was_high && link.transmit.answer_bytes() <= RESPONSE_BYTES_HIGH {
            let id = link.id;
            self.drain_receiver(id);
        }
    }

    /// Bytes of a connection that wait to be written.
    pub fn transmit_bytes(&self, at: LinkId) -> usize {
        self.nexus.any(at).map_or(0, |link| link.queue(at).bytes())
    }

    /// Bytes of memory kept by data that waits to be written on a connection: the full size of its
    /// buffers.
    pub fn data_bytes_held(&self, at: LinkId) -> usize {
        self.nexus.any(at).map_or(0, |link| link.queue(at).data_bytes_held())
    }

    /// Handles the loss of a connection's transport, with all unwritten bytes.
    pub fn handle_lost(&mut self, now: Instant, at: LinkId) {
        self.nexus.now = now;
        if let Some(connection) = self.nexus.any(at).map(|link| link.id) {
            self.fail_link(connection, CloseReason::TransportLost);
        }
        self.release(at);
    }

    /// Removes a closed connection, whose last bytes are sent or given up.
    pub fn release(&mut self, at: LinkId) {
        self.nexus.release(at);
    }

    /// Responses on a connection that the initiator's last PDU had not acknowledged: about as many
    /// as the commands that it keeps in flight.
    pub fn unacknowledged_responses(&self, at: LinkId) -> u32 {
        self.nexus
            .links
            .iter()
            .find(|link| link.id == at)
            .map_or(0, |link| link.stat_sn.distance_from(link.exp_stat_sn))
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.nexus.events.pop_front()
    }

    /// When [`Session::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_ended {
            return None;
        }
        let interval = self.nexus.parameters.ping_interval;
        let pings = self.pinged().map(|link| link.ping.map_or(link.last_moved + interval, |(_, until)| until));
        let starved = (!self.commands.set.starved.is_empty()).then_some(self.nexus.now + BUFFER_RETRY_INTERVAL);
        let rests = self.nexus.live().filter_map(|link| link.pace.rests_until());
        let kept = self.nexus.live().filter_map(|link| link.sent.deadline());
        let (lost, logouts) = (self.lost.deadline(), self.logouts.deadline());
        let (managements, stalls) = (self.managements.deadline(), self.commands.stalls.deadline());
        let others = [lost, starved, logouts, managements, stalls].into_iter().flatten();
        pings.chain(others).chain(rests).chain(kept).min()
    }

    /// Handles due timeouts.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.nexus.now = now;
        self.end_rests();
        self.commands.feed_starved(&mut self.nexus);
        self.check_pings();
        self.check_stalls();
        self.commands.set.answers.forget_unacknowledged(&mut self.nexus);
        self.check_fences();
        self.advance_managements();
        self.advance_logouts();
        self.forget_lost();
    }

    /// Asks the initiator to log out within some seconds, and takes no new commands from now on. The driver closes when
    /// [`Event::Closed`] comes or its patience ends.
    pub fn request_logout(&mut self, now: Instant, within_seconds: u16) {
        self.nexus.now = now;
        if !std::mem::replace(&mut self.nexus.full.is_draining, true) {
            let event = AsyncEvent::LogoutRequest { logout_within_seconds: within_seconds };
            self.nexus.tell(event, None, self.commands.numbers());
        }
        if self.nexus.live().next().is_none() {
            self.close(now, CloseReason::Local);
        }
    }

    /// Ends the session from this side, and reports that to the initiator (RFC 7143 11.9.1, event
    /// 3).
    pub fn drop_session(&mut self, now: Instant) {
        self.nexus.now = now;
        let wait_seconds = self.nexus.full.negotiated.default_time2wait;
        let event = AsyncEvent::SessionDrop { wait_seconds, retain_seconds: 0 };
        self.nexus.tell(event, None, self.commands.numbers());
        self.end(CloseReason::Local);
    }

    /// Ends the session from this side.
    pub fn close(&mut self, now: Instant, reason: CloseReason) {
        self.nexus.now = now;
        self.end(reason);
    }

    /// Whether the session has ended.
    pub fn is_closed(&self) -> bool {
        self.is_ended
    }

    /// The request that began the session, with its TSIH.
    pub fn request(&self) -> &SessionRequest {
        &self.nexus.full.request
    }

    /// Whether the outcome of a task that the driver has is still wanted. If not, the driver
    /// need not begin it.
    pub fn is_wanted(&self, id: TaskId) -> bool {
        let is_live = |task: &super::task::Task| task.id == id && !task.is_aborted;
        !self.is_ended && self.commands.set.tasks.get(&id.initiator_task_tag).map(Box::as_ref).is_some_and(is_live)
    }

    /// Whether a task waits for a task management function, which covers it and may still be refused, or which it is
    /// behind. A command of it that the driver cannot begin is taken back, so that the function need not wait behind
    /// it.
    pub fn is_suspended(&self, id: TaskId) -> bool {
        let is_suspended =
            |id: TaskId| self.commands.set.tasks.get(&id.initiator_task_tag).is_some_and(|it| it.is_suspended);
        self.is_wanted(id) && (is_suspended(id) || self.commands.set.is_held_back(id))
    }

    /// Takes a command back that the driver has not begun: it comes again if the function that covers it is refused.
    pub fn take_back(&mut self, command: Command) {
        self.commands.take_back(command);
    }

    /// Whether the initiator had these news ([`Outcome::news`]) when it sent a task that has not ended.
    pub fn knows(&self, id: TaskId, news: u64) -> bool {
        self.commands.set.knows(id, news)
    }

    /// Whether the initiator has acknowledged these news.
    pub fn has_acknowledged(&self, news: u64) -> bool {
        self.commands.set.knowledge.is_acknowledged(news)
    }

    /// Forgets these news once every task knows of them, and so all that come. Returns whether that is so.
    pub fn forget_news(&mut self, news: u64) -> bool {
        self.commands.set.forget_news(news)
    }

    /// CIDs of its connections.
    pub fn connection_ids(&self) -> Vec<u16> {
        self.nexus.live().map(|link| link.cid).collect()
    }

    /// Bytes of memory of the data of answers that wait until the initiator has acknowledged what comes before them.
    pub fn held_answer_bytes(&self) -> usize {
        self.commands.set.held_answer_bytes()
    }

    /// Whether answers wait for such acknowledgements, or may.
    pub fn holds_answers(&self) -> bool {
        !self.commands.set.fences.is_empty()
    }

    /// Tasks that have not ended: waiting for data, with the driver, or held.
    pub fn task_count(&self) -> usize {
        self.commands.set.tasks.len()
    }

    /// PDUs received and queued so far.
    pub fn pdu_counts(&self) -> (u64, u64) {
        self.nexus.pdu_counts()
    }

    /// Digests that did not match so far, on all connections.
    pub fn digest_errors(&self) -> u64 {
        self.nexus.digest_errors
    }

    /// The negotiated values.
    pub fn negotiated(&self) -> &Negotiated {
        &self.nexus.full.negotiated
    }

    /// The report of a connection, for users.
    pub fn link_report(&self, at: LinkId) -> Option<LinkReport> {
        self.nexus.any(at).map(|link| link.report(at))
    }

    /// The connection of a task's command.
    pub fn link_of(&self, id: TaskId) -> Option<LinkId> {
        self.commands.set.tasks.get(&id.initiator_task_tag).filter(|task| task.id == id).map(|task| task.link)
    }

    /// Requests the data of a held command. Commands that have ended are ignored.
    pub fn ask_for_data(&mut self, now: Instant, id: TaskId) {
        self.nexus.now = now;
        self.commands.ask_for_data(id, &mut self.nexus);
        self.advance_managements();
    }

    /// Handles the outcome of a command from the driver. Those of tasks that have ended are
    /// ignored.
    pub fn handle_completion(&mut self, now: Instant, id: TaskId, outcome: Outcome) {
        self.nexus.now = now;
        if self.is_ended || !self.commands.complete(id, outcome, &mut self.nexus) {
            return;
        }
        self.advance_managements();
        self.advance_logouts();
        self.commands.feed_starved(&mut self.nexus);
        self.advance_managements();
    }

    /// Handles that the driver carries out a task management function, whose outcome comes when that is done: the tasks
    /// that it covers are not answered any more.
    pub fn handle_carrying_out(&mut self, now: Instant, id: TaskManagementId) {
        self.nexus.now = now;
        let freed = self.managements.carry_out(id, &mut self.commands.set);
        freed.into_iter().for_each(|task| self.commands.advance_task(task, &mut self.nexus));
        self.commands.feed_starved(&mut self.nexus);
    }

    /// Handles the outcome of a task management function from the driver. The response is sent once
    /// the tasks that it covered have ended; if it is refused, they go on.
    pub fn handle_task_management(&mut self, now: Instant, id: TaskManagementId, outcome: TaskManagementOutcome) {
        self.nexus.now = now;
        let freed = self.managements.note_outcome(id, outcome, &mut self.commands.set);
        self.advance_managements();
        freed.into_iter().for_each(|task| self.commands.advance_task(task, &mut self.nexus));
        self.commands.feed_starved(&mut self.nexus);
    }

    /// Whether an asynchronous message of our own may be sent: there is a connection for it, which is `preferred` if
    /// that still exists, and little enough waits there to be written.
    pub fn may_send_message(&self, preferred: Option<LinkId>) -> bool {
        self.link_for_message(preferred).is_some_and(|link| link.transmit.answer_bytes() <= MESSAGE_BYTES_HIGH)
    }

    /// Sends an asynchronous message of our own, with data, on the connection of [`Session::may_send_message`]. Without
    /// one it is lost.
    pub fn send_message(&mut self, now: Instant, preferred: Option<LinkId>, (event, code): (u8, u8), data: Vec<u8>) {
        self.nexus.now = now;
        let Some(at) = self.link_for_message(preferred).map(|link| link.id) else { return };
        let (exp_cmd_sn, max_cmd_sn) = self.commands.numbers();
        let Some(link) = live(&mut self.nexus.links, at) else { return };
        let stat_sn = link.take_stat_sn();
        let event = AsyncEvent::Vendor { event, code, parameters: [0; 3] };
        let message = AsyncMessage { event, lun: 0, stat_sn, exp_cmd_sn, max_cmd_sn };
        link.push_response(stat_sn, &message, DataSegment::from(data));
        let kept = link.check_kept();
        self.end_on_error(at, kept);
    }

    // Inside.

    fn link_for_message(&self, preferred: Option<LinkId>) -> Option<&Link> {
        self.nexus.live().find(|link| Some(link.id) == preferred).or_else(|| self.nexus.live().next())
    }

    /// Connections that must show signs of life. An initiator that is logging out may only wait for
    /// the response.
    fn pinged(&self) -> impl Iterator<Item = &Link> {
        self.nexus.live().filter(|link| !self.logouts.covers(link.id))
    }

    /// Handles a portion of the received bytes, while its answers have room. Otherwise the rest
    /// waits until the peer has taken some of them.
    fn drain_receiver(&mut self, at: LinkId) {
        let mut work = 0;
        if let Some(link) = live(&mut self.nexus.links, at) {
            link.is_behind = false;
        }
        while let Some(link) =
            live(&mut self.nexus.links, at).filter(|link| link.transmit.answer_bytes() <= RESPONSE_BYTES_HIGH)
        {
            if link.pace.is_resting(self.nexus.now) {
                break;
            }
            if work >= WORK_PER_TURN {
                link.is_behind = true;
                break;
            }
            match link.receiver.poll() {
                Ok(Progress::NeedBytes) => break,
                Ok(Progress::NeedPlace) => self.place_data(at),
                Ok(Progress::Pdu(pdu)) => {
                    work += work_of(&pdu);
                    link.pace.note(self.nexus.now, pace::work_of(&pdu));
                    link.received_pdus += 1;
                    link.digest_errors += u64::from(pdu.data.is_corrupt);
                    self.nexus.digest_errors += u64::from(pdu.data.is_corrupt);
                    let arrived = link.arrived.take();
                    let handled = self.handle_pdu(at, pdu, arrived);
                    self.end_on_error(at, handled);
                }
                Err(error) => {
                    link.digest_errors += u64::from(error == FramingError::HeaderDigest);
                    self.nexus.digest_errors += u64::from(error == FramingError::HeaderDigest);
                    self.fail_link(at, error.into());
                }
            }
        }
    }

    /// Handles connections again whose rest is over.
    fn end_rests(&mut self) {
        let now = self.nexus.now;
        let rested = |link: &mut Link| (!link.is_closed && link.pace.end_rest(now)).then_some(link.id);
        let over: Vec<LinkId> = self.nexus.links.iter_mut().filter_map(rested).collect();
        over.into_iter().for_each(|at| self.drain_receiver(at));
    }

    fn place_data(&mut self, at: LinkId) {
        let Self { nexus: Nexus { parameters, full, links, .. }, commands: Commands { set, .. }, .. } = self;
        let Some(link) = live(links, at) else { return };
        let Some(header) = link.receiver.pending_header() else { return };
        let destination = match &header.bhs {
            Ok(Bhs::ScsiCommand(command)) => {
                let (destination, arrived) = place_immediate_data(full, set, parameters, command, header);
                link.arrived = arrived;
                destination
            }
            Ok(Bhs::DataOut(data)) => place_data_out(set, parameters, at, data, header.data_segment_bytes),
            _ => {
                let bytes = header.data_segment_bytes;
                let lent = parameters.request_data.try_acquire(bytes);
                Destination::Buffer { buffer: lent.unwrap_or_else(|| Buffer::zeroed(bytes)), offset: 0 }
            }
        };
        link.receiver.place(destination);
    }

    /// Ends a connection without the initiator's request. The effect depends on the error recovery
    /// level (RFC 7143 7.1.5, 7.14): at level 0 the session ends; at 1 the connection's tasks end;
    /// at 2 they wait.
    fn fail_link(&mut self, at: LinkId, reason: CloseReason) {
        let Some(link) = live(&mut self.nexus.links, at) else { return };
        let cid = link.cid;
        let has_others = self.nexus.live().any(|link| link.id != at);
        let level = self.nexus.full.negotiated.error_recovery_level;
        if level == 0 || (!has_others && !self.nexus.is_recoverable()) {
            return self.end(reason);
        }
        self.lost.remember(at, cid, false, &mut self.commands, &mut self.nexus);
        self.close_link(at, reason);
        let (wait_seconds, retain_seconds) = self.nexus.times();
        let event = AsyncEvent::ConnectionDrop { cid, wait_seconds, retain_seconds };
        self.nexus.tell(event, Some(at), self.commands.numbers());
    }

    /// Logs a connection out, for recovery or for good.
    fn log_link_out(&mut self, at: LinkId, is_for_recovery: bool, reason: CloseReason) {
        let Some(link) = live(&mut self.nexus.links, at) else { return };
        let cid = link.cid;
        if is_for_recovery {
            self.lost.remember(at, cid, true, &mut self.commands, &mut self.nexus);
        }
        self.close_link(at, reason);
    }

    /// Closes a connection for receiving, with what waits for it.
    fn close_link(&mut self, at: LinkId, reason: CloseReason) {
        self.lost.close(at, reason, &mut self.commands, &mut self.nexus);
        self.advance_managements();
    }

    /// Forgets lost connections whose time is over, with their tasks; the session ends with the
    /// last of them when it has no connection.
    fn forget_lost(&mut self) {
        self.lost.forget_overdue(&mut self.commands, &mut self.nexus);
        self.end_if_unconnected(CloseReason::TransportLost);
    }

    fn end_if_unconnected(&mut self, reason: CloseReason) {
        if self.nexus.live().next().is_none() && self.lost.is_empty() {
            self.end(reason);
        }
    }

    /// Ends the session with all its connections and tasks.
    fn end(&mut self, reason: CloseReason) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        for link in self.nexus.links.iter_mut().filter(|link| !link.is_closed) {
            link.is_closed = true;
            link.sent.clear();
        }
        self.lost.clear();
        self.commands.set.forget_answers(|_| true);
        self.managements.clear();
        self.logouts.clear();
        self.nexus.events.push_back(Event::Closed(reason));
    }

    fn check_pings(&mut self) {
        let (now, interval) = (self.nexus.now, self.nexus.parameters.ping_interval);
        let links: Vec<LinkId> = self.pinged().map(|link| link.id).collect();
        for at in links {
            let Some(link) = live(&mut self.nexus.links, at) else { continue };
            match link.ping {
                Some((_, until)) if now >= until => self.fail_link(at, CloseReason::PingTimeout),
                None if now >= link.last_moved + interval => self.nexus.ping(at, self.commands.numbers()),
                Some(_) | None => {}
            }
        }
    }

    /// Ends the connections that owe data or commands for too long.
    fn check_stalls(&mut self) {
        let Commands { set, stalls } = &mut self.commands;
        for (at, reason) in stalls.overdue(set, &mut self.nexus) {
            self.fail_link(at, reason);
        }
    }

    /// Ends the connections for whose acknowledgements functions have waited for too long.
    fn check_fences(&mut self) {
        for at in self.managements.overdue(self.nexus.now) {
            self.fail_link(at, CloseReason::Unacknowledged);
        }
    }

    /// Ends a connection where handling one of its PDUs has shown that it must end.
    fn end_on_error(&mut self, at: LinkId, handled: Result<(), CloseReason>) {
        if let Err(reason) = handled {
            self.fail_link(at, reason);
        }
    }

    fn handle_pdu(&mut self, at: LinkId, pdu: ReceivedPdu, arrived: Option<ArrivedCommand>) -> Result<(), CloseReason> {
        let bhs = match pdu.header.bhs {
            Ok(bhs) => bhs,
            Err(error) => return self.reject(at, &pdu, error.reject_reason()),
        };
        self.commands.note_acknowledgement(at, &bhs, &mut self.nexus)?;
        self.advance_managements();
        if self.logouts.covers(at) {
            return Ok(());
        }
        let (cmd_sn, is_immediate) = match bhs {
            Bhs::ScsiCommand(command) => {
                if self.commands.handle_command(at, command, arrived, pdu, &mut self.nexus)? {
                    self.deliver_in_order();
                }
                return Ok(());
            }
            Bhs::DataOut(data) => {
                self.commands.handle_data_out(at, data, pdu, &mut self.nexus)?;
                self.advance_managements();
                return Ok(());
            }
            Bhs::SnackRequest(request) => {
                return self.commands.handle_snack(at, &request, &pdu.header, &mut self.nexus);
            }
            Bhs::NopOut(request) => (request.cmd_sn, request.is_immediate),
            Bhs::TextRequest(request) => (request.cmd_sn, request.is_immediate),
            Bhs::LogoutRequest(request) => (request.cmd_sn, request.is_immediate),
            Bhs::TaskManagementRequest(request) => (request.cmd_sn, request.is_immediate),
            // A Login Request after the login, or a PDU that only targets send.
            _ => return self.reject(at, &pdu, RejectReason::ProtocolError),
        };
        if pdu.data.is_corrupt {
            return self.reject(at, &pdu, RejectReason::DataDigestError);
        }
        if is_immediate {
            return self.handle_request(at, pdu);
        }
        let set = &mut self.commands.set;
        if set.window.admits(cmd_sn) {
            set.window.take(cmd_sn, Held::Request(at, Box::new(pdu)));
            self.deliver_in_order();
            let Commands { set, stalls } = &self.commands;
            if stalls.has_gap() && set.held_request_bytes() > HELD_REQUEST_BYTES_MAX {
                return Err(CloseReason::Protocol("too much data ahead of a command that does not come"));
            }
        }
        Ok(())
    }

    /// Delivers every command whose turn in the command order has come, of any connection.
    fn deliver_in_order(&mut self) {
        let mut has_delivered = false;
        while !self.is_ended
            && let Some(turn) = self.commands.next_turn(&mut self.nexus)
        {
            if let Turn::Request(at, pdu) = turn {
                let handled = self.handle_request(at, *pdu);
                self.end_on_error(at, handled);
            }
            has_delivered = true;
        }
        self.commands.note_gap(has_delivered, &self.nexus);
        if has_delivered {
            self.advance_managements();
        }
    }

    /// A request whose turn it is.
    fn handle_request(&mut self, at: LinkId, pdu: ReceivedPdu) -> Result<(), CloseReason> {
        if self.logouts.covers(at) {
            return Ok(());
        }
        let numbers = self.commands.numbers();
        let is_discovery = self.nexus.full.negotiated.session_type == SessionType::Discovery;
        match pdu.header.bhs {
            Ok(Bhs::TextRequest(request)) => return handle_text(at, &request, &pdu, numbers, &mut self.nexus),
            Ok(Bhs::LogoutRequest(request)) => {
                let parts = (&mut self.commands, &self.lost);
                self.logouts.handle_request(at, &request, parts, &mut self.nexus);
                self.advance_logouts();
            }
            // RFC 7143 4.3: nothing else in a discovery session.
            Ok(_) if is_discovery => return self.reject(at, &pdu, RejectReason::ProtocolError),
            Ok(Bhs::NopOut(request)) => self.nexus.handle_nop_out(at, &request, pdu, numbers),
            Ok(Bhs::TaskManagementRequest(request)) => return self.handle_management_request(at, &request, &pdu),
            Ok(_) | Err(_) => {}
        }
        Ok(())
    }

    fn handle_management_request(
        &mut self,
        at: LinkId,
        request: &TaskManagementRequest,
        pdu: &ReceivedPdu,
    ) -> Result<(), CloseReason> {
        let parts = (&mut self.commands.set, &self.lost);
        let then = self.managements.handle_request(at, request, &pdu.header, parts, &mut self.nexus)?;
        self.advance_managements();
        match then {
            Then::Nothing => {}
            Then::Deliver => self.deliver_in_order(),
            Then::Resume(tag) => self.commands.resume(at, tag, request.exp_data_sn, &mut self.nexus),
        }
        Ok(())
    }

    /// Advances the task management requests under way, which may wait for what has just happened.
    fn advance_managements(&mut self) {
        while !self.managements.is_empty()
            && let Some(held) = self.managements.advance(&mut self.commands.set, &mut self.nexus)
        {
            held.into_iter().for_each(|task| self.commands.answer_held(task, &mut self.nexus));
            self.advance_logouts();
        }
    }

    /// Completes logouts that wait for no more tasks, or have waited for too long.
    fn advance_logouts(&mut self) {
        while let Some(logout) = self.logouts.next_due(self.nexus.now, &self.commands.set) {
            self.finish_logout(&logout);
        }
    }

    fn finish_logout(&mut self, logout: &GrantedLogout) {
        for &link in logout.covered.iter().filter(|&&link| link != logout.at) {
            self.log_link_out(link, logout.is_for_recovery, CloseReason::LoggedOut);
            self.lost.log_out(link, logout.is_for_recovery, &mut self.commands, &mut self.nexus);
        }
        let is_clean = logout.waits_for.is_empty();
        let outcome = if is_clean { LogoutOutcome::Closed } else { LogoutOutcome::CleanupFailed };
        self.nexus.send_logout_response(logout.at, logout.initiator_task_tag, outcome, self.commands.numbers());
        if logout.ends_session {
            return self.end(CloseReason::Logout);
        }
        if logout.covered.contains(&logout.at) {
            self.log_link_out(logout.at, logout.is_for_recovery, CloseReason::Logout);
            self.lost.log_out(logout.at, logout.is_for_recovery, &mut self.commands, &mut self.nexus);
        }
        self.end_if_unconnected(CloseReason::Logout);
    }

    fn reject(&mut self, at: LinkId, pdu: &ReceivedPdu, reason: RejectReason) -> Result<(), CloseReason> {
        self.nexus.reject(at, &pdu.header, reason, self.commands.numbers())
    }
}

/// The work that a PDU counts in a turn.
fn work_of(pdu: &ReceivedPdu) -> usize {
    let is_text = matches!(pdu.header.bhs, Ok(Bhs::TextRequest(_)));
    1 + if is_text { pdu.data.length / WORK_TEXT_BYTES } else { 0 }
}
