//! The steps of an attach and of its end, against a target that observes them: what this host has
//! noted at the moment at which something becomes durable there is what it would have after a
//! crash.

mod copies;
mod shared;
mod silence;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::clock::Clock;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Buffer, Event, SharedDevice};
use cache::Cache;
use futures_util::future::BoxFuture;
use iscsi::pdu::Isid;
use logical_unit::change_marks::{ChangeStore, MarkUpdate, SavedMark, Saving};
use writelog::WriteLog;

use super::*;
use crate::cache_place::CacheConfig;
use crate::dirty_guard::{DirtyGuard, Use};
use crate::held_marks::MarkRenewal;
use crate::log_place::LogConfig;
use crate::paths::Paths;
use crate::place_device::PlaceKind;
use crate::record_file;
use crate::registry::Entry;
use crate::settings::{Origin, Settings};
use crate::store_file::open_or_make;
use crate::test_target;
use crate::time::system_clock;

const MIB: u64 = 1 << 20;

/// Checks each mark before it becomes durable, against the durable one. Returns what is wrong.
type Look = Box<dyn FnMut(Option<&SavedMark>, &SavedMark) -> Option<String> + Send>;

/// The target's store of its marks, with the check.
#[derive(Clone, Default)]
struct Watched(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// The durable mark.
    mark: Option<SavedMark>,
    look: Option<Look>,
    look_count: usize,
    /// The check runs on the target's thread, whose panics no test sees.
    wrong: Vec<String>,
    /// How long it takes until a mark is durable.
    slowness: Duration,
}

impl Watched {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_by(&self, look: impl FnMut(Option<&SavedMark>, &SavedMark) -> Option<String> + Send + 'static) {
        self.seen().look = Some(Box::new(look));
    }

    /// Asserts that the check ran at least once, and found nothing wrong.
    fn check(&self) {
        let seen = self.seen();
        assert!(seen.look_count > 0);
        assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    }
}

impl ChangeStore for Watched {
    fn save(&self, updates: Vec<MarkUpdate>) -> Saving {
        let mut seen = self.seen();
        for update in updates {
            let MarkUpdate::Mark { mark: Some(mark), .. } = update else { continue };
            let before = seen.mark.replace(mark.clone());
            if let Some(mut look) = seen.look.take() {
                let wrong = look(before.as_ref(), &mark);
                seen.wrong.extend(wrong);
                seen.look_count += 1;
                seen.look = Some(look);
            }
        }
        let slowness = seen.slowness;
        Box::pin(async move {
            tokio::time::sleep(slowness).await;
            Ok(())
        })
    }
}

/// A target that keeps its marks in `store`.
fn serve(store: Watched) -> SocketAddr {
    let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
    test_target::serve(Arc::new(MemoryDevice::new(16 * MIB, identity)), Arc::new(store))
}

/// An open store, while others write to its LUN.
#[derive(Default)]
struct Opened {
    /// The ranges that it was given as changed.
    invalidated: Mutex<Vec<ByteRange>>,
    /// Another host that writes, and its next offsets: one write for each call of `invalidate`,
    /// until none are left.
    others: Option<(SharedDevice, Mutex<Vec<u64>>)>,
    /// Whether it is dirty where others change data.
    is_dirty: bool,
    /// Its clean lines.
    clean_ranges: Vec<ByteRange>,
}

impl Opened {
    /// Others write at these offsets, the last one first.
    fn beside(others: &Remotes, offsets: Vec<u64>) -> Self {
        Self { others: Some((others.device(), Mutex::new(offsets))), ..Self::default() }
    }
}

impl Invalidate for Opened {
    fn invalidate<'a>(
        &'a self,
        changed: &'a [ByteRange],
        is_overwritten: bool,
    ) -> BoxFuture<'a, std::result::Result<(), block::Error>> {
        assert!(!is_overwritten);
        Box::pin(async move {
            if self.is_dirty {
                return Err(ConflictingChanges { bytes: 4096 }.into());
            }
            self.invalidated.lock().unwrap().extend(changed);
            let Some((device, offsets)) = &self.others else { return Ok(()) };
            let next = offsets.lock().unwrap().pop();
            if let Some(offset) = next {
                device.write(offset, Buffer::zeroed(4096), false).await?;
            }
            Ok(())
        })
    }

    fn check_changes(&self, changed: &[ByteRange]) -> std::result::Result<(), block::Error> {
        match self.is_dirty && !changed.is_empty() {
            true => Err(ConflictingChanges { bytes: 4096 }.into()),
            false => Ok(()),
        }
    }

    fn stop_writing_back(&self) {}

    fn has_dirty(&self) -> bool {
        self.is_dirty
    }

    fn delays_writes(&self) -> bool {
        self.is_dirty
    }

    fn clean_ranges(&self, _: usize) -> Vec<ByteRange> {
        self.clean_ranges.clone()
    }
}

/// The point of a store's use at which the host ends, as if it had crashed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Before the list knows that it is open.
    Opened,
    InUse,
    /// Before the list knows that it is closed.
    Closed,
    Never,
}

struct Host {
    caches: Caches,
    place: Place,
    address: SocketAddr,
    clock: Arc<dyn Clock>,
    directory: tempfile::TempDir,
}

impl Host {
    fn new(address: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let place = Place { path: directory.path().join("disk.cache"), offset: None };
        let caches = Caches::open(&paths).unwrap();
        Self { caches, place, address, clock: system_clock().unwrap(), directory }
    }

    async fn connect(&self, initiator: &str) -> Remotes {
        self.connect_as(initiator, false).await
    }

    async fn connect_as(&self, initiator: &str, is_shared: bool) -> Remotes {
        self.connect_with(initiator, None, is_shared).await
    }

    /// `isid` names the session: another one of the same name takes its place.
    async fn connect_with(&self, initiator: &str, isid: Option<Isid>, is_shared: bool) -> Remotes {
        test_target::connect(self.address, initiator, isid, is_shared).await
    }

    async fn assess(&self, remotes: &Remotes) -> Assessed {
        self.try_assess(remotes, Store::Cache).await.unwrap()
    }

    async fn try_assess(&self, remotes: &Remotes, store: Store) -> Result<Assessed> {
        assess(remotes, &self.caches, store, &self.place, Promise::default()).await
    }

    /// Opens the store of this host, which is made if there is none, uses it for `meanwhile`, and
    /// closes it; only the steps before `stop`.
    async fn use_once(&self, store: Store, stop: Stop, meanwhile: impl FnOnce()) -> Result<()> {
        self.use_with(store, stop, Promise::default(), meanwhile).await
    }

    async fn use_with(&self, store: Store, stop: Stop, promise: Promise, meanwhile: impl FnOnce()) -> Result<()> {
        let remotes = self.connect("own").await;
        let assessed = assess(&remotes, &self.caches, store, &self.place, promise).await?;
        let overwrites = promise.overwrites_changes;
        let (origin, clock) = (remotes.device(), Arc::clone(&self.clock));
        let record = StoreRecord::new(&self.place, 4096, &remotes.identity(), "disk");
        let held = match store {
            Store::Cache => {
                let options = cache::FormatOptions::default();
                let format = async |device: &SharedDevice| Cache::format(device, &origin, options).await;
                let device = open_or_make(PlaceKind::Cache, &self.place, &self.caches, Some(4 * MIB), format).await?;
                let tokens = Some(assessed.begin_opening(&self.caches)?);
                let mode = cache::Mode::WriteBack;
                let options = cache::OpenOptions { tokens, ..cache::OpenOptions::new(mode, clock) };
                let opened = Cache::open(device, Arc::clone(&origin), options).await?;
                if stop == Stop::Opened {
                    return Ok(remotes.close().await?);
                }
                let held = assessed.commit(&self.caches, record, (&*opened, overwrites)).await?.1;
                meanwhile();
                if stop != Stop::InUse {
                    opened.close(true).await?;
                }
                held
            }
            Store::Log => {
                let options = writelog::FormatOptions::default();
                let format = async |device: &SharedDevice| WriteLog::format(device, &origin, options).await;
                let device = open_or_make(PlaceKind::Log, &self.place, &self.caches, Some(4 * MIB), format).await?;
                let tokens = Some(assessed.begin_opening(&self.caches)?);
                let options = writelog::OpenOptions { tokens, ..writelog::OpenOptions::new(clock) };
                let opened = WriteLog::open(device, Arc::clone(&origin), options).await?;
                if stop == Stop::Opened {
                    return Ok(remotes.close().await?);
                }
                let held = assessed.commit(&self.caches, record, (&*opened, overwrites)).await?.1;
                meanwhile();
                if stop != Stop::InUse {
                    opened.close(true).await?;
                }
                held
            }
        };
        if stop == Stop::Never {
            MarkRenewal::start(vec![held], None).finish(true).await;
        }
        Ok(remotes.close().await?)
    }

    async fn commit(&self, remotes: &Remotes, assessed: Assessed) -> HeldMarks {
        self.commit_to(&Opened::default(), remotes, assessed).await.unwrap()
    }

    async fn commit_to(&self, store: &Opened, remotes: &Remotes, assessed: Assessed) -> Result<HeldMarks> {
        let record = StoreRecord::new(&self.place, 4096, &remotes.identity(), "disk");
        Ok(assessed.commit(&self.caches, record, (store, false)).await?.1)
    }

    /// An attach and its end: the mark exists, cleared, and is noted.
    async fn attach_once(&self) {
        let remotes = self.connect("own").await;
        let assessed = self.assess(&remotes).await;
        MarkRenewal::start(vec![self.commit(&remotes, assessed).await], None).finish(true).await;
        remotes.close().await.unwrap();
    }

    fn mark(&self) -> MarkRecord {
        remembered(&self.caches, &self.place).expect("it has a mark")
    }
}

fn remembered(caches: &Caches, place: &Place) -> Option<MarkRecord> {
    caches.find(place).unwrap().and_then(|record| record.luns.into_iter().find_map(|lun| lun.mark))
}

/// A crash at any moment leaves a mark at the target that the host has noted.
fn expect_known_at_every_step(store: &Watched, host: &Host) {
    let (caches, place) = (host.caches.clone(), host.place.clone());
    store.look_by(move |before, after| {
        let known = remembered(&caches, &place);
        let mut marks = before.into_iter().chain([after]);
        let is_known = |mark: &SavedMark| known.as_ref().is_some_and(|known| known.is(&mark.id, mark.token));
        marks.find(|mark| !is_known(mark)).map(|mark| format!("{mark:?} is not {known:?}"))
    });
}

#[tokio::test]
async fn a_mark_is_known_here_by_the_token_that_it_has_there_at_every_step_of_an_attach() {
    let store = Watched::default();
    let host = Host::new(serve(store.clone()));
    host.attach_once().await;
    let before = host.mark();
    expect_known_at_every_step(&store, &host);
    let remotes = host.connect("own").await;
    let assessed = host.assess(&remotes).await;
    store.check();
    // After an attach that ends here the mark has the new token, and an older copy of the target's
    // marks is recognised.
    let (mark, there) = (host.mark(), store.seen().mark.clone().unwrap());
    assert!(mark.candidate().is_none() && mark.is(&there.id, there.token));
    assert!(!mark.is(&there.id, before.newest()));
    MarkRenewal::start(vec![host.commit(&remotes, assessed).await], None).finish(true).await;
    store.check();
    let (last, there) = (host.mark(), store.seen().mark.clone().unwrap());
    assert!(last.candidate().is_none() && last.is(&there.id, there.token));
    assert_ne!(
        last.newest(),
        mark.newest(),
        "a copy that was made while the store was used is not taken for it either"
    );
}

/// Two TAKEs at a reconnection, by which the marks of this host have cost others their share of the time: the third is
/// answered BUSY for some seconds.
#[tokio::test]
async fn a_target_whose_disk_is_slow_is_waited_for_until_it_has_the_last_token() {
    let store = Watched::default();
    let host = Host::new(serve(store.clone()));
    host.attach_once().await;
    let remotes = host.connect("own").await;
    let assessed = host.assess(&remotes).await;
    let held = host.commit(&remotes, assessed).await;
    let before = host.mark();
    store.seen().slowness = Duration::from_millis(450);
    for _ in 0..2 {
        remotes.member_luns()[0].luns[0].renew_mark(before.id(), before.newest()).await.unwrap();
    }
    MarkRenewal::start(vec![held], None).finish(true).await;
    let (mark, there) = (host.mark(), store.seen().mark.clone().unwrap());
    assert!(mark.candidate().is_none() && mark.is(&there.id, there.token), "{mark:?}");
    assert_ne!(mark.newest(), before.newest());
    assert_eq!(mark.stage(), MarkStage::Cleared);
}

/// A copy of the LUN and its marks from while the store was used has the same token, so nothing tells it from the LUN.
/// Its dirty data counts as after a crash: an end that a host's shutdown cuts short is not to refuse the next attach.
#[tokio::test]
async fn a_store_whose_mark_did_not_get_its_last_token_begins_without_clean_lines_and_keeps_what_is_dirty() {
    for is_away in [true, false] {
        let store = Watched::default();
        let host = Host::new(serve(store.clone()));
        host.attach_once().await;
        let remotes = host.connect("own").await;
        let assessed = host.assess(&remotes).await;
        let renewal = MarkRenewal::start(vec![host.commit(&remotes, assessed).await], None);
        if is_away {
            remotes.close().await.unwrap();
            renewal.finish(true).await;
        } else {
            // The end has no more time.
            store.seen().slowness = Duration::from_secs(3600);
            assert!(tokio::time::timeout(Duration::from_millis(200), renewal.finish(true)).await.is_err());
        }
        assert_eq!(host.mark().stage(), MarkStage::TokenOwed);
        if !is_away {
            continue;
        }
        let others = host.connect("other").await;
        others.device().write(3 * MIB, Buffer::zeroed(4096), false).await.unwrap();
        let remotes = host.connect("own").await;
        let assessed = host.assess(&remotes).await;
        let changed = ByteRange { offset: 3 * MIB, length: MIB };
        assert_eq!(assessed.changed(), [changed], "what is dirty elsewhere stays");
        assert_eq!(assessed.freshness(), Freshness::Outdated(vec![changed]));
        let record = StoreRecord::new(&host.place, 4096, &remotes.identity(), "disk");
        let (reported, held) = assessed.commit(&host.caches, record, (&Opened::default(), false)).await.unwrap();
        assert_eq!(reported.state, "cold", "{reported:?}");
        assert_eq!(host.mark().stage(), MarkStage::Cleared);
        MarkRenewal::start(vec![held], None).finish(true).await;
        remotes.close().await.unwrap();
        let remotes = host.connect("own").await;
        assert_eq!(host.assess(&remotes).await.freshness(), Freshness::Unchanged);
    }
}

/// An attachment whose session can be lost.
struct Attached<'a> {
    host: &'a Host,
    isid: Isid,
    remotes: Remotes,
    cache: Arc<Cache>,
    guard: Arc<DirtyGuard>,
    renewal: MarkRenewal,
}

impl Host {
    /// Another session takes the place of one with this `isid`, which comes back once that has
    /// ended. Returns when its mark has another token.
    async fn lose_session(&self, isid: Isid) {
        let token = self.mark().newest();
        let other = self.connect_with("own", Some(isid), false).await;
        let _ = tokio::time::timeout(Duration::from_secs(5), other.close()).await;
        while self.mark().newest() == token || self.mark().candidate().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl<'a> Attached<'a> {
    async fn new(host: &'a Host) -> Self {
        Self::with(host, false).await
    }

    /// What is dirty is written over changes by others, if it `is_overwriting`.
    async fn with(host: &'a Host, is_overwriting: bool) -> Self {
        let isid = Isid::random_format(7, 1);
        let remotes = host.connect_with("own", Some(isid), false).await;
        let guard = Arc::new(DirtyGuard::of(&Use::Attachment("disk".into()), &remotes));
        let assessed = host.assess(&remotes).await;
        let (origin, clock) = (remotes.device(), Arc::clone(&host.clock));
        let format =
            async |device: &SharedDevice| Cache::format(device, &origin, cache::FormatOptions::default()).await;
        let device = open_or_make(PlaceKind::Cache, &host.place, &host.caches, Some(4 * MIB), format).await.unwrap();
        let tokens = Some(assessed.begin_opening(&host.caches).unwrap());
        let options = cache::OpenOptions { tokens, ..cache::OpenOptions::new(cache::Mode::WriteBack, clock) };
        let cache = Cache::open(device, Arc::clone(&origin), options).await.unwrap();
        tokio::spawn(cache.run());
        let record = StoreRecord::new(&host.place, 4096, &remotes.identity(), "disk");
        let held = assessed.commit(&host.caches, record, (&*cache, false)).await.unwrap().1;
        guard.put(&host.place, Store::Cache, cache.clone(), is_overwriting);
        let renewal = MarkRenewal::start(vec![held], Some(&guard));
        Self { host, isid, remotes, cache, guard, renewal }
    }

    async fn lose_session(&self) {
        self.host.lose_session(self.isid).await;
    }

    async fn end(self, keep_dirty: bool) {
        self.cache.close(keep_dirty).await.unwrap();
        self.renewal.finish(true).await;
        let _ = self.remotes.close().await;
    }
}

fn ones() -> Buffer {
    let mut buffer = Buffer::zeroed(4096);
    buffer.fill(1);
    buffer
}

/// As an attach would refuse it: see [`dirty_guard`](crate::dirty_guard).
#[tokio::test]
async fn dirty_data_where_others_wrote_while_a_session_was_away_does_not_get_to_the_lun() {
    let host = Host::new(serve(Watched::default()));
    let attached = Attached::new(&host).await;
    attached.cache.write(0, ones(), false).await.unwrap();
    let others = host.connect("other").await;
    others.device().write(8192, ones(), false).await.unwrap();
    attached.lose_session().await;
    let trouble = attached.guard.trouble().expect("both have changed it");
    for words in ["4096 bytes", "forebay detach disk --keep-dirty", "overwrite-changes=on", "cache discard"] {
        assert!(trouble.contains(words), "{trouble}");
    }
    assert_eq!(attached.guard.check().unwrap_err().failure(), Failure::WouldLoseData);
    attached.cache.write(5 * MIB, ones(), false).await.unwrap();
    assert_eq!(attached.cache.clean(|_| {}).await.unwrap_err().to_string(), trouble);
    for offset in [0, 5 * MIB] {
        assert_eq!(others.device().read(offset, Buffer::zeroed(4096)).await.unwrap()[0], 0);
        assert_eq!(attached.cache.read(offset, Buffer::zeroed(4096)).await.unwrap()[0], 1);
    }
    attached.end(true).await;
    let remotes = host.connect("own").await;
    let assessed = host.assess(&remotes).await;
    assert_eq!(assessed.changed(), [ByteRange { offset: 0, length: MIB }], "the next attach is told, too");
}

/// Collects the warnings of one thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut lines = self.0.lock().unwrap();
        event.record(&mut |_: &tracing::field::Field, value: &dyn std::fmt::Debug| lines.push(format!("{value:?}")));
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// The user wants it so, perhaps from another time.
#[tokio::test]
async fn that_dirty_data_is_written_over_what_others_wrote_while_a_session_was_away_is_a_line_of_the_log() {
    let host = Host::new(serve(Watched::default()));
    let attached = Attached::with(&host, true).await;
    attached.cache.write(0, ones(), false).await.unwrap();
    let others = host.connect("other").await;
    others.device().write(8192, ones(), false).await.unwrap();
    let warnings = Warnings::default();
    // Where there is only one subscriber, another thread that logs the same message first switches it off for all.
    let _second = tracing::Dispatch::new(warnings.clone());
    let listening = tracing::subscriber::set_default(warnings.clone());
    attached.lose_session().await;
    drop(listening);
    let lines = warnings.0.lock().unwrap().clone();
    let reported: Vec<&String> = lines.iter().filter(|line| line.contains("overwrite-changes=on")).collect();
    // Once for each session: now and then a second one is lost.
    let [reported, ..] = reported[..] else { panic!("{lines:?}") };
    assert!(reported.contains("4096 bytes of the cache") && reported.contains("what others changed"), "{reported}");
    assert_eq!(attached.guard.trouble(), None);
    attached.cache.clean(|_| {}).await.unwrap();
    assert_eq!(others.device().read(0, Buffer::zeroed(4096)).await.unwrap()[0], 1);
    attached.end(false).await;
}

/// What is written there afterwards is newer, also for a reconnection after which nobody else has changed anything.
#[tokio::test]
async fn a_replay_does_not_write_over_what_others_wrote_while_its_session_was_away() {
    let host = Host::new(serve(Watched::default()));
    let isid = Isid::random_format(7, 1);
    let remotes = host.connect_with("own", Some(isid), false).await;
    let changes = ChangesSince::assess(&remotes, &host.caches, &host.place, false).await.unwrap();
    let (origin, clock) = (remotes.device(), Arc::clone(&host.clock));
    let format =
        async |device: &SharedDevice| WriteLog::format(device, &origin, writelog::FormatOptions::default()).await;
    let device = open_or_make(PlaceKind::Log, &host.place, &host.caches, Some(8 * MIB), format).await.unwrap();
    let tokens = Some(changes.kept(false).begin_opening(&host.caches).unwrap());
    let options = writelog::OpenOptions { tokens, ..writelog::OpenOptions::new(clock) };
    let log = WriteLog::open(device, Arc::clone(&origin), options).await.unwrap();
    let record = StoreRecord::new(&host.place, 8192, &remotes.identity(), "forebay");
    let renewal = changes.commit(&host.caches, record, (&log, false)).await.unwrap();
    // Nothing leaves it by itself.
    tokio::spawn(log.run_requests());
    log.write(0, ones(), true).await.unwrap();
    let others = host.connect("other").await;
    others.device().write(0, Buffer::zeroed(4096), false).await.unwrap();
    host.lose_session(isid).await;
    let error = log.destage(|_| {}).await.unwrap_err().to_string();
    for words in ["4096 bytes", "`--overwrite-changes`", "forebay log discard"] {
        assert!(error.contains(words), "{error}");
    }
    assert!(others.device().read(0, Buffer::zeroed(4096)).await.unwrap().iter().all(|byte| *byte == 0));
    log.close(true).await.unwrap();
    renewal.finish(true).await;
    let _ = remotes.close().await;
}

#[tokio::test]
async fn changes_by_others_that_concern_nothing_dirty_are_told_to_one_reconnection() {
    let host = Host::new(serve(Watched::default()));
    let attached = Attached::new(&host).await;
    attached.cache.write(0, ones(), false).await.unwrap();
    let others = host.connect("other").await;
    others.device().write(3 * MIB, ones(), false).await.unwrap();
    attached.lose_session().await;
    assert_eq!(attached.guard.trouble(), None);
    assert_eq!(attached.cache.read(3 * MIB, Buffer::zeroed(4096)).await.unwrap()[0], 1);
    attached.cache.write(3 * MIB, Buffer::zeroed(4096), false).await.unwrap();
    attached.lose_session().await;
    assert_eq!(attached.guard.trouble(), None);
    attached.cache.clean(|_| {}).await.unwrap();
    let found = [0, 3 * MIB].map(|offset| others.device().read(offset, Buffer::zeroed(4096)));
    let found = futures_util::future::try_join_all(found).await.unwrap();
    assert_eq!(found.iter().map(|bytes| bytes[0]).collect::<Vec<u8>>(), [1, 0]);
    attached.end(false).await;
    let remotes = host.connect("own").await;
    assert_eq!(host.assess(&remotes).await.changed(), []);
}

/// The answer to a TAKE was lost: the mark has the new token, and the host does not know that.
#[tokio::test]
async fn a_token_that_was_on_its_way_counts_until_it_is_known_to_be_there() {
    let store = Watched::default();
    let host = Host::new(serve(store.clone()));
    host.attach_once().await;
    let remotes = host.connect("own").await;
    let assessed = host.assess(&remotes).await;
    let held = host.commit(&remotes, assessed).await;
    let mark = host.mark().with_candidate(draw_token());
    host.caches.note_mark(&host.place, &mark).unwrap();
    remotes.member_luns()[0].luns[0].renew_mark(mark.id(), mark.newest()).await.unwrap();
    expect_known_at_every_step(&store, &host);
    MarkRenewal::start(vec![held], None).finish(true).await;
    store.check();
    assert!(host.mark().candidate().is_none());
}

/// From the CLEAR on the mark reports changes, so from then on the host must rely on it: a crash
/// after it leaves a store that is in use.
#[tokio::test]
async fn a_store_is_noted_as_used_before_its_mark_is_cleared() {
    let store = Watched::default();
    let host = Host::new(serve(store.clone()));
    let (caches, place) = (host.caches.clone(), host.place.clone());
    store.look_by(move |_, after| {
        let record = caches.find(&place).unwrap_or(None);
        let is_used = record.as_ref().is_some_and(|record| {
            let stage = record.luns[0].mark.as_ref().map(MarkRecord::stage);
            !record.is_stale && stage.is_some_and(|stage| stage != MarkStage::New)
        });
        (!after.is_everything && !is_used).then(|| format!("{record:?}"))
    });
    host.attach_once().await;
    store.check();
    assert_eq!(host.mark().stage(), MarkStage::Cleared);
}

/// The last writes of a program that was killed arrive at the target after the report, so that the
/// CLEAR is refused, and the next one as well. Without another attempt the next attach would take
/// them for changes after this one, and refuse what was written in this one.
#[tokio::test]
async fn what_others_change_during_an_attach_is_heeded_in_it_and_not_told_to_the_next() {
    let store = Watched::default();
    let host = Host::new(serve(store.clone()));
    host.attach_once().await;
    let remotes = host.connect("own").await;
    let assessed = host.assess(&remotes).await;
    assert!(matches!(assessed.freshness(), Freshness::Unchanged));
    let others = host.connect("other").await;
    others.device().write(3 * MIB, Buffer::zeroed(4096), false).await.unwrap();
    let events = remotes.device().subscribe();
    let opened = Opened::beside(&others, vec![9 * MIB, 5 * MIB]);
    let held = host.commit_to(&opened, &remotes, assessed).await.unwrap();
    let range = |first| ByteRange { offset: first * MIB, length: MIB };
    let invalidated = opened.invalidated.into_inner().unwrap();
    assert_eq!(invalidated, [range(3), range(3), range(5), range(3), range(5), range(9)]);
    let void: Vec<Event> = std::iter::from_fn(|| events.try_receive()).collect();
    assert_eq!(
        void,
        invalidated.into_iter().map(Event::Invalidated).collect::<Vec<_>>(),
        "the layers above are told, too"
    );
    MarkRenewal::start(vec![held], None).finish(true).await;
    remotes.close().await.unwrap();
    let remotes = host.connect("own").await;
    assert_eq!(host.assess(&remotes).await.changed(), []);
}

/// No application has written through the store yet: its dirty data is older than what others have
/// just written.
#[tokio::test]
async fn what_others_change_during_an_attach_where_something_is_dirty_refuses_it_and_is_told_to_the_next() {
    let store = Watched::default();
    let host = Host::new(serve(store.clone()));
    host.attach_once().await;
    let remotes = host.connect("own").await;
    let assessed = host.assess(&remotes).await;
    host.connect("other").await.device().write(3 * MIB, Buffer::zeroed(4096), false).await.unwrap();
    let opened = Opened { is_dirty: true, ..Opened::default() };
    let refused = host.commit_to(&opened, &remotes, assessed).await.err().expect("both have changed it");
    assert_eq!(refused.failure(), Failure::WouldLoseData);
    remotes.close().await.unwrap();
    let remotes = host.connect("own").await;
    assert_eq!(host.assess(&remotes).await.changed(), [ByteRange { offset: 3 * MIB, length: MIB }]);
}

/// The store was closed in order, whatever became of the target's mark.
#[tokio::test]
async fn an_attach_that_is_refused_does_not_make_the_next_one_tell_of_a_crash() {
    let host = Host::new(serve(Watched::default()));
    host.attach_once().await;
    let remotes = host.connect("own").await;
    let lun = Arc::clone(&remotes.member_luns()[0].luns[0]);
    lun.take_mark(host.mark().id(), host.mark().newest()).await.unwrap();
    lun.forget_mark(host.mark().id()).await.unwrap();
    let lost = async |words: &str| {
        let assessed = host.assess(&remotes).await;
        assert!(assessed.is_mark_lost && assessed.why.contains(words), "{}", assessed.why);
        assessed
    };
    lost("the target kept no record of it").await;
    let assessed = lost("the target kept no record of it").await;
    host.commit(&remotes, assessed).await;
    // One that ended before its mark was cleared.
    host.caches.note_mark(&host.place, &host.mark().with_stage(MarkStage::Owing)).unwrap();
    lost("an attach before this one found that").await;
}

/// It has the name of the LUN and none of its marks, and is served in its place by mistake.
#[tokio::test]
async fn an_attach_that_is_refused_at_a_copy_of_the_lun_leaves_the_mark_of_the_lun_known() {
    let mut host = Host::new(serve(Watched::default()));
    host.attach_once().await;
    let before = host.mark();
    let lun = std::mem::replace(&mut host.address, serve(Watched::default()));
    let remotes = host.connect("own").await;
    for _ in 0..2 {
        let assessed = host.assess(&remotes).await;
        assert_eq!(assessed.changed(), everything(), "what is dirty is refused");
        assert_eq!(host.mark(), before);
        release_refused(&remotes, &host.caches).await;
        assert!(remotes.member_luns()[0].luns[0].marks().await.unwrap().is_empty(), "nobody needs one there");
    }
    remotes.close().await.unwrap();
    let copy = std::mem::replace(&mut host.address, lun);
    let remotes = host.connect("own").await;
    assert_eq!(host.assess(&remotes).await.freshness(), Freshness::Unchanged);
    // An attach there that is not refused has a mark there from then on.
    host.address = copy;
    host.attach_once().await;
    assert_ne!(host.mark().id(), before.id());
    let noted = record_file::files_in(&host.directory.path().join("state/caches"), "mark").unwrap();
    assert_eq!(noted, Vec::<std::path::PathBuf>::new(), "which a store owns");
    let remotes = host.connect("own").await;
    assert_eq!(host.assess(&remotes).await.freshness(), Freshness::Unchanged);
}

/// The setting may be left from another time.
#[tokio::test]
async fn what_is_written_over_changes_by_others_is_told() {
    for (is_dirty, reported) in [(true, Some(4096)), (false, None)] {
        let host = Host::new(serve(Watched::default()));
        host.attach_once().await;
        host.connect("other").await.device().write(3 * MIB, ones(), false).await.unwrap();
        let remotes = host.connect("own").await;
        let promise = Promise { overwrites_changes: true, ..Promise::default() };
        let assessed = assess(&remotes, &host.caches, Store::Cache, &host.place, promise).await.unwrap();
        let record = StoreRecord::new(&host.place, 4096, &remotes.identity(), "disk");
        let opened = Opened { is_dirty, ..Opened::default() };
        let committed = assessed.commit(&host.caches, record, (&opened, true)).await.unwrap();
        assert_eq!(committed.0.overwritten_bytes, reported);
    }
}
