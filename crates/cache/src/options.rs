//! What a user chooses: once when a cache is formatted, and at each open.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base::clock::Clock;
use serde::Serialize;
use uuid::Uuid;

use crate::limits::{INSERT_BYTES_MAX, WAYS_DEFAULT};
use crate::replacement::Replacement;

/// When a write is acknowledged, and by whom. Can be changed while the cache runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// By the origin. The cache never holds anything the origin lacks.
    WriteThrough,
    /// By the cache device, where it is then durable. The origin learns of it when the line is cleaned.
    WriteBack,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::WriteThrough => "write-through",
            Self::WriteBack => "write-back",
        })
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "write-through" => Ok(Self::WriteThrough),
            "write-back" => Ok(Self::WriteBack),
            _ => Err(format!("\"{text}\" is not a cache mode: write-through or write-back")),
        }
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
    /// Frames of a set.
    pub associativity: Associativity,
    /// Bytes of the log region; `None` for a share of the device.
    pub log_bytes: Option<u64>,
    /// Most frames to use; `None` for as many as the device holds.
    pub frames_max: Option<u64>,
    /// Identifier of the cache; `None` for a random one. Two caches never have the same.
    pub uuid: Option<Uuid>,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { associativity: Associativity::Ways(WAYS_DEFAULT), log_bytes: None, frames_max: None, uuid: None }
    }
}

/// Chosen at each open.
#[derive(Clone)]
pub struct OpenOptions {
    /// When a write is acknowledged.
    pub mode: Mode,
    /// How a victim is chosen.
    pub replacement: Replacement,
    /// For pauses between attempts.
    pub clock: Arc<dyn Clock>,
    /// Share of dirty lines (0.0 to 1.0) above which they are cleaned in the background.
    pub dirty_share_clean: f64,
    /// Share of dirty lines (0.0 to 1.0) at which writes wait for cleaning.
    pub dirty_share_max: f64,
    /// Bytes that may wait for insertion after their readers were answered.
    pub insert_bytes_max: usize,
}

impl OpenOptions {
    /// `mode`, and the usual for the rest.
    pub fn new(mode: Mode, clock: Arc<dyn Clock>) -> Self {
        Self {
            mode,
            replacement: Replacement::default(),
            clock,
            dirty_share_clean: 0.5,
            dirty_share_max: 0.9,
            insert_bytes_max: INSERT_BYTES_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_reads_as_it_prints() {
        for mode in [Mode::WriteThrough, Mode::WriteBack] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("write-around".parse::<Mode>().unwrap_err().contains("write-around"));
    }
}
