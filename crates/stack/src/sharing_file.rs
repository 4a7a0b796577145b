//! What a start has to know of the hosts that share a LUN: beside the sidecar, under its name with `-sharing` behind
//! it.
//!
//! It is replaced whole, as the sidecar is, and is of the LUN with that serial number alone. The number of the start is
//! durable before a host can register: numbers of clients are never given twice.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use logical_unit::change_marks::Saving;
use logical_unit::{SavedSharing, SharingStore};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Failure, Result};
use crate::record_file::replace;
use crate::sidecar::Sidecar;

/// Version 1.
#[derive(Serialize, Deserialize)]
struct Record {
    /// Version of this record; this is 1.
    version: u32,
    /// Of the LUN.
    serial: String,
    boot_epoch: u32,
    reclaimable_from: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    longest_lease_ms: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    may_lack_writes: bool,
}

impl Record {
    fn new(serial: &str, saved: SavedSharing) -> Self {
        let SavedSharing { boot_epoch, reclaimable_from, longest_lease_ms, may_lack_writes } = saved;
        let serial = serial.to_owned();
        Self { version: 1, serial, boot_epoch, reclaimable_from, longest_lease_ms, may_lack_writes }
    }
}

/// The file. It is written on a thread for blocking calls, since the one that asks serves other LUNs, too.
pub struct SharingFile {
    path: PathBuf,
    serial: String,
}

impl SharingFile {
    /// That of a LUN, and how it stands at this start.
    ///
    /// # Errors
    /// When it cannot be read or written, or is damaged.
    pub fn open(sidecar: &Sidecar) -> Result<(Self, SavedSharing)> {
        let file = Self { path: sidecar.sharing_path(), serial: sidecar.serial()? };
        let saved = file.read()?.next_start();
        let written = replace(&file.path, &Record::new(&file.serial, saved));
        written.map_err(|error| Error::io(format!("cannot write {}", file.path.display()), &error))?;
        Ok((file, saved))
    }

    fn read(&self) -> Result<SavedSharing> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(SavedSharing::default()),
            Err(error) => return Err(Error::io(format!("cannot read {}", self.path.display()), &error)),
        };
        let damaged = |why: &dyn std::fmt::Display| {
            let message = format!(
                "{} is damaged ({why}): remove it when no host that shares the LUN has it attached",
                self.path.display()
            );
            Error::new(Failure::Mismatch, message)
        };
        let record: Record = serde_json::from_str(&text).map_err(|error| damaged(&error))?;
        if record.version != 1 {
            return Err(damaged(&format_args!("version {} is not 1", record.version)));
        }
        // A sidecar that was made anew is another LUN.
        if record.serial != self.serial {
            return Ok(SavedSharing::default());
        }
        let Record { boot_epoch, reclaimable_from, longest_lease_ms, may_lack_writes, .. } = record;
        if boot_epoch == u32::MAX || reclaimable_from > boot_epoch {
            return Err(damaged(&"the numbers of its starts cannot be"));
        }
        Ok(SavedSharing { boot_epoch, reclaimable_from, longest_lease_ms, may_lack_writes })
    }
}

impl SharingStore for SharingFile {
    fn save(&self, sharing: SavedSharing) -> Saving {
        let (path, record) = (self.path.clone(), Record::new(&self.serial, sharing));
        let written = tokio::task::spawn_blocking(move || {
            base::background::turn("sharing-file");
            replace(&path, &record).map_err(|error| format!("cannot write {}: {error}", path.display()))
        });
        Box::pin(async move { written.await.unwrap_or_else(|error| Err(error.to_string())) })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn open(image: &Path) -> Result<(SharingFile, SavedSharing)> {
        SharingFile::open(&Sidecar::of(image, Path::new("/nowhere")).unwrap())
    }

    #[tokio::test]
    async fn starts_are_counted_and_the_longest_lease_is_known_at_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("a.img");
        let (file, first) = open(&image).unwrap();
        assert_eq!(
            first,
            SavedSharing { boot_epoch: 1, reclaimable_from: 1, longest_lease_ms: None, may_lack_writes: false }
        );
        file.save(SavedSharing { longest_lease_ms: Some(10_000), ..first }).await.unwrap();
        let (_, second) = open(&image).unwrap();
        assert_eq!(
            second,
            SavedSharing { boot_epoch: 2, reclaimable_from: 1, longest_lease_ms: Some(10_000), may_lack_writes: false }
        );
        fs::remove_file(directory.path().join("a.img.forebay")).unwrap();
        assert_eq!(open(&image).unwrap().1.boot_epoch, 1, "another LUN");
    }

    #[test]
    fn what_is_damaged_is_said_and_not_taken_for_the_first_start() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("a.img");
        open(&image).unwrap();
        let path = directory.path().join("a.img.forebay-sharing");
        let text = fs::read_to_string(&path).unwrap();
        for damaged in ["{", &text.replace("\"version\": 1", "\"version\": 2"), &text.replace(": 1,", ": 4294967295,")]
        {
            fs::write(&path, damaged).unwrap();
            let error = open(&image).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains("is damaged"), "{error}");
        }
    }
}
