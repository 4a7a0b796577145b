//! An attach while others write to the LUN: between what their target told of and the moment that its mark is cleared.

use std::future::ready;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::completion::Workers;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, Completion, Device, EventReceiver, Geometry, Operation, SharedDevice};
use cache::{Alignment, Associativity, CleaningRate, DirtyLimits, LineSize, Percent, Replacement, Tuning};
use logical_unit::change_marks::MemoryChanges;
use tokio::sync::Notify;

use super::*;
use crate::caches::MarkRecord;
use crate::error::Failure;
use crate::log_place::{DestageConfig, LogConfig};
use crate::remote::{RemoteConfig, Waits};
use crate::remotes::{Arrangement, RemotesConfig};
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

impl Gate {
    fn new() -> Arc<Self> {
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        let workers = Workers::new();
        let gate = Arc::new(Self {
            inner: Arc::new(MemoryDevice::new(16 * MIB, identity)),
            workers: workers.clone(),
            is_armed: AtomicBool::new(false),
            reached: Arc::default(),
            opened: Arc::default(),
        });
        tokio::spawn(async move { workers.run().await });
        gate
    }
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
        front_access: front::SocketAccess::default(),
        is_read_only: false,
        overwrites_changes: false,
        metrics: None,
        waits_for_target: false,
        settings: Settings::default(),
    }
}

fn filled(byte: u8) -> Buffer {
    Buffer::copy_of(&[byte; 4096])
}

/// What is dirty in the cache was compared with what others had written until their target was asked. What they write after that is newer, and the cache
/// sends nothing before it knows of it.
#[tokio::test]
async fn dirty_data_does_not_go_over_what_others_write_while_the_cache_is_being_opened() {
    let gate = Gate::new();
    let (memory, reached, opened) = (Arc::clone(&gate.inner), Arc::clone(&gate.reached), Arc::clone(&gate.opened));
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

fn open_paths(directory: &std::path::Path) -> Paths {
    Paths::new(directory.join("run"), directory.join("state")).unwrap()
}

/// Something below may still have it in its hands, and write in it when this host knows one token only.
#[tokio::test]
async fn a_cache_that_was_not_closed_in_time_is_not_noted_as_closed() {
    let gate = Gate::new();
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let attachment = Attachment::start(config(address, directory.path(), Percent::ALL), &paths).await.unwrap();
    let cache = attachment.cache().unwrap();
    cache.write(0, filled(1), false).await.unwrap();
    gate.is_armed.store(true, Ordering::SeqCst);
    let cleaning = tokio::spawn(async move { cache.clean(|_| {}).await });
    gate.reached.notified().await;
    let ended = attachment.run(ready(())).await;
    let tokens = Caches::open(&paths).unwrap().list().unwrap()[0].tokens.clone();
    assert!(tokens.len() > 1, "{tokens:?} after {ended:?}");
    gate.opened.notify_one();
    cleaning.abort();
}

/// Requests go to the other cache already, whatever the list says; and whatever it says, the next start takes that cache.
#[tokio::test]
async fn a_cache_that_was_changed_is_used_also_where_the_list_cannot_say_so() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let start = || Attachment::start(config(address, directory.path(), Percent::ALL), &paths);
    let attachment = start().await.unwrap();
    let lines = attachment.cache().unwrap().status().lines;
    let caches = Caches::open(&paths).unwrap();
    let meanwhile = async {
        while caches.list().unwrap()[0].uuid.is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // What is in the way of the next note.
        let mut records = std::fs::read_dir(paths.caches()).unwrap().map(|entry| entry.unwrap().path());
        let record = records.find(|path| path.extension().is_some_and(|found| found == "json")).unwrap();
        let in_the_way = record.with_extension("new");
        std::fs::create_dir(&in_the_way).unwrap();
        in_the_way
    };
    let (changed, in_the_way) = tokio::join!(attachment.set("cache.size", "8MiB"), meanwhile);
    let error = changed.expect_err("it cannot be noted").to_string();
    assert!(error.contains("the cache was changed, and the list of caches does not say so"), "{error}");
    assert!(attachment.cache().unwrap().status().lines > lines, "requests go to the new one");
    attachment.cache().unwrap().write(0, filled(3), false).await.unwrap();
    std::fs::remove_dir(in_the_way).unwrap();
    attachment.run(ready(())).await.unwrap();

    let again = start().await.unwrap();
    assert_eq!(again.cache().unwrap().read(0, Buffer::zeroed(4096)).await.unwrap()[..], [3; 4096]);
    again.run(ready(())).await.unwrap();
}

#[tokio::test]
async fn a_cache_and_a_log_that_would_lie_over_each_other_are_refused_as_that() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let disk = directory.path().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(64 * MIB).unwrap();
    let at = |cache_offset: u64, log_offset: u64| {
        let mut config = config(address, directory.path(), Percent::ALL);
        let cache = config.cache.as_mut().unwrap();
        (cache.path, cache.offset) = (disk.clone(), Some(cache_offset));
        config.log = Some(LogConfig {
            path: disk.clone(),
            offset: Some(log_offset),
            size_bytes: Some(16 * MIB),
            segment_bytes: None,
            slot_bytes: None,
            durability: writelog::Durability::Log,
            nvram: None,
            ram_bytes: None,
            record_cache_bytes: None,
            destage: DestageConfig::default(),
            is_paper: false,
        });
        config
    };
    for (cache_offset, log_offset) in [(MIB, MIB), (MIB, 4 * MIB), (16 * MIB, MIB)] {
        let refused = Attachment::start(at(cache_offset, log_offset), &paths).await;
        let error = refused.err().expect("one lies over the other");
        assert_eq!(error.failure(), Failure::Usage, "{error}");
        assert!(error.to_string().contains("would lie over each other"), "{error}");
    }
    let apart = Attachment::start(at(MIB, 5 * MIB), &paths).await.unwrap();
    apart.run(ready(())).await.unwrap();
}
