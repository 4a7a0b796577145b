//! The loop that drives one connection.
//!
//! One future, no tasks of its own. A turn of the loop:
//!
//! ```text
//! events ──► execute; answered in place? ──► complete     (else among the running)
//! running executions that ended ──► complete
//! what gathered ──► one vectored write
//! socket ──► where the protocol says
//! ```
//!
//! A slow peer is not read from, and its next commands are not started, while it has [`DATA_IN_BYTES_MAX`] bytes queued or being
//! read: it holds no more buffers than that.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use base::clock::{Instant, Sleep};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use iscsi::pdu::{LoginStatus, TaskManagementFunction, TaskManagementOutcome};
use iscsi::target as protocol;
use iscsi::target::{CloseReason, Event, SessionRequest, TaskId, TaskManagement, TaskManagementId};
use logical_unit::{Execution, LunMap, NexusId, Outcome, TaskManagementResponse};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::control::{Control, Handle, Wish};
use crate::limits::{DATA_IN_BYTES_MAX, DRAIN_TIMEOUT, LINGER_TIMEOUT, TURNS_PER_POLL_MAX, WRITE_SLICES_MAX};
use crate::server::Shared;
use crate::sessions::Decision;
use crate::status::{LunCounters, Use};
use crate::target::lun_number;

/// Both ends of a connection, as text for people; addresses that are not IP are fine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Where the initiator reached us.
    pub local: String,
    /// Where it is.
    pub peer: String,
}

/// Drives a connection to its end.
pub(crate) async fn drive<S: AsyncRead + AsyncWrite + Unpin>(
    server: Arc<Shared>,
    stream: S,
    addresses: Addresses,
    control: Control,
) -> CloseReason {
    let mut driver = Driver::new(server, stream, addresses, control);
    let reason = poll_fn(|context| driver.poll(context)).await;
    tracing::info!(peer = %driver.addresses.peer, %reason, "connection ended");
    reason
}

struct Driver<S> {
    server: Arc<Shared>,
    stream: S,
    addresses: Addresses,
    protocol: protocol::Connection,
    control: Control,
    session: Option<Session>,
    /// A login that waits for the sessions it replaces to end.
    admission: Option<(u16, SessionRequest, Vec<Handle>)>,
    running: FuturesUnordered<Running>,
    managing: FuturesUnordered<Managing>,
    /// Bytes of data-in that commands under way may bring.
    expected_bytes: usize,
    /// An event that must wait until the peer has taken what is queued.
    delayed: Option<Event>,
    timer: Option<(Instant, Sleep)>,
    drain_deadline: Option<Instant>,
    closed: Option<CloseReason>,
    linger_deadline: Option<Instant>,
    counted_pdus: (u64, u64),
}

/// What a session of the full feature phase has.
struct Session {
    tsih: u16,
    /// Nothing in a discovery session.
    unit: Option<Units>,
}

struct Units {
    target_name: String,
    luns: LunMap,
    nexus: NexusId,
    counters: BTreeMap<u64, Arc<LunCounters>>,
}

/// What is to be counted when a command ends.
struct Ticket {
    task: TaskId,
    lun: u64,
    counters: Arc<LunCounters>,
    usage: Use,
    expected_bytes: usize,
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

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    fn new(server: Arc<Shared>, stream: S, addresses: Addresses, control: Control) -> Self {
        let local_address: Option<SocketAddr> = addresses.local.parse().ok();
        let protocol =
            protocol::Connection::new(server.parameters(), server.challenge(), local_address, server.clock.now());
        Self {
            server,
            stream,
            addresses,
            protocol,
            control,
            session: None,
            admission: None,
            running: FuturesUnordered::new(),
            managing: FuturesUnordered::new(),
            expected_bytes: 0,
            delayed: None,
            timer: None,
            drain_deadline: None,
            closed: None,
            linger_deadline: None,
            counted_pdus: (0, 0),
        }
    }

    /// One wake-up: turns until nothing moves any more.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<CloseReason> {
        for _ in 0..TURNS_PER_POLL_MAX {
            let mut has_moved = self.handle_events();
            has_moved |= self.poll_running(context);
            has_moved |= self.poll_control(context);
            has_moved |= match self.poll_write(context) {
                Ok(has_moved) => has_moved,
                Err(error) => return Poll::Ready(self.lost(&error)),
            };
            if let Some(reason) = self.ended() {
                return Poll::Ready(reason);
            }
            has_moved |= match self.poll_read(context) {
                Ok(has_moved) => has_moved,
                Err(error) => return Poll::Ready(self.lost(&error)),
            };
            has_moved |= self.poll_timer(context);
            self.count_pdus();
            if !has_moved {
                return Poll::Pending;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Why it is over, once the last words are sent or the peer had its time to take them.
    fn ended(&self) -> Option<CloseReason> {
        let is_sent = self.protocol.transmit_bytes() == 0;
        let is_late = || self.linger_deadline.is_some_and(|deadline| self.server.clock.now() >= deadline);
        self.closed.clone().filter(|_| is_sent || is_late())
    }

    fn lost(&self, error: &std::io::Error) -> CloseReason {
        tracing::debug!(peer = %self.addresses.peer, %error, "the transport failed");
        self.closed.clone().unwrap_or(CloseReason::TransportLost)
    }

    fn handle_events(&mut self) -> bool {
        let mut has_moved = false;
        while let Some(event) = self.delayed.take().or_else(|| self.protocol.poll_event()) {
            if let Event::Command(command) = &event
                && !self.has_room_for(command.data_in_bytes_max)
            {
                self.delayed = Some(event);
                break;
            }
            has_moved = true;
            match event {
                Event::Command(command) => self.execute(command),
                Event::TaskManagement(request) => self.manage(request),
                Event::SessionRequested(request) => self.admit(request),
                Event::Logout => {}
                Event::Closed(reason) => {
                    self.closed = Some(reason);
                    self.linger_deadline = Some(self.server.clock.now() + LINGER_TIMEOUT);
                }
            }
        }
        has_moved
    }

    /// Whether a command that may bring so many bytes can start now. When nothing is under way, any can.
    fn has_room_for(&self, bytes: u32) -> bool {
        let used = self.expected_bytes + self.protocol.transmit_bytes();
        used == 0 || used.saturating_add(bytes as usize) <= DATA_IN_BYTES_MAX
    }

    fn execute(&mut self, command: protocol::Command) {
        let Some(units) = self.session.as_mut().and_then(|session| session.unit.as_mut()) else { return };
        let lun = lun_number(command.lun);
        let cdb = match command.cdb.extension.as_slice() {
            [] => scsi::CdbBytes::from(command.cdb.head),
            extension => {
                scsi::CdbBytes::new(&[&command.cdb.head, extension].concat()).unwrap_or(command.cdb.head.into())
            }
        };
        let ticket = Ticket {
            task: command.task,
            lun,
            counters: units.counters(lun, &self.server),
            usage: Use::of(command.cdb.head[0], command.data_out.len()),
            expected_bytes: (command.data_in_bytes_max as usize).min(DATA_IN_BYTES_MAX),
        };
        let command = logical_unit::Command {
            cdb,
            data_out: command.data_out,
            data_in_bytes_max: command.data_in_bytes_max,
            attribute: attribute(command.attribute),
            task_tag: u64::from(command.task.initiator_task_tag.get()),
        };
        let mut execution = units.luns.execute(&units.nexus, lun, command);
        match execution.try_take() {
            Some(outcome) => self.complete(&ticket, outcome),
            None => {
                self.expected_bytes += ticket.expected_bytes;
                self.running.push(Running { ticket: Some(ticket), execution });
            }
        }
    }

    /// Sense data in the format the logical unit is set to.
    fn sense_bytes(&self, lun: u64, sense: &scsi::Sense) -> Vec<u8> {
        let units = self.session.as_ref().and_then(|session| session.unit.as_ref());
        units.map_or_else(|| sense.emit_fixed().to_vec(), |units| units.luns.sense_bytes(lun, sense))
    }

    fn complete(&mut self, ticket: &Ticket, outcome: Outcome) {
        let is_good = outcome.status == scsi::Status::Good;
        ticket.counters.count(ticket.usage, is_good, outcome.data_in.len());
        let outcome = protocol::Outcome {
            status: outcome.status.code(),
            sense: outcome.sense.map(|sense| self.sense_bytes(ticket.lun, &sense)).unwrap_or_default(),
            data_in: outcome.data_in,
            is_silent: outcome.is_silent,
        };
        self.protocol.handle_completion(self.server.clock.now(), ticket.task, outcome);
    }

    fn poll_running(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_moved = false;
        while let Poll::Ready(Some((ticket, outcome))) = self.running.poll_next_unpin(context) {
            has_moved = true;
            if let Some(ticket) = ticket {
                self.expected_bytes -= ticket.expected_bytes;
                self.complete(&ticket, outcome);
            }
        }
        while let Poll::Ready(Some((id, function, outcome))) = self.managing.poll_next_unpin(context) {
            has_moved = true;
            self.protocol.handle_task_management(self.server.clock.now(), id, outcome);
            if function == TaskManagementFunction::TargetColdReset
                && let Some(units) = self.session.as_ref().and_then(|session| session.unit.as_ref())
            {
                // A power-on event: all sessions end (RFC 7143 11.5.1).
                self.server.sessions.ask_target(&units.target_name, Wish::Stop);
            }
        }
        if let Some((_, _, previous)) = &self.admission
            && previous.iter().all(|handle| handle.poll_ended(context).is_ready())
            && let Some((tsih, request, _)) = self.admission.take()
        {
            self.begin_session(tsih, &request);
            has_moved = true;
        }
        has_moved
    }

    fn manage(&mut self, request: TaskManagement) {
        let TaskManagement { id, function, lun, task } = request;
        let units = self.session.as_ref().and_then(|session| session.unit.as_ref());
        let (Some(units), Some(scsi_function)) = (units, scsi::TaskManagementFunction::from_code(function.code()))
        else {
            let outcome = TaskManagementOutcome::FunctionNotSupported;
            self.protocol.handle_task_management(self.server.clock.now(), id, outcome);
            return;
        };
        let tag = task.map(|task| u64::from(task.initiator_task_tag.get()));
        // It takes effect at the call; what is awaited is the end of I/O under way.
        let carried_out = units.luns.task_management(&units.nexus, scsi_function, Some(lun_number(lun)), tag);
        self.managing.push(Box::pin(async move {
            let outcome = match carried_out.await {
                // The task ended before its abort got there.
                TaskManagementResponse::TaskDoesNotExist | TaskManagementResponse::FunctionComplete => {
                    TaskManagementOutcome::FunctionComplete
                }
                TaskManagementResponse::LunDoesNotExist => TaskManagementOutcome::LunDoesNotExist,
                TaskManagementResponse::NotSupported => TaskManagementOutcome::FunctionNotSupported,
                TaskManagementResponse::Rejected => TaskManagementOutcome::FunctionRejected,
            };
            (id, function, outcome)
        }));
    }

    fn admit(&mut self, request: SessionRequest) {
        let now = self.server.clock.now();
        let is_known = request.target_name.as_ref().is_none_or(|name| self.server.target(name).is_some());
        if !is_known {
            let detail = "the target was removed while the initiator logged in";
            return self.protocol.refuse_session(now, LoginStatus::TARGET_REMOVED, detail);
        }
        match self.server.sessions.admit(&request, self.control.handle()) {
            Decision::Refuse { status, detail } => self.protocol.refuse_session(now, status, detail),
            Decision::Admit { tsih, previous } if previous.is_empty() => self.begin_session(tsih, &request),
            Decision::Admit { tsih, previous } => self.admission = Some((tsih, request, previous)),
        }
    }

    fn begin_session(&mut self, tsih: u16, request: &SessionRequest) {
        let unit = request.target_name.as_ref().and_then(|name| self.server.target(name)).map(|target| {
            let nexus = NexusId::new(&format!(
                "{},i,0x{},{},t,0x{:04x}",
                request.initiator_name, request.isid, target.name, self.server.options.portal_group_tag
            ));
            target.luns.add_nexus(&nexus);
            Units { target_name: target.name, luns: target.luns, nexus, counters: BTreeMap::new() }
        });
        tracing::info!(
            peer = %self.addresses.peer, tsih, initiator = %request.initiator_name,
            target = request.target_name.as_deref().unwrap_or("(discovery)"), "session began"
        );
        self.session = Some(Session { tsih, unit });
        self.protocol.accept_session(self.server.clock.now(), tsih);
    }

    fn poll_control(&mut self, context: &Context<'_>) -> bool {
        let now = self.server.clock.now();
        match self.control.poll_wish(context) {
            Wish::Run => return false,
            Wish::Drain if self.drain_deadline.is_none() => {
                self.drain_deadline = Some(now + DRAIN_TIMEOUT);
                self.protocol.request_logout(now);
            }
            Wish::Drain
                if self.drain_deadline.is_some_and(|deadline| now >= deadline) && !self.protocol.is_closed() =>
            {
                self.protocol.close(CloseReason::Local);
            }
            Wish::Stop if !self.protocol.is_closed() => self.protocol.close(CloseReason::Local),
            Wish::Drain | Wish::Stop => return false,
        }
        true
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> std::io::Result<bool> {
        let mut has_moved = false;
        while self.protocol.transmit_bytes() > 0 {
            let mut slices = [IoSlice::new(&[]); WRITE_SLICES_MAX];
            let count = self.protocol.io_slices(&mut slices);
            match Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(length)) => self.protocol.handle_transmitted(self.server.clock.now(), length),
                Poll::Ready(Err(error)) => return Err(error),
            }
            has_moved = true;
        }
        if has_moved {
            // Streams that buffer must not keep it; for TCP this does nothing.
            let _ = Pin::new(&mut self.stream).poll_flush(context)?;
        }
        Ok(has_moved)
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> std::io::Result<bool> {
        if self.delayed.is_some() || self.protocol.transmit_bytes() > DATA_IN_BYTES_MAX {
            return Ok(false);
        }
        let space = self.protocol.receive_space();
        if space.is_empty() {
            return Ok(false);
        }
        let mut buffer = ReadBuf::new(space);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) => match buffer.filled().len() {
                0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
                length => {
                    self.protocol.handle_received(self.server.clock.now(), length);
                    Ok(true)
                }
            },
        }
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> bool {
        let drain_deadline = self.drain_deadline.filter(|_| !self.protocol.is_closed());
        let deadlines = [self.protocol.poll_timeout(), drain_deadline, self.linger_deadline];
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
        self.protocol.handle_timeout(self.server.clock.now());
        true
    }
}

impl<S> Driver<S> {
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
    }
}

impl<S> Drop for Driver<S> {
    /// Leaves the tables, however it ends. Commands under way are detached: they finish, and nobody hears of it. The
    /// control is dropped after this, so that whoever waits for the end finds the nexus gone.
    fn drop(&mut self) {
        self.count_pdus();
        if matches!(self.closed, Some(CloseReason::LoginRefused { .. })) {
            self.server.counters.logins_refused.fetch_add(1, Ordering::Relaxed);
        }
        self.running.clear();
        if let Some((tsih, ..)) = self.admission.take() {
            self.server.sessions.remove(tsih, &self.control.handle());
        }
        if let Some(session) = self.session.take() {
            if let Some(units) = session.unit {
                units.luns.remove_nexus(&units.nexus);
            }
            self.server.sessions.remove(session.tsih, &self.control.handle());
        }
    }
}

impl Units {
    fn counters(&mut self, lun: u64, server: &Shared) -> Arc<LunCounters> {
        if let Some(counters) = self.counters.get(&lun) {
            return Arc::clone(counters);
        }
        let counters = if self.luns.get(lun).is_some() {
            server.counters.lun(&self.target_name, lun)
        } else {
            // An initiator may ask for any LUN; only those that exist get a lasting entry.
            return Arc::default();
        };
        self.counters.insert(lun, Arc::clone(&counters));
        counters
    }
}

fn attribute(attribute: iscsi::pdu::TaskAttribute) -> scsi::TaskAttribute {
    match attribute {
        iscsi::pdu::TaskAttribute::Untagged | iscsi::pdu::TaskAttribute::Simple => scsi::TaskAttribute::Simple,
        iscsi::pdu::TaskAttribute::Ordered => scsi::TaskAttribute::Ordered,
        iscsi::pdu::TaskAttribute::HeadOfQueue => scsi::TaskAttribute::HeadOfQueue,
        iscsi::pdu::TaskAttribute::Aca => scsi::TaskAttribute::Aca,
    }
}
