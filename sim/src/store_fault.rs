//! Faults of a store's device in a life: one request fails, once.

use base::random::Random;
use block::ErrorKind;
use block::layer::crash::{CrashLayer, FlushEffect, Reported, WriteEffect};

/// The request that fails, and its effect all the same. Requests are counted from the begin of the
/// fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// The read of this number fails.
    Read(u64),
    /// The write of this number fails; it is carried out, wholly or in part, or not.
    Write(u64),
    /// The flush of this number fails, and drops the data that it covers, or leaves it volatile.
    Flush(u64, FlushEffect),
}

impl StoreFault {
    /// Draws a fault, or none.
    pub fn draw(random: &mut Random) -> Option<Self> {
        match random.below(10) {
            0 => Some(Self::Read(random.below(40))),
            1 => Some(Self::Write(random.below(60))),
            2 => Some(Self::Flush(random.below(8), FlushEffect::Drops)),
            3 => Some(Self::Flush(random.below(8), FlushEffect::None)),
            _ => None,
        }
    }

    /// Makes `device` have the fault from now on.
    pub fn strike(self, device: &CrashLayer) {
        match self {
            Self::Read(nth) => device.fail_read_once(device.reads_seen() + nth, ErrorKind::Media),
            Self::Write(nth) => {
                let nth = device.writes_seen() + nth;
                device.fail_write_as(nth, ErrorKind::Media, WriteEffect::ByChance, Reported::Once);
            }
            Self::Flush(nth, effect) => {
                device.fail_flush_as(device.flushes_seen() + nth, ErrorKind::Media, effect, Reported::Once);
            }
        }
    }
}
