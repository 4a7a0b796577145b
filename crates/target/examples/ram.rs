use block::{Identity, memory::MemoryDevice};
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use std::sync::Arc;
use target::{Target, TargetServer, TargetServerOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let luns = LunMap::new();
    let identity = Identity { target: "iqn.2026-01.io.forebay:ram".into(), unit: "0".into(), serial: "ram0001".into() };
    let unit = LogicalUnit::new(Arc::new(MemoryDevice::new(256 << 20, identity)), LogicalUnitOptions::default());
    tokio::spawn(unit.run());
    luns.insert(0, unit);
    let port: u16 = std::env::args().nth(1).map_or(0, |text| text.parse().unwrap());
    let mut target = Target::new("iqn.2026-01.io.forebay:ram", luns);
    if std::env::args().nth(2).as_deref() == Some("chap") {
        let secret = iscsi::chap::Secret::new("alice's secret").unwrap();
        target.authentication.accounts.push(iscsi::chap::Credentials { name: "alice".into(), secret });
    }
    let options = TargetServerOptions {
        portals: vec![([127, 0, 0, 1], port).into(), format!("[::1]:{port}").parse().unwrap()],
        ..Default::default()
    };
    let server = TargetServer::new(vec![target], options);
    let bound = server.bind().unwrap();
    println!("ready: {:?}", bound.addresses());
    bound
        .run(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await
        .unwrap();
    println!("{:#?}", server.status());
}
