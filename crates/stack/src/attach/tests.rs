//! Attachments over a LUN that stops where a test says.

use std::future::{pending, ready};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::completion::Workers;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, Completion, Device, EventReceiver, Geometry, Identity, Operation, SharedDevice};
use cache::{Alignment, Associativity, CleaningRate, DirtyLimits, LineSize, Mode, Percent, Replacement, Tuning};
use logical_unit::change_marks::MemoryChanges;
use tokio::sync::Notify;

use super::*;
use crate::busy_polling::BusyPolling;
use crate::cache_place::CacheConfig;
use crate::caches::Caches;
use crate::control::{ControlRequest, call};
use crate::error::Failure;
use crate::fronts;
use crate::log_place::{DestageConfig, LogConfig};
use crate::registry::Registry;
use crate::remote::{RemoteConfig, Waits};
use crate::remotes::{Arrangement, RemotesConfig};
use crate::settings::Settings;
use crate::test_target::{IQN, serve};

mod beginning;
mod cache_change;
mod end;
mod serving;

const MIB: u64 = 1 << 20;

/// Selects operations.
type Meant = fn(&Operation) -> bool;

/// A LUN with a volatile cache. On the test's order it stops at its next operation of a kind, until
/// the test lets it go on.
struct Gate {
    inner: SharedDevice,
    workers: Workers,
    stops_at: Mutex<Option<Meant>>,
    /// Whether the next flush drops what was written.
    fails_flush: AtomicBool,
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
            stops_at: Mutex::default(),
            fails_flush: AtomicBool::new(false),
            reached: Arc::default(),
            opened: Arc::default(),
        });
        tokio::spawn(async move { workers.run().await });
        gate
    }

    /// Stops at the next of these operations.
    fn stop_at(&self, is_meant: Meant) {
        *self.stops_at.lock().unwrap() = Some(is_meant);
    }
}

fn is_flush(operation: &Operation) -> bool {
    matches!(operation, Operation::Flush)
}

impl Device for Gate {
    fn geometry(&self) -> Geometry {
        Geometry { is_write_cache_volatile: true, ..self.inner.geometry() }
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: block::Request) -> Completion {
        if is_flush(&request.operation) && self.fails_flush.swap(false, Ordering::Relaxed) {
            self.reached.notify_one();
            return Completion::ready(request.fail(block::Error::new(block::ErrorKind::Media, "it was dropped")));
        }
        if self.stops_at.lock().unwrap().take_if(|is_meant| is_meant(&request.operation)).is_none() {
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
        busy_polling: BusyPolling::Auto,
        link_round_trip: None,
        isid: None,
        waits: Waits { login: patience, command: patience, keepalive: Some(patience), replacement: patience },
        connections: 1,
        split_connections: false,
        is_shared: false,
        holds_whole: false,
    };
    RemotesConfig { remotes: vec![remote], arrangement: Arrangement::Single }
}

/// With a cache in `directory` that is cleaned as soon as this share of it is dirty.
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
        deferred_max: 0,
        line_size: LineSize::default(),
        associativity: Associativity::Ways(8),
        alignment: Alignment::default(),
        has_checksums: false,
        lines_max: None,
        memory_max: None,
    };
    AttachConfig {
        stack: StackConfig {
            remotes: remotes(address, "own"),
            name: "disk".into(),
            cache: Some(cache),
            log: None,
            difference: None,
            overwrites_changes: false,
            settings: Settings::default(),
        },
        fronts: vec![fronts::parse("nbd", &|kind| directory.join(format!("disk.{kind}"))).unwrap()],
        waits_for_target: false,
        metrics: None,
    }
}

/// A log in `directory`.
fn log_config(directory: &std::path::Path) -> LogConfig {
    LogConfig {
        path: directory.join("disk.log"),
        offset: None,
        size_bytes: Some(16 * MIB),
        segment_bytes: None,
        slot_bytes: None,
        durability: writelog::Durability::Log,
        nvram: None,
        ram_bytes: None,
        record_cache_bytes: None,
        destage: DestageConfig::default(),
        is_paper: false,
    }
}

fn filled(byte: u8) -> Buffer {
    Buffer::copy_of(&[byte; 4096])
}

fn open_paths(directory: &std::path::Path) -> Paths {
    Paths::new(directory.join("run"), directory.join("state")).unwrap()
}
