//! The iSCSI gateway: a target whose one logical unit is the device, for initiators without a cache
//! and a log of their own.
//!
//! Commands about the unit itself (INQUIRY, MODE SENSE, REPORT LUNS, reservations) are answered
//! here; reads, writes and flushes go to the device.

use std::cell::OnceCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use ::target::Quota;
use futures_util::future::{Either, LocalBoxFuture, select};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

use super::kind::{Clients, Front, FrontConfig, FrontKind, Served, clients_in_words};
use super::options::FrontOptions;
use crate::descriptors;
use crate::error::{Error, Failure, Result};
use crate::metrics::plain::{Plain, Value, counter, gauge};
use crate::name_lock::NameLock;
use crate::status::fronts::FrontCounters;

mod counters;
mod gateway;
pub(super) mod settings;

use counters::{CommandCounters, GatewayCounters, TransferCounters};
use gateway::Gateway;

pub(super) static KIND: FrontKind =
    FrontKind { name: "iscsi", places: "iscsi:[ADDRESS:]PORT", place, usual, listen, users, metrics: METRICS };

const METRICS: &[Plain<Value<FrontCounters>>] = &[
    gauge("forebay_iscsi_sessions", |all| Some(counted(all)?.sessions), "Sessions of iSCSI gateways."),
    gauge("forebay_iscsi_connections", |all| Some(counted(all)?.connections_open), "Connections to iSCSI gateways."),
    counter(
        "forebay_iscsi_logins_refused",
        |all| Some(counted(all)?.logins_refused),
        "Logins that iSCSI gateways refused.",
    ),
    counter("forebay_iscsi_read_requests", |all| Some(counted(all)?.read.requests), "Reads through iSCSI gateways."),
    counter("forebay_iscsi_read_bytes", |all| Some(counted(all)?.read.bytes), "Bytes of reads through iSCSI gateways."),
    counter("forebay_iscsi_write_requests", |all| Some(counted(all)?.write.requests), "Writes through iSCSI gateways."),
    counter(
        "forebay_iscsi_write_bytes",
        |all| Some(counted(all)?.write.bytes),
        "Bytes of writes through iSCSI gateways.",
    ),
];

fn counted(all: &FrontCounters) -> Option<GatewayCounters> {
    all.of(KIND.name)
}

fn users(place: &str, count: u64) -> String {
    clients_in_words(KIND.name, place, count)
}

struct IscsiFront {
    options: FrontOptions,
    address: SocketAddr,
    /// `None` once it is served.
    listener: Mutex<Option<TcpListener>>,
    gateway: OnceCell<Gateway>,
    _name: Arc<NameLock>,
}

/// Parses an address and a port; a port alone is one of the loopback.
fn place(text: &str) -> std::result::Result<String, String> {
    address(text).map(|address| address.to_string())
}

fn address(text: &str) -> std::result::Result<SocketAddr, String> {
    let port = text.strip_prefix("localhost:").unwrap_or(text).parse::<u16>();
    let local = port.map(|port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    local.or_else(|_| text.parse()).map_err(|_| {
        format!("\"{text}\" is no place to listen on: write PORT, or ADDRESS:PORT like 127.0.0.1:3260 or [::1]:3260")
    })
}

/// It is for other machines, so it is only used where it is asked for.
fn usual(_: &dyn Fn(&str) -> PathBuf) -> std::result::Result<String, String> {
    Err("it has no usual port".to_owned())
}

fn listen(config: &FrontConfig) -> Result<Box<dyn Front>> {
    let address = address(&config.place).map_err(|why| Error::new(Failure::Usage, why))?;
    if !address.ip().is_loopback() && !config.options.allows_remote {
        let message =
            format!("{address} can be reached from other machines: give --set allow-remote=on if that is meant");
        return Err(Error::new(Failure::Usage, message));
    }
    let options = &config.options.gateway;
    let name = options.name.take(&options.folder, &options.iqn)?;
    let context = |error: io::Error| Error::io(format!("cannot listen on {address}"), &error);
    let listener = std::net::TcpListener::bind(address).map_err(context)?;
    listener.set_nonblocking(true).map_err(context)?;
    let listener = TcpListener::from_std(listener).map_err(context)?;
    let address = listener.local_addr().map_err(context)?;
    descriptors::allow(Quota::default().connections as u64, 1);
    Ok(Box::new(IscsiFront {
        options: config.options.clone(),
        address,
        listener: Mutex::new(Some(listener)),
        gateway: OnceCell::new(),
        _name: name,
    }))
}

impl Front for IscsiFront {
    fn kind(&self) -> &'static FrontKind {
        &KIND
    }

    fn place(&self) -> String {
        self.address.to_string()
    }

    fn address(&self) -> String {
        format!("iscsi://{}/{}/{}", self.address, self.options.gateway.iqn, gateway::LUN)
    }

    fn turn_away(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async {
            match &*self.listener.lock().await {
                Some(listener) => listener.accept().await.map(drop),
                None => Ok(()),
            }
        })
    }

    fn open(&self, served: &Served) -> io::Result<()> {
        let gateway = Gateway::open(&self.options, served)?;
        self.gateway.set(gateway).map_err(|_| io::Error::other("it is open"))
    }

    fn serve<'a>(&'a self, _: Served, stop: LocalBoxFuture<'a, ()>) -> LocalBoxFuture<'a, io::Result<()>> {
        Box::pin(async move {
            let listener = self.listener.lock().await.take().expect("a front is served once");
            let gateway = self.gateway.get().expect("a front is opened before it is served");
            let running = base::background::named("gateway", gateway.run());
            match select(pin!(gateway.serve(listener.into_std()?, stop)), pin!(running)).await {
                Either::Left((served, _)) => served,
                Either::Right(((), _)) => unreachable!("a unit's work has no end"),
            }
        })
    }

    fn clients(&self) -> Clients {
        // A unit attention reports a new size to each initiator.
        let open = self.gateway.get().map_or(0, |gateway| gateway.counted().sessions.len());
        Clients { open: open as u64, outdated: 0 }
    }

    fn count(&self, all: &mut FrontCounters) {
        let counted = self.gateway.get().map(Gateway::counted).unwrap_or_default();
        let sum = |of: fn(&::target::LunStatus) -> u64| -> u64 { counted.luns.iter().map(of).sum() };
        let counters = GatewayCounters {
            sessions: counted.sessions.len() as u64,
            connections_open: counted.connections.len() as u64,
            connections_accepted: counted.connections_accepted,
            connections_refused: counted.connections_refused,
            logins_refused: counted.logins_refused,
            read: TransferCounters { requests: sum(|lun| lun.reads), bytes: sum(|lun| lun.read_bytes) },
            write: TransferCounters { requests: sum(|lun| lun.writes), bytes: sum(|lun| lun.written_bytes) },
            other: CommandCounters { requests: sum(|lun| lun.others) },
            failures: sum(|lun| lun.failures),
        };
        all.add(KIND.name, counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fronts::options::GatewayOptions;

    #[test]
    fn a_port_alone_is_one_of_the_loopback() {
        for (text, at) in [
            ("3261", "127.0.0.1:3261"),
            ("localhost:1", "127.0.0.1:1"),
            ("10.0.0.1:3260", "10.0.0.1:3260"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(place(text).as_deref(), Ok(at));
        }
        for text in ["", "host:3260", "127.0.0.1", "70000"] {
            assert!(place(text).is_err(), "{text}");
        }
    }

    /// To an initiator they would be two portals of one target.
    #[tokio::test]
    async fn two_attachments_have_no_gateways_of_one_name_and_two_fronts_of_one_have() {
        let directory = tempfile::tempdir().unwrap();
        let attachment = |iqn: &str| {
            let (iqn, folder) = (iqn.to_owned(), directory.path().join("gateways"));
            let gateway = GatewayOptions { iqn, folder, ..GatewayOptions::default() };
            let options = FrontOptions { gateway, ..FrontOptions::default() };
            FrontConfig { kind: &KIND, place: "127.0.0.1:0".to_owned(), options }
        };
        let (one, other) = (attachment("iqn.2026-11.org.example:gw"), attachment("iqn.2026-11.org.example:gw"));
        let fronts = [listen(&one).unwrap(), listen(&one).unwrap()];
        let refused = listen(&other).map(drop).unwrap_err();
        assert_eq!(refused.failure(), Failure::InUse);
        assert!(refused.to_string().contains("iscsi.name"), "{refused}");
        listen(&attachment("iqn.2026-11.org.example:gw2")).unwrap();
        drop(fronts);
        listen(&other).unwrap();
    }

    #[tokio::test]
    async fn addresses_that_others_reach_are_for_who_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let (iqn, folder) = ("iqn.2026-11.org.example:gw".to_owned(), directory.path().to_owned());
        let gateway = GatewayOptions { iqn, folder, ..GatewayOptions::default() };
        let config = |allows_remote| FrontConfig {
            kind: &KIND,
            place: "0.0.0.0:0".to_owned(),
            options: FrontOptions { allows_remote, gateway: gateway.clone(), ..FrontOptions::default() },
        };
        let refused = listen(&config(false)).map(drop).unwrap_err();
        assert!(refused.to_string().contains("allow-remote=on"), "{refused}");
        assert!(listen(&config(true)).is_ok());
    }
}
