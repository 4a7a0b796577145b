//! When a write is acknowledged, and by which device.

use std::fmt;
use std::str::FromStr;

use block::{Error, ErrorKind};
use serde::Serialize;

/// When a write is acknowledged, and by which device. Can be changed while the cache runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// By the origin. The cache never holds anything the origin lacks. For a shared origin it keeps
    /// only what was read.
    WriteThrough,
    /// By the cache device, where it is then durable. The origin learns of it when the line is cleaned.
    WriteBack,
    /// By the origin. The cache forgets what is written, and fills from reads only.
    WriteAround,
    /// By the origin. The cache forgets what is written, takes nothing in, and serves only what the origin does not
    /// have.
    PassThrough,
    /// By none: writes fail. Reads are cached.
    ReadOnly,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::WriteThrough, Self::WriteBack, Self::WriteAround, Self::PassThrough, Self::ReadOnly];

    fn name(self) -> &'static str {
        match self {
            Self::WriteThrough => "write-through",
            Self::WriteBack => "write-back",
            Self::WriteAround => "write-around",
            Self::PassThrough => "pass-through",
            Self::ReadOnly => "read-only",
        }
    }

    /// Whether a write is acknowledged by the cache alone, durably, before the origin has it.
    pub fn delays_writes(self) -> bool {
        match self {
            Self::WriteBack => true,
            Self::WriteThrough | Self::WriteAround | Self::PassThrough | Self::ReadOnly => false,
        }
    }

    /// Refuses to delay writes to an origin that other hosts use, unless it `may_delay` them under
    /// grants: the others would not see them.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn check_shared(self, is_shared: bool, may_delay: bool) -> Result<(), Error> {
        if is_shared && !may_delay && self.delays_writes() {
            let words = "a cache of a disk that several hosts share cannot delay writes: take mode write-through or \
                         write-around";
            return Err(Error::new(ErrorKind::Unsupported, words));
        }
        Ok(())
    }

    /// Whether writes are carried out at all.
    pub fn takes_writes(self) -> bool {
        match self {
            Self::WriteThrough | Self::WriteBack | Self::WriteAround | Self::PassThrough => true,
            Self::ReadOnly => false,
        }
    }

    /// Whether what is written may take a frame.
    pub(crate) fn caches_writes(self) -> bool {
        match self {
            Self::WriteThrough | Self::WriteBack => true,
            Self::WriteAround | Self::PassThrough | Self::ReadOnly => false,
        }
    }

    /// Whether what is read may take a frame, and is served from one.
    pub(crate) fn caches_reads(self) -> bool {
        match self {
            Self::WriteThrough | Self::WriteBack | Self::WriteAround | Self::ReadOnly => true,
            Self::PassThrough => false,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("\"{text}\" is not a cache mode: it is one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_reads_as_it_prints() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!("write-beside".parse::<Mode>().unwrap_err().contains("write-beside"));
    }
}
