//! The options that a user chooses: some when a cache is formatted, the others at each open.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use serde::Serialize;
use store::Tokens;
use uuid::Uuid;

use crate::admission::Tuning;
use crate::alignment::Alignment;
use crate::crash_mode::CrashMode;
use crate::freshness::Freshness;
use crate::limits::{INSERT_BYTES_MAX, LAZY_INTERVAL_MS, WAYS_DEFAULT};
use crate::line_size::LineSize;
use crate::mode::Mode;
use crate::pace::CleaningRate;
use crate::replacement::Replacement;

/// A share in whole percent, written `50%` or `50`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Percent(u8);

impl Percent {
    /// 100 %.
    pub const ALL: Self = Self(100);

    /// A share of `percent`; more than 100 counts as 100.
    pub const fn new(percent: u8) -> Self {
        Self(if percent > 100 { 100 } else { percent })
    }

    /// As a number from 0.0 to 1.0.
    pub fn share(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// This share of `count`, rounded down.
    pub(crate) fn of(self, count: u64) -> u64 {
        let share = u128::from(count) * u128::from(self.0) / 100;
        u64::try_from(share).expect("a share is at most the whole")
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", self.0))
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').unwrap_or(text).parse().ok().filter(|percent| *percent <= 100);
        number.map(Self).ok_or_else(|| format!("\"{text}\" is no share: write 0% to 100%"))
    }
}

/// How much may be dirty, as shares of all lines. They can be changed while the cache runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DirtyLimits {
    /// Above this, lines are cleaned in the background: `0%` for continuously, `100%` for on command and at the end
    /// only.
    #[serde(rename = "clean_above_percent")]
    pub clean_above: Percent,
    /// At this, writes wait for cleaning. One line may always be dirty.
    #[serde(rename = "dirty_max_percent")]
    pub max: Percent,
}

impl Default for DirtyLimits {
    fn default() -> Self {
        Self { clean_above: Percent::new(50), max: Percent::new(90) }
    }
}

/// In how many frames a block may be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Associativity {
    /// In this many: the cache consists of sets of this many frames.
    Ways(u32),
    /// In all: the whole cache is one set.
    Full,
}

/// Chosen when a cache is formatted.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Bytes of a line, the unit of caching.
    pub line_size: LineSize,
    /// Frames of a set.
    pub associativity: Associativity,
    /// Bytes of the log region; `None` for a share of the device.
    pub log_bytes: Option<u64>,
    /// Most frames to use; `None` for as many as the device holds.
    pub frames_max: Option<u64>,
    /// Identifier of the cache; `None` for a random one. Two caches never have the same.
    pub uuid: Option<Uuid>,
    /// The crash mode.
    pub crash_mode: CrashMode,
    /// Where lines begin.
    pub alignment: Alignment,
    /// Whether whole lines have checksums, four bytes of memory each. Only for lines of 4 KiB: a read of part of a line
    /// reads all of it then.
    pub has_checksums: bool,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            line_size: LineSize::default(),
            associativity: Associativity::Ways(WAYS_DEFAULT),
            log_bytes: None,
            frames_max: None,
            uuid: None,
            crash_mode: CrashMode::default(),
            alignment: Alignment::default(),
            has_checksums: false,
        }
    }
}

/// Seconds since 1970.
pub type TimeOfDay = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Chosen at each open.
#[derive(Clone)]
pub struct OpenOptions {
    /// When a write is acknowledged.
    pub mode: Mode,
    /// The crash mode from now on; `None` to keep the one that the cache has.
    pub crash_mode: Option<CrashMode>,
    /// Generation of the origin's content, for an origin that changes while no cache of it is open:
    /// clean lines of another generation are dropped. `None` to keep them all.
    pub generation: Option<u64>,
    /// Changes by other hosts to the origin since the cache was open last: clean copies of these
    /// are dropped durably before an open returns.
    pub freshness: Freshness,
    /// Whether dirty data may overwrite such changes of the same bytes. Otherwise an open with a
    /// conflict fails with [`ConflictingChanges`](crate::ConflictingChanges).
    pub overwrites_changes: bool,
    /// Whether clean lines of an origin that several hosts share stay, if the cache was closed in
    /// order. The caller then registers them ([`Cache::clean_ranges`](crate::Cache::clean_ranges))
    /// and invalidates what others changed until then, before any request. Otherwise they are
    /// dropped.
    pub keeps_shared: bool,
    /// Whether writes to a shared origin may be delayed, under grants of their ranges. After a
    /// crash the caller first gets grants again for what is dirty
    /// ([`Cache::dirty_ranges`](crate::Cache::dirty_ranges)), and makes sure that no other host
    /// changed it; only then it lets it be cleaned.
    pub delays_shared: bool,
    /// Tokens by which the caller tells the store from other copies of it, from now on; `None` for
    /// a caller that does not.
    pub tokens: Option<Tokens>,
    /// How long a clean line waits before it is stored, in crash modes in which that counts.
    pub lazy_interval: Duration,
    /// How a victim is chosen.
    pub replacement: Replacement,
    /// What is worth a frame.
    pub tuning: Tuning,
    /// Clock for pauses between attempts.
    pub clock: Arc<dyn Clock>,
    /// The time of day, for the age of dirty data; `None` where the status need not give it.
    pub time_of_day: Option<TimeOfDay>,
    /// How much may be dirty.
    pub dirty: DirtyLimits,
    /// How fast lines are cleaned.
    pub cleaning: CleaningRate,
    /// Bytes of the largest write whose data goes into the log, in one piece with its record, and only later to its
    /// frames; 0 for none.
    pub deferred_max: u64,
    /// Bytes that may wait for insertion after their readers were answered.
    pub insert_bytes_max: usize,
    /// Most bytes of memory that the cache may take; `None` for no bound. See [`memory`](crate::memory).
    pub memory_max: Option<u64>,
}

impl OpenOptions {
    /// Options with this `mode`, and the defaults for the rest.
    pub fn new(mode: Mode, clock: Arc<dyn Clock>) -> Self {
        Self {
            mode,
            crash_mode: None,
            generation: None,
            freshness: Freshness::default(),
            overwrites_changes: false,
            keeps_shared: false,
            delays_shared: false,
            tokens: None,
            lazy_interval: Duration::from_millis(LAZY_INTERVAL_MS),
            replacement: Replacement::default(),
            tuning: Tuning::default(),
            clock,
            time_of_day: None,
            dirty: DirtyLimits::default(),
            cleaning: CleaningRate::default(),
            deferred_max: 0,
            insert_bytes_max: INSERT_BYTES_MAX,
            memory_max: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_read_as_they_print() {
        assert_eq!(Percent::new(50).to_string().parse(), Ok(Percent::new(50)));
        assert_eq!(("0".parse(), "100%".parse()), (Ok(Percent::new(0)), Ok(Percent::ALL)));
        for text in ["101%", "-1", "%", "", "1.5", "5 %"] {
            assert!(text.parse::<Percent>().unwrap_err().contains(text), "{text}");
        }
    }
}
