//! The workloads of `forebay bench --rw ... --bs ... --depth ...`, named as in fio.

use std::fmt;
use std::str::FromStr;

use base::range::ByteRange;

use crate::generator::{Pattern, Profile};

/// The pattern of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadWrite {
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads and writes.
    RandRw,
}

/// Name, whether it is sequential, share of writes (`None`: as given).
const TABLE: [(ReadWrite, &str, bool, Option<f64>); 5] = [
    (ReadWrite::RandRead, "randread", false, Some(0.0)),
    (ReadWrite::RandWrite, "randwrite", false, Some(1.0)),
    (ReadWrite::Read, "read", true, Some(0.0)),
    (ReadWrite::Write, "write", true, Some(1.0)),
    (ReadWrite::RandRw, "randrw", false, None),
];

/// The error for an unknown pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a pattern: write randread, randwrite, read, write or randrw")]
pub struct ParseReadWriteError(String);

impl ReadWrite {
    /// Every pattern.
    pub const ALL: [Self; 5] = [Self::RandRead, Self::RandWrite, Self::Read, Self::Write, Self::RandRw];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        self.row().1
    }

    /// Whether it overwrites the content of the device.
    pub fn writes(self) -> bool {
        self.row().3 != Some(0.0)
    }

    /// The profile of requests of `size_bytes` over `footprint`. `write_share` counts for [`ReadWrite::RandRw`] only.
    pub fn profile(self, seed: u64, size_bytes: u32, write_share: f64, footprint: ByteRange) -> Profile {
        let (_, _, is_sequential, fixed_share) = *self.row();
        Profile {
            seed,
            write_share: fixed_share.unwrap_or(write_share),
            sizes: vec![(size_bytes, 1.0)],
            pattern: if is_sequential { Pattern::Sequential } else { Pattern::Uniform },
            footprint,
        }
    }

    fn row(self) -> &'static (Self, &'static str, bool, Option<f64>) {
        TABLE.iter().find(|row| row.0 == self).expect("the table has a row for every pattern")
    }
}

impl FromStr for ReadWrite {
    type Err = ParseReadWriteError;

    fn from_str(text: &str) -> Result<Self, ParseReadWriteError> {
        let row = TABLE.iter().find(|row| row.1 == text).ok_or_else(|| ParseReadWriteError(text.to_owned()))?;
        Ok(row.0)
    }
}

impl fmt::Display for ReadWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for pattern in ReadWrite::ALL {
            assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        let error = "rw".parse::<ReadWrite>().unwrap_err();
        assert_eq!(error.to_string(), "\"rw\" is not a pattern: write randread, randwrite, read, write or randrw");
    }

    #[test]
    fn only_reading_patterns_spare_the_data() {
        let writing: Vec<&str> = ReadWrite::ALL.iter().filter(|p| p.writes()).map(|p| p.as_str()).collect();
        assert_eq!(writing, ["randwrite", "write", "randrw"]);
        let footprint = ByteRange { offset: 0, length: 1 << 20 };
        assert_eq!(ReadWrite::RandRw.profile(1, 4096, 0.3, footprint).write_share, 0.3);
        assert_eq!(ReadWrite::Read.profile(1, 4096, 0.3, footprint).write_share, 0.0);
    }
}
