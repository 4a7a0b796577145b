//! An attach while others write to the LUN: between what their target told of and the moment that its mark is cleared.

use std::future::ready;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::completion::Workers;
use block::memory::MemoryDevice;
use block::{Buffer, Completion, EventReceiver, Operation, SharedDevice};
use cache::{Alignment, Associativity, CleaningRate, DirtyLimits, LineSize, Percent, Replacement, Tuning};
use logical_unit::change_marks::MemoryChanges;
use tokio::sync::Notify;

use super::*;
use crate::caches::MarkRecord;
use crate::error::Failure;
use crate::remote::{RemoteConfig, Waits};
use crate::remotes::Arrangement;
use crate::test_target::{IQN, serve};

const MIB: u64 = 1 << 20;

/// A LUN with a volatile cache. When it is told to, it stops at its next flush until it may go on.
struct Gate {
    inner: SharedDevice,
    workers: Workers,
    is_armed: AtomicBool,
    reached: Arc<Notify>,
    opened: Arc<Notify>,
}

impl Device for Gate {
    fn geometry(&self) -> Geometry {
        Geometry { is_write_cache_volatile: true, ..self.inner.geometry() }
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: block::Request) -> Completion {
        let is_flush = matches!(request.operation, Operation::Flush);
        if !is_flush || !self.is_armed.swap(false, Ordering::SeqCst) {
            return self.inner.submit(request);
        }
        let (inner, reached, opened) = (Arc::clone(&self.inner), Arc::clone(&self.reached), Arc::clone(&self.opened));
        Completion::task(&self.workers, async move {
            reached.notify_one();
            opened.notified().await;
            inner.submit(request).await
        })
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }
}

fn remotes(address: SocketAddr, initiator: &str) -> RemotesConfig {
    let patience = Duration::from_secs(60);
    let remote = RemoteConfig {
        url: format!("iscsi://{address}/{IQN}/0").parse().unwrap(),
        initiator_name: format!("iqn.2026-11.io.forebay:{initiator}"),
        credentials: None,
        target_credentials: None,
        with_digests: false,
        link_round_trip: None,
        isid: None,
        waits: Waits { login: patience, command: patience, keepalive: patience, replacement: patience },
        connections: 1,
        split_connections: false,
    };
    RemotesConfig { remotes: vec![remote], arrangement: Arrangement::Single }
}

/// With a cache in `directory` that is cleaned as soon as so much of it is dirty.
fn config(address: SocketAddr, directory: &std::path::Path, clean_above: Percent) -> AttachConfig {
    let cache = CacheConfig {
        path: directory.join("disk.cache"),
        offset: None,
        size_bytes: Some(4 * MIB),
        mode: Mode::WriteBack,
        crash_mode: None,
        generation: None,
        is_exclusive: None,
        replacement: Replacement::default(),
        tuning: Tuning::default(),
        dirty: DirtyLimits { clean_above, max: Percent::ALL },
        cleaning: CleaningRate::default(),
        line_size: LineSize::default(),
        associativity: Associativity::Ways(8),
        alignment: Alignment::default(),
        has_checksums: false,
        lines_max: None,
        memory_max: None,
    };
    AttachConfig {
        remotes: remotes(address, "own"),
        name: "disk".into(),
        cache: Some(cache),
        log: None,
        difference: None,
        front: ListenAddress::Unix(directory.join("disk.nbd")),
        front_access: SocketAccess::default(),
        is_read_only: false,
        overwrites_changes: false,
        metrics: None,
    }
}

fn filled(byte: u8) -> Buffer {
    Buffer::copy_of(&[byte; 4096])
}

/// What is dirty in the cache was compared with what others had written until their target was asked. What they write after that is newer, and the cache
/// sends nothing before it knows of it.
#[tokio::test]
async fn dirty_data_does_not_go_over_what_others_write_while_the_cache_is_being_opened() {
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    let memory: SharedDevice = Arc::new(MemoryDevice::new(16 * MIB, identity));
    let (workers, reached, opened) = (Workers::new(), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let gate = Arc::new(Gate {
        inner: Arc::clone(&memory),
        workers: workers.clone(),
        is_armed: AtomicBool::new(false),
        reached: Arc::clone(&reached),
        opened: Arc::clone(&opened),
    });
    tokio::spawn(async move { workers.run().await });
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let attachment = Attachment::start(config(address, directory.path(), Percent::ALL), &paths).await.unwrap();
    attachment.cache().unwrap().write(0, filled(1), false).await.unwrap();
    attachment.run(ready(())).await.unwrap();

    let caches = Caches::open(&paths).unwrap();
    let mark = || -> MarkRecord { caches.list().unwrap()[0].luns[0].mark.clone().unwrap() };
    let mark_before = mark();
    let others = remotes(address, "other").connect(&system_clock().unwrap()).await.unwrap();
    // An opening in write-back flushes the LUN.
    gate.is_armed.store(true, Ordering::SeqCst);
    let attaching = Attachment::start(config(address, directory.path(), Percent::new(0)), &paths);
    let meanwhile = async {
        reached.notified().await;
        let mark_now = mark();
        assert!(mark_now != mark_before && mark_now == mark_now.clone().settled(), "the target has told of changes");
        others.device().write(0, filled(2), true).await.unwrap();
        opened.notify_one();
    };
    let (attached, ()) = tokio::join!(attaching, meanwhile);
    assert_eq!(attached.err().expect("both have written there").failure(), Failure::WouldLoseData);
    assert_eq!(memory.read(0, Buffer::zeroed(4096)).await.unwrap()[..], [2; 4096]);
}
