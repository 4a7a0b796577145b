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
//! Here is the beginning. `running` is what goes on side by side while it serves, `ending` its end, `settings` what can be changed meanwhile, `status` what
//! it says of itself.
//!
//! With both, what the log destages is clean there once the cache has it, durably. So the newest data may be in either, and the LUN is refused
//! without the one that holds any.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use base::clock::Clock;
use block::Identity;
use block::layer::switch::SwitchLayer;
use cache::{Cache, Mode};
use difference::Difference;
use front::{ListenAddress, Listener, NbdOptions, NbdServer};
use serde_json::{Value, json};
use tokio::sync::watch::Sender;
use tokio::task::JoinSet;
use tokio::time::Instant;
use writelog::WriteLog;

use crate::apart::Apart;
use crate::cache_place::CacheConfig;
use crate::caches::{Caches, Record};
use crate::control::{ControlServer, Request, call};
use crate::doors::{Doors, listen};
use crate::error::{Error, Failure, Result};
use crate::freshness::{Promise, assess, note_writable_opening, release_marks, release_refused};
use crate::held_marks::MarkRenewal;
use crate::limits::{CLOSE_TIME_MAX, STATUS_TIME_MAX};
use crate::metrics::MetricsServer;
use crate::paths::Paths;
use crate::place::Place;
use crate::registry::{Entry, Registry, Store, UnitLock};
use crate::remotes::Remotes;
use crate::settings::Settings;
use crate::store_file::{PlaceKind, check_can_be_made, have_common_bytes};
use crate::time::system_clock;
use crate::watch;

mod config;
mod early_entries;
mod ending;
mod running;
mod settings;
mod status;

pub use config::AttachConfig;
use early_entries::EarlyEntries;

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
    /// What was chosen, and what was changed since.
    settings: RefCell<Settings>,
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
            settings: RefCell::new(config.settings),
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

    /// Where it listens for scrapes.
    pub fn metrics_address(&self) -> Option<std::net::SocketAddr> {
        self.metrics.borrow().as_ref().map(MetricsServer::address)
    }

    async fn wait_for_stop(&self) {
        wait_until(&self.stopping).await;
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

/// Waits for `flag` to be raised. Its sender outlives the wait: the attachment holds it.
pub(crate) async fn wait_until(flag: &Sender<bool>) {
    let _ = flag.subscribe().wait_for(|is_raised| *is_raised).await;
}

#[cfg(test)]
mod tests;
