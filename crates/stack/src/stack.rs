//! A stack: a remote LUN, perhaps behind a cache and a write log, as one device for whoever offers it to applications.
//!
//! ```text
//! difference  ->  write log, cache, both or none  ->  remote LUN, or several as one
//! ```
//!
//! Order of the beginning: connect (errors show at once), then what [`opening`] says. Order of the end: whoever uses
//! the device finishes what is under way, then the log is closed, then the cache below it (bringing down what is dirty
//! unless it is to be kept), log out; each is struck from the registry if nothing dirty is left in it.
//!
//! `opening` is the beginning, `ending` the end, `settings` what can be changed meanwhile, `status` what it says of
//! itself.
//!
//! With both, what the log destages is clean there once the cache has it, durably. So the newest data may be in either,
//! and the LUN is refused without the one that holds any.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use base::clock::Clock;
use block::SharedDevice;
use block::range_lock::RangeLock;
use cache::Cache;
use difference::Difference;
use tokio::sync::watch::Sender;
use tokio::task::JoinSet;
use writelog::WriteLog;

use crate::caches::Caches;
use crate::content::ends_early;
use crate::ending_time::EndingTime;
use crate::error::{Error, Result};
use crate::flag::wait_until;
use crate::held_marks::MarkRenewal;
use crate::paths::Paths;
use crate::place::Place;
use crate::registry::{Entry, Registry, Store, UnitLock};
use crate::remotes::Remotes;
use crate::settings::Settings;
use crate::status::stores::Freshness;
use crate::watch;
use crate::worker_thread::WorkerThread;

mod cache_parts;
mod claiming;
mod comparison;
mod config;
mod early_entries;
mod ending;
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
    /// The cache, which may be replaced by another.
    cache: RefCell<Option<Arc<Cache>>>,
    /// What a cache is replaced with.
    cache_parts: Option<CacheParts>,
    /// The cache that is to take the place of the one there is.
    successor: RefCell<Option<Arc<Cache>>>,
    log: Option<Arc<WriteLog>>,
    /// What others did to the LUN before it was attached, as far as it is known: for the cache, and for the log.
    freshness: Freshness,
    /// Gives the marks other tokens; `None` once it is closed.
    renewal: RefCell<Option<MarkRenewal>>,
    difference: Option<Arc<Difference>>,
    /// The topmost device.
    device: SharedDevice,
    /// Where those who change less than a block take turns.
    turns: RangeLock,
    /// The work of all layers; it stops when this is dropped.
    background: RefCell<JoinSet<()>>,
    /// Level 2 of the log.
    destaging: RefCell<Option<WorkerThread>>,
    /// What the registry says of the cache and of the log: for each an entry for the device, or one for each LUN it is
    /// made of.
    entries: Vec<Entry>,
    registry: Registry,
    caches: Caches,
    /// `true` once it is to stop.
    stopping: Sender<bool>,
    /// `true` once nobody uses the device any more.
    unused: Sender<bool>,
    ending_time: EndingTime,
    /// `true` once everything is closed.
    ended: Sender<bool>,
    /// Why the end left what it should not.
    failed_end: OnceCell<Error>,
    /// What was chosen, and what was changed since.
    settings: RefCell<Settings>,
    _lock: UnitLock,
}

impl Stack {
    /// Connects and opens. `None` when `interrupted` was raised before that was done, wherever it waited: what was
    /// opened is closed then.
    ///
    /// # Errors
    /// Whatever stands in the way, with nothing changed.
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

    /// What follows the login.
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

    /// What was opened.
    fn of(opening: Opening<'_>) -> Self {
        opening.early_entries.keep();
        Self {
            ending_time: EndingTime::new(&opening.config.name),
            name: opening.config.name,
            remotes: opening.remotes,
            cache: RefCell::new(opening.cache),
            cache_parts: opening.cache_parts,
            successor: RefCell::default(),
            log: opening.log,
            freshness: opening.freshness,
            renewal: RefCell::new(Some(MarkRenewal::start(opening.held_marks))),
            difference: opening.difference,
            device: opening.device,
            turns: RangeLock::new(),
            background: RefCell::new(opening.background),
            destaging: RefCell::new(opening.destaging),
            entries: opening.entries,
            registry: opening.registry,
            caches: opening.caches,
            stopping: Sender::new(false),
            unused: Sender::new(false),
            ended: Sender::new(false),
            failed_end: OnceCell::new(),
            settings: RefCell::new(opening.config.settings),
            _lock: opening.lock,
        }
    }

    /// The device, for whoever offers it.
    pub fn device(&self) -> SharedDevice {
        Arc::clone(&self.device)
    }

    /// Where those who change less than a block of it take turns.
    pub fn turns(&self) -> RangeLock {
        self.turns.clone()
    }

    /// The name of the attachment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Raised once it is to stop: who uses the device finishes, and says so.
    pub(crate) fn stopping(&self) -> &Sender<bool> {
        &self.stopping
    }

    /// Nobody uses the device any more.
    pub(crate) fn note_unused(&self) {
        self.unused.send_replace(true);
    }

    /// Raised once everything is closed.
    pub(crate) fn ended(&self) -> &Sender<bool> {
        &self.ended
    }

    /// What went wrong at the end, whoever asked for it.
    ///
    /// # Errors
    /// What was told who asked, unless it is only that somebody else ended it at once.
    pub(crate) fn check_end(&self) -> Result<()> {
        self.failed_end.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Ends the work of all layers, once everything is closed.
    pub(crate) fn stop_background(&self) {
        self.background.borrow_mut().abort_all();
        drop(self.destaging.take());
    }

    /// The registry names the cache or the log as long as it may hold what is below lacks: in write-back, and while
    /// anything is dirty.
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
    pub(crate) fn cache(&self) -> Option<Arc<Cache>> {
        self.cache.borrow().clone()
    }

    /// What the LUN lacks, in bytes.
    fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes_in(Store::Cache) + self.dirty_bytes_in(Store::Log)
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

    /// Places of data that the LUN lacks, which end before that does.
    fn cut_with_dirty(&self) -> BTreeSet<Place> {
        let dirty = self.entries.iter().filter(|entry| self.dirty_bytes_in(entry.store) > 0);
        dirty.map(Entry::place).filter(ends_early).collect()
    }
}
