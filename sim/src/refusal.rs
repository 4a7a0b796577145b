//! Refusals: one device of a stack refuses requests for a while, once or several times, and works
//! in between, while the others have no faults.

use std::time::Duration;

use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use base::range::ByteRange;
use block::layer::crash::{CrashLayer, FlushEffect, Reported, WriteEffect};
use block::{Device, ErrorKind};

use crate::layers::Layers;

/// Latest begin; below, the longest duration, both in microseconds.
const FROM_MICROS_MAX: u64 = 20_000;
const TIME_MICROS_MAX: u64 = 20_000;
/// Most times that it happens.
const TIMES_MAX: u64 = 3;

/// The device that refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusing {
    /// The LUN.
    Lun,
    /// The log's device.
    Log,
    /// The cache's device.
    Cache,
    /// The difference's device.
    Difference,
}

/// The requests that it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Reads.
    Reads,
    /// Writes, with this effect.
    Writes(WriteEffect),
    /// Flushes, with this effect.
    Flushes(FlushEffect),
    /// All of them.
    All,
}

/// Requests to one device that fail for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The device.
    pub device: Refusing,
    refused: Refused,
    from: Duration,
    time: Duration,
    times: u64,
}

impl Refusal {
    /// Draws a refusal by a device of these layers, or none.
    pub fn draw(layers: Layers, random: &mut Random) -> Option<Self> {
        let there = [
            (!layers.has_difference()).then_some(Refusing::Lun),
            layers.has_log().then_some(Refusing::Log),
            layers.has_cache().then_some(Refusing::Cache),
            layers.has_difference().then_some(Refusing::Difference),
        ];
        let there: Vec<_> = there.into_iter().flatten().collect();
        let refused = [
            Refused::Reads,
            Refused::Writes(WriteEffect::None),
            Refused::Writes(WriteEffect::ByChance),
            Refused::Flushes(FlushEffect::None),
            Refused::Flushes(FlushEffect::Drops),
            Refused::All,
        ];
        let mut micros = |max| Duration::from_micros(random.below(max));
        let (from, time) = (micros(FROM_MICROS_MAX), micros(TIME_MICROS_MAX));
        let refusal = Self {
            device: there[random.below(there.len() as u64) as usize],
            refused: refused[random.below(refused.len() as u64) as usize],
            from,
            time,
            times: 1 + random.below(TIMES_MAX),
        };
        random.chance(0.3).then_some(refusal)
    }

    /// Whether flushes fail that may drop volatile data.
    pub fn drops(&self) -> bool {
        self.refused == Refused::Flushes(FlushEffect::Drops)
    }

    /// Makes `device` refuse, as long as `executor` runs.
    pub(crate) fn strike(self, device: &CrashLayer, executor: &mut Executor) {
        let (device, clock) = (device.clone(), executor.clock());
        executor.spawn(async move {
            for _ in 0..self.times {
                clock.sleep(self.from).await;
                refuse(&device, self.refused, ErrorKind::Media);
                clock.sleep(self.time).await;
                device.heal();
            }
        });
    }
}

/// Makes `device` refuse these requests until it is healed.
pub(crate) fn refuse(device: &CrashLayer, refused: Refused, kind: ErrorKind) {
    let (write, flush) = match refused {
        Refused::Reads => (None, None),
        Refused::Writes(effect) => (Some(effect), None),
        Refused::Flushes(effect) => (None, Some(effect)),
        Refused::All => (Some(WriteEffect::None), Some(FlushEffect::None)),
    };
    if let Some(effect) = write {
        device.fail_write_as(device.writes_seen(), kind, effect, Reported::ForGood);
    }
    if let Some(effect) = flush {
        device.fail_flush_as(device.flushes_seen(), kind, effect, Reported::ForGood);
    }
    if matches!(refused, Refused::Reads | Refused::All) {
        device.fail_reads_of(ByteRange { offset: 0, length: device.geometry().size_bytes });
    }
}
