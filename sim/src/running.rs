//! A stack in one life, from its opening on.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::clock::Clock;
use base::executor::Executor;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Power};
use block::layer::delay::Latency;
use block::layer::shared_flush::SharedFlushLayer;
use block::layer::switch::SwitchLayer;
use block::{Error, ErrorKind, SharedDevice};
use cache::{Cache, ConflictingChanges, Freshness, Mode, Stranded};
use difference::Difference;
use writelog::{PersistentRegion, WriteLog};

use crate::away::Unseen;
use crate::choice::Choice;
use crate::late_loss::LateLossLayer;
use crate::made::Slots;
use crate::media::Media;
use crate::second_thread::SecondThread;

/// Pause between the copying of clean lines and the hand-over.
const REPLACE_PAUSE: Duration = Duration::from_millis(3);

/// An open stack, and its layers.
#[derive(Clone)]
pub struct Running {
    /// The top layer, for the application's requests.
    pub top: SharedDevice,
    /// Whether other hosts changed data that a store has dirty, so that the store may have
    /// overwritten their change.
    pub is_conflicting: bool,
    cache: Option<Arc<CachePart>>,
    log: Option<Arc<WriteLog>>,
    difference: Option<Arc<Difference>>,
    /// The thread of level 2, if it has its own.
    level2: Option<Arc<SecondThread>>,
    /// The changes noted while there is no cache.
    unseen_by_cache: Option<Unseen>,
}

/// A cache that may be replaced while requests go on.
struct CachePart {
    /// The cache with the requests. Short sections, never across an await.
    current: Mutex<Arc<Cache>>,
    /// Held by a replacement or a close.
    changing: futures_util::lock::Mutex<()>,
    switch: Arc<SwitchLayer>,
    successor: Successor,
}

/// The devices and options of a successor.
struct Successor {
    device: SharedDevice,
    lun: SharedDevice,
    format: cache::FormatOptions,
    open: cache::OpenOptions,
    workers: Workers,
    /// The power of the host.
    power: Power,
    /// Index of the cache that the next start finds; `index` is that of the successor.
    cache_index: Arc<AtomicUsize>,
    index: usize,
}

impl CachePart {
    fn current(&self) -> Arc<Cache> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the cache, once in a life. Fails when the power is lost.
    async fn replace(&self, clock: &dyn Clock) -> Result<(), Error> {
        let _changing = self.changing.lock().await;
        let Successor { device, lun, format, open, workers, power, cache_index, index } = &self.successor;
        if cache_index.load(Ordering::Relaxed) == *index {
            return Ok(());
        }
        let old = self.current();
        Cache::format(device, lun, cache::FormatOptions { crash_mode: old.status().crash_mode, ..*format }).await?;
        let open = cache::OpenOptions { crash_mode: None, mode: old.mode(), ..open.clone() };
        let new = old.open_successor(Arc::clone(device), Arc::clone(lun), open).await?;
        workers.spawn(new.run());
        old.copy_to(&new, |_| {}).await?;
        // Time for writes, whose old data the successor must not keep.
        clock.sleep(REPLACE_PAUSE).await;
        self.switch.hold();
        let handed = old.hand_over(&new).await;
        // The replacement writes a name on the host's devices: not possible without their power.
        let is_possible = !power.is_lost();
        match handed {
            Ok(hand_over) if is_possible => {
                cache_index.store(*index, Ordering::Relaxed);
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&new);
                self.switch.release(Some(new));
                hand_over.finish();
                Ok(())
            }
            handed => {
                drop(handed);
                self.switch.release(None);
                new.leave().await;
                Err(ErrorKind::Gone.into())
            }
        }
    }
}

impl Media {
    /// Begins a life. The stores are opened with the changes by other hosts, which are forgotten
    /// once it has begun.
    ///
    /// # Errors
    /// The error of an opening; only a loss of power or faults cause one.
    pub fn open(&mut self, executor: &mut Executor, choice: &Choice) -> Result<Running, Error> {
        let number = self.next_number();
        let mut is_conflicting = self.is_conflicting;
        let opened = self.open_over(executor, &self.lun, choice, number, &mut is_conflicting);
        // An opening that failed may have overwritten changes already.
        self.is_conflicting = is_conflicting && opened.is_err();
        if opened.is_ok() {
            self.forget_changed();
        }
        opened
    }

    /// Whether a stack refuses another LUN in place of its own, or its own in blocks of another
    /// size, and leaves that unchanged.
    pub fn refuses_other_lun(&self, executor: &mut Executor, choice: &Choice, has_other_blocks: bool) -> bool {
        let other = self.other_lun(has_other_blocks);
        self.open_over(executor, &other, choice, 0, &mut false).is_err() && other.writes_seen() == 0
    }

    /// Opens a stack over `lun`. `number` is that of the cache that may become the successor.
    fn open_over(
        &self,
        executor: &mut Executor,
        lun: &CrashLayer,
        choice: &Choice,
        number: u8,
        is_conflicting: &mut bool,
    ) -> Result<Running, Error> {
        let lun = self.told_late(executor, lun);
        let level2 = choice.has_second_thread.then(|| Arc::new(SecondThread::new()));
        level2.iter().for_each(|thread| executor.beside(thread.idle()));
        let mut running = Running { unseen_by_cache: self.unseen_by_cache(), ..Running::of(&lun, level2) };
        if self.layers.has_cache() {
            self.add_cache(executor, &mut running, choice, number, is_conflicting)?;
        }
        if self.layers.has_log() {
            let has_nvram = self.made.slots == Slots::Nvram;
            let nvram = has_nvram.then(|| Arc::clone(&self.nvram) as Arc<dyn PersistentRegion>);
            let mut options = choice.log_options(executor, nvram);
            let (note, power) = (Arc::clone(&self.is_log_noted), self.log.power().clone());
            options.failure_note = choice.notes_log_failure.then_some(Arc::new(move || {
                // A host without power keeps no note.
                let is_on = !power.is_lost();
                note.fetch_or(is_on, Ordering::Relaxed);
                is_on
            }));
            let (device, below) = (of_host(executor, &self.log, choice), Arc::clone(&running.top));
            let log = unless_conflicting(is_conflicting, |overwrites| {
                let kept_changes = if overwrites { Vec::new() } else { self.changed.clone() };
                let options = writelog::OpenOptions { kept_changes, ..options.clone() };
                executor.block_on(WriteLog::open(Arc::clone(&device), Arc::clone(&below), options))
            })?;
            // Two tasks: on one thread the executor's seed mixes their steps, and neither begins
            // inside the other.
            executor.spawn(log.run_requests());
            running.spawn_level2(executor, log.run_destaging());
            running.top = log.clone();
            running.log = Some(log);
        }
        if self.layers.has_difference() {
            let difference = of_host(executor, &self.difference, choice);
            let layer = Arc::new(executor.block_on(Difference::open(difference, Arc::clone(&running.top), None))?);
            executor.spawn(layer.run());
            running.top = layer.clone();
            running.difference = Some(layer);
        }
        running.is_conflicting = *is_conflicting;
        Ok(running)
    }

    /// The LUN with latencies, and with its ordered loss.
    fn told_late(&self, executor: &mut Executor, medium: &CrashLayer) -> SharedDevice {
        let (inner, workers) = (timed(executor, medium, 700), Workers::new());
        let (medium, loss, others) = (medium.clone(), Arc::clone(&self.late_loss), workers.clone());
        executor.spawn(async move { others.run().await });
        Arc::new(LateLossLayer { inner, medium, loss, workers })
    }

    fn add_cache(
        &self,
        executor: &mut Executor,
        running: &mut Running,
        choice: &Choice,
        number: u8,
        is_conflicting: &mut bool,
    ) -> Result<(), Error> {
        let mut options = choice.cache_options(executor);
        if self.layers.has_difference() {
            options.mode = Mode::ReadOnly;
        }
        let (device, lun) = (of_host(executor, self.cache(), choice), Arc::clone(&running.top));
        let cache = unless_conflicting(is_conflicting, |overwrites_changes| {
            let freshness = Freshness::Changed(self.told_to_cache());
            let options = cache::OpenOptions { freshness, overwrites_changes, ..options.clone() };
            executor.block_on(Cache::open(Arc::clone(&device), Arc::clone(&lun), options))
        })?;
        let switch = Arc::new(SwitchLayer::new(cache.clone()));
        let workers = Workers::new();
        let others = workers.clone();
        running.spawn_level2(executor, cache.run());
        executor.spawn(switch.run());
        executor.spawn(async move { others.run().await });
        let index = 1 - self.cache_index.load(Ordering::Relaxed);
        let successor = Successor {
            device: of_host(executor, &self.caches[index], choice),
            lun,
            format: self.made.cache_options(number),
            open: options,
            workers,
            power: self.cache().power().clone(),
            cache_index: Arc::clone(&self.cache_index),
            index,
        };
        running.top = switch.clone();
        let (current, changing) = (Mutex::new(cache), futures_util::lock::Mutex::new(()));
        running.cache = Some(Arc::new(CachePart { current, changing, switch, successor }));
        Ok(())
    }
}

/// Opens a store, and once more on a conflict with changes by other hosts: the user then decides
/// for the store's data.
fn unless_conflicting<T>(
    is_conflicting: &mut bool,
    mut open: impl FnMut(bool) -> Result<T, Error>,
) -> Result<T, Error> {
    match open(false) {
        Err(error) if ConflictingChanges::of(&error).is_some() => {
            *is_conflicting = true;
            open(true)
        }
        opened => opened,
    }
}

/// A device whose requests take time.
fn timed(executor: &mut Executor, medium: &CrashLayer, micros_max: u64) -> SharedDevice {
    let workers = Workers::new();
    let latency = Latency::Between(Duration::ZERO, Duration::from_micros(micros_max));
    let timed = medium.clone().with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    Arc::new(timed)
}

/// A device of the host, with the options of this life.
fn of_host(executor: &mut Executor, medium: &CrashLayer, choice: &Choice) -> SharedDevice {
    let device = timed(executor, medium, 100);
    if !choice.shares_flushes {
        return device;
    }
    let workers = Workers::new();
    let layer = SharedFlushLayer::new(device, &workers);
    executor.spawn(async move { workers.run().await });
    Arc::new(layer)
}

impl Running {
    /// A bare LUN.
    fn of(lun: &SharedDevice, level2: Option<Arc<SecondThread>>) -> Self {
        Self {
            top: Arc::clone(lun),
            is_conflicting: false,
            cache: None,
            log: None,
            difference: None,
            level2,
            unseen_by_cache: None,
        }
    }

    fn spawn_level2(&self, executor: &mut Executor, task: impl Future<Output = ()> + Send + 'static) {
        match &self.level2 {
            Some(thread) => thread.spawn(Box::pin(task)),
            None => executor.spawn(task),
        }
    }

    /// The cache with the requests, if there is one that may change the LUN.
    pub fn cache(&self) -> Option<Arc<Cache>> {
        self.cache.as_ref().filter(|_| self.difference.is_none()).map(|part| part.current())
    }

    /// Notes a range that may change from now on, for a cache that is away and comes back.
    pub(crate) fn note_change(&self, range: ByteRange) {
        if let Some(unseen) = &self.unseen_by_cache {
            unseen.note(range);
        }
    }

    /// Whether there are no layers over the LUN.
    pub(crate) fn is_lun_alone(&self) -> bool {
        self.cache.is_none() && self.log.is_none() && self.difference.is_none()
    }

    /// Whether a log has failed: changes now go past it.
    pub(crate) fn has_failed_log(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.status().failure.is_some())
    }

    /// The stranded data of the cache, beyond the end of the LUN.
    pub fn stranded(&self) -> Stranded {
        self.cache().map(|cache| cache.status().stranded).unwrap_or_default()
    }

    /// The write log, if there is one.
    pub fn log(&self) -> Option<&Arc<WriteLog>> {
        self.log.as_ref()
    }

    /// Whether there is a write log.
    pub fn has_log(&self) -> bool {
        self.log.is_some()
    }

    /// Replaces the cache.
    ///
    /// # Errors
    /// The devices' own. The cache then goes on.
    pub async fn replace_cache(&self, clock: &dyn Clock) -> Result<(), Error> {
        match self.cache.as_ref().filter(|_| self.difference.is_none()) {
            Some(part) => part.replace(clock).await,
            None => Ok(()),
        }
    }

    /// Cleans and destages all dirty data.
    ///
    /// # Errors
    /// The devices' own.
    pub async fn clean(&self) -> Result<(), Error> {
        if let Some(log) = &self.log {
            log.destage(|_| {}).await?;
        }
        if let Some(cache) = self.cache() {
            cache.clean(|_| {}).await?;
        }
        Ok(())
    }

    /// Closes in order, from the top down.
    ///
    /// # Errors
    /// The devices' own.
    pub async fn close(&self, keep_dirty: bool) -> Result<(), Error> {
        if self.difference.is_some() || self.is_lun_alone() {
            // There is nothing to close: flushed data is on the LUN.
            self.top.flush().await?;
        }
        if let Some(log) = &self.log {
            log.close(keep_dirty).await?;
        }
        if let Some(part) = &self.cache {
            let _changing = part.changing.lock().await;
            part.current().close(keep_dirty).await?;
        }
        Ok(())
    }

    /// Checks the status of the stores for what must hold after any crash.
    ///
    /// # Panics
    /// When a cache has lost lines, or lines that do not match their checksums.
    pub fn check_stores(&self, context: &str) {
        if let Some(part) = &self.cache {
            let status = part.current().status();
            assert_eq!((status.recovery.lost_lines, status.checksum_errors), (0, 0), "{context}");
        }
    }
}
