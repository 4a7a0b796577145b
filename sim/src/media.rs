//! The media below a stack, which outlive the program and lose power.
//!
//! ```text
//!   application ─► difference? ─► write log? ─► cache? ─► LUN
//!                      │           │     │       │ │
//!                 its device  its device NVRAM   its device, and that of its successor
//!                 all of them on the host's power; the LUN may have its own
//! ```
//! Everything else is new in each life, with options of its own
//! ([`Choice`](crate::choice::Choice)).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base::buffer::Buffer;
use base::executor::Executor;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::{Device, Geometry, Identity, SharedDevice};
use cache::Cache;
use difference::Difference;
use writelog::WriteLog;

use crate::away::{Away, Unseen};
use crate::choice::Choice;
use crate::history::History;
use crate::late_loss::LateLoss;
use crate::layers::Layers;
use crate::lun::Lun;
use crate::lun_event::{LunEvent, Told};
use crate::made::Made;
use crate::refusal::Refusing;
use crate::region::CrashRegion;

const CACHE_BYTES: u64 = 1 << 20;
/// Additional bytes of a successor's device.
const CACHE_MORE_BYTES: u64 = 256 << 10;
/// Least lines of a cache.
const CACHE_LINES: u64 = 18;
const LOG_BYTES: u64 = 400 << 10;
/// Additional bytes of a log that is made anew.
const LOG_MORE_BYTES: u64 = 192 << 10;
const NVRAM_BYTES: usize = 24 << 10;
const DIFFERENCE_BYTES: u64 = 512 << 10;

/// The end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    /// The program is killed; all devices keep their power.
    Program,
    /// The host loses its power.
    Host,
    /// The host's devices lose their power and are gone; the program goes on for a while with the
    /// LUN.
    Devices,
    /// The LUN loses its power, and the program ends; the host's devices keep theirs.
    Lun,
    /// Host and LUN at the same moment.
    Both,
}

impl Fails {
    /// Whether the host's devices lose volatile data.
    fn takes_host(self) -> bool {
        matches!(self, Self::Host | Self::Devices | Self::Both)
    }

    /// Whether the LUN loses volatile data.
    fn takes_lun(self) -> bool {
        matches!(self, Self::Lun | Self::Both)
    }
}

/// The media of a stack, which outlive the program.
pub struct Media {
    pub(crate) layers: Layers,
    pub(crate) made: Made,
    pub(crate) lun: CrashLayer,
    /// The devices of a cache and of its successor.
    pub(crate) caches: [CrashLayer; 2],
    /// Index of the one that the next start finds.
    pub(crate) cache_index: Arc<AtomicUsize>,
    pub(crate) log: CrashLayer,
    pub(crate) nvram: Arc<CrashRegion>,
    pub(crate) difference: CrashLayer,
    /// Changes of the LUN by other hosts since a stack was open on it.
    pub(crate) changed: Vec<ByteRange>,
    /// Such changes while a stack was open.
    changed_in_life: Arc<Mutex<Vec<ByteRange>>>,
    /// The loss ordered for the LUN of this life.
    pub(crate) late_loss: Arc<LateLoss>,
    /// Whether a store had dirty data there, and an opening with a conflict was repeated to
    /// overwrite the changes.
    pub(crate) is_conflicting: bool,
    /// Count of stores made so far.
    made_count: u8,
    /// The stores that are not among the layers now.
    pub(crate) away: Away,
    /// Whether the host has noted that the log failed and must be discarded.
    pub(crate) is_log_noted: Arc<AtomicBool>,
}

impl Media {
    /// New media, formatted, each store empty.
    ///
    /// # Panics
    /// When formatting fails; nothing makes it fail.
    pub fn new(layers: Layers, lun: Lun, made: Made, fails: Fails, seed: u64) -> Self {
        let host = Power::new();
        let lun_power = if fails == Fails::Both { host.clone() } else { Power::new() };
        let geometry = lun.geometry(made.line_bytes());
        let medium = |bytes, number| CrashLayer::on(&host, bytes, seed + number);
        let cache_bytes = CACHE_BYTES.max(CACHE_LINES * made.line_bytes());
        let mut media = Self {
            layers,
            made,
            lun: CrashLayer::on(&lun_power, geometry.size_bytes, seed).with_geometry(geometry),
            caches: [medium(cache_bytes, 1), medium(cache_bytes + CACHE_MORE_BYTES, 4)],
            cache_index: Arc::default(),
            log: medium(LOG_BYTES, 2),
            nvram: CrashRegion::new(&host, NVRAM_BYTES),
            difference: medium(DIFFERENCE_BYTES, 3),
            changed: Vec::new(),
            changed_in_life: Arc::default(),
            late_loss: Arc::default(),
            is_conflicting: false,
            made_count: 0,
            away: Away::default(),
            is_log_noted: Arc::default(),
        };
        media.make_cache();
        media.make_log();
        media.make_difference();
        media
    }

    /// A number that no other store of these media has.
    pub(crate) fn next_number(&mut self) -> u8 {
        self.made_count += 1;
        self.made_count - 1
    }

    fn shared_lun(&self) -> SharedDevice {
        Arc::new(self.lun.clone())
    }

    fn make_cache(&mut self) {
        if !self.layers.has_cache() {
            return;
        }
        let number = self.next_number();
        let options = self.made.cache_options(number);
        let (device, lun): (SharedDevice, _) = (Arc::new(self.cache().clone()), self.shared_lun());
        let formatting = async move { Cache::format(&device, &lun, options).await };
        Executor::in_order().block_on(formatting).expect("nothing fails");
    }

    fn make_log(&mut self) {
        if !self.layers.has_log() {
            return;
        }
        let options = Made::log_options(self.next_number());
        // The slots belong to another log.
        self.nvram = CrashRegion::new(self.log.power(), NVRAM_BYTES);
        let (device, lun): (SharedDevice, _) = (Arc::new(self.log.clone()), self.shared_lun());
        let formatting = async move { WriteLog::format(&device, &lun, options).await };
        Executor::in_order().block_on(formatting).expect("nothing fails");
    }

    fn make_difference(&self) {
        if !self.layers.has_difference() {
            return;
        }
        let (device, lun): (SharedDevice, _) = (Arc::new(self.difference.clone()), self.shared_lun());
        let formatting = async move { Difference::format(&device, &lun, Made::difference_options()).await };
        Executor::in_order().block_on(formatting).expect("nothing fails");
    }

    /// Replaces the stores, which have nothing dirty and are closed, by new ones of other sizes.
    pub fn make_anew(&mut self, seed: u64) {
        self.renew_cache();
        self.renew_log(seed);
    }

    fn renew_cache(&mut self) {
        if self.layers.has_cache() {
            let index = self.cache_index.load(Ordering::Relaxed);
            self.cache_index.store(1 - index, Ordering::Relaxed);
            self.make_cache();
        }
    }

    fn renew_log(&mut self, seed: u64) {
        if self.layers.has_log() {
            let is_large = self.log.geometry().size_bytes > LOG_BYTES;
            let bytes = if is_large { LOG_BYTES } else { LOG_BYTES + LOG_MORE_BYTES };
            let power = self.log.power().clone();
            // Made with a power of its own, which does not fail meanwhile.
            self.log = CrashLayer::new(bytes, seed);
            self.make_log();
            self.log = self.log.after_restart_as(Loss::All, &power);
            self.nvram = CrashRegion::new(&power, NVRAM_BYTES);
        }
    }

    /// The layers of the next opening.
    pub fn layers(&self) -> Layers {
        self.layers
    }

    /// Changes the layers for the next opening. A store that goes has nothing dirty. If it is
    /// closed as well, it comes back with its content, unless it `renews`; else a new one is made.
    pub fn change_layers(&mut self, layers: Layers, is_closed: bool, renews: bool, seed: u64) {
        let before = std::mem::replace(&mut self.layers, layers);
        let wanting = self.away.follow(before, layers, is_closed, renews);
        if wanting.cache {
            self.renew_cache();
        }
        if wanting.log {
            self.renew_log(seed);
        }
    }

    /// Where a stack without a cache notes its changes.
    pub(crate) fn unseen_by_cache(&self) -> Option<Unseen> {
        (!self.layers.has_cache()).then(|| self.away.unseen.clone())
    }

    /// The changes to be passed to a cache that is opened now.
    pub(crate) fn told_to_cache(&self) -> Vec<ByteRange> {
        [self.changed.as_slice(), self.away.unseen.lock().as_slice()].concat()
    }

    /// Forgets the changes: a stack was opened with all of them.
    pub(crate) fn forget_changed(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        let mut unseen = self.away.unseen.lock();
        match self.layers.has_cache() {
            true => unseen.clear(),
            false => unseen.extend(changed),
        }
    }

    /// Whether the host has noted that the log failed: it must be discarded.
    pub fn is_log_noted(&self) -> bool {
        self.layers.has_log() && self.is_log_noted.load(Ordering::Relaxed)
    }

    /// The user gives up the log, with data that only it has: a new one replaces it.
    pub fn discard_log(&mut self, seed: u64) {
        self.is_log_noted.store(false, Ordering::Relaxed);
        self.renew_log(seed);
    }

    pub(crate) fn cache(&self) -> &CrashLayer {
        &self.caches[self.cache_index.load(Ordering::Relaxed)]
    }

    /// The power whose loss ends this life.
    pub fn power(&self, fails: Fails) -> &Power {
        // A bare LUN is the only device that is written to: a life on it ends at one of its writes.
        let is_lun = fails == Fails::Lun || self.layers == Layers::None;
        if is_lun { self.lun.power() } else { self.log.power() }
    }

    /// The geometry of the LUN.
    pub fn geometry(&self) -> Geometry {
        self.lun.geometry()
    }

    /// The content of the LUN, as reads see it.
    pub fn read_lun(&self) -> Vec<u8> {
        read_all(&mut Executor::in_order(), self.shared_lun())
    }

    /// Another host writes to the LUN, durably, while no stack is open on it. The next stack is
    /// opened with the change.
    pub fn change_lun(&mut self, range: ByteRange, bytes: Buffer) {
        let lun = self.shared_lun();
        let writing = async move { lun.write(range.offset, bytes, true).await };
        Executor::in_order().block_on(writing).expect("nothing fails");
        self.changed.push(range);
    }

    /// Applies the chosen faults to LUN and stores, in the life that `executor` runs.
    pub fn spoil(&self, choice: &Choice, executor: &mut Executor) {
        if let Some(fault) = choice.lun_fault {
            fault.strike(&self.lun, executor);
        }
        let of_stores = [
            (choice.log_fault, &self.log),
            (choice.cache_fault, self.cache()),
            (choice.difference_fault, &self.difference),
        ];
        for (fault, device) in of_stores {
            if let Some(fault) = fault {
                fault.strike(device);
            }
        }
    }

    /// Makes the device chosen for refusals refuse requests for a while, now that the stack is
    /// open.
    pub fn refuse(&self, choice: &Choice, executor: &mut Executor) {
        let Some(refusal) = choice.refusal else { return };
        let device = match refusal.device {
            Refusing::Lun => &self.lun,
            Refusing::Log => &self.log,
            Refusing::Cache => self.cache(),
            Refusing::Difference => &self.difference,
        };
        refusal.strike(device, executor);
    }

    /// Makes the chosen event happen to the LUN, in the life that `executor` runs.
    pub fn let_happen(
        &self,
        event: LunEvent,
        executor: &mut Executor,
        history: &Arc<Mutex<History>>,
        keeps_volatile: bool,
    ) {
        let (history, changed) = (Arc::clone(history), Arc::clone(&self.changed_in_life));
        let is_told = !self.layers.has_log();
        let told = Told { history, keeps_volatile, is_told, changed, others_bytes: self.made.others_bytes };
        event.happen(&self.lun, &self.late_loss, executor, told);
    }

    /// Another LUN than that of these stores: of the same size, or the same one in blocks of
    /// another size.
    pub(crate) fn other_lun(&self, has_other_blocks: bool) -> CrashLayer {
        let (geometry, identity) = (self.geometry(), self.lun.identity());
        let (geometry, identity) = match has_other_blocks {
            true => (in_other_blocks(geometry), identity),
            false => (geometry, Identity { serial: "another".into(), ..identity }),
        };
        CrashLayer::new(geometry.size_bytes, 0).with_geometry(geometry).with_identity(identity)
    }

    /// Changes the size of the LUN for the next opening.
    pub fn resize_lun(&mut self, size_bytes: u64) {
        let old_bytes = self.geometry().size_bytes;
        if let Some(unseen) = self.unseen_by_cache().filter(|_| size_bytes < old_bytes) {
            unseen.note(ByteRange { offset: size_bytes, length: old_bytes - size_bytes });
        }
        self.lun.resize(size_bytes);
    }

    /// The media for the next life.
    #[must_use]
    pub fn after(mut self, fails: Fails, next_fails: Fails, seed: u64) -> Self {
        self.changed.append(&mut self.changed_in_life.lock().expect("nobody panics with it"));
        let loss = Loss::Seeded(seed);
        // A medium that keeps its power keeps volatile data, and may lose it in a later life.
        let next = |medium: &CrashLayer, has_lost_power: bool, power: &Power| match has_lost_power {
            true => medium.after_power_loss_as(loss, power),
            false => medium.after_restart_as(loss, power),
        };
        let host = Power::new();
        let lun_power = if next_fails == Fails::Both { host.clone() } else { Power::new() };
        let of_host = |medium: &CrashLayer| next(medium, fails.takes_host(), &host);
        Self {
            lun: next(&self.lun, fails.takes_lun(), &lun_power),
            caches: self.caches.each_ref().map(of_host),
            log: of_host(&self.log),
            nvram: match fails.takes_host() {
                true => self.nvram.after_power_loss(&host, seed),
                false => self.nvram.after_restart(&host),
            },
            difference: of_host(&self.difference),
            late_loss: Arc::default(),
            ..self
        }
    }
}

fn in_other_blocks(geometry: Geometry) -> Geometry {
    let block_bytes = if geometry.logical_block_bytes == 512 { 4096 } else { 512 };
    Geometry {
        size_bytes: geometry.size_bytes / 4096 * 4096,
        logical_block_bytes: block_bytes,
        physical_block_bytes: block_bytes,
        discard_granularity_bytes: geometry.discard_granularity_bytes.map(|_| block_bytes),
        ..geometry
    }
}

/// Reads the whole content of `device`.
///
/// # Panics
/// When a read fails.
pub fn read_all(executor: &mut Executor, device: SharedDevice) -> Vec<u8> {
    const REQUEST_BYTES: u64 = 256 << 10;
    let size_bytes = device.geometry().size_bytes;
    let reading = async move {
        let mut all = Vec::with_capacity(size_bytes as usize);
        for offset in (0..size_bytes).step_by(REQUEST_BYTES as usize) {
            let length = REQUEST_BYTES.min(size_bytes - offset) as usize;
            all.extend_from_slice(&device.read(offset, Buffer::zeroed(length)).await?);
        }
        Ok::<_, block::Error>(all)
    };
    executor.block_on(reading).expect("nothing fails")
}
