//! A target for tests of this crate, on a loopback port, and hosts that connect to it.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base::clock::Clock;
use block::SharedDevice;
use iscsi::pdu::Isid;
use iscsi::target::TargetPortal;
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

fn serve_with(lun: SharedDevice, options: LogicalUnitOptions) -> SocketAddr {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let unit = LogicalUnit::new(lun, options);
            tokio::spawn(unit.run());
            let luns = LunMap::new();
            luns.insert(0, unit);
            let portal = TargetPortal { address: "127.0.0.1:0".parse().unwrap(), group: 1 };
            let options = TargetServerOptions { portals: vec![portal], shards: 1, ..TargetServerOptions::default() };
            let bound = TargetServer::new(vec![Target::new(IQN, luns)], options).bind().unwrap();
            sender.send(bound.addresses()[0]).unwrap();
            bound.run(pending()).await.unwrap();
        });
    });
    receiver.recv().unwrap()
}

/// Logs in to the LUN at `address` as `initiator`. `isid` names the session: another one of the same name takes its
/// place.
pub(crate) async fn connect(address: SocketAddr, initiator: &str, isid: Option<Isid>, is_shared: bool) -> Remotes {
    let patience = Duration::from_secs(60);
    let remote = RemoteConfig {
        url: format!("iscsi://{address}/{IQN}/0").parse().unwrap(),
        initiator_name: format!("iqn.2026-11.io.forebay:{initiator}"),
        credentials: None,
        target_credentials: None,
        with_digests: false,
        busy_polling: BusyPolling::UpTo(Duration::ZERO),
        link_round_trip: None,
        isid,
        waits: Waits { login: patience, command: patience, keepalive: patience, replacement: patience },
        connections: 1,
        split_connections: false,
        is_shared,
    };
    let config = RemotesConfig { remotes: vec![remote], arrangement: Arrangement::Single };
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
