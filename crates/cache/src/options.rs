//! What a user chooses: once when a cache is formatted, and at each open.

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
    /// Everything.
    pub const ALL: Self = Self(100);

    /// This share; more than everything is everything.
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

/// How many frames a block may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Associativity {
    /// This many: the cache is made of sets of this many frames.
    Ways(u32),
    /// Any: the whole cache is one set.
    Full,
}

/// Chosen when a cache is formatted.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Bytes of a line: what comes and goes as one.
    pub line_size: LineSize,
    /// Frames of a set.
    pub associativity: Associativity,
    /// Bytes of the log region; `None` for a share of the device.
    pub log_bytes: Option<u64>,
    /// Most frames to use; `None` for as many as the device holds.
    pub frames_max: Option<u64>,
    /// Identifier of the cache; `None` for a random one. Two caches never have the same.
    pub uuid: Option<Uuid>,
    /// What a crash leaves.
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
    /// What a crash leaves from now on; `None` for what the cache has.
    pub crash_mode: Option<CrashMode>,
    /// Which generation of its content the origin has, for one that changes while no cache looks on: clean lines of
    /// another generation are dropped. `None` to take them as they are.
    pub generation: Option<u64>,
    /// What others did to the origin since the cache was open last: clean copies of what they changed are dropped
    /// durably before an open returns.
    pub freshness: Freshness,
    /// Whether dirty data may replace what others have written to the same bytes since. Otherwise such an open fails
    /// with [`ConflictingChanges`](crate::ConflictingChanges).
    pub overwrites_changes: bool,
    /// Whether clean lines of an origin that several hosts share stay, if the cache was closed in order: the caller
    /// registers them ([`Cache::clean_ranges`](crate::Cache::clean_ranges)) and says what others changed until then,
    /// before anybody reads. Otherwise they are dropped.
    pub keeps_shared: bool,
    /// Whether writes of such an origin may be delayed, under grants of their ranges. The caller sees to it that what a
    /// crash leaves dirty is under a grant again, and was changed by nobody, before it is cleaned
    /// ([`Cache::dirty_ranges`](crate::Cache::dirty_ranges)).
    pub delays_shared: bool,
    /// By what the caller tells the cache from other copies of it, from now on; `None` when nobody does.
    pub tokens: Option<Tokens>,
    /// How long a clean line waits before it is stored, where that counts after a crash.
    pub lazy_interval: Duration,
    /// How a victim is chosen.
    pub replacement: Replacement,
    /// What is worth a frame.
    pub tuning: Tuning,
    /// For pauses between attempts.
    pub clock: Arc<dyn Clock>,
    /// The time of day, to say how old dirty data is; `None` where nobody wants to know.
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
    /// `mode`, and the usual for the rest.
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
