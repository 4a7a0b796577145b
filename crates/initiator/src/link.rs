//! One open session: a stream, the connection that speaks over it, and its commands.
//!
//! [`Link::poll_io`] does everything that can be done without waiting: reads into the buffers the connection names,
//! writes all that is queued in one vectored write, and tells the connection the time. Nothing here spawns a task.

use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::clock::{Clock, Instant};
use base::serial::Serial32;
use iscsi::initiator::{
    Command, Completed, Connection, ConnectionError, DiscoveredTarget, Event, LoggedIn, LoginConfig, LoginError,
    Session,
};
use iscsi::pdu::Isid;
use iscsi::url::Portal;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::alarm::Alarm;
use crate::connector::{BoxedStream, Connector};
use crate::error::LinkError;
use crate::limits::{LOGOUT_TIMEOUT, REDIRECTIONS_MAX, WRITE_SLICES_MAX};
use crate::options::InitiatorOptions;

/// Bytes and PDUs of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
}

/// An open session.
pub(crate) struct Link {
    stream: BoxedStream,
    connection: Connection,
    pub(crate) session: Session,
    pub(crate) logged_in: Option<LoggedIn>,
    pub(crate) portal: Portal,
    pub(crate) counters: Counters,
    clock: Arc<dyn Clock>,
    alarm: Alarm,
    needs_flush: bool,
}

impl Link {
    /// Connects and logs in, following redirections. The portal of a permanent move is in `portal` afterwards.
    pub(crate) async fn open(
        options: &InitiatorOptions,
        connector: &dyn Connector,
        isid: Isid,
        is_discovery: bool,
        portal: &mut Portal,
    ) -> Result<Self, LinkError> {
        let mut place = portal.clone();
        for _ in 0..=REDIRECTIONS_MAX {
            let config = options.login(isid, is_discovery).map_err(LinkError::Unit)?;
            match Self::open_one(options, connector, config, &place).await {
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

    async fn open_one(
        options: &InitiatorOptions,
        connector: &dyn Connector,
        config: LoginConfig,
        portal: &Portal,
    ) -> Result<Self, LinkError> {
        let clock = &options.clock;
        let connecting = connector.connect(portal);
        let stream = within(clock, options.connect_timeout, connecting).await.ok_or(LinkError::ConnectTimedOut)?;
        let stream = stream.map_err(LinkError::Connect)?;
        let session = Session::new(Serial32(1));
        let connection = Connection::new(clock.now(), &session, config, options.timing());
        let mut link = Self {
            stream,
            connection,
            session,
            logged_in: None,
            portal: portal.clone(),
            counters: Counters::default(),
            clock: Arc::clone(clock),
            alarm: Alarm::default(),
            needs_flush: false,
        };
        link.logged_in = Some(
            link.until(|event| match event {
                Event::LoggedIn(logged_in) => Some(*logged_in),
                _ => None,
            })
            .await?,
        );
        Ok(link)
    }

    /// Asks for all targets.
    pub(crate) async fn send_targets(&mut self) -> Result<Vec<DiscoveredTarget>, LinkError> {
        self.connection.send_targets(&mut self.session);
        let answer = self.until(|event| match event {
            Event::Targets(targets) => Some(targets),
            _ => None,
        });
        answer.await
    }

    /// Logs out, or gives up after a while; the connection is then of no more use either way.
    pub(crate) async fn logout(mut self) {
        self.connection.logout(&self.session);
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

    /// The next command that is over.
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

    /// The next event.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.connection.poll_event()
    }

    /// PDUs sent and received.
    pub(crate) fn pdu_counts(&self) -> (u64, u64) {
        self.connection.pdu_counts()
    }

    /// What was under way, in its order.
    pub(crate) fn into_unfinished(self) -> Vec<(u64, block::Buffer)> {
        let Self { connection, mut session, .. } = self;
        // It holds shares of the buffers that are being written.
        drop(connection);
        session.take_all()
    }

    /// Does what can be done now. Returns whether anything was; if not, the task is woken when something can be.
    pub(crate) fn poll_io(&mut self, context: &mut Context<'_>) -> Result<bool, LinkError> {
        let now = self.clock.now();
        self.connection.fill_transmit(now, &mut self.session);
        let mut has_progressed = self.poll_write(context)?;
        has_progressed |= self.poll_read(context, now)?;
        let deadline = self.connection.poll_timeout(&self.session);
        if self.alarm.poll(context, &*self.clock, deadline) {
            self.connection.handle_timeout(self.clock.now(), &mut self.session)?;
            has_progressed = true;
        }
        Ok(has_progressed)
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Result<bool, LinkError> {
        let mut has_progressed = false;
        while !self.connection.is_transmit_empty() {
            let mut slices = [IoSlice::new(&[]); WRITE_SLICES_MAX];
            let count = self.connection.io_slices(&mut slices);
            let written = match Pin::new(&mut self.stream).poll_write_vectored(context, &slices[..count]) {
                Poll::Pending => return Ok(has_progressed),
                Poll::Ready(Ok(0)) => return Err(LinkError::Closed),
                Poll::Ready(written) => written.map_err(LinkError::Io)?,
            };
            self.connection.handle_transmitted(&mut self.session, written);
            self.counters.bytes_sent += written as u64;
            self.needs_flush = true;
            has_progressed = true;
        }
        if self.needs_flush
            && let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(context)
        {
            flushed.map_err(LinkError::Io)?;
            self.needs_flush = false;
        }
        Ok(has_progressed)
    }

    /// One read: what it completes is handed up before the next.
    fn poll_read(&mut self, context: &mut Context<'_>, now: Instant) -> Result<bool, LinkError> {
        let mut space = ReadBuf::new(self.connection.receive_space());
        match Pin::new(&mut self.stream).poll_read(context, &mut space) {
            Poll::Pending => return Ok(false),
            Poll::Ready(read) => read.map_err(LinkError::Io)?,
        }
        let length = space.filled().len();
        if length == 0 {
            return Err(LinkError::Closed);
        }
        self.counters.bytes_received += length as u64;
        self.connection.handle_received(now, &mut self.session, length)?;
        Ok(true)
    }

    /// Drives the connection until an event is the one waited for; others are dropped.
    async fn until<T>(&mut self, mut pick: impl FnMut(Event) -> Option<T>) -> Result<T, LinkError> {
        poll_fn(|context| {
            loop {
                while let Some(event) = self.connection.poll_event() {
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

/// `future`'s output, or `None` when it does not come within `limit`.
pub(crate) async fn within<T>(clock: &Arc<dyn Clock>, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let deadline = clock.now() + limit;
    let mut alarm = Alarm::default();
    let mut future = std::pin::pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        if alarm.poll(context, &**clock, Some(deadline)) { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}
