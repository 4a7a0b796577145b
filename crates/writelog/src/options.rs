//! The options that a user chooses: some when a log is formatted, the others at each open.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use base::range::ByteRange;
use serde::Serialize;
use store::Tokens;
use uuid::Uuid;

use crate::format::{NvramRaw, SlotRaw};
use crate::limits::{RAM_SEGMENTS_PAPER, RECORD_CACHE_BYTES, SEGMENT_BYTES_PAPER, SLOT_BYTES_DEFAULT};
use crate::nvram::PersistentRegion;

/// When a write counts as acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// On stable storage: in a record of the log, checksummed.
    #[default]
    Log,
    /// In a persistent-memory region, flushed by the processor.
    Nvram,
    /// In RAM until the next flush. A power loss loses what was not flushed.
    UnsafeVolatile,
}

/// The order in which the log's data is sent to the origin. When space is low the oldest data goes
/// first in any order, except in `Log`, which always keeps its order, and in `Lba` over a disk
/// (`Level2::seek_bytes`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DestageOrder {
    /// The origin always holds a prefix of epochs and any subset of the one in flight.
    #[default]
    Log,
    /// Ascending, around and around.
    Lba,
    /// The newest segment first: the paper's (2.3.3).
    LastWriteFirst,
}

/// Values with their names.
const DURABILITIES: [(Durability, &str); 3] =
    [(Durability::Log, "log"), (Durability::Nvram, "nvram"), (Durability::UnsafeVolatile, "unsafe-volatile")];
const ORDERS: [(DestageOrder, &str); 3] =
    [(DestageOrder::Log, "log"), (DestageOrder::Lba, "lba"), (DestageOrder::LastWriteFirst, "last-write-first")];

impl DestageOrder {
    /// Its number in the superblock.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&DURABILITIES, *self))
    }
}

impl fmt::Display for DestageOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(name_of(&ORDERS, *self))
    }
}

impl FromStr for Durability {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        value_of(&DURABILITIES, text)
            .ok_or_else(|| format!("\"{text}\" is no durability: log, nvram or unsafe-volatile"))
    }
}

impl FromStr for DestageOrder {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        value_of(&ORDERS, text).ok_or_else(|| format!("\"{text}\" is no destage order: log, lba or last-write-first"))
    }
}

fn name_of<T: PartialEq + Copy>(table: &[(T, &'static str)], value: T) -> &'static str {
    table.iter().find(|row| row.0 == value).map_or("", |row| row.1)
}

fn value_of<T: Copy>(table: &[(T, &'static str)], name: &str) -> Option<T> {
    table.iter().find(|row| row.1 == name).map(|row| row.0)
}

/// Chosen when a log is formatted.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Bytes of a segment: a multiple of 4 KiB, at least 64 KiB; `None` to fit the size of the log.
    pub segment_bytes: Option<u32>,
    /// Bytes of an NVRAM slot: a power of two from 512.
    pub slot_bytes: u32,
    /// Identifier of the log; `None` for a random one. Two logs never have the same.
    pub uuid: Option<Uuid>,
    /// Most bytes of checkpoints and segments that formatting writes with zeroes, as data: a file
    /// system commits its journal for each durable write to blocks that it has only reserved. 0 by
    /// default; for a file, [`DATA_BYTES_MAX`](crate::limits::DATA_BYTES_MAX).
    pub data_bytes_max: u64,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { segment_bytes: None, slot_bytes: SLOT_BYTES_DEFAULT, uuid: None, data_bytes_max: 0 }
    }
}

impl FormatOptions {
    /// The paper's segments and slots (2.1, 2.2).
    pub fn paper() -> Self {
        Self { segment_bytes: Some(SEGMENT_BYTES_PAPER), ..Self::default() }
    }
}

/// When level 1 moves slots from RAM or NVRAM to the log.
#[derive(Clone, Copy, Debug)]
pub struct Level1 {
    /// Share of slots in use (0.0 to 1.0) from which a round begins.
    pub share_start: f64,
    /// Whether requests wait until a round has emptied the RAM, as in the paper (3.3.2).
    pub is_exclusive: bool,
    /// Whether a round begins as soon as the log device is idle and a record's worth of slots is in use (paper 2.3.1).
    pub is_eager: bool,
}

/// When level 2 moves data from the log to the origin, and how fast.
#[derive(Clone, Copy, Debug)]
pub struct Level2 {
    /// Share of the log in use up to which it waits for an idle moment, unless data is too old.
    pub share_start: f64,
    /// Share of the log in use from which level 2 is at full speed. The rest is the largest reserve
    /// for changes that come while a batch is under way: only below the reserve writes are slowed
    /// down to less than the rate at which level 2 makes room.
    pub share_slow: f64,
    /// Time without a request that counts as idle.
    pub idle: Duration,
    /// Largest age of data that is not on the origin, as long as the origin keeps up: from three
    /// quarters of it on data is destaged under load. Data in slots goes to the log at half of it.
    pub age_max: Duration,
    /// Most bytes of log that one batch takes from, and the RAM for it. It takes less where the log
    /// is small or full.
    pub batch_bytes: u64,
    /// Writes to the origin in flight at full speed; also reads of the log device, as long as the
    /// slots are empty. On a disk that serves requests in their order this is destaging's share.
    pub writes_in_flight: usize,
    /// Writes to the origin in flight at most while writers wait for room: some for each that waits.
    pub writes_when_full: usize,
    /// Bytes that the origin would transfer in the time of one more request (a disk: seek and half
    /// a turn). More than 0 allows destaging to read what lies between near pieces and to write all
    /// of it at once: only where no other host writes to the origin.
    pub seek_bytes: u64,
    /// Writes are slowed down as soon as the free room of the log, or of the slots, would be used
    /// up within this time at the present rates; zero for never. It is also the longest pause
    /// between two looks at the changes that wait.
    pub pause_max: Duration,
    /// Whether a batch stops for a new request, unless space is low (paper 2.3.3).
    pub is_interruptible: bool,
}

impl Level1 {
    /// The largest reserve of `slots_bytes` of slots for changes that come while a record is under
    /// way: half of what is left when a round begins.
    pub(crate) fn reserve_bytes(&self, slots_bytes: u64) -> u64 {
        (slots_bytes as f64 * (1.0 - self.share_start) / 2.0) as u64
    }
}

impl Level2 {
    /// The largest reserve of a log of `log_bytes` for changes that come while a batch is under
    /// way.
    pub(crate) fn reserve_bytes(&self, log_bytes: u64) -> u64 {
        (log_bytes as f64 * (1.0 - self.share_slow)) as u64
    }

    /// An age of data, as a share of the largest.
    pub(crate) fn share_of_age(&self, age: Duration) -> f64 {
        age.as_secs_f64() / self.age_max.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Chosen at each open.
#[derive(Clone)]
pub struct OpenOptions {
    /// When a write counts as acknowledged.
    pub durability: Durability,
    /// The order of level 2.
    pub order: DestageOrder,
    /// The region of the slots with [`Durability::Nvram`], which requires it.
    pub nvram: Option<Arc<dyn PersistentRegion>>,
    /// Bytes of RAM for slots with [`Durability::UnsafeVolatile`].
    pub volatile_bytes: usize,
    /// Bytes of the newest records that stay in RAM for reads and for destaging.
    pub record_cache_bytes: usize,
    /// Bytes of log behind the last checkpoint at which the next one begins.
    pub checkpoint_interval_bytes: u64,
    /// Least time between two such checkpoints, unless
    /// [`TAIL_INTERVALS_MAX`](crate::limits::TAIL_INTERVALS_MAX) times as many bytes come first;
    /// that is about the most that a recovery reads.
    pub checkpoint_pause: Duration,
    /// Ranges of the origin that other hosts changed since the log was open last, as long as the
    /// user has not decided for the log's data. An open with dirty data there fails with
    /// [`ConflictingChanges`](crate::ConflictingChanges), before it sends anything.
    pub kept_changes: Vec<ByteRange>,
    /// Tokens by which the caller tells the log from other copies of it, from now on; `None` for a
    /// caller that does not.
    pub tokens: Option<Tokens>,
    /// Notes durably, apart from the log device, that the device failed while the log was open;
    /// returns whether it could. The next open must then be refused. Called at most once, from a
    /// context that may block for a moment.
    pub failure_note: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Clock for pauses, ages and time stamps.
    pub clock: Arc<dyn Clock>,
    /// Options of level 1.
    pub level1: Level1,
    /// Options of level 2.
    pub level2: Level2,
}

impl OpenOptions {
    /// The defaults.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            durability: Durability::Log,
            order: DestageOrder::Log,
            nvram: None,
            volatile_bytes: 4 << 20,
            record_cache_bytes: RECORD_CACHE_BYTES,
            checkpoint_interval_bytes: 64 << 20,
            checkpoint_pause: Duration::from_millis(500),
            kept_changes: Vec::new(),
            tokens: None,
            failure_note: None,
            clock,
            level1: Level1 { share_start: 0.5, is_exclusive: false, is_eager: false },
            level2: Level2 {
                share_start: 0.25,
                share_slow: 0.75,
                idle: Duration::from_millis(50),
                age_max: Duration::from_secs(5),
                batch_bytes: 32 << 20,
                writes_in_flight: 8,
                writes_when_full: 128,
                seek_bytes: 0,
                pause_max: Duration::from_millis(40),
                is_interruptible: true,
            },
        }
    }

    /// The paper's profile (2.1, 2.3, 3.1): 16 segments of RAM, last write first, 64 KiB at a time,
    /// level 2 in idle periods only, level 1 until the RAM is empty, with all requests waiting.
    #[must_use]
    pub fn paper(mut self) -> Self {
        self.order = DestageOrder::LastWriteFirst;
        self.record_cache_bytes = 0;
        self.volatile_bytes = volatile_bytes_paper();
        self.level1 = Level1 { share_start: 0.9, is_exclusive: true, is_eager: false };
        self.level2.share_start = 0.9;
        self.level2.age_max = Duration::MAX;
        self.level2.batch_bytes = u64::from(SEGMENT_BYTES_PAPER);
        self.level2.writes_in_flight = 1;
        self.level2.writes_when_full = 1;
        self.level2.pause_max = Duration::ZERO;
        self
    }
}

/// 16 segments of slots, with the headers in front of them (`docs/formats/writelog.md`, NVRAM).
fn volatile_bytes_paper() -> usize {
    const PAGE_BYTES: usize = 4096;
    let slot_count = RAM_SEGMENTS_PAPER * (SEGMENT_BYTES_PAPER / SLOT_BYTES_DEFAULT) as usize;
    let slot_bytes = SLOT_BYTES_DEFAULT as usize + size_of::<SlotRaw>();
    size_of::<NvramRaw>() + PAGE_BYTES + slot_count * slot_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_read_as_they_print() {
        for (durability, _) in DURABILITIES {
            assert_eq!(durability.to_string().parse(), Ok(durability));
        }
        for (order, _) in ORDERS {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
        assert!("tape".parse::<Durability>().unwrap_err().contains("tape"));
        assert!("tape".parse::<DestageOrder>().unwrap_err().contains("tape"));
    }
}
