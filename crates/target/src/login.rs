//! The loop that drives one connection from its first byte to the end of its login.
//!
//! A login ends as a session of its own, as a further connection of another session, which that
//! session's loop then drives on its shard, or with its refusal.

use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use base::clock::{Instant, Sleep};
use iscsi::pdu::LoginStatus;
use iscsi::target as protocol;
use iscsi::target::{CloseReason, LoginEvent, SessionRequest};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::addresses::Addresses;
use crate::connections::Entered;
use crate::control::{Control, Directive, Handle};
use crate::limits::{LINGER_TIMEOUT, WRITE_SLICES_MAX};
use crate::session::Session;
use crate::sessions::{Decision, Joining};
use crate::shared::Shared;
use crate::transport::Transport;
use crate::turns::Turns;

/// Drives a connection: through its login, and, if it begins a session, through the session to its
/// end. If it joins a session, waits for the end of the connection.
pub(crate) async fn drive(
    server: Arc<Shared>,
    stream: Box<dyn Transport>,
    (addresses, portal_group_tag): (Addresses, u16),
    (control, entered): (Control, Entered),
    turns: Arc<Turns>,
) -> CloseReason {
    let peer = addresses.peer.clone();
    let shared = Arc::clone(&server);
    let mut login = Login::new(server, stream, (addresses, portal_group_tag), (control, entered), turns);
    let end = poll_fn(|context| login.poll(context)).await;
    let reason = match end {
        End::Closed(reason) => reason,
        End::Joined(ended) => {
            drop(login);
            ended.await.unwrap_or(CloseReason::TransportLost)
        }
        End::Begun(session) => {
            drop(login);
            session.run().await
        }
    };
    log_end(&shared, &peer, &reason);
    reason
}

/// Logs the end of a connection; an unexpected end is logged at a higher level than a requested
/// one.
fn log_end(server: &Shared, peer: &str, reason: &CloseReason) {
    match reason {
        CloseReason::LoginRefused { status, detail } => {
            let code = format!("{:04x}", status.0);
            let reason = status.name();
            if let Some(others) = server.refusals.note(server.clock.now()) {
                tracing::warn!(connection = peer, status = code, reason, detail, others, "login refused");
            }
        }
        CloseReason::LoginTimeout
        | CloseReason::Framing(_)
        | CloseReason::Protocol(_)
        | CloseReason::PingTimeout
        | CloseReason::Unacknowledged
        | CloseReason::Unread => {
            if let Some(others) = server.refusals.note(server.clock.now()) {
                tracing::warn!(connection = peer, %reason, others, "connection ended");
            }
        }
        CloseReason::Logout
        | CloseReason::TransportLost
        | CloseReason::Local
        | CloseReason::Reinstated
        | CloseReason::LoggedOut => tracing::info!(connection = peer, %reason, "connection ended"),
    }
}

/// The result of a login.
enum End {
    Closed(CloseReason),
    Begun(Box<Session>),
    Joined(oneshot::Receiver<CloseReason>),
}

struct Login {
    server: Arc<Shared>,
    /// `None` once a session has them.
    parts: Option<Parts>,
    /// A login that waits for the sessions it replaces to end.
    admission: Option<(u16, SessionRequest, Vec<Handle>)>,
    timer: Option<(Instant, Sleep)>,
    closed: Option<CloseReason>,
    linger_deadline: Option<Instant>,
    /// The turns of the sessions on this thread.
    turns: Arc<Turns>,
}

struct Parts {
    stream: Box<dyn Transport>,
    addresses: Addresses,
    protocol: protocol::Connection,
    control: Control,
    entered: Entered,
}

impl Login {
    fn new(
        server: Arc<Shared>,
        stream: Box<dyn Transport>,
        (addresses, portal_group_tag): (Addresses, u16),
        (control, entered): (Control, Entered),
        turns: Arc<Turns>,
    ) -> Self {
        let local_address: Option<SocketAddr> = addresses.local.parse().ok();
        let parameters = server.parameters(portal_group_tag);
        let protocol = protocol::Connection::new(parameters, server.challenge(), local_address, server.clock.now());
        Self {
            server,
            parts: Some(Parts { stream, addresses, protocol, control, entered }),
            admission: None,
            timer: None,
            closed: None,
            linger_deadline: None,
            turns,
        }
    }

    /// One wake-up: reads at most once, and continues while there is progress.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let mut has_read = false;
        loop {
            let mut has_moved = false;
            while let Some(event) = self.parts.as_mut().and_then(|parts| parts.protocol.poll_event()) {
                has_moved = true;
                match event {
                    LoginEvent::SessionRequested(request) => {
                        if let Some(end) = self.admit(&request) {
                            return Poll::Ready(end);
                        }
                    }
                    LoginEvent::Closed(reason) => {
                        self.closed = Some(reason);
                        self.linger_deadline = Some(self.server.clock.now() + LINGER_TIMEOUT);
                    }
                }
            }
            if let Some((_, _, previous)) = &self.admission
                && previous.iter().all(|handle| handle.poll_ended(context).is_ready())
                && let Some((tsih, request, _)) = self.admission.take()
                && let Some(end) = self.begin(tsih, &request)
            {
                return Poll::Ready(end);
            }
            let Some(parts) = &mut self.parts else { return Poll::Pending };
            if parts.control.poll_directive(context) != Directive::Run && !parts.protocol.is_closed() {
                parts.protocol.close(CloseReason::Local);
                has_moved = true;
            }
            let exchanged = parts.write(&self.server, context).and_then(|has_written| {
                has_moved |= has_written;
                if !has_read && parts.can_read() {
                    has_read = parts.read(&self.server, context)?;
                    has_moved |= has_read;
                }
                Ok(())
            });
            if let Err(error) = exchanged {
                tracing::debug!(connection = %parts.addresses.peer, %error, "the transport failed");
                return Poll::Ready(End::Closed(self.closed.take().unwrap_or(CloseReason::TransportLost)));
            }
            has_moved |= self.poll_timer(context);
            if let Some(end) = self.ended() {
                return Poll::Ready(end);
            }
            if has_moved {
                continue;
            }
            if has_read {
                // More data may have arrived: continue after the runtime has looked at the other
                // sockets.
                let _ = std::pin::pin!(tokio::task::yield_now()).poll(context);
            }
            return Poll::Pending;
        }
    }

    /// The reason of the end, once the last bytes are sent or the peer's time to take them is over.
    fn ended(&self) -> Option<End> {
        let is_sent = self.parts.as_ref().is_none_or(|parts| parts.protocol.transmit_bytes() == 0);
        let is_late = || self.linger_deadline.is_some_and(|deadline| self.server.clock.now() >= deadline);
        self.closed.clone().filter(|_| is_sent || is_late()).map(End::Closed)
    }

    fn refuse(&mut self, status: LoginStatus, detail: &str) -> Option<End> {
        let now = self.server.clock.now();
        if let Some(parts) = &mut self.parts {
            parts.protocol.refuse_session(now, status, detail);
        }
        None
    }

    fn admit(&mut self, request: &SessionRequest) -> Option<End> {
        if let Some(name) = &request.target_name {
            match self.server.target(name).map(|target| target.view(request).is_some()) {
                Some(true) => {}
                Some(false) => {
                    let detail = "the initiator is not allowed here any more";
                    return self.refuse(LoginStatus::AUTHORIZATION_FAILURE, detail);
                }
                None => {
                    let detail = "the target was removed while the initiator logged in";
                    return self.refuse(LoginStatus::TARGET_REMOVED, detail);
                }
            }
        }
        let parts = self.parts.as_ref()?;
        let (handle, number, peer) = (parts.control.handle(), parts.entered.number, parts.addresses.peer.clone());
        let quota = self.server.quota();
        if !self.server.connections.log_in(number, &request.initiator_name, &quota) {
            return self.refuse(LoginStatus::OUT_OF_RESOURCES, "the initiator has as many connections as it may");
        }
        match self.server.sessions.admit(request, (handle, &peer), quota.sessions) {
            Decision::Refuse { status, detail } => self.refuse(status, detail),
            Decision::Admit { tsih, previous } if previous.is_empty() => self.begin(tsih, request),
            Decision::Admit { tsih, previous } => {
                self.admission = Some((tsih, request.clone(), previous));
                None
            }
            Decision::Join(session) => {
                let Parts { stream, addresses, protocol, control, entered } = self.parts.take()?;
                let (ended, end) = oneshot::channel();
                let joining = Joining { stream, addresses, protocol, control, entered, ended };
                match session.try_send(Box::new(joining)) {
                    Ok(()) => Some(End::Joined(end)),
                    // The session has just ended, or too many connections wait for it.
                    Err(error) => {
                        let Joining { stream, addresses, protocol, control, entered, .. } = *error.into_inner();
                        self.parts = Some(Parts { stream, addresses, protocol, control, entered });
                        self.refuse(LoginStatus::SESSION_DOES_NOT_EXIST, "the session is over")
                    }
                }
            }
        }
    }

    fn begin(&mut self, tsih: u16, request: &SessionRequest) -> Option<End> {
        let Parts { stream, addresses, protocol, control, entered } = self.parts.take()?;
        let joining = Joining { stream, addresses, protocol, control, entered, ended: oneshot::channel().0 };
        let (server, turns) = (Arc::clone(&self.server), Arc::clone(&self.turns));
        Session::begin(server, joining, tsih, request, turns).map(|session| End::Begun(Box::new(session)))
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> bool {
        let protocol = self.parts.as_ref().and_then(|parts| parts.protocol.poll_timeout());
        let Some(deadline) = [protocol, self.linger_deadline].into_iter().flatten().min() else {
            self.timer = None;
            return false;
        };
        if self.timer.as_ref().is_none_or(|(set_to, _)| deadline != *set_to) {
            self.timer = Some((deadline, self.server.clock.sleep_until(deadline)));
        }
        let Some((_, sleep)) = &mut self.timer else { return false };
        if sleep.as_mut().poll(context).is_pending() {
            return false;
        }
        self.timer = None;
        if let Some(parts) = &mut self.parts {
            parts.protocol.handle_timeout(self.server.clock.now());
        }
        true
    }
}

impl Parts {
    /// Writes until nothing is queued or the stream takes no more.
    fn write(&mut self, server: &Shared, context: &mut Context<'_>) -> std::io::Result<bool> {
        let mut has_moved = false;
        while self.protocol.transmit_bytes() > 0 {
            let mut slices = [IoSlice::new(&[]); WRITE_SLICES_MAX];
            let count = self.protocol.io_slices(&mut slices);
            match Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(length)) => self.protocol.handle_transmitted(server.clock.now(), length),
                Poll::Ready(Err(error)) => return Err(error),
            }
            has_moved = true;
        }
        if has_moved {
            let _ = Pin::new(&mut self.stream).poll_flush(context)?;
        }
        Ok(has_moved)
    }

    /// Whether the receive buffer has room.
    fn can_read(&mut self) -> bool {
        !self.protocol.receive_space().is_empty()
    }

    /// Reads once, if something has come and there is room for it.
    fn read(&mut self, server: &Shared, context: &mut Context<'_>) -> std::io::Result<bool> {
        let mut buffer = ReadBuf::new(self.protocol.receive_space());
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) => match buffer.filled().len() {
                0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
                length => {
                    self.protocol.handle_received(server.clock.now(), length);
                    Ok(true)
                }
            },
        }
    }
}

impl Drop for Login {
    /// Removes the connection from the tables.
    fn drop(&mut self) {
        let counters = &self.server.counters;
        if let Some(CloseReason::LoginRefused { status, .. }) = &self.closed {
            counters.count_refused_login(*status);
        }
        let Some(parts) = &self.parts else { return };
        let (received, sent) = parts.protocol.pdu_counts();
        counters.pdus_received.fetch_add(received, Ordering::Relaxed);
        counters.pdus_sent.fetch_add(sent, Ordering::Relaxed);
        if let Some((tsih, ..)) = self.admission.take() {
            self.server.sessions.remove(tsih, &parts.control.handle());
        }
    }
}
