//! The options that differ between the lives of a stack.

use std::sync::Arc;
use std::time::Duration;

use base::executor::Executor;
use base::random::Random;
use block::layer::crash::FlushEffect;
use cache::{Admission, CrashMode, Mode, Replacement, Tuning};
use writelog::{DestageOrder, Durability, Level2, PersistentRegion};

use crate::layers::Layers;
use crate::lun::LunFault;
use crate::lun_event::LunEvent;
use crate::made::{Made, Slots};
use crate::refusal::{Refusal, Refusing};
use crate::store_fault::StoreFault;

/// Bytes of RAM for volatile slots.
const VOLATILE_BYTES: usize = 32 << 10;

/// The options of one life.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Mode of the cache, unless there is a difference.
    pub mode: Mode,
    /// Crash mode of the cache.
    pub crash_mode: CrashMode,
    /// Replacement policy of the cache.
    pub replacement: Replacement,
    /// Tuning of the cache.
    pub tuning: Tuning,
    /// Bytes of the largest write that the cache defers.
    pub deferred_max: u64,
    /// Destage order of the log.
    pub order: DestageOrder,
    /// Durability of the log.
    pub durability: Durability,
    /// Gap that the log reads and writes again to send near pieces as one.
    pub seek_bytes: u64,
    /// Whether the log is destaged only when it fills, or on command.
    pub destages_late: bool,
    /// Whether the host's devices lack FUA: durable writes are then plain writes that share
    /// flushes, as with files past the page cache.
    pub shares_flushes: bool,
    /// Whether level 2 (cleaning, destaging, checkpoints) has a thread of its own.
    pub has_second_thread: bool,
    /// The fault of the LUN.
    pub lun_fault: Option<LunFault>,
    /// The fault of the log's device.
    pub log_fault: Option<StoreFault>,
    /// The fault of the cache's device.
    pub cache_fault: Option<StoreFault>,
    /// The fault of the difference's device.
    pub difference_fault: Option<StoreFault>,
    /// The device that refuses requests for a while, and which.
    pub refusal: Option<Refusal>,
    /// Whether the host keeps a note of a log that failed.
    pub notes_log_failure: bool,
    /// An event of the LUN that it reports.
    pub lun_event: Option<LunEvent>,
}

fn one_of<T: Copy, const N: usize>(random: &mut Random, all: [T; N]) -> T {
    all[random.below(N as u64) as usize]
}

impl Choice {
    /// Draws options that fit the parameters of the stores.
    pub fn draw(made: &Made, random: &mut Random) -> Self {
        let crash_mode = one_of(random, [CrashMode::DirtySynchronous, CrashMode::Warm, CrashMode::AllSynchronous]);
        let slots = match made.slots {
            Slots::None => Durability::Log,
            Slots::Nvram => Durability::Nvram,
            Slots::Volatile => Durability::UnsafeVolatile,
        };
        // From a copy, so that everything else drawn from a seed stays as it was.
        let deferred_max = one_of(&mut random.clone(), [0, 512, 2048, 4096, 16 << 10]);
        Self {
            deferred_max,
            mode: draw_mode(made, random),
            crash_mode: if made.is_forgetful { CrashMode::DiscardAll } else { crash_mode },
            replacement: one_of(random, Replacement::ALL),
            tuning: draw_tuning(random),
            order: one_of(random, [DestageOrder::Log, DestageOrder::Lba, DestageOrder::LastWriteFirst]),
            durability: if random.chance(0.8) { slots } else { Durability::Log },
            seek_bytes: one_of(random, [0, 4 << 10, 64 << 10]),
            destages_late: false,
            shares_flushes: random.chance(0.4),
            has_second_thread: random.chance(0.1),
            lun_fault: LunFault::draw(random),
            log_fault: StoreFault::draw(random),
            cache_fault: StoreFault::draw(random),
            difference_fault: StoreFault::draw(random),
            lun_event: LunEvent::draw(random),
            refusal: None,
            notes_log_failure: false,
        }
    }

    /// The same, with one device that refuses requests for a while, or with none.
    #[must_use]
    pub fn with_refusal(self, layers: Layers, random: &mut Random) -> Self {
        let refusal = Refusal::draw(layers, random);
        Self { refusal, notes_log_failure: random.chance(0.5), ..self }
    }

    /// The same, with stores whose devices have no faults.
    #[must_use]
    pub fn with_sound_stores(self) -> Self {
        let refusal = self.refusal.filter(|refusal| refusal.device == Refusing::Lun);
        Self { log_fault: None, cache_fault: None, difference_fault: None, refusal, ..self }
    }

    /// The same, with a LUN without faults.
    #[must_use]
    pub fn with_sound_lun(self) -> Self {
        let refusal = self.refusal.filter(|refusal| refusal.device != Refusing::Lun);
        Self { lun_fault: None, refusal, ..self }
    }

    /// Whether a flush of the LUN fails that may drop volatile data.
    pub fn drops_of_lun(&self) -> bool {
        let drops = |refusal: Refusal| refusal.device == Refusing::Lun && refusal.drops();
        self.lun_fault.is_some_and(LunFault::drops) || self.refusal.is_some_and(drops)
    }

    /// Whether the device of a store has a fault.
    pub fn has_store_fault(&self) -> bool {
        self.log_fault.or(self.cache_fault).or(self.difference_fault).is_some()
    }

    /// Whether the device of a difference drops volatile data: reads before it has reported that
    /// may return anything.
    pub fn drops_difference(&self) -> bool {
        let drops = |refusal: Refusal| refusal.device == Refusing::Difference && refusal.drops();
        matches!(self.difference_fault, Some(StoreFault::Flush(_, FlushEffect::Drops)))
            || self.refusal.is_some_and(drops)
    }

    pub(crate) fn cache_options(&self, executor: &Executor) -> cache::OpenOptions {
        cache::OpenOptions {
            crash_mode: Some(self.crash_mode),
            // Short, so that even a short life stores clean lines.
            lazy_interval: Duration::from_millis(1),
            replacement: self.replacement,
            tuning: self.tuning,
            deferred_max: self.deferred_max,
            ..cache::OpenOptions::new(self.mode, Arc::new(executor.clock()))
        }
    }

    /// Sizes so small that everything happens often.
    pub(crate) fn log_options(
        &self,
        executor: &Executor,
        nvram: Option<Arc<dyn PersistentRegion>>,
    ) -> writelog::OpenOptions {
        let mut options = writelog::OpenOptions::new(Arc::new(executor.clock()));
        options.order = self.order;
        options.durability = self.durability;
        options.nvram = nvram;
        options.volatile_bytes = VOLATILE_BYTES;
        options.record_cache_bytes = 48 << 10;
        options.checkpoint_interval_bytes = 96 << 10;
        options.checkpoint_pause = Duration::from_millis(2);
        options.level2.batch_bytes = 64 << 10;
        options.level2.idle = Duration::from_micros(700);
        options.level2.age_max = Duration::from_millis(20);
        options.level2.pause_max = Duration::from_micros(200);
        options.level2.seek_bytes = self.seek_bytes;
        if self.destages_late {
            let hour = Duration::from_secs(3600);
            (options.level2.idle, options.level2.age_max, options.level2.share_start) = (hour, hour, 0.8);
        }
        options
    }
}

/// A mode that the cache may have from its opening on; mostly the one with the strongest promise.
pub fn draw_mode(made: &Made, random: &mut Random) -> Mode {
    match made.is_forgetful {
        true => one_of(random, [Mode::WriteThrough, Mode::WriteAround]),
        false => one_of(random, [Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround]),
    }
}

/// New level 2 options for a log that had `level2` before. It never sends more at once than it was
/// opened with.
pub(crate) fn draw_level2(level2: Level2, random: &mut Random) -> Level2 {
    let share_start = random.below(90) as f64 / 100.0;
    Level2 {
        share_start,
        share_slow: share_start + (1.0 - share_start) * random.below(100) as f64 / 100.0,
        idle: Duration::from_micros(random.below(3000)),
        age_max: Duration::from_millis(1 + random.below(50)),
        batch_bytes: one_of(random, [16 << 10, 64 << 10]),
        writes_in_flight: 1 + random.below(8) as usize,
        seek_bytes: one_of(random, [0, 4 << 10, 64 << 10]),
        pause_max: Duration::from_micros(random.below(400)),
        is_interruptible: random.chance(0.5),
        ..level2
    }
}

/// Half of the time the usual tuning, else any.
pub fn draw_tuning(random: &mut Random) -> Tuning {
    if random.chance(0.5) {
        return Tuning::default();
    }
    let admission = if random.chance(0.3) { Admission::SecondUse } else { Admission::Always };
    let cutoff_bytes = random.chance(0.5).then(|| random.below(64) * 512);
    let prefetch_bytes = random.below(8) * 4096;
    Tuning { admission, cutoff_bytes, prefetch_bytes, prefetches_lines: !prefetch_bytes.is_multiple_of(8192) }
}
