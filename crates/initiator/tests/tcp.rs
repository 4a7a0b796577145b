//! Over real sockets and tokio's clock: loopback, both families.

use std::sync::Arc;

use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, Device, ErrorKind, Identity};
use initiator::{InitiatorOptions, TcpConnector, connect, discover};
use iscsi::target::TargetPortal;
use iscsi::url::{Portal, Url};
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use target::{Target, TargetServer, TargetServerOptions};

const IQN: &str = "iqn.2026-01.io.forebay:tcp";

#[tokio::test]
async fn a_lun_over_tcp() {
    let identity = Identity { target: "memory".into(), unit: "tcp".into(), serial: "tcp-1".into() };
    let unit = LogicalUnit::new(Arc::new(MemoryDevice::new(16 << 20, identity)), LogicalUnitOptions::default());
    let luns = LunMap::new();
    luns.insert(3, unit);
    let portal = |text: &str| TargetPortal { address: text.parse().unwrap(), group: 1 };
    let mut portals = vec![portal("127.0.0.1:0")];
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        portals.push(portal("[::1]:0"));
    }
    let options = TargetServerOptions { portals, shards: 1, ..TargetServerOptions::default() };
    let bound = TargetServer::new(vec![Target::new(IQN, luns)], options).bind().unwrap();
    let addresses = bound.addresses().to_vec();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(bound.run(async move { drop(stopped.await) }));
    for address in addresses {
        let url: Url = format!("iscsi://{address}/{IQN}/3").parse().unwrap();
        let found = discover(InitiatorOptions::for_discovery(&url.portal), Arc::new(TcpConnector)).await.unwrap();
        assert_eq!(found.iter().map(|target| target.name.as_str()).collect::<Vec<_>>(), [IQN]);
        let (lun, driver) = connect(InitiatorOptions::for_url(&url), Arc::new(TcpConnector)).await.unwrap();
        let driver = tokio::spawn(driver);
        assert_eq!(lun.geometry().size_bytes, 16 << 20);
        let bytes: Vec<u8> = (0..5 << 20u32).map(|index: usize| (index / 512 + index) as u8).collect();
        lun.write(512, Buffer::copy_of(&bytes), false).await.unwrap();
        lun.flush().await.unwrap();
        assert!(lun.read(512, Buffer::zeroed(bytes.len())).await.unwrap()[..] == bytes[..]);
        let small: Vec<_> = (0..512u64).map(|index| lun.read(index * 4096, Buffer::zeroed(4096))).collect();
        for (index, read) in small.into_iter().enumerate().skip(1) {
            assert!(read.await.unwrap()[..] == bytes[index * 4096 - 512..][..4096], "block {index}");
        }
        lun.close().await.unwrap();
        driver.await.unwrap();
    }
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn nobody_listens() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = InitiatorOptions::new(Portal { host: "127.0.0.1".to_owned(), port }, IQN, 0);
    let error = connect(options, Arc::new(TcpConnector)).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.to_string().contains("is the target running"), "{error}");
}
