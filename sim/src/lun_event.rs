//! Events of the LUN in a life that are no faults, and that it reports.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::{Device, Event};

use crate::application::lock;
use crate::history::History;
use crate::late_loss::LateLoss;

/// Bytes by which a LUN may grow.
pub const GROWTH_BYTES: u64 = 64 << 10;
/// Most changes by other hosts in a life; below, the most time before each, in microseconds.
const CHANGES_MAX: u64 = 12;
const PAUSE_MICROS_MAX: u64 = 6000;
/// Most losses in a life.
const LOSSES_MAX: u64 = 3;
/// Time between two looks whether a loss may come.
const PROMISE_PAUSE: Duration = Duration::from_micros(1);
/// Latest time of an event that comes once, in microseconds.
const MOMENT_MICROS_MAX: u64 = 30_000;

/// An event of a LUN in one life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LunEvent {
    /// Other hosts write to their part of the LUN, as drawn from this seed.
    ChangedByOthers(u64),
    /// It grows by [`GROWTH_BYTES`] at this time.
    Grows(Duration),
    /// It loses volatile data, and goes on: this many times, each so long after the one before.
    LosesCache(Duration, u32),
    /// The same once, after this many flushes of the stack, and reported with the answer to the
    /// next one.
    LosesCacheUntold(u64),
}

impl LunEvent {
    /// Draws an event, or none.
    pub fn draw(random: &mut Random) -> Option<Self> {
        let moment = Duration::from_micros(random.below(MOMENT_MICROS_MAX));
        match random.below(10) {
            0..3 => Some(Self::ChangedByOthers(random.bits())),
            3 => Some(Self::Grows(moment)),
            4 => {
                // From a copy, so that everything else drawn from a seed stays as it was.
                let times = 1 + random.clone().below(LOSSES_MAX) as u32;
                Some(Self::LosesCache(moment / times, times))
            }
            5 => Some(Self::LosesCacheUntold(random.below(12))),
            _ => None,
        }
    }
}

/// What else has to know of an event, besides the subscribers of the LUN.
pub(crate) struct Told {
    /// The model: the history of every sector.
    pub(crate) history: Arc<Mutex<History>>,
    /// Whether the stack keeps acknowledged data, too, that is volatile on the LUN.
    pub(crate) keeps_volatile: bool,
    /// Whether losses have to be reported to clients: a log has copies of data that is volatile on
    /// the LUN.
    pub(crate) is_told: bool,
    /// Changes by other hosts, for the next life.
    pub(crate) changed: Arc<Mutex<Vec<ByteRange>>>,
    /// Bytes of the part of other hosts, from the start of the LUN.
    pub(crate) others_bytes: u64,
}

impl LunEvent {
    /// Makes the event happen to `lun`, as long as `executor` runs.
    pub(crate) fn happen(self, lun: &CrashLayer, late_loss: &LateLoss, executor: &mut Executor, told: Told) {
        let (lun, clock) = (lun.clone(), executor.clock());
        match self {
            Self::ChangedByOthers(seed) => executor.spawn(async move { told.change(&lun, &clock, seed).await }),
            Self::Grows(moment) => executor.spawn(async move {
                clock.sleep(moment).await;
                lun.grow(lun.geometry().size_bytes + GROWTH_BYTES);
            }),
            Self::LosesCache(pause, times) => executor.spawn(async move {
                for _ in 0..times {
                    clock.sleep(pause).await;
                    while told.is_promising() {
                        clock.sleep(PROMISE_PAUSE).await;
                    }
                    let announce = told.lose(&|| lun.lose_cache_silently());
                    announce();
                    lun.publish(&Event::WritesLost);
                }
            }),
            Self::LosesCacheUntold(flushes) => {
                let history = Arc::clone(&told.history);
                let may_lose = move || !lock(&history).is_promising();
                late_loss.order(flushes, may_lose, move |lose| told.lose(lose));
            }
        }
    }
}

impl Told {
    fn is_promising(&self) -> bool {
        lock(&self.history).is_promising()
    }

    /// Loses volatile data of the LUN by `lose`, while no write is acknowledged. Returns a function
    /// to be called when the LUN reports it.
    fn lose(&self, lose: &dyn Fn()) -> Box<dyn FnOnce() + Send> {
        let mut history = lock(&self.history);
        let loss = if self.keeps_volatile { None } else { history.lose_volatile() }.filter(|_| self.is_told);
        lose();
        let history = Arc::clone(&self.history);
        Box::new(move || lock(&history).announce(loss))
    }

    /// Other hosts write here and there. The subscribers of the LUN get each event before the
    /// writer has its answer.
    async fn change(&self, lun: &CrashLayer, clock: &dyn Clock, seed: u64) {
        let mut random = Random::new(seed);
        let block = u64::from(lun.geometry().logical_block_bytes);
        let blocks = self.others_bytes / block;
        for _ in 0..random.below(CHANGES_MAX.min(blocks * CHANGES_MAX) + 1) {
            clock.sleep(Duration::from_micros(random.below(PAUSE_MICROS_MAX))).await;
            let count = 1 + random.below(blocks);
            let range = ByteRange { offset: random.below(blocks - count + 1) * block, length: count * block };
            let submitted = lock(&self.history).submit(range, false);
            // A mark covers the range as soon as the data may be there.
            self.changed.lock().expect("nobody panics with it").push(range);
            let is_written = lun.write(range.offset, submitted.buffer(), true).await.is_ok();
            lun.publish(&Event::Invalidated(range));
            lock(&self.history).finish(&submitted, is_written, is_written);
        }
    }
}
