//! The NBD server: what qemu, libnbd, fio and the kernel's nbd take. It listens on a socket file or on a loopback address.

use std::cell::OnceCell;
use std::io;

use front::{ListenAddress, Listener, NbdCounters, NbdOptions, NbdServer};
use futures_util::future::LocalBoxFuture;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::kind::{Clients, Front, FrontConfig, FrontKind, Served};
use crate::error::{Error, Failure, Result};
use crate::metrics::plain::{Plain, counter, gauge};

pub(super) static KIND: FrontKind =
    FrontKind { name: "nbd", places: "nbd:unix:PATH, nbd:ADDRESS:PORT", place, listen, metrics: METRICS };

const METRICS: &[Plain] = &[
    gauge("forebay_nbd_connections", "/nbd/connections_open", "NBD clients."),
    counter("forebay_nbd_read_requests", "/nbd/read/requests", "NBD reads."),
    counter("forebay_nbd_read_bytes", "/nbd/read/bytes", "Bytes of NBD reads."),
    counter("forebay_nbd_write_requests", "/nbd/write/requests", "NBD writes."),
    counter("forebay_nbd_write_bytes", "/nbd/write/bytes", "Bytes of NBD writes."),
];

struct NbdFront {
    options: NbdOptions,
    address: ListenAddress,
    /// Until it is served.
    listener: Mutex<Option<Listener>>,
    server: OnceCell<NbdServer>,
}

/// An absolute one.
fn place(text: &str) -> std::result::Result<String, String> {
    match text.parse().map_err(|error: front::address::ParseAddressError| error.to_string())? {
        ListenAddress::Unix(path) => {
            let path = std::path::absolute(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok(ListenAddress::Unix(path).to_string())
        }
        tcp @ ListenAddress::Tcp(_) => Ok(tcp.to_string()),
    }
}

fn listen(config: &FrontConfig) -> Result<Box<dyn Front>> {
    let address: ListenAddress = config
        .place
        .parse()
        .map_err(|error: front::address::ParseAddressError| Error::new(Failure::Usage, error.to_string()))?;
    let context = |error: &io::Error| match error.kind() {
        // Something that is no socket, and stays what it is.
        io::ErrorKind::AlreadyExists => Error::new(Failure::Usage, format!("cannot listen on {address}: {error}")),
        _ => Error::io(format!("cannot listen on {address}"), error),
    };
    let listener = Listener::bind_with(&address, config.options.access).map_err(|error| context(&error))?;
    let address = listener.address().map_err(|error| Error::io("the listener", &error))?;
    let options = NbdOptions { is_read_only: config.options.is_read_only, ..NbdOptions::default() };
    Ok(Box::new(NbdFront { options, address, listener: Mutex::new(Some(listener)), server: OnceCell::new() }))
}

impl NbdFront {
    fn counted(&self) -> NbdCounters {
        self.server.get().map(NbdServer::counters).unwrap_or_default()
    }
}

impl Front for NbdFront {
    fn kind(&self) -> &'static FrontKind {
        &KIND
    }

    fn place(&self) -> String {
        self.address.to_string()
    }

    fn address(&self) -> String {
        self.address.uri("")
    }

    fn turn_away(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async {
            match &*self.listener.lock().await {
                Some(listener) => listener.turn_away().await,
                None => Ok(()),
            }
        })
    }

    fn serve<'a>(&'a self, served: Served, stop: LocalBoxFuture<'a, ()>) -> LocalBoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let listener = self.listener.lock().await.take().expect("a front is served once");
            let server = NbdServer::beside(served.device, served.turns, self.options.clone());
            self.server.get_or_init(|| server).serve(listener, stop).await
        })
    }

    fn clients(&self) -> Clients {
        let counted = self.counted();
        Clients { open: counted.connections_open, outdated: counted.connections_outdated }
    }

    fn counters(&self) -> Value {
        json!(self.counted())
    }
}
