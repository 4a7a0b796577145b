//! The policies by name, and the numbers in which they differ.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// How a victim is chosen. Can be changed while the cache runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The line used least recently.
    Lru,
    /// Second chance.
    Clock,
    /// 2Q.
    #[serde(rename = "2q")]
    TwoQueue,
    /// S3-FIFO.
    #[default]
    S3Fifo,
}

impl Replacement {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Clock, Self::TwoQueue, Self::S3Fifo];

    fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Clock => "clock",
            Self::TwoQueue => "2q",
            Self::S3Fifo => "s3-fifo",
        }
    }

    /// Most clean lines of the first list, of `clean_count` in the set; beyond that it gives the
    /// victims.
    pub(super) fn first_max(self, clean_count: u32) -> u32 {
        match self {
            Self::Lru | Self::Clock => clean_count,
            Self::TwoQueue => clean_count / 4,
            Self::S3Fifo => clean_count / 10,
        }
    }

    /// Most ghosts of a set.
    pub(crate) fn ghosts_max(self, ways: u32) -> usize {
        match self {
            Self::Lru | Self::Clock => 0,
            Self::TwoQueue => ways as usize / 2,
            Self::S3Fifo => ways as usize * 9 / 10,
        }
    }

    /// The largest count of hits that is kept.
    pub(super) fn hits_max(self) -> u8 {
        match self {
            Self::Lru | Self::TwoQueue => 0,
            Self::Clock => 1,
            Self::S3Fifo => 3,
        }
    }
}

impl fmt::Display for Replacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Replacement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| format!("\"{text}\" is not a replacement policy: lru, clock, 2q or s3-fifo"))
    }
}
