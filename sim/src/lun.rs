//! The LUN below a stack, and its faults.

use std::time::Duration;

use base::clock::Clock;
use base::executor::Executor;
use base::random::Random;
use block::layer::crash::{CrashLayer, FlushEffect, Reported, WriteEffect};
use block::{ErrorKind, Event, Geometry};

use crate::refusal::{Refused, refuse};

/// 4096-byte blocks of a LUN below lines of the usual size: an odd count, so the size is no
/// multiple of a larger line.
const BLOCKS_OF_4096: u64 = 49;
/// Lines of a LUN below larger lines.
const LINES: u64 = 20;

/// The parameters of a LUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lun {
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Whether it can discard.
    pub is_thin: bool,
    /// Whether completed writes may be lost until a flush.
    pub is_write_cache_volatile: bool,
}

impl Lun {
    /// Draws any parameters.
    pub fn draw(random: &mut Random) -> Self {
        Self {
            block_bytes: if random.chance(0.3) { 4096 } else { 512 },
            is_thin: random.chance(0.7),
            is_write_cache_volatile: random.chance(0.8),
        }
    }

    /// The geometry below lines of `line_bytes`.
    pub(crate) fn geometry(self, line_bytes: u64) -> Geometry {
        let plain = Geometry::plain((BLOCKS_OF_4096 * 4096).max(LINES * line_bytes));
        Geometry {
            // A tail that is no whole 4096 bytes, where blocks are smaller.
            size_bytes: plain.size_bytes + if self.block_bytes == 512 { 512 } else { 0 },
            logical_block_bytes: self.block_bytes,
            physical_block_bytes: self.block_bytes,
            is_write_cache_volatile: self.is_write_cache_volatile,
            discard_granularity_bytes: self.is_thin.then_some(self.block_bytes),
            ..plain
        }
    }
}

/// A fault of a LUN in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LunFault {
    /// The flush of this number fails, and drops the data that it covers.
    Flush(u64, FlushEffect),
    /// The write of this number fails; it is carried out, wholly or in part, or not.
    Write(u64),
    /// From this write on some writes and a flush fail, and change nothing.
    Several(u64),
    /// No request reaches it: from the first time on, for the second.
    Away(Duration, Duration),
}

impl LunFault {
    /// Draws a fault, or none.
    pub fn draw(random: &mut Random) -> Option<Self> {
        match random.below(10) {
            0 => Some(Self::Flush(random.below(6), FlushEffect::Drops)),
            1 => Some(Self::Flush(random.below(6), FlushEffect::DropsUnseen)),
            2 => Some(Self::Write(random.below(30))),
            3 => Some(Self::Several(random.below(5))),
            4 | 5 => {
                let [from, time] = [30_000, 20_000].map(|micros| Duration::from_micros(random.below(micros)));
                Some(Self::Away(from, time))
            }
            _ => None,
        }
    }

    /// Makes `lun` have the fault from now on, as long as `executor` runs.
    pub fn strike(self, lun: &CrashLayer, executor: &mut Executor) {
        let (writes, flushes) = (lun.writes_seen(), lun.flushes_seen());
        match self {
            Self::Flush(nth, effect) => lun.fail_flush_as(flushes + nth, ErrorKind::Media, effect, Reported::Once),
            Self::Write(nth) => {
                lun.fail_write_as(writes + nth, ErrorKind::Media, WriteEffect::ByChance, Reported::Once);
            }
            Self::Several(first) => {
                [1, 2, 9, 20].into_iter().for_each(|nth| lun.fail_write_once(writes + first + nth, ErrorKind::Media));
                lun.fail_flush_once(flushes + first, ErrorKind::OutcomeUnknown);
            }
            Self::Away(from, time) => {
                let (lun, clock) = (lun.clone(), executor.clock());
                executor.spawn(async move {
                    clock.sleep(from).await;
                    lun.publish(&Event::Offline);
                    refuse(&lun, Refused::All, ErrorKind::Gone);
                    clock.sleep(time).await;
                    lun.heal();
                    lun.publish(&Event::Back);
                });
            }
        }
    }

    /// Whether a flush fails that may drop volatile data.
    pub fn drops(self) -> bool {
        matches!(self, Self::Flush(..))
    }
}
