//! Every behaviour against our own target, over TCP on this machine.

use std::sync::Arc;

use block::Identity;
use block::memory::MemoryDevice;
use conformance::{Bench, Tally, run};
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use target::{Target, TargetServer, TargetServerOptions};

const NAME: &str = "iqn.2026-01.io.example:disk";

#[test]
fn our_target_behaves() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let identity = Identity { target: NAME.to_owned(), unit: "0".to_owned(), serial: "one".to_owned() };
    let luns = LunMap::new();
    luns.insert(0, LogicalUnit::new(Arc::new(MemoryDevice::new(16 << 20, identity)), LogicalUnitOptions::default()));
    let portals = vec![iscsi::target::TargetPortal { address: "127.0.0.1:0".parse().unwrap(), group: 1 }];
    let options = TargetServerOptions { portals, shards: 2, ..TargetServerOptions::default() };
    let bound = TargetServer::new(vec![Target::new(NAME, luns)], options).bind().unwrap();
    let bench = Bench::new(bound.addresses()[0], NAME.to_owned(), 0, true);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = std::thread::spawn(move || {
        runtime.block_on(bound.run(async move {
            let _ = stopped.await;
        }))
    });
    let Tally { passed, failed, skipped } = run(&bench, &[]);
    drop(stop);
    serving.join().unwrap().unwrap();
    assert_eq!((failed, skipped), (0, 0), "{passed} passed; the lines above say which did not");
}
