//! A target for tests of this crate, on a loopback port, and hosts that connect to it.

use std::future::{pending, ready};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use base::clock::Clock;
use block::SharedDevice;
use iscsi::pdu::Isid;
use iscsi::target::TargetPortal;
use logical_unit::change_marks::{MarkUpdate, Saving};
use logical_unit::{ChangeStore, LogicalUnit, LogicalUnitOptions, LunMap, SharingOptions};
use target::{Target, TargetServer, TargetServerOptions};

use crate::busy_polling::BusyPolling;
use crate::remote::{RemoteConfig, Waits};
use crate::remotes::{Arrangement, Remotes, RemotesConfig};
use crate::time::system_clock;

/// Its name.
pub(crate) const IQN: &str = "iqn.2026-11.io.forebay:stack";

/// Serves `lun` as LUN 0, its change marks kept in `store`, on a thread of its own, which ends with the process.
pub(crate) fn serve(lun: SharedDevice, store: Arc<dyn ChangeStore>) -> SocketAddr {
    let clock = Some(system_clock().unwrap());
    serve_with(lun, LogicalUnitOptions { change_store: Some(store), clock, ..LogicalUnitOptions::default() })
}

/// The same for several hosts at once, with this clock.
pub(crate) fn serve_shared(lun: SharedDevice, store: Arc<dyn ChangeStore>, clock: Arc<dyn Clock>) -> SocketAddr {
    let (sharing, clock) = (Some(SharingOptions::default()), Some(clock));
    serve_with(lun, LogicalUnitOptions { change_store: Some(store), sharing, clock, ..LogicalUnitOptions::default() })
}

/// Serves several LUNs, from 0 on, for a stripe.
pub(crate) fn serve_several(luns: Vec<SharedDevice>, store: impl Fn() -> Arc<dyn ChangeStore>) -> SocketAddr {
    let clock = Some(system_clock().unwrap());
    let options =
        || LogicalUnitOptions { change_store: Some(store()), clock: clock.clone(), ..LogicalUnitOptions::default() };
    serve_all(luns.into_iter().map(|lun| (lun, options())).collect())
}

/// A LUN that is taken out of its target and put back as it was, as by two reloads.
#[derive(Clone)]
pub(crate) struct Removable {
    server: TargetServer,
    luns: LunMap,
}

impl Removable {
    pub(crate) fn remove(&self) {
        self.server.set_targets(vec![Target::new(IQN, LunMap::new())]);
    }

    pub(crate) fn put_back(&self) {
        self.server.set_targets(vec![Target::new(IQN, self.luns.clone())]);
    }

    pub(crate) async fn put_back_after(&self, time: Duration) {
        tokio::time::sleep(time).await;
        self.put_back();
    }
}

/// As [`serve`], or as [`serve_shared`], with the LUN.
pub(crate) fn serve_removable(
    lun: SharedDevice,
    store: Arc<dyn ChangeStore>,
    is_shared: bool,
) -> (SocketAddr, Removable) {
    let sharing = is_shared.then(SharingOptions::default);
    let clock = Some(system_clock().unwrap());
    let options = LogicalUnitOptions { change_store: Some(store), sharing, clock, ..LogicalUnitOptions::default() };
    serve_removably(vec![(lun, options)])
}

/// Takes the LUN out of its target as soon as a change mark is made there: who made it does not get its report. It is
/// put back after a moment.
#[derive(Default)]
struct AwayAtMark {
    lun: OnceLock<Removable>,
    was_away: AtomicBool,
}

/// How long it is out.
const AWAY: Duration = Duration::from_millis(300);

impl ChangeStore for AwayAtMark {
    fn save(&self, _: Vec<MarkUpdate>) -> Saving {
        if let Some(lun) = self.lun.get().filter(|_| !self.was_away.swap(true, Ordering::Relaxed)) {
            lun.remove();
            let lun = lun.clone();
            tokio::spawn(async move { lun.put_back_after(AWAY).await });
        }
        Box::pin(ready(Ok(())))
    }
}

/// As [`serve`], with a LUN that is away for a moment once the first mark is made.
pub(crate) fn serve_away_at_mark(lun: SharedDevice) -> SocketAddr {
    let store = Arc::new(AwayAtMark::default());
    let (address, removable) = serve_removable(lun, store.clone(), false);
    assert!(store.lun.set(removable).is_ok(), "it is set once");
    address
}

fn serve_with(lun: SharedDevice, options: LogicalUnitOptions) -> SocketAddr {
    serve_all(vec![(lun, options)])
}

fn serve_all(served: Vec<(SharedDevice, LogicalUnitOptions)>) -> SocketAddr {
    serve_removably(served).0
}

fn serve_removably(served: Vec<(SharedDevice, LogicalUnitOptions)>) -> (SocketAddr, Removable) {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let luns = LunMap::new();
            for (number, (lun, options)) in (0..).zip(served) {
                let unit = LogicalUnit::new(lun, options);
                tokio::spawn(unit.run());
                luns.insert(number, unit);
            }
            let portal = TargetPortal { address: "127.0.0.1:0".parse().unwrap(), group: 1 };
            let options = TargetServerOptions { portals: vec![portal], shards: 1, ..TargetServerOptions::default() };
            let server = TargetServer::new(vec![Target::new(IQN, luns.clone())], options);
            let bound = server.bind().unwrap();
            sender.send((bound.addresses()[0], Removable { server, luns })).unwrap();
            bound.run(pending()).await.unwrap();
        });
    });
    receiver.recv().unwrap()
}

/// Logs in to the LUN at `address` as `initiator`. `isid` names the session: another one of the same name takes its
/// place.
pub(crate) async fn connect(address: SocketAddr, initiator: &str, isid: Option<Isid>, is_shared: bool) -> Remotes {
    let remotes = vec![remote(address, 0, initiator, isid, is_shared)];
    let config = RemotesConfig { remotes, arrangement: Arrangement::Single };
    let clock = system_clock().unwrap();
    // Whose place is taken comes back at once, and may take it back before this is logged in.
    let mut attempts_left = if isid.is_some() { 100 } else { 1 };
    loop {
        attempts_left -= 1;
        match config.clone().connect(&clock).await {
            Ok(remotes) => return remotes,
            Err(error) => assert!(attempts_left > 0, "{error}"),
        }
    }
}

/// As [`connect`], with requests that wait no longer than this for a session.
pub(crate) async fn connect_impatiently(address: SocketAddr, initiator: &str, replacement: Duration) -> Remotes {
    let mut remote = remote(address, 0, initiator, None, false);
    remote.waits.replacement = replacement;
    let config = RemotesConfig { remotes: vec![remote], arrangement: Arrangement::Single };
    config.connect(&system_clock().unwrap()).await.unwrap()
}

/// Logs in to the first `count` LUNs at `address` as one stripe.
pub(crate) async fn connect_stripe(address: SocketAddr, initiator: &str, count: u16) -> Remotes {
    let remotes = (0..count).map(|lun| remote(address, lun, initiator, None, false)).collect();
    let arrangement = Arrangement::Stripe { unit_bytes: 64 << 10 };
    RemotesConfig { remotes, arrangement }.connect(&system_clock().unwrap()).await.unwrap()
}

fn remote(address: SocketAddr, lun: u16, initiator: &str, isid: Option<Isid>, is_shared: bool) -> RemoteConfig {
    let patience = Duration::from_secs(60);
    RemoteConfig {
        url: format!("iscsi://{address}/{IQN}/{lun}").parse().unwrap(),
        initiator_name: format!("iqn.2026-11.io.forebay:{initiator}"),
        credentials: None,
        target_credentials: None,
        with_digests: false,
        busy_polling: BusyPolling::UpTo(Duration::ZERO),
        link_round_trip: None,
        isid,
        waits: Waits { login: patience, command: patience, keepalive: Some(patience), replacement: patience },
        connections: 1,
        split_connections: false,
        is_shared,
        holds_whole: false,
    }
}
