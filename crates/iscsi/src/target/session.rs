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
//! | this one | the connections, their coming and going, timers |
//! | `session/commands.rs` | SCSI commands and their data |
//! | `session/requests.rs` | pings, text |
//! | `session/logout.rs` | logout |
//! | `session/management.rs` | task management |
//! | `session/recovery.rs` | acknowledgements, SNACK, reassignment |
//! | `session/stalls.rs` | deadlines of data and commands that do not come |

use std::collections::{BTreeSet, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Instant;
use base::serial::Serial32;

use super::connection::{Connection, LoggedIn};
use super::event::{CloseReason, Event, LinkId, SessionRequest, TaskId};
use super::full_feature::FullFeature;
use super::granted_logout::GrantedLogout;
use super::kept_responses::KeptResponses;
use super::link::{Link, LinkReport, live};
use super::pace;
use super::parameters::TargetParameters;
use super::placing::{place_data_out, place_immediate_data};
use super::retained_share::RetainedShare;
use super::task::DataOutHeld;
use super::task_set::{Held, TaskSet};
use crate::framing::{DataSegment, Destination, FramingError, Progress, ReceivedHeader, ReceivedPdu};
use crate::limits::{
    BUFFER_RETRY_INTERVAL, LOST_CONNECTIONS_MAX, RESPONSE_BYTES_HIGH, RETENTION_MAX, SESSION_CONNECTIONS_MAX,
    WORK_PER_TURN, WORK_TEXT_BYTES,
};
use crate::negotiation::{Negotiated, SessionType};
use crate::pdu::{AsyncEvent, AsyncMessage, Bhs, LoginStatus, NopIn, Reject, RejectReason, TargetTransferTag};

mod commands;
mod logout;
mod management;
mod recovery;
pub(super) mod requests;
mod stalls;

/// A session in the full feature phase, with all its connections.
pub struct Session {
    parameters: Arc<TargetParameters>,
    full: FullFeature,
    set: TaskSet,
    /// A handful: searching them costs less than a map.
    links: Vec<Link>,
    /// Lost connections whose tasks or CIDs still matter.
    lost: Vec<Lost>,
    /// Logouts that wait for tasks; at most as many as connections, each of which sends no further
    /// request then.
    logouts: Vec<GrantedLogout>,
    events: VecDeque<Event>,
    /// When to look next for overdue data or commands; `None` while there can be none.
    stall_check: Option<Instant>,
    /// Since when commands wait for a missing earlier one.
    gap_since: Option<Instant>,
    target_transfer_tag: TargetTransferTag,
    link_next: u64,
    now: Instant,
    is_ended: bool,
    /// PDUs of ended connections, received and sent.
    gone_pdus: (u64, u64),
    /// Digest errors of all connections, ended ones included.
    digest_errors: u64,
}

/// A connection waiting for its clean-up (RFC 7143 8.2, state CLEANUP_WAIT), or logged out for recovery.
#[derive(Clone, Copy, Debug)]
struct Lost {
    link: LinkId,
    cid: u16,
    /// Logged out, explicitly or by reinstatement: its tasks may be reassigned.
    is_logged_out: bool,
    /// When Time2Wait and Time2Retain are over.
    deadline: Instant,
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
        let mut session = Self {
            set: TaskSet::new(first_cmd_sn, parameters.command_window, retained),
            full: FullFeature { request, negotiated, data_out_of, is_draining: false },
            parameters,
            links: vec![link],
            lost: Vec::new(),
            logouts: Vec::new(),
            events: VecDeque::new(),
            stall_check: None,
            gap_since: None,
            target_transfer_tag: TargetTransferTag::new(0).expect("zero is not reserved"),
            link_next: 1,
            now,
            is_ended: false,
            gone_pdus: (0, 0),
            digest_errors: 0,
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
        let own = &self.full.request;
        let is_same = own.initiator_name.eq_ignore_ascii_case(&request.initiator_name)
            && own.isid == request.isid
            && own.session_type == request.session_type
            && own.session_type == SessionType::Normal
            && own.authenticated_name == request.authenticated_name
            && match (&own.target_name, &request.target_name) {
                (Some(own), Some(other)) => own.eq_ignore_ascii_case(other),
                _ => false,
            };
        if self.is_ended || self.is_logging_out() || !is_same {
            return Err((LoginStatus::SESSION_DOES_NOT_EXIST, "the session is another initiator's, or over"));
        }
        // RFC 7143 4.2.6: a session stays within one portal group.
        if own.portal_group_tag != request.portal_group_tag {
            return Err((LoginStatus::CANNOT_INCLUDE_IN_SESSION, "the session is in another portal group"));
        }
        if self.full.is_draining {
            return Err((LoginStatus::SERVICE_UNAVAILABLE, "the session is asked to log out"));
        }
        let others: usize = self.live().filter(|link| !link.has_cid(request.cid)).map(Link::transport_count).sum();
        let connections_max = self.full.negotiated.max_connections.min(SESSION_CONNECTIONS_MAX);
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
        if !self.full.request.may_split {
            return Err("split connections were not agreed on");
        }
        let link = self.live().find(|link| link.cid == request_half && !link.has_cid(response_half));
        let link = link.ok_or("the connection to answer for is not there")?;
        if link.response_half.is_some() {
            return Err("the connection to answer for is split already");
        }
        let has_tasks = self.set.tasks.values().any(|task| task.link == link.id);
        let has_managements = self.set.managements.iter().any(|pending| pending.link == link.id);
        if has_tasks || has_managements || link.text.is_some() {
            return Err("the connection to answer for has requests under way");
        }
        Ok(())
    }

    /// Makes a login another connection of this session, in place of one with the same CID if there
    /// is any (RFC 7143 6.3.4). The caller checked [`Session::check_join`].
    pub fn join(&mut self, now: Instant, connection: Connection) -> Option<LinkId> {
        self.now = now;
        let (cid, answers_for) = connection.request().map(|request| (request.cid, request.answers_for))?;
        let id = LinkId(self.link_next + 1);
        let tsih = self.full.request.tsih;
        // The implicit logout: for recovery at level 2, else a close.
        let reinstated = self.live().find(|link| link.cid == cid).map(|link| link.id);
        if let Some(previous) = reinstated {
            self.log_link_out(previous, self.is_recoverable(), CloseReason::Reinstated);
        }
        // A pair does not outlive its response half.
        let pair = self.live().find(|link| link.has_cid(cid)).map(|link| link.id);
        if let Some(pair) = pair {
            self.fail_link(pair, CloseReason::Reinstated);
        }
        if self.is_ended {
            return None;
        }
        self.lost.iter_mut().filter(|lost| lost.cid == cid).for_each(|lost| lost.is_logged_out = true);
        let LoggedIn { mut link, .. } = connection.into_logged_in(id, tsih, Some(self.set.command_numbers()))?;
        self.link_next += 1;
        link.last_moved = now;
        // The level is the session's, whatever this login proposed.
        if self.full.negotiated.error_recovery_level > 0 {
            link.sent = KeptResponses::new(self.set.retained());
        }
        let request_half =
            answers_for.and_then(|cid| self.links.iter_mut().find(|link| link.cid == cid && !link.is_closed));
        let Some(request_half) = request_half else {
            self.links.push(link);
            self.drain_receiver(id);
            return Some(id);
        };
        request_half.last_moved = now;
        let acknowledged = request_half.take_response_half(link);
        acknowledged.into_iter().for_each(|(tag, stat_sn)| self.set.acknowledge_answer(tag, stat_sn));
        Some(id)
    }

    /// The space for the next bytes of a connection. Empty when none can be taken now.
    pub fn receive_space(&mut self, at: LinkId) -> &mut [u8] {
        let now = self.now;
        match with_transport(&mut self.links, at) {
            Some(link) if link.is_closed || link.pace.is_resting(now) => &mut [],
            Some(Link { id, receiver, .. }) if *id == at => receiver.receive_space(),
            Some(Link { response_half: Some(half), .. }) => half.receive_space(),
            Some(_) | None => &mut [],
        }
    }

    /// `length` bytes were read into the space last given.
    pub fn handle_received(&mut self, now: Instant, at: LinkId, length: usize) {
        self.now = now;
        let Some(link) = with_transport(&mut self.links, at).filter(|link| !link.is_closed) else { return };
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
        self.live().any(|link| link.id == at && link.is_behind)
    }

    /// Handles the next portion of the received bytes.
    pub fn go_on(&mut self, now: Instant, at: LinkId) {
        self.now = now;
        self.drain_receiver(at);
    }

    /// The next at most `bytes_max` bytes to write: fills `out` and returns how many slices that
    /// took.
    pub fn io_slices<'a>(&'a self, at: LinkId, bytes_max: usize, out: &mut [IoSlice<'a>]) -> usize {
        self.any(at).map_or(0, |link| link.queue(at).io_slices_of(bytes_max, out))
    }

    /// `length` bytes were written. A peer that takes our data is alive, however long it takes to
    /// answer a ping that is queued behind it.
    pub fn handle_transmitted(&mut self, now: Instant, at: LinkId, length: usize) {
        self.now = now;
        let ping_timeout = self.parameters.ping_timeout;
        let Some(link) = with_transport(&mut self.links, at) else { return };
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
        self.any(at).map_or(0, |link| link.queue(at).bytes())
    }

    /// Bytes of memory kept by data that waits to be written on a connection: the full size of its
    /// buffers.
    pub fn data_bytes_held(&self, at: LinkId) -> usize {
        self.any(at).map_or(0, |link| link.queue(at).data_bytes_held())
    }

    /// Handles the loss of a connection's transport, with all unwritten bytes.
    pub fn handle_lost(&mut self, now: Instant, at: LinkId) {
        self.now = now;
        if let Some(connection) = self.any(at).map(|link| link.id) {
            self.fail_link(connection, CloseReason::TransportLost);
        }
        self.release(at);
    }

    /// Removes a closed connection, whose last bytes are sent or given up.
    pub fn release(&mut self, at: LinkId) {
        let index = self.links.iter().position(|link| link.has_transport(at) && link.is_closed);
        let Some(index) = index else { return };
        let half = self.links.get_mut(index).and_then(|link| link.response_half.as_deref_mut());
        let is_last = half.is_none_or(|half| half.released.replace(at).is_some_and(|other| other != at));
        if is_last {
            let link = self.links.remove(index);
            self.gone_pdus.0 += link.received_pdus;
            self.gone_pdus.1 += link.sent_pdus();
        }
    }

    /// Responses on a connection that the initiator's last PDU had not acknowledged: about as many
    /// as the commands that it keeps in flight.
    pub fn unacknowledged_responses(&self, at: LinkId) -> u32 {
        self.links.iter().find(|link| link.id == at).map_or(0, |link| link.stat_sn.distance_from(link.exp_stat_sn))
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Session::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_ended {
            return None;
        }
        let interval = self.parameters.ping_interval;
        let pings = self.pinged().map(|link| link.ping.map_or(link.last_moved + interval, |(_, until)| until));
        let lost = self.lost.iter().map(|lost| lost.deadline);
        let starved = (!self.set.starved.is_empty()).then_some(self.now + BUFFER_RETRY_INTERVAL);
        let logouts = self.logouts.iter().map(|logout| logout.deadline);
        let rests = self.live().filter_map(|link| link.pace.rests_until());
        let kept = self.live().filter_map(|link| link.sent.deadline());
        let others = self.management_deadline().into_iter().chain(self.stall_check).chain(rests);
        pings.chain(lost).chain(starved).chain(logouts).chain(kept).chain(others).min()
    }

    /// Handles due timeouts.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.end_rests();
        self.feed_starved();
        self.check_pings();
        self.check_stalls();
        self.forget_unacknowledged();
        self.advance_managements();
        self.advance_logouts();
        self.forget_lost();
    }

    /// Asks the initiator to log out within some seconds, and takes no new commands from now on. The driver closes when
    /// [`Event::Closed`] comes or its patience ends.
    pub fn request_logout(&mut self, now: Instant, within_seconds: u16) {
        self.now = now;
        if !std::mem::replace(&mut self.full.is_draining, true) {
            self.tell(AsyncEvent::LogoutRequest { logout_within_seconds: within_seconds }, None);
        }
        if self.live().next().is_none() {
            self.close(now, CloseReason::Local);
        }
    }

    /// Ends the session from this side, and reports that to the initiator (RFC 7143 11.9.1, event
    /// 3).
    pub fn drop_session(&mut self, now: Instant) {
        self.now = now;
        let wait_seconds = self.full.negotiated.default_time2wait;
        self.tell(AsyncEvent::SessionDrop { wait_seconds, retain_seconds: 0 }, None);
        self.end(CloseReason::Local);
    }

    /// Ends the session from this side.
    pub fn close(&mut self, now: Instant, reason: CloseReason) {
        self.now = now;
        self.end(reason);
    }

    /// Whether the session has ended.
    pub fn is_closed(&self) -> bool {
        self.is_ended
    }

    /// The request that began the session, with its TSIH.
    pub fn request(&self) -> &SessionRequest {
        &self.full.request
    }

    /// Whether the outcome of a task that the driver has is still wanted. If not, the driver
    /// need not begin it.
    pub fn is_wanted(&self, id: TaskId) -> bool {
        let is_live = |task: &super::task::Task| task.id == id && !task.is_aborted;
        !self.is_ended && self.set.tasks.get(&id.initiator_task_tag).is_some_and(is_live)
    }

    /// CIDs of its connections.
    pub fn connection_ids(&self) -> Vec<u16> {
        self.live().map(|link| link.cid).collect()
    }

    /// Tasks that have not ended: waiting for data, with the driver, or held.
    pub fn task_count(&self) -> usize {
        self.set.tasks.len()
    }

    /// PDUs received and queued so far.
    pub fn pdu_counts(&self) -> (u64, u64) {
        self.links
            .iter()
            .fold(self.gone_pdus, |(received, sent), link| (received + link.received_pdus, sent + link.sent_pdus()))
    }

    /// Digests that did not match so far, on all connections.
    pub fn digest_errors(&self) -> u64 {
        self.digest_errors
    }

    /// The negotiated values.
    pub fn negotiated(&self) -> &Negotiated {
        &self.full.negotiated
    }

    /// The report of a connection, for users.
    pub fn link_report(&self, at: LinkId) -> Option<LinkReport> {
        self.any(at).map(|link| link.report(at))
    }

    // Inside.

    fn live(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| !link.is_closed)
    }

    /// Connections that must show signs of life. An initiator that is logging out may only wait for
    /// the response.
    fn pinged(&self) -> impl Iterator<Item = &Link> {
        self.live().filter(|link| !self.is_leaving(link.id))
    }

    fn any(&self, at: LinkId) -> Option<&Link> {
        self.links.iter().find(|link| link.has_transport(at))
    }

    fn is_live(&self, at: LinkId) -> bool {
        self.live().any(|link| link.id == at)
    }

    /// Whether tasks outlive their connection.
    fn is_recoverable(&self) -> bool {
        self.full.negotiated.error_recovery_level >= 2 && self.full.negotiated.default_time2retain > 0
    }

    /// Time2Wait and Time2Retain as messages have them.
    fn times(&self) -> (u16, u16) {
        let retain = if self.is_recoverable() { self.full.negotiated.default_time2retain } else { 0 };
        (self.full.negotiated.default_time2wait, retain)
    }

    /// Handles a portion of the received bytes, while its answers have room. Otherwise the rest
    /// waits until the peer has taken some of them.
    fn drain_receiver(&mut self, at: LinkId) {
        let mut work = 0;
        if let Some(link) = live(&mut self.links, at) {
            link.is_behind = false;
        }
        while let Some(link) =
            live(&mut self.links, at).filter(|link| link.transmit.answer_bytes() <= RESPONSE_BYTES_HIGH)
        {
            if link.pace.is_resting(self.now) {
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
                    link.pace.note(self.now, pace::work_of(&pdu));
                    link.received_pdus += 1;
                    link.digest_errors += u64::from(pdu.data.is_corrupt);
                    self.digest_errors += u64::from(pdu.data.is_corrupt);
                    self.handle_full_feature_pdu(at, pdu);
                }
                Err(error) => {
                    link.digest_errors += u64::from(error == FramingError::HeaderDigest);
                    self.digest_errors += u64::from(error == FramingError::HeaderDigest);
                    self.fail_link(at, error.into());
                }
            }
        }
    }

    /// Handles connections again whose rest is over.
    fn end_rests(&mut self) {
        let now = self.now;
        let rested = |link: &mut Link| (!link.is_closed && link.pace.end_rest(now)).then_some(link.id);
        let over: Vec<LinkId> = self.links.iter_mut().filter_map(rested).collect();
        over.into_iter().for_each(|at| self.drain_receiver(at));
    }

    fn place_data(&mut self, at: LinkId) {
        let Some(link) = live(&mut self.links, at) else { return };
        let Some(header) = link.receiver.pending_header() else { return };
        let destination = match &header.bhs {
            Ok(Bhs::ScsiCommand(command)) => {
                place_immediate_data(&self.full, &self.set, &self.parameters, command, header)
            }
            Ok(Bhs::DataOut(data)) => {
                place_data_out(&mut self.set, &self.parameters, at, data, header.data_segment_bytes)
            }
            _ => {
                let bytes = header.data_segment_bytes;
                let lent = self.parameters.request_data.try_acquire(bytes);
                Destination::Buffer { buffer: lent.unwrap_or_else(|| Buffer::zeroed(bytes)), offset: 0 }
            }
        };
        link.receiver.place(destination);
    }

    /// Ends a connection without the initiator's request. The effect depends on the error recovery
    /// level (RFC 7143 7.1.5, 7.14): at level 0 the session ends; at 1 the connection's tasks end;
    /// at 2 they wait.
    fn fail_link(&mut self, at: LinkId, reason: CloseReason) {
        let Some(link) = live(&mut self.links, at) else { return };
        let cid = link.cid;
        let has_others = self.live().any(|link| link.id != at);
        let level = self.full.negotiated.error_recovery_level;
        if level == 0 || (!has_others && !self.is_recoverable()) {
            return self.end(reason);
        }
        self.remember_lost(at, cid, false);
        self.close_link(at, reason);
        let (wait_seconds, retain_seconds) = self.times();
        self.tell(AsyncEvent::ConnectionDrop { cid, wait_seconds, retain_seconds }, Some(at));
    }

    /// Logs a connection out, for recovery or for good.
    fn log_link_out(&mut self, at: LinkId, is_for_recovery: bool, reason: CloseReason) {
        let Some(link) = live(&mut self.links, at) else { return };
        let cid = link.cid;
        if is_for_recovery {
            self.remember_lost(at, cid, true);
        }
        self.close_link(at, reason);
    }

    fn remember_lost(&mut self, link: LinkId, cid: u16, is_logged_out: bool) {
        if self.lost.len() >= LOST_CONNECTIONS_MAX {
            let oldest = self.lost.remove(0);
            self.end_tasks_of(oldest.link);
        }
        let (wait, retain) = self.times();
        let kept = Duration::from_secs(u64::from(wait) + u64::from(retain)).min(RETENTION_MAX);
        self.lost.push(Lost { link, cid, is_logged_out, deadline: self.now + kept });
    }

    /// Closes a connection for receiving. Its tasks end, unless it is remembered and they may be
    /// reassigned; undelivered commands are dropped in any case.
    fn close_link(&mut self, at: LinkId, reason: CloseReason) {
        let Some(link) = live(&mut self.links, at) else { return };
        link.is_closed = true;
        link.sent.clear();
        if let Some(half) = &link.response_half {
            self.events.push_back(Event::LinkClosed(half.id, reason.clone()));
        }
        self.events.push_back(Event::LinkClosed(at, reason));
        self.give_up_undelivered(at);
        // Immediate commands do not outlive their connection (RFC 7143 7.14), nor do task management requests.
        self.drop_tasks(|task| task.link == at && task.header.is_immediate);
        let is_remembered = self.is_recoverable() && self.lost.iter().any(|lost| lost.link == at);
        if is_remembered {
            self.free_buffers_of(at);
        } else {
            self.end_tasks_of(at);
        }
        self.advance_managements();
    }

    /// Drops the undelivered commands of a connection, so that the initiator can send them again on
    /// another one (RFC 7143 11.14).
    fn give_up_undelivered(&mut self, at: LinkId) {
        let of_link = |task: &super::task::Task| task.link == at && !task.is_delivered;
        let given_up: Vec<TaskId> = self.set.tasks.values().filter(|task| of_link(task)).map(|task| task.id).collect();
        self.set.window.give_up(|held| match held {
            Held::Task(id) => given_up.contains(id),
            Held::Request(link, _) => *link == at,
            Held::Plugged => false,
        });
        for id in given_up {
            self.drop_task(id);
        }
    }

    /// Frees the data buffers of a lost connection's waiting tasks: after a reassignment the data
    /// is sent again.
    fn free_buffers_of(&mut self, at: LinkId) {
        let is_waiting = |task: &&mut super::task::Task| task.link == at && !task.is_started;
        let waiting = self.set.tasks.values_mut().filter(is_waiting).map(|task| {
            task.data_out.forget();
            task.id
        });
        let waiting: Vec<TaskId> = waiting.collect();
        waiting.into_iter().for_each(|id| self.set.hold(id, DataOutHeld::default()));
        self.feed_starved();
    }

    /// Ends the tasks of a lost connection without responses.
    fn end_tasks_of(&mut self, at: LinkId) {
        self.drop_tasks(|task| task.link == at);
        self.set.forget_answers(|answer| answer.link == at);
        self.feed_starved();
    }

    /// Ends tasks of which the initiator learns only by a unit attention.
    fn drop_tasks(&mut self, is_ended: impl Fn(&super::task::Task) -> bool) {
        let ended: Vec<&super::task::Task> = self.set.tasks.values().filter(|task| is_ended(task)).collect();
        // The end of aborted tasks was reported already.
        let luns: BTreeSet<u64> = ended.iter().filter(|task| !task.is_aborted).map(|task| task.header.lun).collect();
        let ended: Vec<TaskId> = ended.into_iter().map(|task| task.id).collect();
        ended.into_iter().for_each(|id| self.drop_task(id));
        if !luns.is_empty() {
            self.events.push_back(Event::CommandsCleared(luns.into_iter().collect()));
        }
    }

    /// Ends a task without a response. One that the driver has stays until the driver returns it.
    fn drop_task(&mut self, id: TaskId) {
        let Some(task) = self.set.task(id) else { return };
        task.is_aborted = true;
        if !task.is_started {
            self.set.remove_task(id);
            self.set.note_end(id);
        }
    }

    /// Forgets lost connections whose time is over, with their tasks; the session ends with the
    /// last of them when it has no connection.
    fn forget_lost(&mut self) {
        while let Some(index) = self.lost.iter().position(|lost| self.now >= lost.deadline) {
            let lost = self.lost.remove(index);
            self.end_tasks_of(lost.link);
        }
        self.end_if_unconnected(CloseReason::TransportLost);
    }

    fn end_if_unconnected(&mut self, reason: CloseReason) {
        if self.live().next().is_none() && self.lost.is_empty() {
            self.end(reason);
        }
    }

    /// Ends the session with all its connections and tasks.
    fn end(&mut self, reason: CloseReason) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        for link in self.links.iter_mut().filter(|link| !link.is_closed) {
            link.is_closed = true;
            link.sent.clear();
        }
        self.lost.clear();
        self.set.forget_answers(|_| true);
        self.set.managements.clear();
        self.logouts.clear();
        self.events.push_back(Event::Closed(reason));
    }

    /// Sends an asynchronous message on every connection but one.
    fn tell(&mut self, event: AsyncEvent, except: Option<LinkId>) {
        let links: Vec<LinkId> = self.live().map(|link| link.id).filter(|&id| Some(id) != except).collect();
        links.into_iter().for_each(|at| self.tell_one(at, event, 0));
    }

    /// Sends an asynchronous message of our own, with data, on one connection: `preferred`, if it
    /// still exists. Returns `false` when there is none.
    pub fn send_message(
        &mut self,
        now: Instant,
        preferred: Option<LinkId>,
        (event, code): (u8, u8),
        data: Vec<u8>,
    ) -> bool {
        self.now = now;
        let chosen = self.live().find(|link| Some(link.id) == preferred).or_else(|| self.live().next());
        let Some(at) = chosen.map(|link| link.id) else { return false };
        let (exp_cmd_sn, max_cmd_sn) = self.set.command_numbers();
        let Some(link) = live(&mut self.links, at) else { return false };
        let stat_sn = link.take_stat_sn();
        let event = AsyncEvent::Vendor { event, code, parameters: [0; 3] };
        let message = AsyncMessage { event, lun: 0, stat_sn, exp_cmd_sn, max_cmd_sn };
        link.push_response(stat_sn, &message, DataSegment::from(data));
        if link.sent.are_too_many() {
            self.fail_link(at, CloseReason::Unacknowledged);
        }
        true
    }

    /// The connection of a task's command.
    pub fn link_of(&self, id: TaskId) -> Option<LinkId> {
        self.set.tasks.get(&id.initiator_task_tag).filter(|task| task.id == id).map(|task| task.link)
    }

    fn tell_one(&mut self, at: LinkId, event: AsyncEvent, lun: u64) {
        let (exp_cmd_sn, max_cmd_sn) = self.set.command_numbers();
        let Some(link) = live(&mut self.links, at) else { return };
        let stat_sn = link.take_stat_sn();
        let message = AsyncMessage { event, lun, stat_sn, exp_cmd_sn, max_cmd_sn };
        link.push_response(stat_sn, &message, DataSegment::Empty);
    }

    fn check_pings(&mut self) {
        let (now, interval) = (self.now, self.parameters.ping_interval);
        let links: Vec<LinkId> = self.pinged().map(|link| link.id).collect();
        for at in links {
            let Some(link) = live(&mut self.links, at) else { continue };
            match link.ping {
                Some((_, until)) if now >= until => self.fail_link(at, CloseReason::PingTimeout),
                None if now >= link.last_moved + interval => self.ping(at),
                Some(_) | None => {}
            }
        }
    }

    /// Sends a ping, whose answer also brings the ExpStatSN.
    fn ping(&mut self, at: LinkId) {
        let tag = self.next_tag();
        let until = self.now + self.parameters.ping_timeout;
        let (exp_cmd_sn, max_cmd_sn) = self.set.command_numbers();
        let Some(link) = live(&mut self.links, at) else { return };
        link.ping = Some((tag, until));
        let stat_sn = link.stat_sn;
        let ping =
            NopIn { lun: 0, initiator_task_tag: None, target_transfer_tag: Some(tag), stat_sn, exp_cmd_sn, max_cmd_sn };
        link.push(&ping, DataSegment::Empty);
    }

    fn next_tag(&mut self) -> TargetTransferTag {
        self.target_transfer_tag = self.target_transfer_tag.next();
        self.target_transfer_tag
    }

    fn reject(&mut self, at: LinkId, header: &ReceivedHeader, reason: RejectReason) {
        self.reject_data(at, header, reason, Serial32(0));
    }

    /// A Reject with the next DataSN or R2TSN, as for an invalid data SNACK (RFC 7143 11.17.2).
    fn reject_data(&mut self, at: LinkId, header: &ReceivedHeader, reason: RejectReason, data_sn: Serial32) {
        let (exp_cmd_sn, max_cmd_sn) = self.set.command_numbers();
        let Some(link) = live(&mut self.links, at) else { return };
        // The rejected PDU had no effect.
        link.pace.note(self.now, 1);
        let stat_sn = link.take_stat_sn();
        let reject = Reject { reason, stat_sn, exp_cmd_sn, max_cmd_sn, data_sn };
        link.push_response(stat_sn, &reject, DataSegment::from(header.raw.to_vec()));
        if link.sent.are_too_many() {
            self.fail_link(at, CloseReason::Unacknowledged);
        }
    }
}

/// The work that a PDU counts in a turn.
fn work_of(pdu: &ReceivedPdu) -> usize {
    let is_text = matches!(pdu.header.bhs, Ok(Bhs::TextRequest(_)));
    1 + if is_text { pdu.data.length / WORK_TEXT_BYTES } else { 0 }
}

/// The connection that a transport belongs to.
fn with_transport(links: &mut [Link], at: LinkId) -> Option<&mut Link> {
    links.iter_mut().find(|link| link.has_transport(at))
}
