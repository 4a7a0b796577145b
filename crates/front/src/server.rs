//! The NBD server: one export, one device, many connections.
//!
//! All connections share the device, so a flush on any of them covers the writes answered on all: `CAN_MULTI_CONN` is true. The size
//! a client sees is the device's when the client connects; NBD has no way to tell it of a change.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::buffer::BufferPool;
use block::{Geometry, SharedDevice};
use nbd::server::Export;
use nbd::{Abilities, BlockSize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::counters::{Counters, NbdCounters};
use crate::limits::{ACCEPT_PAUSE, BUFFER_BYTES_MAX, CONNECTIONS_MAX, HANDSHAKE_TIME_MAX, SHUTDOWN_TIME_MAX};
use crate::listener::{Accepted, Listener};

/// What to serve, and how much of it at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdOptions {
    /// Name of the export; clients that name none get it too. At most 4096 bytes, more are cut.
    pub export_name: String,
    /// For people, perhaps empty.
    pub description: String,
    /// Refuse writes even where the device takes them.
    pub is_read_only: bool,
    /// Connections served at once; one more is accepted and closed.
    pub connections_max: usize,
    /// Bytes of buffers lent at once, over all connections.
    pub buffer_bytes_max: usize,
}

impl Default for NbdOptions {
    fn default() -> Self {
        Self {
            export_name: String::new(),
            description: String::new(),
            is_read_only: false,
            connections_max: CONNECTIONS_MAX,
            buffer_bytes_max: BUFFER_BYTES_MAX,
        }
    }
}

/// Serves a device as an NBD export. Clones are the same server.
#[derive(Clone)]
pub struct NbdServer {
    shared: Arc<Shared>,
}

/// What all connections share.
pub(crate) struct Shared {
    pub(crate) device: SharedDevice,
    pub(crate) pool: BufferPool,
    pub(crate) counters: Counters,
    options: NbdOptions,
}

impl NbdServer {
    /// A server of `device` that has no connection yet.
    pub fn new(device: SharedDevice, mut options: NbdOptions) -> Self {
        for text in [&mut options.export_name, &mut options.description] {
            text.truncate(text.floor_char_boundary(nbd::limits::STRING_BYTES_MAX));
        }
        let pool = BufferPool::new(options.buffer_bytes_max);
        Self { shared: Arc::new(Shared { device, pool, counters: Counters::default(), options }) }
    }

    /// What was done so far.
    pub fn counters(&self) -> NbdCounters {
        self.shared.counters.snapshot()
    }

    /// Accepts and serves connections until `shutdown`; then finishes the requests under way and closes. Connections run as tasks of
    /// the current tokio runtime.
    ///
    /// # Errors
    /// None so far: what is wrong with one connection ends that one.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn serve(&self, listener: Listener, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let (stop, _) = watch::channel(false);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept() => match accepted {
                    Ok(_) if connections.len() >= self.shared.options.connections_max => {
                        self.shared.counters.connections_refused.fetch_add(1, Ordering::Relaxed);
                        tracing::warn!(connections = connections.len(), "too many NBD connections: one is refused");
                    }
                    Ok(accepted) => self.spawn(&mut connections, accepted, stop.subscribe()),
                    Err(error) => {
                        tracing::warn!(%error, "an NBD connection could not be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        stop.send_replace(true);
        let finished = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_TIME_MAX, finished).await.is_err() {
            tracing::warn!("NBD connections are closed with requests under way");
            connections.shutdown().await;
        }
        Ok(())
    }

    /// Serves one connection over any stream until the client ends it or `shutdown` does.
    ///
    /// # Errors
    /// What the stream says; `InvalidData` when the client broke the protocol.
    pub async fn serve_connection<S>(
        &self,
        stream: S,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let _open = OpenConnection::count(&self.shared);
        Connection::new(stream, Arc::clone(&self.shared), Box::pin(shutdown), None).run().await
    }

    fn spawn(&self, connections: &mut JoinSet<()>, accepted: Accepted, mut stop: watch::Receiver<bool>) {
        let shared = Arc::clone(&self.shared);
        connections.spawn(async move {
            let _open = OpenConnection::count(&shared);
            let shutdown = Box::pin(async move {
                // The sender lives as long as `serve`; its end is a shutdown as well.
                let _ = stop.wait_for(|is_stopped| *is_stopped).await;
            });
            let deadline: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(tokio::time::sleep(HANDSHAKE_TIME_MAX));
            let ended = match accepted {
                Accepted::Unix(stream) => Connection::new(stream, shared, shutdown, Some(deadline)).run().await,
                Accepted::Tcp(stream) => Connection::new(stream, shared, shutdown, Some(deadline)).run().await,
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "an NBD connection ended");
            }
        });
    }
}

/// Counts a connection as open while it lives.
struct OpenConnection(Arc<Shared>);

impl OpenConnection {
    fn count(shared: &Arc<Shared>) -> Self {
        shared.counters.connections_accepted.fetch_add(1, Ordering::Relaxed);
        shared.counters.connections_open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let open: &AtomicU64 = &self.0.counters.connections_open;
        open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    /// What a client that connects now is offered.
    pub(crate) fn export(&self, geometry: &Geometry) -> Export {
        let is_read_only = geometry.is_read_only || self.options.is_read_only;
        let min = geometry.logical_block_bytes.min(nbd::limits::BLOCK_BYTES_MIN_MAX);
        let preferred = geometry.physical_block_bytes.max(min).max(4096);
        Export {
            name: self.options.export_name.clone(),
            description: self.options.description.clone(),
            size_bytes: geometry.size_bytes,
            block_size: BlockSize { min, preferred, payload_max: nbd::limits::PAYLOAD_BYTES_MAX },
            abilities: Abilities {
                is_read_only,
                can_flush: true,
                can_fua: true,
                is_rotational: false,
                can_trim: !is_read_only && geometry.discard_granularity_bytes.is_some(),
                can_write_zeroes: !is_read_only,
                can_dont_fragment: false,
                can_multi_conn: true,
                can_cache: true,
                can_fast_zero: !is_read_only,
            },
        }
    }
}
