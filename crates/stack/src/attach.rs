//! An attachment: a remote LUN, perhaps behind a cache, offered to local applications.
//!
//! ```text
//! front (NBD)  ->  difference  ->  write log, cache, both or none  ->  remote LUN, or several as one
//! ```
//!
//! Order of the beginning: connect (errors show at once), lock the LUN on this host, consult the registry of dirty caches and logs, open or make
//! the cache, then the log over it, register both, listen. Order of the end: stop listening, finish what is under way, close the log, then the cache
//! below it (bringing down what is dirty unless it is to be kept), log out; each is struck from the registry if nothing dirty is left in it.
//!
//! With both, what the log destages is clean there once the cache has it, durably. So the newest data may be in either, and the LUN is refused
//! without the one that holds any.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use base::clock::Clock;
use block::Device;
use block::device::DeviceExt;
use block::layer::cow::CowLayer;
use block::layer::switch::SwitchLayer;
use cache::{Cache, Mode};
use front::{ListenAddress, Listener, NbdOptions, NbdServer};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use writelog::WriteLog;

use crate::apart::Apart;
use crate::cache_change::{Change, Changing};
use crate::cache_place::CacheConfig;
use crate::cache_settings;
use crate::caches::{Caches, Record};
use crate::control::{ControlServer, Handler, Progress, Request, call};
use crate::cow_place::{self, CowConfig};
use crate::doors::{Doors, listen};
use crate::error::{Error, Failure, Result};
use crate::limits::{CLOSE_TIME_MAX, STATUS_TIME_MAX};
use crate::log_place::{self, LogConfig};
use crate::metrics::MetricsServer;
use crate::paths::Paths;
use crate::place::Place;
use crate::registry::{Entry, Registry, Store, UnitLock};
use crate::remote::parse_connections;
use crate::remotes::{Remotes, RemotesConfig};
use crate::systemd;
use crate::time::system_clock;

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
    pub cow: Option<CowConfig>,
    /// Where to offer it.
    pub front: ListenAddress,
    /// Whether writes are refused.
    pub is_read_only: bool,
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
    cow: Option<Arc<CowLayer>>,
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
    stopping: watch::Sender<bool>,
    /// `true` once the front has finished every request.
    front_finished: watch::Sender<bool>,
    /// `true` once it is to end at once, whatever is being cleaned.
    hurrying: watch::Sender<bool>,
    /// `true` once everything is closed.
    ended: watch::Sender<bool>,
    _locks: Vec<UnitLock>,
}

impl Attachment {
    /// Connects, opens and listens; nothing is served before [`Attachment::run`].
    ///
    /// # Errors
    /// Whatever stands in the way, with nothing changed.
    pub async fn start(config: AttachConfig, paths: &Paths) -> Result<Self> {
        let doors = Doors::open(&config, paths)?;
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
        if let (Some(_), Some(cache_config)) = (&config.cow, &mut config.cache) {
            // The cache is of the base, which nobody writes to.
            cache_config.mode = Mode::ReadOnly;
        }
        let (identity, identities) = (remotes.identity(), remotes.identities());
        let lock = |identity| match config.cow {
            Some(_) => UnitLock::share(paths, identity, &config.name),
            None => UnitLock::acquire(paths, identity, &config.name),
        };
        let locks = identities.iter().map(lock).collect::<Result<Vec<UnitLock>>>()?;
        let registry = Registry::open(paths)?;
        let cache_place = config.cache.as_ref().map(|cache| cache.place(&identity)).transpose()?;
        let log_place = config.log.as_ref().map(|log| log.place(&identity)).transpose()?;
        let places: Vec<&Place> = cache_place.iter().chain(&log_place).collect();
        identities.iter().try_for_each(|identity| registry.check(identity, &places))?;
        let registered = |store| registry.find(&identity, store);
        let (mut cache, mut cache_parts, mut log, mut cow, mut entries) = (None, None, None, None, Vec::new());
        let (mut background, mut destaging) = (JoinSet::new(), None);
        let mut device = remotes.device();
        let caches = Caches::open(paths)?;
        if let (Some(cache_config), Some(place)) = (&config.cache, cache_place) {
            cache_config.check_not_lost(&place, registered(Store::Cache)?.as_ref())?;
            let memory_max = memory_left(paths, cache_config, &config.name).await?;
            let (opened, device_bytes) =
                cache_config.open(&place, &caches, device, Arc::clone(&clock), memory_max).await?;
            if config.cow.is_some() {
                check_nothing_dirty(&opened, &place)?;
            }
            entries.extend(identities.iter().map(|identity| Entry::new(identity, &place, &config.name)));
            if config.log.is_some() && cache_config.mode == Mode::WriteBack {
                // A log that was left dirty destages to the cache as soon as it is open.
                entries.iter().try_for_each(|entry| registry.insert(entry))?;
            }
            caches.note(&Record::new(&place, device_bytes, &identity, &config.name))?;
            let fixed_bytes = place.fixed_bytes(device_bytes);
            let running = Arc::clone(&opened);
            background.spawn(async move { running.run().await });
            let (config, switch) = (cache_config.clone(), Arc::new(SwitchLayer::new(opened.clone())));
            let paths = paths.clone();
            background.spawn(switch.run());
            device = switch.clone();
            let (clock, changing) = (Arc::clone(&clock), tokio::sync::Mutex::default());
            cache_parts = Some(CacheParts { config, place, fixed_bytes, clock, switch, paths, changing });
            cache = Some(opened);
        }
        if let (Some(log_config), Some(place)) = (&config.log, log_place) {
            log_config.check_not_lost(&place, registered(Store::Log)?.as_ref())?;
            let ours: Vec<Entry> =
                identities.iter().map(|identity| log_place::entry(identity, &place, &config.name)).collect();
            let opened = log_config.open(&place, &caches, device, clock, &registry, &ours).await?;
            entries.extend(ours);
            background.spawn(opened.run_requests());
            destaging = Some(Apart::start("destaging", opened.run_destaging())?);
            device = opened.clone();
            log = Some(opened);
        }
        if let Some(cow_config) = &config.cow {
            let layer = cow_config.open(&cow_config.place(&identity)?, &caches, device).await?;
            background.spawn(layer.run());
            device = layer.clone();
            cow = Some(layer);
        }
        let options = NbdOptions { is_read_only: config.is_read_only, ..NbdOptions::default() };
        let server = NbdServer::new(device, options);
        let Doors { control, metrics, front } = doors;
        let (listener, front) = front.map_or_else(|| listen(&config.front), Ok)?;
        let attachment = Self {
            name: config.name,
            remotes,
            cache: RefCell::new(cache),
            cache_parts,
            successor: RefCell::default(),
            log,
            cow,
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
            stopping: watch::Sender::new(false),
            front_finished: watch::Sender::new(false),
            hurrying: watch::Sender::new(false),
            ended: watch::Sender::new(false),
            _locks: locks,
        };
        let is_write_back = config.cache.as_ref().is_some_and(|cache| cache.mode == Mode::WriteBack);
        attachment.update_registry(Store::Cache, is_write_back)?;
        attachment.update_registry(Store::Log, config.log.is_some())?;
        Ok(attachment)
    }

    /// The registry names the cache or the log as long as it may hold what is below lacks: in write-back, and while anything is dirty. What it says
    /// of a log that failed stays until that is discarded.
    fn update_registry(&self, store: Store, may_become_dirty: bool) -> Result<()> {
        let has_failed = self.log.as_ref().is_some_and(|log| log.status().failure.is_some());
        if store == Store::Log && has_failed {
            return Ok(());
        }
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
        let control = attachment.control.serve(handler, attachment.wait_for_stop());
        let metrics = attachment.metrics.borrow_mut().take();
        let metrics = async {
            let Some(metrics) = metrics else { return };
            // An attachment goes on without its metrics.
            if let Err(error) = metrics.serve(async || attachment.status(), attachment.wait_for_stop()).await {
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
        let (served, stopped, ..) = tokio::join!(serve, stop_on_signal, control, metrics, informing);
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

    /// Keeps dirty data. A detach that is under way, perhaps waiting for a target that is away, is cut short.
    async fn end_at_once(&self) -> Result<()> {
        self.hurrying.send_replace(true);
        if *self.stopping.borrow() {
            return Ok(());
        }
        self.detach(true, None).await.map(|_| ())
    }

    async fn detach(&self, keep_dirty: bool, progress: Option<Progress>) -> Result<Value> {
        if self.stopping.send_replace(true) {
            return Err(Error::new(Failure::InUse, format!("\"{}\" is being detached already", self.name)));
        }
        if keep_dirty {
            self.hurrying.send_replace(true);
        }
        let closed = self.close(keep_dirty, progress).await;
        self.ended.send_replace(true);
        closed
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
        let answer = self.detach(false, Some(progress)).await?;
        if self.dirty_bytes() == 0 {
            let context = |error| Error::io(format!("cannot remove {}", parts.place), &error);
            std::fs::remove_file(&parts.place.path).map_err(context)?;
            self.caches.forget(&parts.place)?;
        }
        Ok(answer)
    }

    async fn close(&self, keep_dirty: bool, progress: Option<Progress>) -> Result<Value> {
        wait_until(&self.front_finished).await;
        let flushed = match &self.cow {
            Some(cow) => cow.flush().await,
            None => Ok(()),
        };
        // A change of the cache that is under way ends first.
        let _changing = match &self.cache_parts {
            Some(parts) => Some(parts.changing.lock().await),
            None => None,
        };
        let log_cleaned = self.close_log(keep_dirty, progress.as_ref()).await?;
        let cache_cleaned = self.close_cache(keep_dirty, progress.as_ref()).await?;
        let dirty_bytes = self.dirty_bytes();
        self.within_ending_time(self.remotes.close()).await;
        flushed?;
        log_cleaned.and(cache_cleaned).map_err(|error| {
            Error::from(error)
                .context(format!("\"{}\" is detached, but {dirty_bytes} bytes stay dirty here", self.name))
        })?;
        Ok(json!({ "name": self.name, "dirty_bytes": dirty_bytes }))
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
        if is_clean {
            log.close(false).await?;
        } else {
            self.within_ending_time(log.close(true)).await.unwrap_or(Ok(()))?;
        }
        self.update_registry(Store::Log, false)?;
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
        if is_clean {
            cache.close(false).await?;
        } else {
            self.within_ending_time(cache.close(true)).await.unwrap_or(Ok(()))?;
        }
        self.update_registry(Store::Cache, false)?;
        Ok(cleaned)
    }

    /// The outcome of `ending`, or `None` when it is to end at once and that takes too long: a target that is away is not waited
    /// for. What is left undone then is what a crash leaves undone, and a cache keeps its dirty data through that.
    async fn within_ending_time<T>(&self, ending: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            outcome = ending => Some(outcome),
            () = async { wait_until(&self.hurrying).await; tokio::time::sleep(CLOSE_TIME_MAX).await; } => {
                tracing::warn!("\"{}\" ends without its target", self.name);
                None
            }
        }
    }

    async fn clean(&self, progress: Progress) -> Result<Value> {
        if let Some(log) = &self.log {
            log.destage(|done| report_destage(Some(&progress), done)).await?;
        }
        if let Some(cache) = self.cache() {
            cache.clean(|clean_progress| report(Some(&progress), clean_progress)).await?;
        }
        Ok(json!({ "name": self.name, "dirty_bytes": self.dirty_bytes() }))
    }

    async fn set(&self, key: &str, value: &str) -> Result<Value> {
        if key == "connections" {
            self.remotes.set_connections(parse_connections(value)?);
            return Ok(json!({ key: value }));
        }
        if key == "reconnect" {
            check_now(value)?;
            self.remotes.reconnect_now();
            return Ok(json!({ key: value }));
        }
        if !cache_settings::KEYS.contains(&key) && !Change::KEYS.contains(&key) {
            let known = [cache_settings::KEYS, Change::KEYS].concat().join(", ");
            let message =
                format!("\"{key}\" is no setting of an attachment: there are connections, reconnect, {known}");
            return Err(Error::new(Failure::Usage, message));
        }
        let (Some(cache), Some(parts)) = (self.cache(), &self.cache_parts) else {
            let message = format!("\"{}\" has no cache: attach it with --cache PATH", self.name);
            return Err(Error::new(Failure::Usage, message));
        };
        if let Some(change) = Change::of(key, value)? {
            self.change_cache(parts, change).await?;
        } else if !cache_settings::set(&cache, key, value)? {
            let mode: Mode = cache_settings::parse(value)?;
            let _changing = self.start_changing(parts)?;
            // In the registry before the first write can be dirty, and until the last one is clean.
            self.update_registry(Store::Cache, true)?;
            let changed = tokio::select! {
                changed = cache.set_mode(mode) => changed.map_err(Error::from),
                () = self.wait_for_stop() => {
                    Err(Error::new(Failure::InUse, format!("\"{}\" is being detached", self.name)))
                }
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
        let changing = Changing { cache: &cache, config, place, origin, switch, clock, memory_max, successor };
        let mut change = pin!(changing.change(change));
        let new = tokio::select! {
            changed = &mut change => changed?,
            () = self.wait_for_stop() => {
                // What the new one has sent arrives before the old one goes on, and may send something newer.
                let successor = self.successor.take();
                if let Some(successor) = successor {
                    self.within_ending_time(successor.leave()).await;
                }
                let message = format!("\"{}\" is being detached; its cache is as it was", self.name);
                return Err(Error::new(Failure::InUse, message));
            }
        };
        *self.cache.borrow_mut() = Some(new);
        Ok(())
    }

    fn status(&self) -> Value {
        let geometry = match (&self.cow, &self.log, self.cache()) {
            (Some(cow), ..) => cow.geometry(),
            (None, Some(log), _) => log.geometry(),
            (None, None, Some(cache)) => cache.geometry(),
            (None, None, None) => self.remotes.device().geometry(),
        };
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
            "remote": self.remotes.status(),
            "stripe": self.remotes.stripe_status(),
            "multipath": self.remotes.multipath_status(),
            "cache_path": self.cache_parts.as_ref().map(|parts| &parts.place.path),
            "cache_offset": self.cache_parts.as_ref().and_then(|parts| parts.place.offset),
            "cache_bytes": self.cache_parts.as_ref().and_then(CacheParts::bytes),
            "cache": self.cache().map(|cache| cache.status()),
            "difference": self.cow.as_ref().map(|cow| cow_place::status(cow)),
            "log": self.log.as_ref().map(|log| log.status()),
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

/// `reconnect=now`: there is no other time for it.
pub(crate) fn check_now(value: &str) -> Result<()> {
    match value {
        "now" => Ok(()),
        _ => Err(Error::new(Failure::Usage, format!("reconnect={value}: the only time to reconnect at is now"))),
    }
}

/// Waits for `flag` to be raised. Its sender outlives the wait: the attachment holds it.
pub(crate) async fn wait_until(flag: &watch::Sender<bool>) {
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
            Request::Detach { keep_dirty, .. } => self.attachment.detach(keep_dirty, Some(progress)).await,
        }
    }
}
