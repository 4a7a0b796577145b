//! An attachment: a remote LUN, perhaps behind a cache, offered to local applications.
//!
//! ```text
//! front (NBD)  ->  difference  ->  write log, cache, both or none  ->  remote LUN, or several as one
//! ```
//!
//! Order of the beginning: connect (errors show at once), lock the LUN on this host, consult the registry of dirty caches and logs, open or make
//! the cache, then the log over it, register both, listen. Order of the end: stop listening, finish what is under way, close the log, then the cache
//! below it (bringing down what is dirty unless it is to be kept), log out; each is struck from the registry if nothing dirty is left in it. Until all
//! that is done it answers under its name: it says what it waits for, and can be told to keep what is dirty.
//!
//! With both, what the log destages is clean there once the cache has it, durably. So the newest data may be in either, and the LUN is refused
//! without the one that holds any.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use base::clock::Clock;
use block::device::DeviceExt;
use block::layer::switch::SwitchLayer;
use block::{Device, Geometry, Identity};
use cache::{Cache, Mode};
use difference::Difference;
use front::{ListenAddress, Listener, NbdOptions, NbdServer, SocketAccess};
use serde_json::{Value, json};
use tokio::sync::watch::Sender;
use tokio::task::JoinSet;
use tokio::time::Instant;
use writelog::WriteLog;

use crate::apart::Apart;
use crate::cache_change::{Change, Changing};
use crate::cache_place::CacheConfig;
use crate::cache_settings;
use crate::caches::{Caches, Record};
use crate::content::uuid_at;
use crate::control::{ControlServer, Handler, Progress, Request, call};
use crate::difference_place::{self, DifferenceConfig};
use crate::doors::{Doors, listen};
use crate::error::{Error, Failure, Result};
use crate::freshness::{Promise, assess, draw_tokens, note_writable_opening, release_marks, release_refused};
use crate::held_marks::MarkRenewal;
use crate::limits::{CLOSE_STEP_TIME_MIN, CLOSE_TIME_MAX, STATUS_TIME_MAX, WATCH_INTERVAL};
use crate::log_place::LogConfig;
use crate::log_settings;
use crate::metrics::MetricsServer;
use crate::paths::Paths;
use crate::place::Place;
use crate::registry::{Entry, Registry, Store, UnitLock};
use crate::remote::parse_connections;
use crate::remotes::{Remotes, RemotesConfig};
use crate::store_file::{PlaceKind, check_can_be_made, have_common_bytes};
use crate::systemd;
use crate::time::system_clock;
use crate::watch::{self, Sight, Watch};

mod early_entries;

use early_entries::EarlyEntries;

/// What to attach, and how.
pub struct AttachConfig {
    /// The LUN or LUNs, and how to log in.
    pub remotes: RemotesConfig,
    /// Name for the control socket.
    pub name: String,
    /// The cache, if there is to be one.
    pub cache: Option<CacheConfig>,
    /// The write log, if there is to be one: over the cache, if there is one, too.
    pub log: Option<LogConfig>,
    /// Where what is written goes, if the LUN is to stay as it is; not beside a log.
    pub difference: Option<DifferenceConfig>,
    /// Where to offer it.
    pub front: ListenAddress,
    /// Who may connect there, where it is a socket file.
    pub front_access: SocketAccess,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Whether dirty data may replace what others have written there since.
    pub overwrites_changes: bool,
    /// Where to serve metrics; loopback only.
    pub metrics: Option<std::net::SocketAddr>,
}

/// What is needed to make another cache in place of the one there is.
struct CacheParts {
    config: CacheConfig,
    place: Place,
    /// Bytes it takes, when it is not a file of its own.
    fixed_bytes: Option<u64>,
    clock: Arc<dyn Clock>,
    /// Requests go through it to the cache of now.
    switch: Arc<SwitchLayer>,
    /// Where the host's other attachments are found.
    paths: Paths,
    /// Held by who makes one.
    changing: tokio::sync::Mutex<()>,
}

impl CacheParts {
    /// How many bytes the cache takes.
    fn bytes(&self) -> Option<u64> {
        self.fixed_bytes.or_else(|| std::fs::metadata(&self.place.path).ok().map(|file| file.len()))
    }
}

/// What becomes of what is dirty when an attachment ends, and of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// It is written back.
    Clean,
    /// It stays.
    KeepDirty,
    /// It is written back, and the cache is removed then.
    RemoveCache,
}

/// A running attachment.
pub struct Attachment {
    name: String,
    remotes: Remotes,
    /// The cache, which may be replaced by another.
    cache: RefCell<Option<Arc<Cache>>>,
    /// What a cache is replaced with.
    cache_parts: Option<CacheParts>,
    /// The cache that is to take the place of the one there is.
    successor: RefCell<Option<Arc<Cache>>>,
    log: Option<Arc<WriteLog>>,
    /// What others did to the LUN before it was attached, as far as it is known: for the cache, and for the log.
    freshness: Value,
    /// Gives the marks other tokens; `None` once it is closed.
    renewal: RefCell<Option<MarkRenewal>>,
    difference: Option<Arc<Difference>>,
    /// The work of all layers; it stops when this is dropped.
    background: RefCell<JoinSet<()>>,
    /// Level 2 of the log.
    destaging: RefCell<Option<Apart>>,
    /// What the registry says of the cache and of the log: for each an entry for the device, or one for each LUN it is made of.
    entries: Vec<Entry>,
    server: NbdServer,
    listener: RefCell<Option<Listener>>,
    front: ListenAddress,
    registry: Registry,
    caches: Caches,
    control: ControlServer,
    metrics: RefCell<Option<MetricsServer>>,
    /// `true` once it is to stop.
    stopping: Sender<bool>,
    /// `true` once the front has finished every request.
    front_finished: Sender<bool>,
    /// `true` once it is to end at once, whatever is being cleaned.
    hurrying: Sender<bool>,
    /// When what is to end at once has had its time.
    ending_deadline: OnceLock<Instant>,
    /// Whether the target was asked at the end, and said nothing.
    is_target_silent: Cell<bool>,
    /// A step of its end was not waited for.
    is_target_left: Cell<bool>,
    /// `true` once everything is closed.
    ended: Sender<bool>,
    _locks: Vec<UnitLock>,
}

impl Attachment {
    /// Connects, opens and listens; nothing is served before [`Attachment::run`].
    ///
    /// # Errors
    /// Whatever stands in the way, with nothing changed.
    pub async fn start(config: AttachConfig, paths: &Paths) -> Result<Self> {
        let doors = Doors::open(&config.name, config.metrics, paths)?;
        let clock: Arc<dyn Clock> = system_clock()?;
        let remotes = config.remotes.connect(&clock).await?;
        Self::over(remotes, config, paths, doors, clock).await
    }

    /// What follows the login.
    ///
    /// # Errors
    /// As [`Attachment::start`].
    pub(crate) async fn over(
        remotes: Remotes,
        mut config: AttachConfig,
        paths: &Paths,
        doors: Doors,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        if let (Some(_), Some(cache_config)) = (&config.difference, &mut config.cache) {
            // The cache is of the base, which nobody writes to.
            cache_config.mode = Mode::ReadOnly;
        }
        let (identity, identities) = (remotes.identity(), remotes.identities());
        let lock = |identity| match config.difference {
            Some(_) => UnitLock::share(paths, identity, &config.name),
            None => UnitLock::acquire(paths, identity, &config.name),
        };
        let locks = identities.iter().map(lock).collect::<Result<Vec<UnitLock>>>()?;
        let (registry, caches) = (Registry::open(paths)?, Caches::open(paths)?);
        let cache_place = config.cache.as_ref().map(|cache| cache.place(&identity)).transpose()?;
        let log_place = config.log.as_ref().map(|log| log.place(&identity)).transpose()?;
        let places: Vec<&Place> = cache_place.iter().chain(&log_place).collect();
        identities.iter().try_for_each(|identity| registry.check(identity, &places))?;
        check_stores(&config, [cache_place.as_ref(), log_place.as_ref()], (&registry, &caches), &identity)?;
        let (mut cache, mut cache_parts, mut log, mut difference, mut entries) = (None, None, None, None, Vec::new());
        let (mut background, mut destaging) = (JoinSet::new(), None);
        let mut early_entries = EarlyEntries::of(&registry);
        let mut device = remotes.device();
        if config.difference.is_none() {
            note_writable_opening(&caches, &identities, &places)?;
            release_marks(&remotes, &caches).await;
        }
        let (mut freshness, mut held_marks) = (json!({}), Vec::new());
        let Doors { control, metrics, front } = doors;
        let opening = async {
            // Before the cache runs: what it cleans is ours only once the log's mark is held, too.
            let log_assessed = match &log_place {
                Some(place) => Some(assess(&remotes, &caches, Store::Log, place, Promise::default()).await?),
                None => None,
            };
            if let (Some(cache_config), Some(place)) = (&config.cache, cache_place) {
                let memory_max = memory_left(paths, cache_config, &config.name).await?;
                let promise = Promise {
                    is_exclusive: cache_config.is_exclusive,
                    has_generation: cache_config.generation.is_some(),
                };
                let assessed = assess(&remotes, &caches, Store::Cache, &place, promise).await?;
                let since = (&assessed, config.overwrites_changes);
                let (opened, device_bytes) =
                    cache_config.open(&place, &caches, device, Arc::clone(&clock), memory_max, since).await?;
                if config.difference.is_some() {
                    check_nothing_dirty(&opened, &place)?;
                }
                // What is dirty was compared with what others had written until they were asked. Until they are known to have written nothing since,
                // none of it may go over theirs.
                opened.hold_cleaning();
                let running = Arc::clone(&opened);
                background.spawn(base::background::named("cache", async move { running.run().await }));
                cache = Some(Arc::clone(&opened));
                entries.extend(identities.iter().map(|identity| Entry::new(identity, &place, &config.name)));
                let record = Record::new(&place, device_bytes, &identity, &config.name);
                let (told, marks) = assessed.commit(&caches, record, (&*opened, config.overwrites_changes)).await?;
                opened.begin_cleaning();
                freshness["cache"] = told;
                held_marks.push(marks);
                let fixed_bytes = place.fixed_bytes(device_bytes);
                let has_log = config.log.is_some();
                let (config, switch) = (cache_config.clone(), Arc::new(SwitchLayer::new(opened.clone())));
                let paths = paths.clone();
                background.spawn(base::background::named("cache-switch", switch.run()));
                early_entries.note_cache(&opened, &switch);
                if has_log && config.mode == Mode::WriteBack {
                    // A log that was left dirty destages to the cache as soon as it may.
                    early_entries.update(&entries, Store::Cache, true)?;
                }
                device = switch.clone();
                let (clock, changing) = (Arc::clone(&clock), tokio::sync::Mutex::default());
                cache_parts = Some(CacheParts { config, place, fixed_bytes, clock, switch, paths, changing });
            }
            if let (Some(log_config), Some(place), Some(assessed)) = (&config.log, log_place, log_assessed) {
                let kept = assessed.kept(config.overwrites_changes);
                let (opened, ours, device_bytes) = log_config
                    .open(&place, &caches, device, clock, &registry, (&identities, &config.name, kept))
                    .await?;
                log = Some(Arc::clone(&opened));
                let record = Record::new(&place, device_bytes, &identity, &config.name);
                let (told, marks) = assessed.commit(&caches, record, (&*opened, config.overwrites_changes)).await?;
                freshness["log"] = told;
                held_marks.push(marks);
                entries.extend(ours);
                background.spawn(base::background::named("log-requests", opened.run_requests()));
                destaging =
                    Some(Apart::start("destaging", base::background::named("destaging", opened.run_destaging()))?);
                early_entries.note_log(&opened);
                device = opened;
            }
            if let Some(difference_config) = &config.difference {
                let layer = difference_config.open(&difference_config.place(&identity)?, &caches, device).await?;
                background.spawn(base::background::named("difference", layer.run()));
                device = layer.clone();
                difference = Some(layer);
            }
            let (listener, front) = front.map_or_else(|| listen(&config.front, config.front_access), Ok)?;
            let is_write_back = config.cache.as_ref().is_some_and(|cache| cache.mode == Mode::WriteBack);
            early_entries.update(&entries, Store::Cache, is_write_back)?;
            early_entries.update(&entries, Store::Log, config.log.is_some())?;
            Ok::<_, Error>((device, listener, front))
        };
        let (device, listener, front) = match opening.await {
            Ok(opened) => opened,
            Err(error) => {
                close_unserved(log, cache).await;
                // Of a base others may be about to use what they took: it is told by who writes to the LUN.
                if config.difference.is_none() {
                    release_refused(&remotes, &caches).await;
                }
                return Err(error);
            }
        };
        let options = NbdOptions { is_read_only: config.is_read_only, ..NbdOptions::default() };
        let server = NbdServer::new(device, options);
        let attachment = Self {
            name: config.name,
            remotes,
            cache: RefCell::new(cache),
            cache_parts,
            successor: RefCell::default(),
            log,
            freshness,
            renewal: RefCell::new(Some(MarkRenewal::start(held_marks))),
            difference,
            background: RefCell::new(background),
            destaging: RefCell::new(destaging),
            entries,
            server,
            listener: RefCell::new(Some(listener)),
            front,
            registry,
            caches,
            control,
            metrics: RefCell::new(metrics),
            stopping: Sender::new(false),
            front_finished: Sender::new(false),
            hurrying: Sender::new(false),
            ending_deadline: OnceLock::new(),
            is_target_silent: Cell::new(false),
            is_target_left: Cell::new(false),
            ended: Sender::new(false),
            _locks: locks,
        };
        early_entries.keep();
        Ok(attachment)
    }

    /// The registry names the cache or the log as long as it may hold what is below lacks: in write-back, and while anything is dirty.
    fn update_registry(&self, store: Store, may_become_dirty: bool) -> Result<()> {
        let mut entries = self.entries.iter().filter(|entry| entry.store == store);
        if may_become_dirty || self.dirty_bytes_in(store) > 0 {
            entries.try_for_each(|entry| self.registry.insert(entry))
        } else {
            entries.try_for_each(|entry| self.registry.remove(entry))
        }
    }

    fn dirty_bytes_in(&self, store: Store) -> u64 {
        match store {
            Store::Cache => self.cache().map_or(0, |cache| cache.status().dirty_bytes),
            Store::Log => self.log.as_ref().map_or(0, |log| log.status().dirty_bytes),
        }
    }

    /// The cache of now.
    fn cache(&self) -> Option<Arc<Cache>> {
        self.cache.borrow().clone()
    }

    /// What the LUN lacks, in bytes.
    fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes_in(Store::Cache) + self.dirty_bytes_in(Store::Log)
    }

    /// Where applications reach it: an NBD URI.
    pub fn address(&self) -> String {
        self.front.uri("")
    }

    /// Serves until it is detached, or until `signal`: then it stops at once and keeps dirty data.
    ///
    /// # Errors
    /// When the listener fails, or dirty data could not be brought to safety.
    pub async fn run(self, signal: impl Future<Output = ()>) -> Result<()> {
        let attachment = Rc::new(self);
        let serve = async {
            let listener = attachment.listener.borrow_mut().take().expect("an attachment runs once");
            let served = attachment.server.serve(listener, attachment.wait_for_stop()).await;
            attachment.front_finished.send_replace(true);
            served.map_err(|error| Error::io("the NBD server stopped", &error))
        };
        let stop_on_signal = async {
            tokio::select! {
                () = signal => attachment.end_at_once().await,
                () = wait_until(&attachment.ended) => Ok(()),
            }
        };
        let handler = Rc::new(ControlHandler { attachment: Rc::clone(&attachment) });
        let control = attachment.control.serve(handler, wait_until(&attachment.ended));
        let metrics = attachment.metrics.borrow_mut().take();
        let metrics = async {
            let Some(metrics) = metrics else { return };
            // An attachment goes on without its metrics.
            if let Err(error) = metrics.serve(async || attachment.status(), wait_until(&attachment.ended)).await {
                tracing::error!(%error, "there are no metrics any more");
            }
        };
        let informing = async {
            systemd::ready();
            tokio::select! {
                () = systemd::keep_informed(|| async { attachment.summary() }) => {}
                () = attachment.wait_for_stop() => systemd::stopping(),
            }
        };
        let watching = async {
            let mut watch = Watch::default();
            tokio::select! {
                () = watch.look_for_ever(|| attachment.sight()) => {}
                () = wait_until(&attachment.ended) => {}
            }
        };
        let (served, stopped, ..) = tokio::join!(serve, stop_on_signal, control, metrics, informing, watching);
        attachment.background.borrow_mut().abort_all();
        drop(attachment.destaging.take());
        served.and(stopped)
    }

    /// Where it listens for scrapes.
    pub fn metrics_address(&self) -> Option<std::net::SocketAddr> {
        self.metrics.borrow().as_ref().map(MetricsServer::address)
    }

    /// For the service manager, in a line.
    fn summary(&self) -> String {
        let state = self.remotes.status()["state"].as_str().unwrap_or_default().to_owned();
        match self.cache.borrow().is_some() || self.log.is_some() {
            true => format!("{state}, {} bytes dirty", self.dirty_bytes()),
            false => state,
        }
    }

    async fn wait_for_stop(&self) {
        wait_until(&self.stopping).await;
    }

    /// Keeps dirty data. A detach that is under way, perhaps waiting for a target that is away, is cut short. Where the file of what is dirty was
    /// removed, nothing would be kept: then all is written back first, which takes as long as it takes.
    async fn end_at_once(&self) -> Result<()> {
        let gone = self.gone(|_| true);
        let ending = if gone.is_empty() { Ending::KeepDirty } else { Ending::Clean };
        if ending == Ending::KeepDirty {
            self.hurry();
        }
        if *self.stopping.borrow() {
            return Ok(());
        }
        for place in &gone {
            tracing::warn!("{place} was removed while it is in use: what is dirty is written back before the end");
        }
        self.detach(ending, None).await?;
        if self.dirty_bytes() > 0 {
            tracing::warn!("\"{}\" was told to end at once: {}", self.name, self.what_stays_dirty());
        }
        Ok(())
    }

    /// Places of those stores that are not there any more: what they hold ends with this process.
    fn gone(&self, is_meant: impl Fn(&Entry) -> bool) -> BTreeSet<Place> {
        let places = self.entries.iter().filter(|entry| is_meant(entry)).map(Entry::place);
        places.filter(watch::is_gone).collect()
    }

    /// Those with data that the LUN lacks: there is no other copy of it.
    fn gone_with_dirty(&self) -> BTreeSet<Place> {
        self.gone(|entry| self.dirty_bytes_in(entry.store) > 0)
    }

    /// Refuses an end that loses the last copy of what is dirty, as long as it can still be written back.
    fn check_last_copy(&self, ending: Ending) -> Result<()> {
        let Some(place) = self.gone_with_dirty().pop_first() else { return Ok(()) };
        let name = &self.name;
        let advice = match (ending, self.waits_for()) {
            (Ending::Clean | Ending::RemoveCache, None) => return Ok(()),
            (Ending::KeepDirty, None) => {
                format!("it stays attached, and `forebay detach {name}` without --keep-dirty writes that back")
            }
            (_, Some(target)) => {
                format!("it stays attached, and `forebay detach {name}` writes that back once {target} is there again")
            }
        };
        let message = format!(
            "{place} was removed while \"{name}\" uses it, and holds {} bytes that the logical unit does not have: {advice}",
            self.dirty_bytes()
        );
        Err(Error::new(Failure::WouldLoseData, message))
    }

    async fn detach(&self, ending: Ending, progress: Option<Progress>) -> Result<Value> {
        let keep_dirty = ending == Ending::KeepDirty;
        if self.stopping.send_replace(true) {
            return self.hurry_detach(keep_dirty).await;
        }
        if keep_dirty {
            self.hurry();
        }
        let closing = self.close(ending, progress.clone());
        let closed = tokio::select! {
            closed = closing => closed,
            () = self.tell_of_waiting(progress.as_ref()) => unreachable!("it is told for ever"),
            () = self.leave_silent_target() => unreachable!("it is asked for ever"),
        };
        self.ended.send_replace(true);
        closed
    }

    /// Asks the target, for ever, whether it is still there. One that says nothing is waited for with what is dirty, as long as it takes; once nothing is,
    /// no longer than after a signal.
    async fn leave_silent_target(&self) {
        loop {
            let is_silent = tokio::time::timeout(CLOSE_TIME_MAX, self.remotes.answer()).await.is_err();
            self.is_target_silent.set(is_silent);
            if is_silent && self.dirty_bytes() == 0 {
                self.ending_deadline.get_or_init(Instant::now);
                self.hurry();
            }
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    /// For who comes while it is being detached: what is dirty may be kept now, which the first caller did not want.
    async fn hurry_detach(&self, keep_dirty: bool) -> Result<Value> {
        if !keep_dirty {
            let waits = self.waits_for().map_or_else(String::new, |target| {
                format!("; it waits for {target}, and --keep-dirty leaves what is dirty and ends it at once")
            });
            return Err(Error::new(Failure::InUse, format!("\"{}\" is being detached already{waits}", self.name)));
        }
        self.hurry();
        wait_until(&self.ended).await;
        Ok(json!({ "name": self.name, "dirty_bytes": self.dirty_bytes() }))
    }

    /// Tells who wants it detached what it waits for, for ever.
    async fn tell_of_waiting(&self, progress: Option<&Progress>) {
        loop {
            tokio::time::sleep(WATCH_INTERVAL).await;
            if let (Some(progress), Some(target)) = (progress, self.waits_for()) {
                // Who hung up does not want to know.
                let _ = progress.send(json!({ "waits_for": target, "dirty_bytes": self.dirty_bytes() }));
            }
        }
    }

    /// The target that dirty data waits for, and how it is.
    fn waits_for(&self) -> Option<String> {
        let remote = self.remotes.status();
        let state = remote["state"].as_str().unwrap_or_default();
        let state = match state {
            "online" if self.is_target_silent.get() => "silent",
            state => state,
        };
        if state == "online" || self.dirty_bytes() == 0 {
            return None;
        }
        Some(format!("{} ({state})", remote["portal"].as_str().unwrap_or("the target")))
    }

    /// What is dirty here and where, with what to do.
    fn what_stays_dirty(&self) -> String {
        if let Some(place) = self.gone_with_dirty().pop_first() {
            return format!("{} bytes are lost: {place}, which held them, was removed before", self.dirty_bytes());
        }
        let places = self.entries.iter().filter(|entry| self.dirty_bytes_in(entry.store) > 0);
        let arguments: BTreeSet<String> = places
            .map(|entry| {
                format!("--{what} {}", entry.place().argument(entry.store.as_str()), what = entry.store.as_str())
            })
            .collect();
        let arguments: Vec<String> = arguments.into_iter().collect();
        format!(
            "{} bytes stay dirty here; attach it again with {} to write them back",
            self.dirty_bytes(),
            arguments.join(" ")
        )
    }

    /// What is looked at from time to time.
    fn sight(&self) -> Sight {
        let remote = self.remotes.status();
        let places = self.entries.iter().filter(|entry| self.dirty_bytes_in(entry.store) > 0);
        Sight {
            state: remote["state"].as_str().unwrap_or_default().to_owned(),
            portal: remote["portal"].as_str().unwrap_or_default().to_owned(),
            dirty_places: places.map(Entry::place).collect(),
        }
    }

    /// Everything that is wrong although the session is up.
    fn troubles(&self) -> Vec<String> {
        let places: BTreeSet<Place> = self.gone(|_| true);
        let dirty_bytes = self.dirty_bytes();
        let gone = places.iter().map(|place| watch::gone(place, dirty_bytes));
        let (size, offered) = (self.remotes.device().geometry().size_bytes, self.geometry().size_bytes);
        let outdated = self.server.counters().connections_outdated;
        // The one is for who connects anew, and the other for all.
        let resized = match (size == offered, outdated) {
            (true, 0) => None,
            (true, count) => Some(format!(
                "the logical unit has {size} bytes now, and {count} applications know another size: they see this one when they connect anew"
            )),
            (false, _) => Some(format!(
                "the logical unit has {size} bytes now, and applications see {offered}: detach and attach again"
            )),
        };
        let failures = [
            self.cache().and_then(|cache| cache.status().cleaning_failure),
            self.log.as_ref().and_then(|log| log.status().destage_failure),
        ];
        let stuck = failures.into_iter().flatten().filter(|_| dirty_bytes > 0);
        let stuck = stuck.map(|error| format!("what is dirty cannot be written back, which is tried again: {error}"));
        gone.chain(resized).chain(stuck).collect()
    }

    /// Detaches, and removes the file of a cache that has nothing any more that the LUN lacks.
    async fn detach_and_remove(&self, progress: Progress) -> Result<Value> {
        let is_file_of_its_own = |parts: &&CacheParts| parts.place.offset.is_none() && parts.place.path.is_file();
        let Some(parts) = self.cache_parts.as_ref().filter(is_file_of_its_own) else {
            let message = format!(
                "\"{}\" has no cache in a file that could be removed: detach it, and use `forebay cache discard`",
                self.name
            );
            return Err(Error::new(Failure::Usage, message));
        };
        self.check_last_copy(Ending::RemoveCache)?;
        let answer = self.detach(Ending::RemoveCache, Some(progress)).await?;
        if self.dirty_bytes() == 0 {
            let context = |error| Error::io(format!("cannot remove {}", parts.place), &error);
            std::fs::remove_file(&parts.place.path).map_err(context)?;
        }
        Ok(answer)
    }

    /// The cache is clean and about to be removed: its mark is not needed any more, and its target is still at hand.
    async fn forget_cache(&self) -> Result<()> {
        let Some(parts) = &self.cache_parts else { return Ok(()) };
        self.caches.forget(&parts.place)?;
        release_marks(&self.remotes, &self.caches).await;
        Ok(())
    }

    async fn close(&self, ending: Ending, progress: Option<Progress>) -> Result<Value> {
        let keep_dirty = ending == Ending::KeepDirty;
        wait_until(&self.front_finished).await;
        let flushed = match &self.difference {
            Some(difference) => difference.flush().await,
            None => Ok(()),
        };
        // A change of the cache that is under way ends first.
        let _changing = match &self.cache_parts {
            Some(parts) => Some(parts.changing.lock().await),
            None => None,
        };
        let log_cleaned = self.close_log(keep_dirty, progress.as_ref()).await?;
        let cache_cleaned = self.close_cache(keep_dirty, progress.as_ref()).await?;
        let (dirty_bytes, waited_for) = (self.dirty_bytes(), self.waits_for());
        let renewal = self.renewal.take();
        if let Some(renewal) = renewal {
            // What could not be closed in time may still be written in.
            let are_closed = !self.is_target_left.get();
            self.within_ending_time(renewal.finish(are_closed)).await;
        }
        if ending == Ending::RemoveCache && dirty_bytes == 0 && cache_cleaned.is_ok() {
            self.within_ending_time(self.forget_cache()).await.unwrap_or(Ok(()))?;
        }
        let kept = self.within_ending_time(self.remotes.close()).await.unwrap_or_else(|| self.remotes.unkept());
        flushed?;
        log_cleaned.and(cache_cleaned).map_err(|error| {
            let words = Error::from(error.clone());
            // Of a session it would say that it goes on looking, which ends here.
            let why = match words.failure() {
                Failure::Unreachable => {
                    self.remotes.status()["last_error"].as_str().map_or_else(|| words.to_string(), str::to_owned)
                }
                _ => words.to_string(),
            };
            self.ends_dirty(words.failure(), &why)
        })?;
        if !keep_dirty && dirty_bytes > 0 && *self.hurrying.borrow() {
            return Err(match waited_for {
                Some(target) => {
                    self.ends_dirty(Failure::Unreachable, &format!("it waited for {target}, and was ended at once"))
                }
                None => self.ends_dirty(Failure::InUse, "somebody else ended it at once"),
            });
        }
        self.check_kept(kept)?;
        let is_target_silent = self.is_target_silent.get();
        Ok(json!({ "name": self.name, "dirty_bytes": dirty_bytes, "is_target_silent": is_target_silent }))
    }

    /// It was to leave nothing dirty, and does.
    fn ends_dirty(&self, failure: Failure, why: &str) -> Error {
        Error::new(failure, format!("\"{}\" is detached, but {} ({why})", self.name, self.what_stays_dirty()))
    }

    /// What the LUN was left with; a log, and a cache in write-back, have all of which that is not certain.
    fn check_kept(&self, kept: std::result::Result<(), block::Error>) -> Result<()> {
        let is_held_here =
            self.log.is_some() || self.cache().is_some_and(|cache| cache.mode() == cache::Mode::WriteBack);
        match kept {
            Err(error) if is_held_here => {
                tracing::warn!(%error, "the LUN was left without a flush; what it may have lost is kept here");
                Ok(())
            }
            Err(error) => {
                let words = Error::from(error);
                let message = format!(
                    "\"{}\" is detached, but what was written to it since its last flush may not be durable ({words})",
                    self.name
                );
                Err(Error::new(words.failure(), message))
            }
            Ok(()) => Ok(()),
        }
    }

    /// The inner result is that of bringing down what is dirty.
    async fn close_log(
        &self,
        keep_dirty: bool,
        progress: Option<&Progress>,
    ) -> Result<std::result::Result<(), block::Error>> {
        let Some(log) = &self.log else { return Ok(Ok(())) };
        let (mut is_clean, mut cleaned) = (false, Ok(()));
        if !keep_dirty {
            tokio::select! {
                result = log.destage(|done| report_destage(progress, done)) => {
                    is_clean = result.is_ok();
                    cleaned = result;
                }
                () = wait_until(&self.hurrying) => {}
            }
        }
        let is_closed = self.within_ending_time(log.close(!is_clean)).await.transpose()?.is_some();
        // A device that failed may hold what is older than the LUN, until it is closed with nothing in it.
        let has_failed = log.status().failure.is_some();
        self.update_registry(Store::Log, has_failed && !is_closed)?;
        Ok(cleaned)
    }

    /// As [`Self::close_log`].
    async fn close_cache(
        &self,
        keep_dirty: bool,
        progress: Option<&Progress>,
    ) -> Result<std::result::Result<(), block::Error>> {
        let Some(cache) = self.cache() else { return Ok(Ok(())) };
        let (mut is_clean, mut cleaned) = (false, Ok(()));
        if !keep_dirty {
            tokio::select! {
                result = cache.clean(|clean_progress| report(progress, clean_progress)) => {
                    is_clean = result.is_ok();
                    cleaned = result;
                }
                () = wait_until(&self.hurrying) => {}
            }
        }
        self.within_ending_time(cache.close(!is_clean)).await.unwrap_or(Ok(()))?;
        self.update_registry(Store::Cache, false)?;
        Ok(cleaned)
    }

    /// It is to end at once from now on.
    fn hurry(&self) {
        self.ending_deadline.get_or_init(|| Instant::now() + CLOSE_TIME_MAX);
        self.hurrying.send_replace(true);
    }

    /// The outcome of `ending`, or `None` when it is to end at once and that takes too long: a target that is away is not waited
    /// for. What is left undone then is what a crash leaves undone, and a cache keeps its dirty data through that. All steps of an end have one
    /// time together; those that come after it have what a target takes that is there.
    async fn within_ending_time<T>(&self, ending: impl Future<Output = T>) -> Option<T> {
        let too_long = async {
            wait_until(&self.hurrying).await;
            let least = Instant::now() + CLOSE_STEP_TIME_MIN;
            let until = self.ending_deadline.get().map_or(least, |&deadline| deadline.max(least));
            tokio::time::sleep_until(until).await;
        };
        tokio::select! {
            biased;
            outcome = ending => Some(outcome),
            () = too_long => {
                if !self.is_target_left.replace(true) {
                    tracing::warn!("\"{}\" ends without its target", self.name);
                }
                None
            }
        }
    }

    /// Cleans on request. Who waits for that does not hold up an end at once: a target that takes no writes would do so for ever. At the end of a detach
    /// all is clean, or stays dirty, and there is nothing to wait for any more either.
    async fn clean(&self, progress: Progress) -> Result<Value> {
        self.check_stays()?;
        tokio::select! {
            cleaned = self.clean_stores(progress) => cleaned?,
            () = wait_until(&self.hurrying) => return Err(self.is_being_detached()),
            () = wait_until(&self.ended) => return Err(self.is_being_detached()),
        }
        Ok(json!({ "name": self.name, "dirty_bytes": self.dirty_bytes() }))
    }

    async fn clean_stores(&self, progress: Progress) -> Result<()> {
        if let Some(log) = &self.log {
            log.destage(|done| report_destage(Some(&progress), done)).await?;
        }
        if let Some(cache) = self.cache() {
            cache.clean(|clean_progress| report(Some(&progress), clean_progress)).await?;
        }
        Ok(())
    }

    /// Refuses what is for an attachment that goes on.
    fn check_stays(&self) -> Result<()> {
        match *self.stopping.borrow() {
            true => Err(self.is_being_detached()),
            false => Ok(()),
        }
    }

    fn is_being_detached(&self) -> Error {
        Error::new(Failure::InUse, format!("\"{}\" is being detached", self.name))
    }

    async fn set(&self, key: &str, value: &str) -> Result<Value> {
        if key == "reconnect" {
            check_now(value)?;
            self.remotes.reconnect_now();
            return Ok(json!({ key: value }));
        }
        self.check_stays()?;
        if key == "connections" {
            self.remotes.set_connections(parse_connections(value)?);
            return Ok(json!({ key: value }));
        }
        if !is_setting(key) {
            let known = [cache_settings::KEYS, Change::KEYS, log_settings::KEYS].concat().join(", ");
            let message =
                format!("\"{key}\" is no setting of an attachment: there are connections, reconnect, {known}");
            return Err(Error::new(Failure::Usage, message));
        }
        if log_settings::KEYS.contains(&key) {
            let none =
                || Error::new(Failure::Usage, format!("\"{}\" has no write log: attach it with --log PATH", self.name));
            log_settings::set(self.log.as_ref().ok_or_else(none)?, key, value)?;
            return Ok(json!({ key: value }));
        }
        let (Some(cache), Some(parts)) = (self.cache(), &self.cache_parts) else {
            let message = format!("\"{}\" has no cache: attach it with --cache PATH", self.name);
            return Err(Error::new(Failure::Usage, message));
        };
        if let Some(change) = Change::of(key, value)? {
            self.change_cache(parts, change).await?;
        } else if !cache_settings::set(&cache, key, value)? {
            let mode: Mode = cache_settings::parse(value)?;
            check_takes_writes(mode, self.log.is_some())?;
            let _changing = self.start_changing(parts)?;
            // In the registry before the first write can be dirty, and until the last one is clean.
            self.update_registry(Store::Cache, true)?;
            let changed = tokio::select! {
                changed = cache.set_mode(mode) => changed.map_err(Error::from),
                () = self.wait_for_stop() => Err(self.is_being_detached()),
            };
            self.update_registry(Store::Cache, cache.mode() == Mode::WriteBack)?;
            changed?;
        }
        Ok(json!({ key: value }))
    }

    /// One change at a time of the cache, and of what it promises: a mode that is set must not be that of a cache that is being replaced, nor be
    /// another one by the time that the registry learns of it.
    fn start_changing<'a>(&self, parts: &'a CacheParts) -> Result<tokio::sync::MutexGuard<'a, ()>> {
        parts.changing.try_lock().map_err(|_| {
            let message = format!("the cache of \"{}\" is being changed already", self.name);
            Error::new(Failure::InUse, message)
        })
    }

    /// Puts another cache in place of the one there is.
    async fn change_cache(&self, parts: &CacheParts, change: Change) -> Result<()> {
        let _changing = self.start_changing(parts)?;
        let cache = self.cache().ok_or_else(|| Error::new(Failure::Usage, "there is no cache"))?;
        let CacheParts { config, place, clock, switch, .. } = parts;
        let (origin, clock) = (self.remotes.device(), Arc::clone(clock));
        let memory_max = memory_left(&parts.paths, config, &self.name).await?;
        let successor = &self.successor;
        let tokens = draw_tokens();
        let changing = Changing { cache: &cache, config, place, origin, switch, clock, tokens, memory_max, successor };
        let mut change = pin!(changing.change(change));
        self.caches.note_successor(place, tokens)?;
        let changed = tokio::select! {
            changed = &mut change => changed,
            () = self.wait_for_stop() => {
                // What the new one has sent arrives before the old one goes on, and may send something newer.
                let successor = self.successor.take();
                if let Some(successor) = successor {
                    self.within_ending_time(successor.leave()).await;
                }
                let message = format!("\"{}\" is being detached; its cache is as it was", self.name);
                Err(Error::new(Failure::InUse, message))
            }
        };
        let noted = self.caches.note_succeeded(place);
        // Requests go to it already, whatever the list says.
        *self.cache.borrow_mut() = Some(changed?);
        noted.map_err(|error| error.context("the cache was changed, and the list of caches does not say so"))
    }

    /// Of what applications see when they connect now.
    fn geometry(&self) -> Geometry {
        match (&self.difference, &self.log, self.cache()) {
            (Some(difference), ..) => difference.geometry(),
            (None, Some(log), _) => log.geometry(),
            (None, None, Some(cache)) => cache.geometry(),
            (None, None, None) => self.remotes.device().geometry(),
        }
    }

    fn log_entry(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.store == Store::Log)
    }

    fn status(&self) -> Value {
        let geometry = self.geometry();
        let identity = self.remotes.identity();
        json!({
            "kind": "attachment",
            "name": self.name,
            "pid": std::process::id(),
            "address": self.address(),
            "front": self.front.to_string(),
            "lun": { "target": identity.target, "unit": identity.unit, "serial": identity.serial },
            "size_bytes": geometry.size_bytes,
            "logical_block_bytes": geometry.logical_block_bytes,
            "is_read_only": geometry.is_read_only,
            "detaching": self.stopping.borrow().then(|| json!({ "waits_for": self.waits_for() })),
            "troubles": self.troubles(),
            "remote": self.remotes.status(),
            "stripe": self.remotes.stripe_status(),
            "multipath": self.remotes.multipath_status(),
            "cache_path": self.cache_parts.as_ref().map(|parts| &parts.place.path),
            "cache_offset": self.cache_parts.as_ref().and_then(|parts| parts.place.offset),
            "cache_bytes": self.cache_parts.as_ref().and_then(CacheParts::bytes),
            "cache_uuid": self.cache_parts.as_ref().and_then(|parts| uuid_at(&parts.place)).map(|uuid| uuid.to_string()),
            "cache": self.cache().map(|cache| cache.status()),
            "difference": self.difference.as_ref().map(|difference| difference_place::status(difference)),
            "log_path": self.log_entry().map(|entry| &entry.cache),
            "log_offset": self.log_entry().and_then(|entry| entry.offset),
            "log": self.log.as_ref().map(|log| log.status()),
            "freshness": self.freshness,
            "nbd": self.server.counters(),
        })
    }
}

/// Bytes of memory that the cache of the attachment `name` may take: what the caches of others leave of its bound. One that does not answer soon does
/// not count.
async fn memory_left(paths: &Paths, config: &CacheConfig, name: &str) -> Result<Option<u64>> {
    let Some(memory_max) = config.memory_max else { return Ok(None) };
    let mut left = memory_max;
    let names: BTreeSet<String> = Caches::open(paths)?.list()?.into_iter().map(|record| record.name).collect();
    for other in names.iter().filter(|other| *other != name) {
        let socket = paths.control_socket(other);
        let answer = tokio::time::timeout(STATUS_TIME_MAX, call(&socket, &Request::Status, |_| {})).await;
        if let Ok(Ok(status)) = answer {
            left = left.saturating_sub(status["cache"]["memory_bytes"].as_u64().unwrap_or(0));
        }
    }
    Ok(Some(left))
}

/// Refuses a cache under a write log that takes no writes: the log would go on acknowledging what it can send nowhere.
fn check_takes_writes(mode: Mode, has_log: bool) -> Result<()> {
    if mode == Mode::ReadOnly && has_log {
        let message =
            "a cache under a write log cannot be read-only: the log would acknowledge writes that it can send nowhere";
        return Err(Error::new(Failure::Usage, message));
    }
    Ok(())
}

/// Refuses what cannot be opened or made in the places of the cache and of the log, before anything is.
fn check_stores(
    config: &AttachConfig,
    [cache_place, log_place]: [Option<&Place>; 2],
    (registry, caches): (&Registry, &Caches),
    identity: &Identity,
) -> Result<()> {
    let cache_bytes = config.cache.as_ref().and_then(|cache| cache.size_bytes);
    let log_bytes = config.log.as_ref().and_then(|log| log.size_bytes);
    if let (Some(cache), Some(log)) = (cache_place, log_place)
        && have_common_bytes([(cache, cache_bytes), (log, log_bytes)], caches)?
    {
        let message = match (cache.offset, log.offset) {
            (Some(_), Some(_)) => {
                format!(
                    "the cache {cache} and the write log {log} would lie over each other: give the log an offset behind the cache, or before it"
                )
            }
            _ => format!(
                "the cache and the write log cannot both be in {}: give each a place of its own",
                log.path.display()
            ),
        };
        return Err(Error::new(Failure::Usage, message));
    }
    if let (Some(cache), Some(place)) = (&config.cache, cache_place) {
        check_takes_writes(cache.mode, config.log.is_some())?;
        cache.check_not_lost(place, registry.find(identity, Store::Cache)?.as_ref(), caches)?;
        check_can_be_made(PlaceKind::Cache, place, cache.size_bytes)?;
    }
    if let (Some(log), Some(place)) = (&config.log, log_place) {
        log.check_not_lost(place, registry.find(identity, Store::Log)?.as_ref())?;
        check_can_be_made(PlaceKind::Log, place, log.size_bytes)?;
    }
    Ok(())
}

/// Closes what was opened for an attachment that does not come about, as in order: nothing of a cache is lost for what is wrong with the log over it.
async fn close_unserved(log: Option<Arc<WriteLog>>, cache: Option<Arc<Cache>>) {
    let close = async {
        if let Some(log) = log {
            log.close(true).await?;
        }
        match cache {
            Some(cache) => cache.close(true).await,
            None => Ok(()),
        }
    };
    match tokio::time::timeout(CLOSE_TIME_MAX, close).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "what was opened could not be closed in order"),
        Err(_) => tracing::warn!("what was opened is left as after a crash: closing it takes too long"),
    }
}

/// Refuses a cache under a difference that would clean what it holds: the LUN is to stay as it is.
fn check_nothing_dirty(cache: &Cache, place: &Place) -> Result<()> {
    let dirty_bytes = cache.status().dirty_bytes;
    if dirty_bytes == 0 {
        return Ok(());
    }
    let message = format!(
        "the cache {place} holds {dirty_bytes} bytes that the logical unit does not have, and with --difference it would get none: attach it without, \
         and detach, which writes them back"
    );
    Err(Error::new(Failure::WouldLoseData, message))
}

/// Whether attachments have a setting of this name.
pub fn is_setting(key: &str) -> bool {
    let of_stores = [cache_settings::KEYS, Change::KEYS, log_settings::KEYS];
    matches!(key, "connections" | "reconnect") || of_stores.iter().any(|keys| keys.contains(&key))
}

/// `reconnect=now`: there is no other time for it.
pub(crate) fn check_now(value: &str) -> Result<()> {
    match value {
        "now" => Ok(()),
        _ => Err(Error::new(Failure::Usage, format!("reconnect={value}: the only time to reconnect at is now"))),
    }
}

/// Waits for `flag` to be raised. Its sender outlives the wait: the attachment holds it.
pub(crate) async fn wait_until(flag: &Sender<bool>) {
    let _ = flag.subscribe().wait_for(|is_raised| *is_raised).await;
}

fn report(progress: Option<&Progress>, clean_progress: cache::CleanProgress) {
    if let Some(progress) = progress {
        // A caller who hung up does not want to know; the work goes on.
        let _ = progress
            .send(json!({ "lines_done": clean_progress.lines_done, "lines_total": clean_progress.lines_total }));
    }
}

fn report_destage(progress: Option<&Progress>, done: writelog::DestageProgress) {
    if let Some(progress) = progress {
        // As above. Bytes are counted where a cache counts lines.
        let _ = progress.send(json!({ "lines_done": done.bytes_done, "lines_total": done.bytes_total }));
    }
}

struct ControlHandler {
    attachment: Rc<Attachment>,
}

impl Handler for ControlHandler {
    async fn handle(&self, request: Request, progress: Progress) -> Result<Value> {
        match request {
            Request::Status => Ok(self.attachment.status()),
            Request::Reload => {
                let message = format!("\"{}\" is an attachment: it has no configuration file", self.attachment.name);
                Err(Error::new(Failure::Usage, message))
            }
            Request::Clean => self.attachment.clean(progress).await,
            Request::Set { key, value } => self.attachment.set(&key, &value).await,
            Request::Detach { remove_cache: true, .. } => self.attachment.detach_and_remove(progress).await,
            Request::Detach { keep_dirty, .. } => {
                let ending = if keep_dirty { Ending::KeepDirty } else { Ending::Clean };
                self.attachment.check_last_copy(ending)?;
                self.attachment.detach(ending, Some(progress)).await
            }
        }
    }
}

#[cfg(test)]
mod tests;
