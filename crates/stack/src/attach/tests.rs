//! An attach while other hosts write to the LUN: between the report of their changes and the
//! clearing of the mark.

use std::collections::BTreeSet;
use std::future::{pending, ready};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use block::completion::Workers;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, Completion, Device, EventReceiver, Geometry, Identity, Operation, SharedDevice};
use cache::{
    Alignment, Associativity, CleaningRate, CrashMode, DirtyLimits, LineSize, Mode, Percent, Replacement, Tuning,
};
use futures_util::FutureExt;
use logical_unit::change_marks::{ChangeStore, MarkUpdate, MemoryChanges, Saving};
use tokio::sync::Notify;

use super::*;
use crate::awaited::Awaited;
use crate::busy_polling::BusyPolling;
use crate::cache_place::CacheConfig;
use crate::caches::{Caches, MarkRecord};
use crate::content::uuid_at;
use crate::control::{ControlRequest, call};
use crate::difference_note::{DifferenceNote, Fate};
use crate::difference_place::DifferenceConfig;
use crate::error::Failure;
use crate::fronts;
use crate::limits::TELLING_TIME_MAX;
use crate::log_place::{DestageConfig, LogConfig};
use crate::place::Place;
use crate::registry::Registry;
use crate::remote::{RemoteConfig, Waits};
use crate::remotes::{Arrangement, RemotesConfig};
use crate::settings::Settings;
use crate::status::fronts::FrontsStatus;
use crate::status::{self, Report, Shown};
use crate::test_target::{IQN, serve, serve_removable};

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

/// Dirty data in the cache was compared with what other hosts had written before the target was
/// asked. Later writes of others are newer, and the cache must send nothing before it knows of
/// them.
#[tokio::test]
async fn dirty_data_does_not_go_over_what_others_write_while_the_cache_is_being_opened() {
    let gate = Gate::new();
    let (memory, reached, opened) = (Arc::clone(&gate.inner), Arc::clone(&gate.reached), Arc::clone(&gate.opened));
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
    let attachment =
        Attachment::start(config(address, directory.path(), Percent::ALL), &paths, pending()).await.unwrap().unwrap();
    attachment.stack.cache().unwrap().write(0, filled(1), false).await.unwrap();
    attachment.run(ready(())).await.unwrap();

    let caches = Caches::open(&paths).unwrap();
    let mark = || -> MarkRecord { caches.list().unwrap()[0].luns[0].mark.clone().unwrap() };
    let mark_before = mark();
    let others = remotes(address, "other").connect(&system_clock().unwrap()).await.unwrap();
    // Opening in write-back flushes the LUN.
    gate.stop_at(is_flush);
    let attaching = Attachment::start(config(address, directory.path(), Percent::new(0)), &paths, pending());
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

/// A layer below may still hold a request, and write to the cache when this host knows only one
/// token.
#[tokio::test]
async fn a_cache_that_was_not_closed_in_time_is_not_noted_as_closed() {
    let gate = Gate::new();
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let attachment =
        Attachment::start(config(address, directory.path(), Percent::ALL), &paths, pending()).await.unwrap().unwrap();
    let cache = attachment.stack.cache().unwrap();
    cache.write(0, filled(1), false).await.unwrap();
    gate.stop_at(is_flush);
    let cleaning = tokio::spawn(async move { cache.clean(|_| {}).await });
    gate.reached.notified().await;
    let ended = attachment.run(ready(())).await;
    let tokens = Caches::open(&paths).unwrap().list().unwrap()[0].tokens.clone();
    assert!(tokens.len() > 1, "{tokens:?} after {ended:?}");
    gate.opened.notify_one();
    cleaning.abort();
}

/// Requests go to the new cache already, even if the list of caches cannot be written; and the next
/// start takes that cache.
#[tokio::test]
async fn a_cache_that_was_changed_is_used_also_where_the_list_cannot_say_so() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let start = async || {
        Attachment::start(config(address, directory.path(), Percent::ALL), &paths, pending()).await.unwrap().unwrap()
    };
    let attachment = start().await;
    let lines = attachment.stack.cache().unwrap().status().lines;
    let caches = Caches::open(&paths).unwrap();
    let meanwhile = async {
        while caches.list().unwrap()[0].uuid.is_some() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Makes the next note fail.
        let mut records = std::fs::read_dir(paths.caches()).unwrap().map(|entry| entry.unwrap().path());
        let record = records.find(|path| path.extension().is_some_and(|found| found == "json")).unwrap();
        let in_the_way = record.with_extension("json.new");
        std::fs::create_dir(&in_the_way).unwrap();
        in_the_way
    };
    let (changed, in_the_way) = tokio::join!(attachment.stack.set("cache.size", "8MiB"), meanwhile);
    let error = changed.expect_err("it cannot be noted").to_string();
    assert!(error.contains("the cache was changed, and the list of caches does not say so"), "{error}");
    assert!(attachment.stack.cache().unwrap().status().lines > lines, "requests go to the new one");
    attachment.stack.cache().unwrap().write(0, filled(3), false).await.unwrap();
    std::fs::remove_dir(in_the_way).unwrap();
    attachment.run(ready(())).await.unwrap();

    let again = start().await;
    assert_eq!(again.stack.cache().unwrap().read(0, Buffer::zeroed(4096)).await.unwrap()[..], [3; 4096]);
    again.run(ready(())).await.unwrap();
}

/// Each of them gets two tokens, and any of them may be refused.
#[tokio::test]
async fn the_list_has_the_tokens_of_the_cache_that_is_there_and_none_of_those_before_it() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let caches = Caches::open(&paths).unwrap();
    let tokens = || caches.list().unwrap()[0].tokens.clone();
    let start = async || {
        Attachment::start(config(address, directory.path(), Percent::ALL), &paths, pending()).await.unwrap().unwrap()
    };
    let attachment = start().await;
    let mut known = vec![tokens()];
    for size in ["8MiB", "4MiB", "8MiB"] {
        attachment.stack.set("cache.size", size).await.unwrap();
        known.push(tokens());
        attachment.stack.set("cache.size", "64KiB").await.expect_err("a cache is larger");
        assert_eq!(tokens(), *known.last().unwrap());
    }
    assert!(known.iter().all(|tokens| tokens.len() == 2), "{known:?}");
    let all: BTreeSet<u64> = known.into_iter().flatten().collect();
    assert_eq!(all.len(), 8);
    attachment.stack.cache().unwrap().write(0, filled(3), false).await.unwrap();
    attachment.run(ready(())).await.unwrap();
    start().await.run(ready(())).await.expect("the next attach takes it");
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
        let cache = config.stack.cache.as_mut().unwrap();
        (cache.path, cache.offset) = (disk.clone(), Some(cache_offset));
        config.stack.log = Some(LogConfig { path: disk.clone(), offset: Some(log_offset), ..log_config(&disk) });
        config
    };
    for (cache_offset, log_offset) in [(MIB, MIB), (MIB, 4 * MIB), (16 * MIB, MIB)] {
        let refused = Attachment::start(at(cache_offset, log_offset), &paths, pending()).await;
        let error = refused.err().expect("one lies over the other");
        assert_eq!(error.failure(), Failure::Usage, "{error}");
        assert!(error.to_string().contains("would lie over each other"), "{error}");
    }
    let apart = Attachment::start(at(MIB, 5 * MIB), &paths, pending()).await.unwrap().unwrap();
    apart.run(ready(())).await.unwrap();
}

/// The files in `directory`, without the directories of this host's state.
fn files_in(directory: &std::path::Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = names.filter(|name| !["run", "state"].contains(&name.as_str())).collect();
    files.sort();
    files
}

/// Checks that nothing is dirty, nothing is locked, and nothing listens.
async fn check_that_nothing_was_begun(address: SocketAddr, directory: &std::path::Path, paths: &Paths) {
    assert!(Registry::open(paths).unwrap().entries().unwrap().is_empty());
    assert!(!files_in(directory).contains(&"disk.nbd".to_owned()), "{:?}", files_in(directory));
    let again = Attachment::start(config(address, directory, Percent::ALL), paths, pending()).await.unwrap().unwrap();
    again.run(ready(())).await.unwrap();
}

#[tokio::test]
async fn a_start_ends_at_a_signal_while_the_target_does_not_answer_the_login() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let config = config(silent.local_addr().unwrap(), directory.path(), Percent::ALL);
    let accepted = async { std::mem::forget(silent.accept().await.unwrap()) };
    assert!(Attachment::start(config, &paths, accepted).await.unwrap().is_none());
    assert_eq!(files_in(directory.path()), [""; 0]);
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    check_that_nothing_was_begun(address, directory.path(), &paths).await;
}

/// The alignment of a new cache's lines is read from the LUN.
#[tokio::test]
async fn a_start_that_is_ended_while_a_cache_is_made_leaves_no_part_of_it() {
    let gate = Gate::new();
    let (reached, opened) = (Arc::clone(&gate.reached), Arc::clone(&gate.opened));
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    gate.stop_at(|operation| matches!(operation, Operation::Read { .. }));
    let config = config(address, directory.path(), Percent::ALL);
    assert!(Attachment::start(config, &paths, reached.notified()).await.unwrap().is_none());
    assert_eq!(files_in(directory.path()), [""; 0]);
    opened.notify_one();
    check_that_nothing_was_begun(address, directory.path(), &paths).await;
}

#[tokio::test]
async fn a_start_that_is_ended_while_a_dirty_cache_is_opened_leaves_what_is_dirty() {
    let gate = Gate::new();
    let (reached, opened) = (Arc::clone(&gate.reached), Arc::clone(&gate.opened));
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let start = |signal| Attachment::start(config(address, directory.path(), Percent::ALL), &paths, signal);
    let attachment = start(pending().boxed_local()).await.unwrap().unwrap();
    attachment.stack.device().write(0, filled(7), true).await.unwrap();
    attachment.run(ready(())).await.unwrap();
    let entries = || Registry::open(&paths).unwrap().entries().unwrap().len();
    assert_eq!(entries(), 1, "it is dirty");

    gate.stop_at(is_flush);
    assert!(start(reached.notified().boxed_local()).await.unwrap().is_none());
    assert_eq!(entries(), 1, "and stays so");
    assert_eq!(files_in(directory.path()), ["disk.cache"]);
    opened.notify_one();
    let again = start(pending().boxed_local()).await.unwrap().unwrap();
    assert_eq!(again.stack.device().read(0, Buffer::zeroed(4096)).await.unwrap()[..], [7; 4096]);
    again.run(ready(())).await.unwrap();
}

#[tokio::test]
async fn each_of_two_fronts_of_one_stack_sees_what_is_written_by_the_other() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let mut config = config(address, directory.path(), Percent::ALL);
    config.fronts.push(fronts::parse("nbd:127.0.0.1:0", &|_| "unused".into()).unwrap());
    let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
    let places: Vec<String> = attachment.fronts.places();
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    let using = async move {
        let mut clients = Vec::new();
        for place in &places {
            let (client, driver) = front::NbdClient::connect(&place.parse().unwrap()).await.unwrap();
            tokio::spawn(driver);
            clients.push(client);
        }
        for round in 1..20u8 {
            let (one, other) = (round, round + 100);
            let writes = [(0, one), (1, other)]
                .map(|(index, byte)| clients[index].write(index as u64 * 512, Buffer::copy_of(&[byte; 512]), false));
            let [first, second] = writes;
            let (first, second) = tokio::join!(first, second);
            first.unwrap();
            second.unwrap();
            for (index, client) in clients.iter().enumerate() {
                let read = client.read(0, Buffer::zeroed(1024)).await.unwrap();
                assert_eq!((&read[..512], &read[512..]), (&[one; 512][..], &[other; 512][..]), "front {index}");
            }
        }
        let status = call(&paths.control_socket("disk"), &ControlRequest::Status, |_| {}).await.unwrap();
        assert_eq!(status["fronts"].as_array().unwrap().len(), 2);
        assert_eq!(status["nbd"]["connections_open"], 2, "of both together: {status}");
        let understood = status::read::<Shown>(&status).unwrap().attachment().expect("it is one");
        assert_eq!(understood.fronts.fronts.len(), 2, "who reads it finds what was said");
        ended.send(()).unwrap();
    };
    let ended = async {
        let _ = end.await;
    };
    let (ran, ()) = tokio::join!(attachment.run(ended), using);
    ran.unwrap();
}

/// Whoever asked first may have been interrupted.
#[tokio::test]
async fn a_second_detach_shows_how_far_the_first_has_come_and_has_its_result() {
    let gate = Gate::new();
    let (reached, opened) = (Arc::clone(&gate.reached), Arc::clone(&gate.opened));
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let config = config(address, directory.path(), Percent::ALL);
    let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
    let place = attachment.fronts.places()[0].clone();
    attachment.stack.device().write(0, filled(7), true).await.unwrap();
    let socket = paths.control_socket("disk");
    let detach = |remove_cache| ControlRequest::Detach { keep_dirty: false, remove_cache };
    let asking = async {
        let (_client, driver) = front::NbdClient::connect(&place.parse().unwrap()).await.unwrap();
        tokio::spawn(driver);
        gate.stop_at(is_flush);
        let (first, plain) = (detach(false), detach(false));
        let second = async {
            reached.notified().await;
            let removing = call(&socket, &detach(true), |_| {}).await.unwrap_err();
            assert!(removing.failure() == Failure::InUse && removing.to_string().contains("its cache stays"));
            let slower = ControlRequest::Set { key: "cache.clean-max".to_owned(), value: "1MiB".to_owned() };
            call(&socket, &slower, |_| {}).await.expect("how fast it is cleaned can be changed");
            let show = |report: &Report| {
                if matches!(report, Report::Destaged { bytes_total: 4096, .. }) {
                    opened.notify_one();
                }
            };
            call(&socket, &plain, show).await.unwrap()
        };
        let (first, second) = tokio::join!(call(&socket, &first, |_| {}), second);
        (first.unwrap(), second)
    };
    let (ran, (first, second)) = tokio::join!(attachment.run(pending()), asking);
    ran.unwrap();
    assert_eq!((&first["dirty_bytes"], &second["dirty_bytes"]), (&0.into(), &0.into()), "{first} {second}");
    assert_eq!(first["in_use"][0]["users"], 1, "the client that was there: {first}");
}

#[tokio::test]
async fn an_attachment_that_nobody_can_reach_any_more_ends_with_what_ended_its_front() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let config = config(address, directory.path(), Percent::ALL);
    let mut attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
    attachment.fronts = Fronts::of(vec![fronts::broken()]);
    let error = attachment.run(pending()).await.unwrap_err().to_string();
    assert!(error.contains("the broken front at nowhere"), "{error}");
}

/// With a difference in `directory`, and what the user takes.
fn over_base(
    address: SocketAddr,
    directory: &std::path::Path,
    (accepts_loss, overwrites_changes): (bool, bool),
) -> AttachConfig {
    let mut config = config(address, directory, Percent::ALL);
    config.stack.cache = None;
    config.stack.overwrites_changes = overwrites_changes;
    config.stack.difference = Some(DifferenceConfig {
        path: directory.join("own"),
        size_bytes: Some(4 * MIB),
        chunk_bytes: None,
        generation: None,
        accepts_loss,
    });
    config
}

/// By the base, by a front, or by the user who gave leave for one of two.
#[tokio::test]
async fn a_refused_attach_leaves_the_note_of_a_lost_difference_and_what_is_known_of_its_base() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let (accepted, overwritten, both) = ((true, false), (false, true), (true, true));
    let start = async |taken| Attachment::start(over_base(address, directory.path(), taken), &paths, pending()).await;
    let refusal = async |taken| start(taken).await.err().map(|error| error.failure());
    let attachment = start((false, false)).await.unwrap().unwrap();
    attachment.stack.device().write(0, filled(7), true).await.unwrap();
    attachment.run(ready(())).await.unwrap();
    let place = Place::new(&directory.path().join("own"), None).unwrap();
    let note = DifferenceNote::of(&paths, &place).unwrap();
    note.write(Fate::Cut, "disk", uuid::Uuid::new_v4()).unwrap();
    let clock = system_clock().unwrap();
    let others = remotes(address, "other").connect(&clock).await.unwrap();
    others.device().write(MIB, filled(9), true).await.unwrap();
    others.close().await.unwrap();
    for taken in [accepted, overwritten, accepted] {
        assert_eq!(refusal(taken).await, Some(Failure::WouldLoseData), "{taken:?}");
    }
    let config = over_base(address, directory.path(), both);
    let Listeners { control, metrics, .. } = Listeners::open("disk", None, &config.fronts, &paths).unwrap();
    let listeners = Listeners { control, metrics, fronts: Fronts::of(vec![fronts::unopenable()]) };
    let stack = Stack::open(config.stack, &paths, clock, &Sender::new(false)).await.unwrap();
    let error = Attachment::with_listeners(listeners, stack).await.err().unwrap().to_string();
    assert!(error.contains("it does not open"), "{error}");
    for taken in [overwritten, accepted] {
        assert_eq!(refusal(taken).await, Some(Failure::WouldLoseData), "{taken:?}");
    }
    for taken in [both, (false, false)] {
        let attachment = start(taken).await.unwrap().unwrap();
        assert_eq!(attachment.stack.device().read(0, Buffer::zeroed(4096)).await.unwrap()[..], [7; 4096]);
        attachment.run(ready(())).await.unwrap();
    }
}

/// A flush of the cache's own: no application has asked for one.
#[tokio::test]
async fn a_loss_that_closing_the_cache_tells_is_told_as_one_and_the_cache_is_not_needed_any_more() {
    let gate = Gate::new();
    let address = serve(gate.clone(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let mut config = config(address, directory.path(), Percent::ALL);
    let cache = config.stack.cache.as_mut().unwrap();
    (cache.mode, cache.crash_mode) = (Mode::WriteThrough, Some(CrashMode::Warm));
    let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
    gate.fails_flush.store(true, Ordering::Relaxed);
    attachment.stack.device().write(0, filled(7), false).await.unwrap();
    gate.reached.notified().await;
    let told = attachment.run(ready(())).await.unwrap_err().to_string();
    assert!(told.contains("what applications wrote to it before its last flush may be lost"), "{told}");
    assert_eq!(Registry::open(&paths).unwrap().entries().unwrap(), [], "nothing is dirty there");
}

#[tokio::test]
async fn a_loss_that_nobody_was_told_of_is_told_at_the_end() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    for is_told in [false, true] {
        let config = config(address, directory.path(), Percent::ALL);
        let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
        let losses = attachment.stack.losses();
        losses.note(block::Error::new(block::ErrorKind::Media, "the device lost it"));
        if is_told {
            let mut client = losses.reader();
            assert!(client.end(Ok(())).is_err());
            client.note_delivered();
        }
        let ended = attachment.run(ready(())).await;
        assert_eq!(ended.is_ok(), is_told);
        if let Err(error) = ended {
            assert!(
                error.to_string().contains("it is not known that any of them was told (the device lost it"),
                "{error}"
            );
        }
    }
}

/// What it has sent is dirty on its device until it is closed. If the LUN were used without it
/// meanwhile, it would be sent again over newer data.
#[tokio::test]
async fn a_store_that_could_not_be_closed_in_time_is_asked_for_by_the_next_attach() {
    for has_log in [false, true] {
        let gate = Gate::new();
        let (memory, reached, opened) = (Arc::clone(&gate.inner), Arc::clone(&gate.reached), Arc::clone(&gate.opened));
        let address = serve(gate.clone(), Arc::new(MemoryChanges));
        let directory = tempfile::tempdir().unwrap();
        let paths = open_paths(directory.path());
        let with_store = || {
            let mut config = config(address, directory.path(), Percent::new(0));
            if has_log {
                (config.stack.cache, config.stack.log) = (None, Some(log_config(directory.path())));
            }
            config
        };
        let attachment = Attachment::start(with_store(), &paths, pending()).await.unwrap().unwrap();
        let device = attachment.stack.device();
        device.write(0, filled(7), true).await.unwrap();
        let is_sent = async {
            while memory.read(0, Buffer::zeroed(4096)).await.unwrap()[..] != [7; 4096] {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), is_sent).await.expect("it is sent");
        gate.stop_at(|operation| matches!(operation, Operation::Read { .. }));
        let reading = tokio::spawn(device.read(MIB, Buffer::zeroed(4096)));
        reached.notified().await;
        // Its requests end after this, or not at all.
        let _ = attachment.run(ready(())).await;
        assert_eq!(Registry::open(&paths).unwrap().entries().unwrap().len(), 1, "log: {has_log}");
        opened.notify_one();
        let _ = reading.await;

        let mut without = with_store();
        (without.stack.cache, without.stack.log) = (None, None);
        let refused = Attachment::start(without, &paths, pending()).await.err().expect("data may be missing there");
        assert_eq!(refused.failure(), Failure::WouldLoseData, "{refused}");
    }
}

/// Somebody cuts its file. On its device it is still in use, and what it has written back long ago is dirty there.
#[tokio::test]
async fn a_store_whose_end_could_not_be_stored_is_asked_for_by_the_next_attach() {
    for (has_log, file) in [(false, "disk.cache"), (true, "disk.log")] {
        let address = serve(Gate::new(), Arc::new(MemoryChanges));
        let directory = tempfile::tempdir().unwrap();
        let paths = open_paths(directory.path());
        let mut config = config(address, directory.path(), Percent::ALL);
        if has_log {
            let log = LogConfig { record_cache_bytes: Some(0), ..log_config(directory.path()) };
            (config.stack.cache, config.stack.log) = (None, Some(log));
        }
        let attachment = Attachment::start(config, &paths, pending()).await.unwrap().unwrap();
        let device = attachment.stack.device();
        device.write(0, filled(7), true).await.unwrap();
        attachment.stack.clean(tokio::sync::mpsc::unbounded_channel().0).await.unwrap();
        std::fs::OpenOptions::new().write(true).open(directory.path().join(file)).unwrap().set_len(0).unwrap();
        // It is looked at when something cannot be read there.
        assert_eq!(device.read(0, Buffer::zeroed(4096)).await.unwrap()[..], [7; 4096], "{file}");
        attachment.run(ready(())).await.expect_err("its end cannot be stored");
        assert_eq!(Registry::open(&paths).unwrap().entries().unwrap().len(), 1, "{file}");
    }
}

/// What is noted of the one that was cut would keep what the new one alone has from its LUN.
#[tokio::test]
async fn what_is_noted_of_a_cache_that_was_cut_does_not_concern_the_one_that_takes_its_place() {
    let address = serve(Gate::new(), Arc::new(MemoryChanges));
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let with_cache = config(address, directory.path(), Percent::ALL);
    let cache_config = with_cache.stack.cache.clone().unwrap();
    let attachment = Attachment::start(with_cache, &paths, pending()).await.unwrap().unwrap();
    let device = attachment.stack.device();
    device.write(0, filled(7), true).await.unwrap();
    attachment.stack.clean(tokio::sync::mpsc::unbounded_channel().0).await.unwrap();
    let (caches, registry) = (Caches::open(&paths).unwrap(), Registry::open(&paths).unwrap());
    let noted = || (registry.entries().unwrap().remove(0), caches.list().unwrap().remove(0));
    let cut = |bytes: u64| {
        let file = std::fs::OpenOptions::new().write(true).open(&cache_config.path).unwrap();
        file.set_len(bytes / 2).and_then(|()| file.set_len(bytes)).unwrap();
    };
    cut(4 * MIB);
    // It is looked at when something is read there.
    device.read(0, Buffer::zeroed(4096)).await.unwrap();
    attachment.stack.cache().unwrap().flush().await.unwrap();
    let (entry, record) = noted();
    assert!(entry.has_failed && record.is_cut);
    attachment.stack.set("cache.size", "8MiB").await.unwrap();
    device.write(0, filled(8), true).await.unwrap();
    let (entry, record) = noted();
    let place = record.place();
    assert!(!entry.has_failed && !record.is_cut);
    assert!(entry.uuid.is_some() && entry.uuid == uuid_at(&place));
    let checked = cache_config.check_not_lost(&place, Some(&entry), (&caches, false));
    checked.expect("the next attach takes it after a crash");
    let report = attachment.stack.status(FrontsStatus::default());
    assert_eq!(report.troubles, Vec::<String>::new());
    cut(8 * MIB);
    device.read(0, Buffer::zeroed(4096)).await.expect_err("it is dirty there");
    let (entry, record) = noted();
    assert!(entry.has_failed && record.is_cut, "the new one can be cut as well");
    attachment.run(ready(())).await.expect_err("what was dirty is lost");
}

/// It keeps marks after a while, in which the test acts.
#[derive(Default)]
struct SlowChanges {
    reached: Notify,
}

impl ChangeStore for SlowChanges {
    fn save(&self, _: Vec<MarkUpdate>) -> Saving {
        self.reached.notify_one();
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(())
        })
    }
}

/// For longer than an attach that does not wait for its target.
#[tokio::test]
async fn who_waits_for_a_target_waits_also_for_a_lun_that_goes_again_after_the_login() {
    let store = Arc::<SlowChanges>::default();
    let (address, lun) = serve_removable(Gate::new(), Arc::clone(&store) as Arc<_>, false);
    let directory = tempfile::tempdir().unwrap();
    let paths = open_paths(directory.path());
    let mut config = config(address, directory.path(), Percent::ALL);
    config.waits_for_target = true;
    config.stack.remotes.remotes[0].waits.replacement = Duration::from_millis(500);
    let awaited = Awaited::start(config, &paths).unwrap();
    let go_and_come = async {
        store.reached.notified().await;
        lun.remove();
        lun.put_back_after(TELLING_TIME_MAX + Duration::from_secs(3)).await;
    };
    let (attached, ()) = tokio::join!(awaited.attach(&paths, pending()), go_and_come);
    attached.unwrap().expect("nothing ended it").run(ready(())).await.unwrap();
}
