//! The NBD server: for qemu, libnbd, fio and the kernel's NBD client. It listens on a socket file
//! or on an address: beyond the loopback only for clients that authenticate by TLS.

use std::cell::OnceCell;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use front::{ListenAddress, Listener, NbdCounters, NbdOptions, NbdServer, Tls};
use futures_util::future::LocalBoxFuture;
use tokio::sync::Mutex;

use super::kernel_nbd;
use super::kind::{Clients, Front, FrontConfig, FrontKind, Served};
use super::options::FrontOptions;
use crate::error::{Error, Failure, Result};
use crate::metrics::plain::{Plain, Value, counter, gauge};
use crate::status::fronts::FrontCounters;

pub(super) mod settings;

pub(super) static KIND: FrontKind = FrontKind {
    name: "nbd",
    places: "nbd:unix:PATH, nbd:ADDRESS:PORT, nbd:/dev/nbdN",
    place,
    usual,
    listen,
    users,
    metrics: METRICS,
};

const METRICS: &[Plain<Value<FrontCounters>>] = &[
    gauge("forebay_nbd_connections", |all| Some(counted(all)?.connections_open), "NBD clients."),
    counter("forebay_nbd_read_requests", |all| Some(counted(all)?.read.requests), "NBD reads."),
    counter("forebay_nbd_read_bytes", |all| Some(counted(all)?.read.bytes), "Bytes of NBD reads."),
    counter("forebay_nbd_write_requests", |all| Some(counted(all)?.write.requests), "NBD writes."),
    counter("forebay_nbd_write_bytes", |all| Some(counted(all)?.write.bytes), "Bytes of NBD writes."),
];

fn counted(all: &FrontCounters) -> Option<NbdCounters> {
    all.of(KIND.name)
}

fn users(place: &str, count: u64) -> String {
    match count {
        _ if kernel_nbd::is_place(place) => kernel_nbd::users(place),
        1 => format!("1 NBD client at {place}"),
        _ => format!("{count} NBD clients at {place}"),
    }
}

struct NbdFront {
    options: NbdOptions,
    address: ListenAddress,
    /// `None` once it is served.
    listener: Mutex<Option<Listener>>,
    server: OnceCell<NbdServer>,
}

/// The place, with an absolute path.
fn place(text: &str) -> std::result::Result<String, String> {
    if kernel_nbd::is_place(text) {
        return kernel_nbd::place(text);
    }
    match text.parse().map_err(|error: front::address::ParseAddressError| error.to_string())? {
        ListenAddress::Unix(path) => {
            let path = std::path::absolute(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok(ListenAddress::Unix(path).to_string())
        }
        tcp @ ListenAddress::Tcp(_) => Ok(tcp.to_string()),
    }
}

/// A socket is available everywhere.
pub(super) fn usual(place: &dyn Fn(&str) -> PathBuf) -> std::result::Result<String, String> {
    Ok(format!("unix:{}", place("nbd").display()))
}

fn listen(config: &FrontConfig) -> Result<Box<dyn Front>> {
    if kernel_nbd::is_place(&config.place) {
        return kernel_nbd::listen(config);
    }
    let address: ListenAddress = config
        .place
        .parse()
        .map_err(|error: front::address::ParseAddressError| Error::new(Failure::Usage, error.to_string()))?;
    let context = |error: &io::Error| match error.kind() {
        // A file that is no socket, and is left alone.
        io::ErrorKind::AlreadyExists => Error::new(Failure::Usage, format!("cannot listen on {address}: {error}")),
        _ => Error::io(format!("cannot listen on {address}"), error),
    };
    let tls = config.options.tls.clone().filter(|_| matches!(address, ListenAddress::Tcp(_)));
    let listener = match &address {
        ListenAddress::Tcp(tcp) if !tcp.ip().is_loopback() => {
            check_remote(*tcp, &config.options)?;
            Listener::bind_anywhere(&address)
        }
        _ => Listener::bind_with(&address, config.options.access),
    };
    let listener = listener.map_err(|error| context(&error))?;
    let address = listener.address().map_err(|error| Error::io("the listener", &error))?;
    let options = NbdOptions { is_read_only: config.options.is_read_only, tls, ..NbdOptions::default() };
    Ok(Box::new(NbdFront { options, address, listener: Mutex::new(Some(listener)), server: OnceCell::new() }))
}

/// NBD has no authentication of its own: addresses that other machines reach need TLS.
fn check_remote(address: SocketAddr, options: &FrontOptions) -> Result<()> {
    let refused = |advice: &str| {
        let message = format!("{address} can be reached from other machines: {advice}");
        Err(Error::new(Failure::Usage, message))
    };
    if !options.tls.as_ref().is_some_and(Tls::requires_client_certificate) {
        return refused(
            "NBD is served there only with nbd.tls-certificate, nbd.tls-key and nbd.tls-clients, and not with \
             nbd.tls=allowed",
        );
    }
    if options.allows_remote { Ok(()) } else { refused("give --set allow-remote=on if that is meant") }
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
        let uri = self.address.uri("");
        // The URL scheme of libnbd for TLS from the beginning.
        let is_secure = self.options.tls.as_ref().is_some_and(Tls::is_required);
        if is_secure { uri.replacen("nbd:", "nbds:", 1) } else { uri }
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
            let server = NbdServer::beside(served.exported, self.options.clone());
            self.server.get_or_init(|| server).serve(listener, stop).await
        })
    }

    fn clients(&self) -> Clients {
        let counted = self.counted();
        Clients { open: counted.connections_open, outdated: counted.connections_outdated }
    }

    fn count(&self, sum: &mut FrontCounters) {
        sum.add(KIND.name, self.counted());
    }
}
