//! The beginning of a stack: its stores are opened, each over the one before.
//!
//! Order: lock the LUN on this host, check the registry of dirty caches and logs, open or make the
//! cache, then the log over it, then the difference, and note in the registry what may become
//! dirty. If anything prevents that, [`Opening::undo`] closes what was opened.

use std::sync::Arc;

use base::clock::Clock;
use block::layer::switch::SwitchLayer;
use block::{Identity, SharedDevice};
use cache::{Cache, Mode};
use difference::Difference;
use initiator::RemoteLun;
use tokio::sync::watch::Sender;
use tokio::task::JoinSet;
use writelog::WriteLog;

use super::cache_parts::{CacheParts, check_takes_writes, memory_left};
use super::claiming::claim_dirty;
use super::config::StackConfig;
use super::early_entries::EarlyEntries;
use crate::base_content::{Base, BaseOf};
use crate::caches::{Caches, StoreRecord};
use crate::content::uuid_at;
use crate::difference_file::DifferenceFile;
use crate::dirty_guard::{DirtyGuard, Use};
use crate::error::{Error, Failure, Result};
use crate::flag::wait_until;
use crate::freshness::{Assessed, Promise, assess, note_writable_opening, release_marks, release_refused};
use crate::held_marks::HeldMarks;
use crate::limits::{CLOSE_STEP_TIME_MIN, CLOSE_TIME_MAX};
use crate::newest_data;
use crate::paths::Paths;
use crate::place::Place;
use crate::place_device::PlaceKind;
use crate::registry::{Entry, Registry, Store, UnitLock};
use crate::remotes::Remotes;
use crate::status::stores::FreshnessStatus;
use crate::store_file::{check_can_be_made, have_common_bytes};
use crate::worker_thread::WorkerThread;

/// A stack that is being opened.
pub(super) struct Opening<'a> {
    pub(super) config: StackConfig,
    paths: &'a Paths,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) remotes: Remotes,
    identity: Identity,
    identities: Vec<Identity>,
    pub(super) registry: Registry,
    pub(super) caches: Caches,
    cache_place: Option<Place>,
    log_place: Option<Place>,
    /// The topmost device so far.
    pub(super) device: SharedDevice,
    pub(super) cache: Option<Arc<Cache>>,
    pub(super) cache_parts: Option<CacheParts>,
    pub(super) log: Option<Arc<WriteLog>>,
    pub(super) difference: Option<Arc<Difference>>,
    pub(super) difference_file: Option<Arc<DifferenceFile>>,
    pub(super) base: Option<Base>,
    pub(super) freshness: FreshnessStatus,
    pub(super) held_marks: Vec<HeldMarks>,
    pub(super) guard: Arc<DirtyGuard>,
    pub(super) entries: Vec<Entry>,
    pub(super) early_entries: EarlyEntries,
    pub(super) background: JoinSet<()>,
    pub(super) destaging: Option<WorkerThread>,
    pub(super) lock: UnitLock,
    /// Places that were empty before.
    free_places: Vec<Place>,
}

impl<'a> Opening<'a> {
    /// Locks the LUN, and refuses what cannot be opened or made, before any store is.
    ///
    /// # Errors
    /// Another user of the LUN, missing stores that should exist, impossible places.
    pub(super) fn prepare(
        remotes: Remotes,
        mut config: StackConfig,
        paths: &'a Paths,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        if let (Some(_), Some(cache_config)) = (&config.difference, &mut config.cache) {
            // The cache is of the base, to which no layer writes.
            cache_config.mode = Mode::ReadOnly;
        }
        let (identity, identities) = (remotes.identity(), remotes.identities());
        let is_shared = config.settings.is_on("shared");
        if !is_shared {
            check_alone(&config, &remotes)?;
        }
        let lock = match config.difference.is_some() || is_shared {
            true => UnitLock::share(paths, &identities, &config.name)?,
            false => UnitLock::acquire(paths, &identities, &config.name)?,
        };
        let (registry, caches) = (Registry::open(paths)?, Caches::open(paths)?);
        let cache_place = config.cache.as_ref().map(|cache| cache.place(&identity)).transpose()?;
        let log_place = config.log.as_ref().map(|log| log.place(&identity)).transpose()?;
        let places: Vec<&Place> = cache_place.iter().chain(&log_place).collect();
        newest_data::check_registered(&remotes, &registry, &places)?;
        check_stores(&config, [cache_place.as_ref(), log_place.as_ref()], (&registry, &caches), &identity)?;
        let guard = Arc::new(DirtyGuard::of(&Use::Attachment(config.name.clone()), &remotes));
        let free_places = places.into_iter().filter(|place| !place.path.exists()).cloned().collect();
        Ok(Self {
            device: remotes.device(),
            early_entries: EarlyEntries::of(&registry),
            config,
            paths,
            clock,
            remotes,
            identity,
            identities,
            registry,
            caches,
            cache_place,
            log_place,
            cache: None,
            cache_parts: None,
            log: None,
            difference: None,
            difference_file: None,
            base: None,
            freshness: FreshnessStatus::default(),
            held_marks: Vec::new(),
            guard,
            entries: Vec::new(),
            background: JoinSet::new(),
            destaging: None,
            lock,
            free_places,
        })
    }

    /// Opens all stores.
    ///
    /// # Errors
    /// Whatever prevents it.
    pub(super) async fn run(&mut self) -> Result<()> {
        let places: Vec<&Place> = self.cache_place.iter().chain(&self.log_place).collect();
        newest_data::check_listed(&self.remotes, &self.caches, &places, self.clock.as_ref()).await?;
        if self.config.difference.is_none() {
            release_marks(&self.remotes, &self.caches).await;
        }
        // Before the cache runs: its cleaning counts as this host's own only once the log's mark is
        // held, too.
        let log_assessed = match &self.log_place {
            Some(place) => {
                let promise = Promise { overwrites_changes: self.config.overwrites_changes, ..Promise::default() };
                Some(assess(&self.remotes, &self.caches, Store::Log, place, promise).await?)
            }
            None => None,
        };
        let cache_assessed = self.assess_cache().await?;
        if self.config.difference.is_none() {
            // Not before the targets have told what others changed: an attach that finds them silent notes nothing.
            let places: Vec<&Place> = self.cache_place.iter().chain(&self.log_place).collect();
            note_writable_opening(&self.caches, &self.identities, &places)?;
        }
        if let Some((assessed, memory_max)) = cache_assessed {
            self.open_cache(assessed, memory_max).await?;
        }
        if let Some(assessed) = log_assessed {
            self.open_log(assessed).await?;
        }
        self.open_difference().await?;
        let is_write_back = self.config.cache.as_ref().is_some_and(|cache| cache.mode.delays_writes());
        self.early_entries.update(&self.entries, Store::Cache, is_write_back)?;
        self.early_entries.update(&self.entries, Store::Log, self.config.log.is_some())
    }

    /// What others changed beside the cache, if there is one, and the memory that is left for it.
    async fn assess_cache(&self) -> Result<Option<(Assessed, Option<u64>)>> {
        let (Some(config), Some(place)) = (&self.config.cache, &self.cache_place) else { return Ok(None) };
        let memory_max = memory_left(self.paths, config, &self.config.name).await?;
        let promise = Promise {
            is_exclusive: config.is_exclusive,
            has_generation: config.generation.is_some(),
            is_shared: self.config.settings.is_on("shared"),
            overwrites_changes: self.config.overwrites_changes,
        };
        let assessed = assess(&self.remotes, &self.caches, Store::Cache, place, promise).await?;
        Ok(Some((assessed, memory_max)))
    }

    async fn open_cache(&mut self, assessed: Assessed, memory_max: Option<u64>) -> Result<()> {
        let (Some(config), Some(place)) = (self.config.cache.clone(), self.cache_place.clone()) else { return Ok(()) };
        let (name, overwrites) = (self.config.name.clone(), self.config.overwrites_changes);
        let (origin, clock) = (Arc::clone(&self.device), Arc::clone(&self.clock));
        let since = (&assessed, overwrites);
        let (opened, device_bytes) = config.open(&place, &self.caches, origin, clock, memory_max, since).await?;
        if self.config.difference.is_some() {
            check_nothing_dirty(&opened, &place)?;
        }
        // Dirty data was compared with what others had written before the targets were asked. Until
        // it is known that others wrote nothing since, none of it may overwrite their data.
        opened.hold_cleaning();
        let running = Arc::clone(&opened);
        self.background.spawn(base::background::named("cache", async move { running.run().await }));
        self.cache = Some(Arc::clone(&opened));
        let uuid = uuid_at(&place);
        let entry = |identity: &Identity| Entry { uuid, ..Entry::new(identity, &place, &name) };
        self.entries.extend(self.identities.iter().map(entry));
        let record = StoreRecord::new(&place, device_bytes, &self.identity, &name);
        claim_dirty(&opened, &self.remotes.device(), &place).await?;
        let (reported, marks) = assessed.commit(&self.caches, record, (&*opened, overwrites)).await?;
        self.guard.put(&place, Store::Cache, opened.clone(), overwrites);
        opened.begin_cleaning();
        self.freshness.cache = Some(reported);
        self.held_marks.push(marks);
        let switch = Arc::new(SwitchLayer::new(opened.clone()));
        self.background.spawn(base::background::named("cache-switch", switch.run()));
        self.early_entries.note_cache(&opened, &switch);
        if self.config.log.is_some() && config.mode.delays_writes() {
            // A log with old dirty data destages to the cache as soon as it can.
            self.early_entries.update(&self.entries, Store::Cache, true)?;
        }
        self.device = switch.clone();
        let fixed_bytes = place.fixed_bytes(device_bytes);
        let clock = Arc::clone(&self.clock);
        self.cache_parts = Some(CacheParts::new(config, place, fixed_bytes, clock, switch, self.paths.clone()));
        Ok(())
    }

    async fn open_log(&mut self, assessed: Assessed) -> Result<()> {
        let (Some(config), Some(place)) = (&self.config.log, &self.log_place) else { return Ok(()) };
        let (name, overwrites) = (self.config.name.clone(), self.config.overwrites_changes);
        let kept = assessed.kept(overwrites);
        let (origin, clock) = (Arc::clone(&self.device), Arc::clone(&self.clock));
        let names = (&self.identities[..], name.as_str(), kept);
        let (opened, ours, device_bytes) =
            config.open(place, &self.caches, origin, clock, &self.registry, names).await?;
        self.log = Some(Arc::clone(&opened));
        let record = StoreRecord::new(place, device_bytes, &self.identity, &name);
        let (reported, marks) = assessed.commit(&self.caches, record, (&*opened, overwrites)).await?;
        self.guard.put(place, Store::Log, opened.clone(), overwrites);
        self.freshness.log = Some(reported);
        self.held_marks.push(marks);
        self.entries.extend(ours);
        self.background.spawn(base::background::named("log-requests", opened.run_requests()));
        let destaging = base::background::named("destaging", opened.run_destaging());
        self.destaging = Some(WorkerThread::start("destaging", destaging)?);
        self.early_entries.note_log(&opened);
        self.device = opened;
        Ok(())
    }

    async fn open_difference(&mut self) -> Result<()> {
        let Some(config) = &self.config.difference else { return Ok(()) };
        let place = config.place(&self.identity)?;
        let (base, name) = (Arc::clone(&self.device), &self.config.name);
        let (layer, file) = config.open(&place, (&self.caches, self.paths), base, name).await?;
        let base = BaseOf { difference: &layer, place: &place, name: &self.config.name };
        self.base = Some(base.check(&self.remotes, self.config.overwrites_changes).await?);
        self.background.spawn(base::background::named("difference", layer.run()));
        self.background.spawn(base::background::named("difference-file", Arc::clone(&file).watch()));
        self.device = layer.clone();
        self.difference = Some(layer);
        self.difference_file = Some(file);
        Ok(())
    }

    /// Removes a new store of which nothing could be recorded: it was never served, and would be
    /// taken for an old one. Only while it is open: a place that this process has not locked may
    /// belong to another one that took it first. No layer above it can have put data into it.
    fn remove_unrecorded(&self) {
        let cache_place = self.cache_place.as_ref().filter(|_| self.cache.is_some() && self.log.is_none());
        let log_place = self.log_place.as_ref().filter(|_| self.log.is_some());
        for place in cache_place.into_iter().chain(log_place).filter(|place| self.free_places.contains(place)) {
            if matches!(self.caches.find(place), Ok(None)) {
                // The caller of attach has an error already.
                let _ = std::fs::remove_file(&place.path);
            }
        }
    }

    /// Closes what was opened, in order: a cache loses nothing when the log over it cannot be
    /// opened. Once `interrupted` is raised, a target is not waited for.
    pub(super) async fn undo(mut self, interrupted: &Sender<bool>) {
        self.remove_unrecorded();
        close_unserved(self.log.take(), self.cache.clone()).await;
        // Other processes may be about to use the marks of a base: only a writer of the LUN removes
        // marks.
        if self.config.difference.is_some() {
            return;
        }
        let too_long = async {
            wait_until(interrupted).await;
            tokio::time::sleep(CLOSE_STEP_TIME_MIN).await;
        };
        tokio::select! {
            () = release_refused(&self.remotes, &self.caches) => {}
            () = too_long => {}
        }
    }
}

/// Refuses to cache a LUN that others may change at any time, where copies are not called back.
///
/// # Errors
/// `Usage`, saying what to do.
fn check_alone(config: &StackConfig, remotes: &Remotes) -> Result<()> {
    let is_promised = config.cache.as_ref().is_some_and(|cache| cache.is_exclusive == Some(true));
    let keeps_any = config.cache.is_some() || config.log.is_some();
    let is_sharable = |lun: &Arc<RemoteLun>| lun.sharing_support().is_some();
    if !keeps_any || is_promised || !remotes.member_luns().iter().flat_map(|member| &member.luns).any(is_sharable) {
        return Ok(());
    }
    let message = "this logical unit is served with the option \"shared\": other hosts may change it while a cache \
                   here does not hear of it. Attach it with --shared, or without a cache and a log, or say with \
                   --set cache.exclusive=on that nobody else writes to it";
    Err(Error::new(Failure::Usage, message))
}

/// Refuses what cannot be opened or made in the places of the cache and of the log, before any
/// store is.
fn check_stores(
    config: &StackConfig,
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
                    "the cache {cache} and the write log {log} would lie over each other: give the log an offset \
                     behind the cache, or before it"
                )
            }
            _ => format!(
                "the cache and the write log cannot both be in {}: give each a place of its own",
                log.path.display()
            ),
        };
        return Err(Error::new(Failure::Usage, message));
    }
    let is_any_taken = config.overwrites_changes;
    if let (Some(cache), Some(place)) = (&config.cache, cache_place) {
        check_takes_writes(cache.mode, config.log.is_some())?;
        cache.check_not_lost(place, registry.find(identity, Store::Cache)?.as_ref(), (caches, is_any_taken))?;
        check_can_be_made(PlaceKind::Cache, place, cache.size_bytes)?;
    }
    if let (Some(log), Some(place)) = (&config.log, log_place) {
        log.check_not_lost(place, registry.find(identity, Store::Log)?.as_ref(), is_any_taken)?;
        check_can_be_made(PlaceKind::Log, place, log.size_bytes)?;
    }
    Ok(())
}

/// Closes what was opened for an attachment that failed, in order: a cache loses nothing when the
/// log over it cannot be opened.
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

/// Refuses a cache below a difference that would clean dirty data: the LUN must not change.
fn check_nothing_dirty(cache: &Cache, place: &Place) -> Result<()> {
    let dirty_bytes = cache.status().dirty_bytes;
    if dirty_bytes == 0 {
        return Ok(());
    }
    let message = format!(
        "the cache {place} holds {dirty_bytes} bytes that the logical unit does not have, and with --difference it \
         would get none: attach it without, and detach, which writes them back"
    );
    Err(Error::new(Failure::WouldLoseData, message))
}
