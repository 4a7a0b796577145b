//! What happens to the LUN in a life without being wrong, and is told by an event.

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

/// Bytes by which a LUN may be larger in the end.
pub const GROWTH_BYTES: u64 = 64 << 10;
/// Most changes by others in a life, and most time before each, in microseconds.
const CHANGES_MAX: u64 = 12;
const PAUSE_MICROS_MAX: u64 = 6000;
/// Most losses in a life.
const LOSSES_MAX: u64 = 3;
/// The moment of what happens once, in microseconds.
const MOMENT_MICROS_MAX: u64 = 30_000;

/// What happens to a LUN in one life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LunEvent {
    /// Others write to the part of the LUN that is theirs, as drawn from this.
    ChangedByOthers(u64),
    /// It has [`GROWTH_BYTES`] more from a moment on.
    Grows(Duration),
    /// It loses what it holds volatile, and goes on: so many times, each so long after the one before.
    LosesCache(Duration, u32),
    /// The same when the stack flushes it behind so many other times, and it says so with the answer to that.
    LosesCacheUntold(u64),
}

impl LunEvent {
    /// One, or none.
    pub fn draw(random: &mut Random) -> Option<Self> {
        let moment = Duration::from_micros(random.below(MOMENT_MICROS_MAX));
        match random.below(10) {
            0..3 => Some(Self::ChangedByOthers(random.bits())),
            3 => Some(Self::Grows(moment)),
            4 => {
                // Apart, so that what else is drawn from a seed stays as it was.
                let times = 1 + random.clone().below(LOSSES_MAX) as u32;
                Some(Self::LosesCache(moment / times, times))
            }
            5 => Some(Self::LosesCacheUntold(random.below(12))),
            _ => None,
        }
    }
}

/// Who is told beside those that follow the LUN.
pub(crate) struct Told {
    /// What every sector may hold.
    pub(crate) history: Arc<Mutex<History>>,
    /// Whether the stack keeps also what was acknowledged and is volatile on the LUN.
    pub(crate) keeps_volatile: bool,
    /// Whether there is no log, which has copies of what is volatile on the LUN.
    pub(crate) is_told: bool,
    /// What others changed, for the next life.
    pub(crate) changed: Arc<Mutex<Vec<ByteRange>>>,
    /// The part of others, from the start of the LUN.
    pub(crate) others_bytes: u64,
}

impl LunEvent {
    /// Lets it happen to `lun`, as long as `executor` runs.
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
                    let announce = told.lose(&|| lun.lose_cache_silently());
                    announce();
                    lun.publish(&Event::WritesLost);
                }
            }),
            Self::LosesCacheUntold(flushes) => late_loss.order(flushes, move |lose| told.lose(lose)),
        }
    }
}

impl Told {
    /// What was volatile on the LUN is lost, by `lose`: nobody acknowledges anything meanwhile. Gives what to do when
    /// the LUN says so.
    fn lose(&self, lose: &dyn Fn()) -> Box<dyn FnOnce() + Send> {
        let mut history = lock(&self.history);
        let loss = if self.keeps_volatile { None } else { history.lose_volatile() }.filter(|_| self.is_told);
        lose();
        let history = Arc::clone(&self.history);
        Box::new(move || lock(&history).announce(loss))
    }

    /// Others write here and there. Who follows the LUN hears of each before whoever wrote has his answer.
    async fn change(&self, lun: &CrashLayer, clock: &dyn Clock, seed: u64) {
        let mut random = Random::new(seed);
        let block = u64::from(lun.geometry().logical_block_bytes);
        let blocks = self.others_bytes / block;
        for _ in 0..random.below(CHANGES_MAX.min(blocks * CHANGES_MAX) + 1) {
            clock.sleep(Duration::from_micros(random.below(PAUSE_MICROS_MAX))).await;
            let count = 1 + random.below(blocks);
            let range = ByteRange { offset: random.below(blocks - count + 1) * block, length: count * block };
            let submitted = lock(&self.history).submit(range, false);
            // A mark has it as soon as it may be there.
            self.changed.lock().expect("nobody panics with it").push(range);
            let is_written = lun.write(range.offset, submitted.buffer(), true).await.is_ok();
            lun.publish(&Event::Invalidated(range));
            lock(&self.history).finish(&submitted, is_written, is_written);
        }
    }
}
