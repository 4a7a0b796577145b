//! The NBD server: one export, one device, many connections.
//!
//! All connections share the device, so a flush on any of them covers the writes answered on all:
//! `CAN_MULTI_CONN` is true. The size that a client sees is the device's when the client connects;
//! NBD cannot report a change, and the counters show how many clients have an old size.
//!
//! The smallest block size is announced as one byte: requests of partial blocks are carried out
//! here, in turn with all others. With the device's block size announced, some clients would refuse
//! such requests themselves (libnbd: nbdfuse), and others would read and write back what another
//! client changes meanwhile (qemu). The preferred size is the one that the device prefers.

use std::future::Future;
use std::io;
use std::sync::Arc;

use base::buffer::BufferPool;
use base::refusals::Refusals;
use block::{EventReceiver, Geometry, SharedDevice};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::connection::Connection;
use crate::counters::{Counters, NbdCounters};
use crate::exported::Exported;
use crate::handshake_turn::HandshakeLine;
use crate::holdings::Shares;
use crate::limits::{
    ACCEPT_INTERVAL, ACCEPT_PAUSE, ACCEPTS_IN_A_ROW, HANDSHAKES_MAX, LARGE_BYTES_MAX, SHUTDOWN_TIME_MAX,
    SPARE_SHARE_BYTES,
};
use crate::listener::{Accepted, Listener};
use crate::open_connection::OpenConnection;
use crate::options::NbdOptions;
use crate::shared::Shared;

/// Serves a device as an NBD export. Clones are the same server.
#[derive(Clone)]
pub struct NbdServer {
    shared: Arc<Shared>,
}

impl NbdServer {
    /// A server of `device` that has no connection yet.
    pub fn new(device: SharedDevice, options: NbdOptions) -> Self {
        Self::beside(Exported::alone(device), options)
    }

    /// A server of a device besides other fronts of it.
    pub fn beside(exported: Exported, mut options: NbdOptions) -> Self {
        for text in [&mut options.export_name, &mut options.description] {
            text.truncate(text.floor_char_boundary(nbd::limits::STRING_BYTES_MAX));
        }
        let spare_bytes = options.spare_connections_max.saturating_mul(SPARE_SHARE_BYTES);
        let shared = Shared {
            pool: BufferPool::new(options.buffer_bytes_max.saturating_add(LARGE_BYTES_MAX).saturating_add(spare_bytes)),
            shares: Shares::new(options.buffer_bytes_max, options.connections_max),
            counters: Counters::default(),
            exported,
            refusals: Refusals::default(),
            begun: Instant::now(),
            large_places: Arc::default(),
            places: Arc::new(Semaphore::new(options.all_connections_max().min(Semaphore::MAX_PERMITS))),
            handshakes: Arc::default(),
            handshake_line: HandshakeLine::default(),
            turn_line: Arc::default(),
            long_requests: Arc::default(),
            options,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The counters so far.
    pub fn counters(&self) -> NbdCounters {
        self.shared.counters.snapshot(self.shared.exported.device.geometry().size_bytes)
    }

    /// Accepts and serves connections until `shutdown`; then finishes the requests under way and
    /// closes. Connections run as tasks of the current tokio runtime.
    ///
    /// # Errors
    /// None so far: an error of a connection only ends that connection.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn serve(&self, listener: Listener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let (stop, _) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        let mut accepted_in_a_row = 0;
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept() => {
                    match accepted {
                        Ok(_) if self.shared.places.available_permits() == 0 => self.shared.refuse(),
                        Ok(accepted) => self.spawn(&mut connections, accepted, stop.subscribe()),
                        Err(error) => {
                            if let Some(others) = self.shared.note_refusal() {
                                tracing::warn!(%error, others, "an NBD connection could not be accepted");
                            }
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    }
                    accepted_in_a_row += 1;
                    if accepted_in_a_row == ACCEPTS_IN_A_ROW {
                        accepted_in_a_row = 0;
                        tokio::time::sleep(ACCEPT_INTERVAL).await;
                    }
                }
            }
        }
        drop(listener);
        stop.send_replace(true);
        self.shared.long_requests.begin_shutdown();
        let finished = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_TIME_MAX, finished).await.is_err() {
            tracing::warn!("NBD connections are closed with requests under way");
            connections.shutdown().await;
        }
        Ok(())
    }

    /// Serves one connection over any stream until the client or `shutdown` ends it.
    ///
    /// # Errors
    /// Those of the stream; `InvalidData` when the client broke the protocol.
    pub async fn serve_connection<S>(
        &self,
        stream: S,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        Connection::new(stream, OpenConnection::begin(&self.shared), Box::pin(shutdown), None).run().await
    }

    /// The transmission flags and the geometry for a client without a handshake.
    pub(crate) fn facts(&self) -> (u16, Geometry) {
        let geometry = self.shared.exported.device.geometry();
        (self.shared.export(&geometry).abilities.to_flags(), geometry)
    }

    /// The device's events from now on.
    pub(crate) fn events(&self) -> EventReceiver {
        self.shared.exported.device.subscribe()
    }

    /// Serves a client that needs no handshake, and gets a new size in another way.
    pub(crate) fn serve_negotiated(
        &self,
        stream: UnixStream,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let open = OpenConnection::begin(&self.shared);
        Connection::negotiated(stream, open, Box::pin(shutdown)).run()
    }

    fn spawn(&self, connections: &mut JoinSet<()>, accepted: Accepted, mut stop: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        let handshake = shared.handshakes.begin(accepted.peer(), HANDSHAKES_MAX);
        connections.spawn(base::background::named("nbd-connection", async move {
            let open = OpenConnection::begin(&shared);
            let shutdown = Box::pin(async move {
                // The sender lives as long as `serve`; its end is a shutdown as well.
                let _ = stop.wait_for(|is_stopped| *is_stopped).await;
            });
            let ended = match accepted {
                Accepted::Unix(stream) => Connection::new(stream, open, shutdown, Some(handshake)).run().await,
                Accepted::Tcp(stream) => Connection::new(stream, open, shutdown, Some(handshake)).run().await,
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "an NBD connection ended");
            }
        }));
    }
}
