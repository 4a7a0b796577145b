//! What the device of a store does wrong in a life: one request fails, once.

use base::random::Random;
use block::ErrorKind;
use block::layer::crash::{CrashLayer, FlushEffect, Reported, WriteEffect};

/// What fails, and what happens all the same. Requests count from the moment at which the fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// The read of this number fails.
    Read(u64),
    /// The write of this number fails, and is carried out, or in part, or not.
    Write(u64),
    /// The flush of this number fails, and drops what it should have made durable, or leaves it as it is.
    Flush(u64, FlushEffect),
}

impl StoreFault {
    /// Some, or none.
    pub fn draw(random: &mut Random) -> Option<Self> {
        match random.below(10) {
            0 => Some(Self::Read(random.below(40))),
            1 => Some(Self::Write(random.below(60))),
            2 => Some(Self::Flush(random.below(8), FlushEffect::Drops)),
            3 => Some(Self::Flush(random.below(8), FlushEffect::None)),
            _ => None,
        }
    }

    /// Lets `device` do it from now on.
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
