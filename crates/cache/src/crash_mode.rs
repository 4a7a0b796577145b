//! What a crash leaves of the cache: how much of the metadata is on the device, and when it gets there (paper 2.6).
//!
//! | mode | on the device at every moment | a crash costs | it costs |
//! |---|---|---|---|
//! | [`CrashMode::DiscardAll`] | nothing | everything; excludes write-back | nothing |
//! | [`CrashMode::AllSynchronous`] | every mapping, before it is used | nothing | a record for each insertion, durable writes |
//! | [`CrashMode::DirtySynchronous`] | dirty lines | the clean lines | a record for each write in write-back |
//! | [`CrashMode::Warm`] | dirty lines; clean ones some seconds later | the clean lines of these seconds | likewise, and a record when a mapping that got there ceases to be true |
//!
//! The first three are the paper's. The fourth gives nearly what the second gives, without its cost: what was written
//! is trusted after a crash, so a mapping on the device is taken back, durably, *before* its frame gets another block
//! or its block changes on the origin.

use std::fmt;
use std::str::FromStr;

use block::{Error, ErrorKind};
use serde::Serialize;

use crate::mode::Mode;

/// Which lines are still in the cache after a crash. The numbers are those of the superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum CrashMode {
    /// Everything is gone after a crash.
    #[serde(rename = "discard")]
    DiscardAll = 1,
    /// Nothing is gone.
    #[serde(rename = "all")]
    AllSynchronous = 2,
    /// Dirty lines stay.
    #[default]
    #[serde(rename = "dirty")]
    DirtySynchronous = 3,
    /// Dirty lines stay, and clean ones that have been there for some seconds.
    #[serde(rename = "warm")]
    Warm = 4,
}

impl CrashMode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::DiscardAll, Self::AllSynchronous, Self::DirtySynchronous, Self::Warm];

    fn name(self) -> &'static str {
        match self {
            Self::DiscardAll => "discard",
            Self::AllSynchronous => "all",
            Self::DirtySynchronous => "dirty",
            Self::Warm => "warm",
        }
    }

    /// What a superblock says.
    ///
    /// # Errors
    /// `Unsupported` for a number that this program does not know.
    pub(crate) fn from_raw(raw: u8) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|mode| *mode as u8 == raw).ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("this cache has crash mode {raw}, which this program does not know"),
            )
        })
    }

    /// Whether clean lines on the device count after a crash.
    pub(crate) fn keeps_clean(self) -> bool {
        match self {
            Self::AllSynchronous | Self::Warm => true,
            Self::DiscardAll | Self::DirtySynchronous => false,
        }
    }

    /// Whether a mapping is durable before a request uses it.
    pub(crate) fn maps_at_once(self) -> bool {
        match self {
            Self::AllSynchronous => true,
            Self::DiscardAll | Self::DirtySynchronous | Self::Warm => false,
        }
    }

    /// Whether dirty lines on the device count after a crash.
    pub(crate) fn keeps_dirty(self) -> bool {
        match self {
            Self::AllSynchronous | Self::DirtySynchronous | Self::Warm => true,
            Self::DiscardAll => false,
        }
    }

    /// Refuses write-back in a crash mode that drops dirty lines at a crash.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn check_mode(self, mode: Mode) -> Result<(), Error> {
        if self.keeps_dirty() || !mode.delays_writes() {
            return Ok(());
        }
        let context = "mode write-back is excluded by crash mode \"discard\", which forgets everything at a crash: \
                       choose crash mode \"dirty\" or \"warm\", or mode write-through";
        Err(Error::new(ErrorKind::Unsupported, context))
    }
}

impl fmt::Display for CrashMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for CrashMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("\"{text}\" is not a crash mode: it is one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_mode_reads_as_it_prints_and_as_it_is_stored() {
        for mode in CrashMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(CrashMode::from_raw(mode as u8).unwrap(), mode);
        }
        assert!("never".parse::<CrashMode>().unwrap_err().contains("warm"));
        assert_eq!(CrashMode::from_raw(0).unwrap_err().kind(), ErrorKind::Unsupported);
        assert_eq!(CrashMode::DirtySynchronous as u8, 3);
    }

    #[test]
    fn what_forgets_everything_excludes_write_back() {
        for mode in Mode::ALL {
            assert_eq!(CrashMode::DiscardAll.check_mode(mode).is_err(), mode.delays_writes());
            assert!(CrashMode::Warm.check_mode(mode).is_ok());
        }
    }
}
