//! A stack: a remote LUN, perhaps behind a cache and a write log, as one device that fronts offer
//! to applications.
//!
//! ```text
//! difference  ->  write log, cache, both or none  ->  remote LUN, or several as one
//! ```
//!
//! Order of the beginning: connect (errors are returned at once), then as in [`opening`]. Order of
//! the end: the users of the device finish their requests; then the log is closed, and then the
//! cache below it, each cleaned first unless its dirty data is to be kept; then log out. A store is
//! removed from the registry if nothing dirty is left in it.
//!
//! `opening` is the beginning, `ending` the end, `flushing` a flush that no application asks for,
//! `settings` the changes while it runs, `status` the status.
//!
//! With both, data that the log destages is clean in the log once the cache has it durably. So the
//! newest data may be in either, and the LUN is refused without a store that holds any.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use base::clock::Clock;
use block::SharedDevice;
use block::layer::loss_record::LossRecordLayer;
use block::losses::{LossReader, Losses};
use block::range_lock::RangeLock;
use cache::Cache;
use difference::Difference;
use front::Admission;
use tokio::sync::watch::Sender;
use tokio::task::JoinSet;
use writelog::WriteLog;

use crate::base_content::Base;
use crate::caches::Caches;
use crate::content::ends_early;
use crate::difference_file::DifferenceFile;
use crate::dirty_guard::DirtyGuard;
use crate::ending_time::EndingTime;
use crate::error::{Error, Result};
use crate::flag::wait_until;
use crate::held_marks::MarkRenewal;
use crate::paths::Paths;
use crate::place::Place;
use crate::registry::{Entry, Registry, Store, UnitLock};
use crate::remotes::Remotes;
use crate::settings::Settings;
use crate::status::start::StartStatus;
use crate::status::stores::FreshnessStatus;
use crate::watch;
use crate::worker_thread::WorkerThread;

mod cache_parts;
mod claiming;
mod comparison;
mod config;
mod early_entries;
mod ending;
mod flushing;
mod opening;
mod settings;
mod status;

use cache_parts::CacheParts;
pub use config::StackConfig;
pub(crate) use ending::Ending;
use opening::Opening;

/// An open stack.
pub struct Stack {
    name: String,
    remotes: Remotes,
    /// The cache, which another may replace.
    cache: RefCell<Option<Arc<Cache>>>,
    /// What is needed to replace the cache.
    cache_parts: Option<CacheParts>,
    /// The cache that is about to replace the present one.
    successor: RefCell<Option<Arc<Cache>>>,
    log: Option<Arc<WriteLog>>,
    /// What others did to the LUN before it was attached, as far as it is known: for the cache, and
    /// for the log.
    freshness: FreshnessStatus,
    /// The base of the difference.
    base: Option<Base>,
    /// Decides about what is dirty when others changed the LUN meanwhile.
    guard: Arc<DirtyGuard>,
    /// Renews the tokens of the marks; `None` once it is closed.
    renewal: RefCell<Option<MarkRenewal>>,
    difference: Option<Arc<Difference>>,
    difference_file: Option<Arc<DifferenceFile>>,
    /// The topmost device.
    device: Arc<LossRecordLayer>,
    /// The losses of which those were told who flush by the control socket.
    flush_losses: RefCell<LossReader>,
    /// The lock for changes of less than a block.
    turns: RangeLock,
    /// The turns of those who ask for much.
    admission: Arc<Admission>,
    /// The background tasks of all layers; they stop when this is dropped.
    background: RefCell<JoinSet<()>>,
    /// Level 2 of the log.
    destaging: RefCell<Option<WorkerThread>>,
    /// The registry's entries for the cache and the log: for each one entry for the device, or one
    /// for each of its LUNs.
    entries: RefCell<Vec<Entry>>,
    registry: Registry,
    caches: Caches,
    /// `true` once the device is not used any more.
    unused: Sender<bool>,
    ending_time: EndingTime,
    /// `true` once everything is closed.
    ended: Sender<bool>,
    /// The error of the end, if it failed.
    failed_end: OnceCell<Error>,
    /// What it was started with.
    start: StartStatus,
    /// The settings, with later changes.
    settings: RefCell<Settings>,
    _lock: UnitLock,
}

impl Stack {
    /// Connects and opens. `None` when `interrupted` was raised before that was done: what was
    /// opened is closed then.
    ///
    /// # Errors
    /// Whatever prevents it; nothing is changed then.
    pub async fn open(
        config: StackConfig,
        paths: &Paths,
        clock: Arc<dyn Clock>,
        interrupted: &Sender<bool>,
    ) -> Result<Option<Self>> {
        let remotes = tokio::select! {
            biased;
            () = wait_until(interrupted) => return Ok(None),
            connected = config.remotes.connect(&clock) => connected?,
        };
        Self::over(remotes, config, paths, clock, interrupted).await
    }

    /// Opens the stack after the login.
    ///
    /// # Errors
    /// As [`Stack::open`].
    pub(crate) async fn over(
        remotes: Remotes,
        config: StackConfig,
        paths: &Paths,
        clock: Arc<dyn Clock>,
        interrupted: &Sender<bool>,
    ) -> Result<Option<Self>> {
        let mut opening = Opening::prepare(remotes, config, paths, clock)?;
        let opened = tokio::select! {
            biased;
            () = wait_until(interrupted) => Ok(None),
            opened = opening.run() => opened.map(Some),
        };
        match opened {
            Ok(Some(())) => Ok(Some(Self::of(opening))),
            Ok(None) => {
                opening.undo(interrupted).await;
                Ok(None)
            }
            Err(error) => {
                opening.undo(interrupted).await;
                Err(error)
            }
        }
    }

    /// The stack of what was opened.
    fn of(opening: Opening<'_>) -> Self {
        opening.early_entries.keep();
        let device = Arc::new(LossRecordLayer::new(opening.device, opening.clock));
        let mut background = opening.background;
        background.spawn(base::background::named("loss-record", device.run()));
        Self {
            ending_time: EndingTime::new(&opening.config.name),
            start: opening.config.start_status(),
            name: opening.config.name,
            remotes: opening.remotes,
            cache: RefCell::new(opening.cache),
            cache_parts: opening.cache_parts,
            successor: RefCell::default(),
            log: opening.log,
            freshness: opening.freshness,
            base: opening.base,
            renewal: RefCell::new(Some(MarkRenewal::start(opening.held_marks, Some(&opening.guard)))),
            guard: opening.guard,
            difference: opening.difference,
            difference_file: opening.difference_file,
            flush_losses: RefCell::new(device.losses().reader()),
            device,
            turns: RangeLock::new(),
            admission: Arc::default(),
            background: RefCell::new(background),
            destaging: RefCell::new(opening.destaging),
            entries: RefCell::new(opening.entries),
            registry: opening.registry,
            caches: opening.caches,
            unused: Sender::new(false),
            ended: Sender::new(false),
            failed_end: OnceCell::new(),
            settings: RefCell::new(opening.config.settings),
            _lock: opening.lock,
        }
    }

    /// Notes that the attach has gone through: nothing can refuse it any more, and what the user took at it, a changed
    /// base or what is left of a difference, is taken.
    ///
    /// # Errors
    /// When that cannot be noted.
    pub(crate) async fn note_attached(&self) -> Result<()> {
        if let Some(base) = &self.base {
            base.note().await?;
        }
        self.difference_file.as_ref().map_or(Ok(()), |file| file.accept())
    }

    /// The device, for its fronts.
    pub fn device(&self) -> SharedDevice {
        Arc::clone(&self.device) as SharedDevice
    }

    /// The losses that its flushes have reported.
    pub fn losses(&self) -> Arc<Losses> {
        Arc::clone(self.device.losses())
    }

    /// The lock for changes of less than a block of the device.
    pub fn turns(&self) -> RangeLock {
        self.turns.clone()
    }

    /// The turns of those who ask for much of the device, over the clients of all fronts.
    pub fn admission(&self) -> Arc<Admission> {
        Arc::clone(&self.admission)
    }

    /// The name of the attachment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Raised once it is to stop: the users of the device finish, and call [`Self::note_unused`].
    pub(crate) fn stopping(&self) -> &Sender<bool> {
        self.ending_time.stopping()
    }

    /// Notes that the device is not used any more.
    pub(crate) fn note_unused(&self) {
        self.unused.send_replace(true);
    }

    /// Raised once everything is closed.
    pub(crate) fn ended(&self) -> &Sender<bool> {
        &self.ended
    }

    /// The error of the end, if it failed.
    ///
    /// # Errors
    /// That of the caller that asked for the end, unless only another caller ended it at once.
    pub(crate) fn check_end(&self) -> Result<()> {
        self.failed_end.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Ends the background tasks of all layers, once everything is closed.
    pub(crate) fn stop_background(&self) {
        self.background.borrow_mut().abort_all();
        drop(self.destaging.take());
    }

    /// Updates the registry, which names the cache or the log while it may hold data that the layer
    /// below lacks: in write-back, and while anything is dirty.
    fn update_registry(&self, store: Store, may_become_dirty: bool) -> Result<()> {
        let entries = self.entries.borrow();
        let mut entries = entries.iter().filter(|entry| entry.store == store);
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

    /// The present cache.
    pub(crate) fn cache(&self) -> Option<Arc<Cache>> {
        self.cache.borrow().clone()
    }

    /// Bytes of data that the LUN lacks.
    fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes_in(Store::Cache) + self.dirty_bytes_in(Store::Log)
    }

    async fn wait_for_stop(&self) {
        wait_until(self.stopping()).await;
    }

    /// Places of those stores whose file was removed: their data is lost with this process.
    fn gone(&self, is_meant: impl Fn(&Entry) -> bool) -> BTreeSet<Place> {
        let entries = self.entries.borrow();
        let places = entries.iter().filter(|entry| is_meant(entry)).map(Entry::place);
        places.filter(watch::is_gone).collect()
    }

    /// Removed stores with data that the LUN lacks: there is no other copy of it.
    fn gone_with_dirty(&self) -> BTreeSet<Place> {
        self.gone(|entry| self.dirty_bytes_in(entry.store) > 0)
    }

    /// Stores with data that the LUN lacks, whose file was cut: it is now, or a cache's was found so
    /// once.
    fn cut_with_dirty(&self) -> BTreeSet<(Place, Store)> {
        let entries = self.entries.borrow();
        let dirty = entries.iter().filter(|entry| self.dirty_bytes_in(entry.store) > 0);
        let is_cut =
            |entry: &&Entry| ends_early(&entry.place()) || entry.store == Store::Cache && self.has_failed(entry);
        dirty.filter(is_cut).map(|entry| (entry.place(), entry.store)).collect()
    }

    /// Whether the registry notes that the store of `entry` has failed. What cannot be read now is
    /// refused by the next attach.
    fn has_failed(&self, entry: &Entry) -> bool {
        self.registry.has_failed(entry).unwrap_or_default()
    }
}
