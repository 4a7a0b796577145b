//! Log lines that peers and disks can cause: even ten thousand of each keep the log readable.

use std::sync::Arc;

use base::buffer::BufferPool;
use base::limits::REFUSALS_LOGGED_MAX;
use block::memory::MemoryDevice;
use block::{Completion, Device, Error, ErrorKind, Geometry, Identity, Request};
use iscsi::framing::Digests;
use iscsi::pdu::*;
use iscsi::target::CloseReason;
use logical_unit::{LogicalUnit, LogicalUnitOptions, LunMap};
use target::{Target, TargetServer, TargetServerOptions};
use tokio::io::AsyncWriteExt;

#[path = "../../cache/tests/common/lines.rs"]
mod lines;
mod support;
use lines::Lines;
use support::*;

const TIMES: u32 = 200;

/// A device whose whole medium fails.
struct BadDevice(MemoryDevice);

impl Device for BadDevice {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn identity(&self) -> Identity {
        self.0.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        Completion::ready(request.fail(Error::new(ErrorKind::Media, "a test's disk")))
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_every_command_is_a_few_lines() {
    let device = BadDevice(MemoryDevice::new(1 << 20, Identity::default()));
    let luns = LunMap::new();
    luns.insert(0, LogicalUnit::new(Arc::new(device), LogicalUnitOptions::default()));
    let server = TargetServer::new(vec![Target::new(NAME, luns)], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    client.log_in(1).await;
    client.settle().await;
    let lines = Lines::default();
    let _guard = lines.listen();
    for _ in 0..TIMES {
        let (key, ..) = client.sense_of(&cdb10(0x2a, 0, 1), Some(vec![7; 512])).await;
        assert_eq!(key, 3, "it is a medium error");
    }
    assert_eq!(lines.count(), REFUSALS_LOGGED_MAX as usize);
}

/// A name may have as many sessions as it likes that end so.
#[tokio::test(start_paused = true)]
async fn connections_that_end_in_silence_are_a_few_lines() {
    let server =
        TargetServer::new(vec![ram_target(&BufferPool::new(READ_BUFFERS_BYTES))], TargetServerOptions::default());
    let lines = Lines::default();
    let _guard = lines.listen();
    let mut silent = Vec::new();
    for isid in 0..2 * REFUSALS_LOGGED_MAX {
        let (mut client, ended) = connect(&server);
        client.log_in(isid).await;
        silent.push((client, ended));
    }
    for (_client, ended) in &mut silent {
        assert_eq!(ended.await.expect("it does not panic"), CloseReason::PingTimeout);
    }
    assert_eq!(lines.count(), REFUSALS_LOGGED_MAX as usize);
}

#[tokio::test(start_paused = true)]
async fn digests_that_never_match_are_a_few_lines() {
    let server =
        TargetServer::new(vec![ram_target(&BufferPool::new(READ_BUFFERS_BYTES))], TargetServerOptions::default());
    let (mut client, _) = connect(&server);
    client.try_log_in(1, 0, &[("TargetName", NAME), ("DataDigest", "CRC32C"), ("ErrorRecoveryLevel", "1")]).await;
    client.receiver.set_parameters(Digests { header: false, data: true }, 1 << 20);
    let lines = Lines::default();
    let _guard = lines.listen();
    for _ in 0..TIMES {
        client.send(&client.ping(true), vec![1; 4]).await;
        client.stream.write_all(&[0; 4]).await.expect("the target listens");
        let answer = client.receive_bhs().await;
        assert!(matches!(&answer, Bhs::Reject(reject) if reject.reason == RejectReason::DataDigestError), "{answer:?}");
    }
    assert_eq!(lines.count(), REFUSALS_LOGGED_MAX as usize);
}
