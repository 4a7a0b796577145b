//! `--lun` specifications: `0=ram:1GiB`, `1=file:/srv/disk.img,size=10GiB,disk=7200rpm`.
//!
//! After the backend come options, separated by commas. Parsing and printing are one table, so that the help, the
//! configuration file and the error messages cannot drift apart.

use std::fmt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use base::units::ByteSize;
use block::layer::disk::DiskModel;
use serde::Deserialize;

/// One logical unit to serve.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct LunSpec {
    /// Its number.
    pub lun: u16,
    /// Where its data is kept.
    pub backend: Backend,
    /// A disk whose timing it simulates.
    pub disk: Option<DiskModel>,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Whether the unit reports a volatile write cache (WCE), which may lose completed writes until
    /// a flush. A RAM LUN loses everything with its process anyway.
    pub is_write_cache_volatile: bool,
    /// Logical block in bytes.
    pub block_bytes: u32,
    /// Physical block in bytes, where it is reported.
    pub physical_block_bytes: Option<u32>,
    /// Whether space is freed when initiators unmap (LBPME), where the backend can.
    pub is_thin: bool,
    /// Whether the medium can be ejected and loaded.
    pub is_removable: bool,
    /// Whether several hosts may share it (`docs/protocol/sharing.md`).
    pub is_shared: bool,
}

/// Where the data of a logical unit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// In RAM, of this size; lost with the process.
    Ram {
        /// Size in bytes.
        size_bytes: u64,
    },
    /// In a file or block device.
    File {
        /// Its path.
        path: PathBuf,
        /// Size in bytes; a file that does not exist is made with it, sparse.
        size_bytes: Option<u64>,
        /// Whether it bypasses the page cache (O_DIRECT).
        is_direct: bool,
    },
}

/// A specification that is malformed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("LUN \"{spec}\": {why}; write NUMBER=ram:SIZE or NUMBER=file:PATH[,size=SIZE], then any of {options}", options = OPTIONS.join(", "))]
pub struct ParseLunError {
    spec: String,
    why: String,
}

/// The options, as the help shows them.
pub const OPTIONS: &[&str] = &[
    "size=SIZE",
    "direct",
    "read-only",
    "write-cache",
    "block=512|4096",
    "physical=512|4096",
    "thin",
    "thick",
    "removable",
    "shared",
    "disk=7200rpm",
    "seek=DURATION",
    "rotation=DURATION",
    "transfer=SIZE/s",
];

impl LunSpec {
    /// What identifies its file or block device, whatever path leads there; `None` for one in RAM.
    pub(crate) fn file(&self) -> Option<FileIdentity> {
        let Backend::File { path, .. } = &self.backend else { return None };
        let of_inode = |metadata: std::fs::Metadata| {
            let is_block_device = metadata.file_type().is_block_device();
            if is_block_device {
                FileIdentity::Device(metadata.rdev())
            } else {
                FileIdentity::Inode(metadata.dev(), metadata.ino())
            }
        };
        let of_path = || FileIdentity::ToBeMade(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        Some(std::fs::metadata(path).map_or_else(|_| of_path(), of_inode))
    }
}

/// The identity of a LUN's file or block device; see [`LunSpec::file`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileIdentity {
    Inode(u64, u64),
    Device(u64),
    /// A file that does not exist yet, by its path.
    ToBeMade(PathBuf),
}

impl FromStr for LunSpec {
    type Err = ParseLunError;

    fn from_str(text: &str) -> Result<Self, ParseLunError> {
        let error = |why: String| ParseLunError { spec: text.to_owned(), why };
        let (number, rest) = text.split_once('=').ok_or_else(|| error("there is no '='".into()))?;
        let lun: u32 = number.trim().parse().map_err(|_| error(format!("\"{number}\" is not a LUN")))?;
        let admissible = u16::try_from(lun).ok().filter(|lun| *lun <= LUN_MAX);
        let lun = admissible.ok_or_else(|| error(format!("LUN {lun} is over {LUN_MAX}")))?;
        let mut parts = rest.split(',');
        let backend = parse_backend(parts.next().unwrap_or_default()).map_err(error)?;
        let mut spec = Self {
            lun,
            backend,
            disk: None,
            is_read_only: false,
            is_write_cache_volatile: false,
            block_bytes: BLOCK_BYTES_DEFAULT,
            physical_block_bytes: None,
            is_thin: true,
            is_removable: false,
            is_shared: false,
        };
        let mut given: Vec<&str> = Vec::new();
        for option in parts {
            let key = exclusive_key(option);
            if given.contains(&key) {
                return Err(error(format!("\"{option}\" comes after another word about that")));
            }
            given.push(key);
            spec.apply(option).map_err(error)?;
        }
        Ok(spec)
    }
}

/// The key of an option: each key may be given once.
fn exclusive_key(option: &str) -> &str {
    match option.split_once('=').map_or(option, |(key, _)| key) {
        "thick" => "thin",
        key => key,
    }
}

/// Largest LUN of the flat addressing method (SAM-5 4.7.7.3).
const LUN_MAX: u16 = 0x3fff;

/// Logical block unless another is asked for, in bytes.
const BLOCK_BYTES_DEFAULT: u32 = 512;

fn parse_backend(text: &str) -> Result<Backend, String> {
    match text.split_once(':') {
        Some(("ram", size)) => {
            let size: ByteSize = size.parse().map_err(|error| format!("{error}"))?;
            if size.0 == 0 {
                return Err("a LUN of no bytes is no LUN".into());
            }
            Ok(Backend::Ram { size_bytes: size.0 })
        }
        Some(("file", path)) if !path.is_empty() => {
            Ok(Backend::File { path: PathBuf::from(path), size_bytes: None, is_direct: false })
        }
        _ => Err(format!("\"{text}\" is no backend")),
    }
}

impl LunSpec {
    fn apply(&mut self, option: &str) -> Result<(), String> {
        let (key, value) = option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value)));
        match (key, value, &mut self.backend) {
            ("size", Some(value), Backend::File { size_bytes, .. }) => *size_bytes = Some(parse_size(value)?),
            ("direct", None, Backend::File { is_direct, .. }) => *is_direct = true,
            ("read-only", None, _) => self.is_read_only = true,
            ("write-cache", None, _) => self.is_write_cache_volatile = true,
            ("block", Some("512"), _) => self.block_bytes = 512,
            ("block", Some("4096"), _) => self.block_bytes = 4096,
            ("physical", Some("512"), _) => self.physical_block_bytes = Some(512),
            ("physical", Some("4096"), _) => self.physical_block_bytes = Some(4096),
            ("thin", None, _) => self.is_thin = true,
            ("thick", None, _) => self.is_thin = false,
            ("removable", None, _) => self.is_removable = true,
            ("shared", None, _) => self.is_shared = true,
            ("disk", Some("7200rpm"), _) => self.disk = Some(DiskModel::rpm_7200()),
            ("seek", Some(value), _) => self.disk_mut().seek = parse_duration(value)?,
            ("rotation", Some(value), _) => self.disk_mut().rotation = parse_duration(value)?,
            ("transfer", Some(value), _) => {
                let rate = value.strip_suffix("/s").ok_or_else(|| format!("\"{value}\" does not end in /s"))?;
                self.disk_mut().bytes_per_second = parse_size(rate)?;
            }
            _ => return Err(format!("\"{option}\" is no option of this backend")),
        }
        Ok(())
    }

    /// The simulated disk; setting one property makes a disk whose other properties cost no time.
    fn disk_mut(&mut self) -> &mut DiskModel {
        self.disk.get_or_insert(INSTANT_DISK)
    }
}

/// A disk without delays.
const INSTANT_DISK: DiskModel =
    DiskModel { seek: Duration::ZERO, rotation: Duration::ZERO, bytes_per_second: u64::MAX, flush: Duration::ZERO };

fn parse_size(text: &str) -> Result<u64, String> {
    let size: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    if size.0 == 0 {
        return Err(format!("\"{text}\" is nothing"));
    }
    Ok(size.0)
}

/// `8.5ms`, `100us`, `2s`.
///
/// # Errors
/// A sentence, for a malformed text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let error = || format!("\"{text}\" is not a duration: write a number and a unit, like 8.5ms, 100us or 2s");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(error)?;
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| error())?;
    // A division, not a product: these divisors are exact, so a printed time in seconds is parsed
    // to the same nanosecond.
    let per_second = match unit.trim() {
        "ns" => 1e9,
        "us" => 1e6,
        "ms" => 1e3,
        "s" => 1.0,
        _ => return Err(error()),
    };
    Duration::try_from_secs_f64(number / per_second).map_err(|_| error())
}

impl TryFrom<String> for LunSpec {
    type Error = ParseLunError;
    fn try_from(text: String) -> Result<Self, ParseLunError> {
        text.parse()
    }
}

impl fmt::Display for LunSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.backend {
            Backend::Ram { size_bytes } => write!(f, "{}=ram:{}", self.lun, ByteSize(*size_bytes))?,
            Backend::File { path, .. } => write!(f, "{}=file:{}", self.lun, path.display())?,
        }
        if let Backend::File { size_bytes, is_direct, .. } = &self.backend {
            if let Some(size_bytes) = size_bytes {
                write!(f, ",size={}", ByteSize(*size_bytes))?;
            }
            if *is_direct {
                f.write_str(",direct")?;
            }
        }
        for (is_set, option) in [(self.is_read_only, ",read-only"), (self.is_write_cache_volatile, ",write-cache")] {
            f.write_str(if is_set { option } else { "" })?;
        }
        if self.block_bytes != BLOCK_BYTES_DEFAULT {
            write!(f, ",block={}", self.block_bytes)?;
        }
        if let Some(bytes) = self.physical_block_bytes {
            write!(f, ",physical={bytes}")?;
        }
        let options = [(!self.is_thin, ",thick"), (self.is_removable, ",removable"), (self.is_shared, ",shared")];
        for (is_set, option) in options {
            f.write_str(if is_set { option } else { "" })?;
        }
        self.disk.as_ref().map_or(Ok(()), |disk| write_disk(disk, f))
    }
}

/// The options that make this disk, by its name where it has one.
fn write_disk(disk: &DiskModel, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let named = DiskModel::rpm_7200();
    let base = if disk.flush == named.flush {
        f.write_str(",disk=7200rpm")?;
        named
    } else {
        INSTANT_DISK
    };
    let seconds = |duration: Duration| format!("{}.{:09}s", duration.as_secs(), duration.subsec_nanos());
    if disk.seek != base.seek || *disk == INSTANT_DISK {
        write!(f, ",seek={}", seconds(disk.seek))?;
    }
    if disk.rotation != base.rotation {
        write!(f, ",rotation={}", seconds(disk.rotation))?;
    }
    if disk.bytes_per_second != base.bytes_per_second {
        write!(f, ",transfer={}/s", ByteSize(disk.bytes_per_second))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_are_read() {
        let spec: LunSpec = "0=ram:256MiB,disk=7200rpm".parse().unwrap();
        assert_eq!(spec.backend, Backend::Ram { size_bytes: 256 << 20 });
        assert_eq!(spec.disk, Some(DiskModel::rpm_7200()));
        let spec: LunSpec = "3=file:/srv/a=b.img,size=10GiB,direct,read-only,block=4096".parse().unwrap();
        let path = PathBuf::from("/srv/a=b.img");
        assert_eq!(spec.backend, Backend::File { path, size_bytes: Some(10 << 30), is_direct: true });
        assert_eq!((spec.lun, spec.is_read_only, spec.block_bytes), (3, true, 4096));
        assert!(spec.is_thin && !spec.is_removable);
        assert!(!spec.is_shared, "whoever may log in could hold the writes of all others back");
        let spec: LunSpec = "0=ram:1MiB,shared".parse().unwrap();
        assert!(spec.is_shared && spec.to_string().ends_with(",shared"));
        let spec: LunSpec = "0=ram:1MiB,thick,removable,physical=4096".parse().unwrap();
        assert_eq!((spec.is_thin, spec.is_removable, spec.physical_block_bytes), (false, true, Some(4096)));
        let spec: LunSpec = "0=ram:1MiB,seek=8.5ms,transfer=20MB/s".parse().unwrap();
        let disk = spec.disk.expect("a property makes a disk");
        assert_eq!((disk.seek, disk.bytes_per_second), (Duration::from_micros(8500), 20_000_000));
    }

    #[test]
    fn a_specification_prints_as_what_is_read() {
        for text in [
            "0=ram:256MiB",
            "0=ram:1000,read-only,write-cache,block=4096",
            "3=file:/srv/a=b.img,size=10GiB,direct",
            "0=ram:1MiB,disk=7200rpm",
            "0=ram:1MiB,disk=7200rpm,seek=1ms",
            "0=ram:1MiB,seek=0s",
            "0=ram:1MiB,seek=8.5ms,rotation=123456789.123456789s,transfer=20MB/s",
        ] {
            let spec: LunSpec = text.parse().unwrap();
            assert_eq!(spec.to_string().parse(), Ok(spec), "{text}");
        }
        let spec: LunSpec = "1=file:/disk.img,size=1GiB,read-only".parse().unwrap();
        assert_eq!(spec.to_string(), "1=file:/disk.img,size=1GiB,read-only");
    }

    #[test]
    fn what_is_no_specification_says_why() {
        for (text, why) in [
            ("", "no '='"),
            ("x=ram:1", "not a LUN"),
            ("99999=ram:1MiB", "over 16383"),
            ("0=ram:0", "no bytes"),
            ("0=ram:many", "not a size"),
            ("0=tape:/dev/st0", "no backend"),
            ("0=file:", "no backend"),
            ("0=ram:1MiB,size=2MiB", "no option"),
            ("0=ram:1MiB,seek=9", "not a duration"),
            ("0=ram:1MiB,transfer=20MB", "end in /s"),
            ("0=ram:1MiB,thin,thick", "\"thick\" comes after"),
            ("0=file:/a,size=1MiB,size=2MiB", "\"size=2MiB\" comes after"),
        ] {
            let error = text.parse::<LunSpec>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
