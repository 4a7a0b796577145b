//! A target for tests of this crate, on a loopback port.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use base::clock::Clock;
use block::SharedDevice;
use iscsi::target::TargetPortal;
use logical_unit::{ChangeStore, LogicalUnit, LogicalUnitOptions, LunMap, SharingOptions};
use target::{Target, TargetServer, TargetServerOptions};

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
