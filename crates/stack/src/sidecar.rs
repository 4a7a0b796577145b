//! The sidecar of a file or block device LUN, which keeps its serial number.
//!
//! A file's sidecar is `PATH.forebay` beside it, to be moved with it: a copy of a disk image
//! without its sidecar is another LUN, as it should be. A block device's is in the state directory,
//! under the name that stays with the device ([`device_name`]): `/dev` is made anew at every start,
//! and its nodes change places.
//!
//! A cache is bound to this serial number. It is random, made when the LUN is first served, and
//! durable before any initiator can read it.
//!
//! Persistent reservations that must outlive a power loss (APTPL) are kept here, too: the record is
//! replaced as a whole ([`record_file`]).

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use logical_unit::change_marks::Saving;
use logical_unit::{ReservationStore, SavedReservations};
use scsi::persistent_reservation::ReservationType;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::device_name;
use crate::error::{Error, Failure, Result};
use crate::limits::SIDECAR_NAME_BYTES_MAX;
use crate::paths::make_private;
use crate::record_file;

/// Version 1; `reservations` came later and is left out when there are none, so that records
/// without it did not change.
#[derive(Serialize, Deserialize)]
struct Record {
    /// Version of this record; this is 1.
    version: u32,
    serial: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reservations: Option<ReservationsRecord>,
}

#[derive(Serialize, Deserialize)]
struct ReservationsRecord {
    registrations: Vec<RegistrationRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held: Option<HeldRecord>,
}

#[derive(Serialize, Deserialize)]
struct RegistrationRecord {
    nexus: String,
    key: u64,
}

#[derive(Serialize, Deserialize)]
struct HeldRecord {
    holder: String,
    /// The type's code (SPC-4 table 36).
    kind: u8,
}

/// The reservations of one LUN. They are saved on a thread for blocking calls, since the calling
/// thread serves other LUNs, too.
pub struct SidecarReservations {
    sidecar: PathBuf,
    serial: String,
}

impl ReservationStore for SidecarReservations {
    fn save(&self, reservations: SavedReservations) -> Saving {
        let of = |(nexus, key): &(String, u64)| RegistrationRecord { nexus: nexus.clone(), key: *key };
        let record = ReservationsRecord {
            registrations: reservations.registrations.iter().map(of).collect(),
            held: reservations
                .reservation
                .as_ref()
                .map(|(kind, holder)| HeldRecord { holder: holder.clone(), kind: kind.code() }),
        };
        let is_needed = !record.registrations.is_empty();
        let record = Record { version: 1, serial: self.serial.clone(), reservations: is_needed.then_some(record) };
        let sidecar = self.sidecar.clone();
        let written = tokio::task::spawn_blocking(move || {
            base::background::turn("sidecar");
            record_file::replace(&sidecar, &record)
                .map_err(|error| format!("cannot write {}: {error}", sidecar.display()))
        });
        Box::pin(async move { written.await.unwrap_or_else(|error| Err(error.to_string())) })
    }
}

/// The sidecar of one LUN, whether it exists yet or not.
#[derive(Clone, Debug)]
pub struct Sidecar {
    path: PathBuf,
    is_beside: bool,
}

impl Sidecar {
    /// The sidecar of the file or block device at `path`. Those of block devices are in `folder`,
    /// which is made with the first of them.
    ///
    /// # Errors
    /// When the folder cannot be made, or the name of a device is too long for a file.
    pub fn of(path: &Path, folder: &Path) -> Result<Self> {
        let device = fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device());
        let Some(device) = device else {
            let mut name = path.as_os_str().to_owned();
            name.push(".forebay");
            return Ok(Self { path: PathBuf::from(name), is_beside: true });
        };
        let name = device_name::to_file_name(&device_name::of(path, device.rdev()));
        if name.len() > SIDECAR_NAME_BYTES_MAX {
            let message = format!("{} has too long a name to keep its serial number by: {name}", path.display());
            return Err(Error::new(Failure::Usage, message));
        }
        make_private(folder)?;
        Ok(Self { path: folder.join(name), is_beside: false })
    }

    /// The sidecar of a unit without a file, by its name in `folder`, which is made with the first
    /// of them.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn named(name: &str, folder: &Path) -> Result<Self> {
        make_private(folder)?;
        Ok(Self { path: folder.join(name), is_beside: false })
    }

    /// The path of the LUN's change marks.
    pub fn marks_path(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push("-marks");
        PathBuf::from(name)
    }

    /// The path of the durable state of hosts that share the LUN.
    pub fn sharing_path(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push("-sharing");
        PathBuf::from(name)
    }

    /// The serial number of the LUN, made now if it has none.
    ///
    /// # Errors
    /// When the sidecar cannot be read or written, or is malformed.
    pub fn serial(&self) -> Result<String> {
        match self.read()? {
            Some(record) => Ok(record.serial),
            None => self.make(),
        }
    }

    /// The record; `None` where there is none yet.
    fn read(&self) -> Result<Option<Record>> {
        match record_file::read(&self.path) {
            Ok(text) => text.map(|text| record_in(&text, &self.path)).transpose(),
            Err(error) if error.kind() == ErrorKind::InvalidData => Err(damaged(&self.path, &error)),
            Err(error) => Err(Error::io(format!("cannot read {}", self.path.display()), &error)),
        }
    }

    /// A new serial number for a LUN that is made in place of another one.
    ///
    /// # Errors
    /// When the sidecar cannot be written, or removed.
    pub fn serial_of_another(&self) -> Result<String> {
        match fs::remove_file(&self.path) {
            Ok(()) => tracing::warn!("{} was another LUN's: the new one has a new serial number", self.path.display()),
            // A read-only file system refuses to remove what is not there, too; making it says so.
            Err(_) if !self.path.exists() => {}
            Err(error) => return Err(Error::io(format!("cannot remove {}", self.path.display()), &error)),
        }
        self.make()
    }

    /// The reservations that were kept for the LUN, and the store for later ones.
    ///
    /// # Errors
    /// As [`serial`](Self::serial).
    pub fn reservations(&self) -> Result<(SidecarReservations, SavedReservations)> {
        let serial = self.serial()?;
        let sidecar = self.path.clone();
        let mut saved = SavedReservations::default();
        if let Some(record) = self.read()?.and_then(|record| record.reservations) {
            saved.registrations = record.registrations.into_iter().map(|one| (one.nexus, one.key)).collect();
            let held = record.held.map(|held| {
                ReservationType::from_code(held.kind)
                    .map(|kind| (kind, held.holder))
                    .ok_or_else(|| damaged(&sidecar, &format_args!("{} is no reservation type", held.kind)))
            });
            saved.reservation = held.transpose()?;
        }
        Ok((SidecarReservations { sidecar, serial }, saved))
    }

    fn make(&self) -> Result<String> {
        let serial = Uuid::new_v4().simple().to_string();
        let record = Record { version: 1, serial: serial.clone(), reservations: None };
        let write = || -> std::io::Result<()> {
            let text = serde_json::to_vec_pretty(&record)?;
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path)?;
            file.write_all(&text)?;
            file.sync_all()?;
            record_file::sync_directory_of(&self.path)
        };
        let advice = if self.is_beside {
            ", where the serial number of the LUN is kept: make the folder writable, or serve a link to the file from \
             one that is"
        } else {
            ""
        };
        write().map_err(|error| Error::io(format!("cannot write {}{advice}", self.path.display()), &error))?;
        Ok(serial)
    }
}

fn damaged(sidecar: &Path, why: &dyn std::fmt::Display) -> Error {
    let message = format!(
        "{} is damaged ({why}): restore it, or remove it to give the LUN a new serial number (caches of it will not \
         match any more)",
        sidecar.display()
    );
    Error::new(Failure::Mismatch, message)
}

fn record_in(text: &[u8], sidecar: &Path) -> Result<Record> {
    let parsed: Record = record_file::parse(text).map_err(|error| damaged(sidecar, &error))?;
    let is_serial =
        |serial: &str| !serial.is_empty() && serial.len() <= 64 && serial.chars().all(|c| c.is_ascii_graphic());
    if !is_serial(&parsed.serial) {
        return Err(damaged(sidecar, &"the serial number is not one"));
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sidecar_of(path: &Path) -> Sidecar {
        Sidecar::of(path, Path::new("/nowhere")).unwrap()
    }

    fn serial_of(path: &Path) -> Result<String> {
        sidecar_of(path).serial()
    }

    #[test]
    fn a_file_keeps_its_serial_number() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("a.img"), directory.path().join("b.img"));
        let serial = serial_of(&first).unwrap();
        assert_eq!(fs::metadata(directory.path().join("a.img.forebay")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(serial_of(&first).unwrap(), serial);
        assert_ne!(serial_of(&second).unwrap(), serial);
    }

    #[test]
    fn a_file_that_is_made_anew_is_another_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        let serial = serial_of(&path).unwrap();
        let another = sidecar_of(&path).serial_of_another().unwrap();
        assert_ne!(another, serial);
        assert_eq!(serial_of(&path).unwrap(), another);
        assert!(sidecar_of(&directory.path().join("b.img")).serial_of_another().is_ok(), "nothing was there");
    }

    #[tokio::test]
    async fn reservations_are_kept_with_the_serial_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        let serial = serial_of(&path).unwrap();
        let (store, saved) = sidecar_of(&path).reservations().unwrap();
        assert_eq!(saved, SavedReservations::default());
        let kept = SavedReservations {
            registrations: vec![("a,i,0x1,t,t,0x1".into(), u64::MAX), ("b".into(), 2)],
            reservation: Some((ReservationType::WriteExclusive, "b".into())),
        };
        store.save(kept.clone()).await.unwrap();
        assert_eq!(sidecar_of(&path).reservations().unwrap().1, kept);
        assert_eq!(serial_of(&path).unwrap(), serial);
        store.save(SavedReservations::default()).await.unwrap();
        assert_eq!(sidecar_of(&path).reservations().unwrap().1, SavedReservations::default());
    }

    /// The file to write is a pipe: it cannot even be opened before a reader opens it.
    #[tokio::test]
    async fn saving_reservations_does_not_hold_up_the_thread_that_serves_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        serial_of(&path).unwrap();
        let (store, _) = sidecar_of(&path).reservations().unwrap();
        let pipe = directory.path().join("a.img.forebay.new");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let saving = store.save(SavedReservations::default());
        let read = tokio::task::spawn_blocking(move || fs::read(pipe).unwrap());
        assert!(saving.await.is_err(), "a pipe cannot be made durable");
        assert!(!read.await.unwrap().is_empty());
    }

    #[test]
    fn a_damaged_sidecar_is_an_error_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        for text in [
            "",
            "{}",
            r#"{"version":2,"serial":"x"}"#,
            r#"{"version":1,"serial":""}"#,
            r#"{"version":1,"serial":"a b"}"#,
        ] {
            fs::write(sidecar_of(&path).path, text).unwrap();
            assert_eq!(serial_of(&path).unwrap_err().failure(), Failure::Mismatch, "{text}");
            assert_eq!(fs::read_to_string(sidecar_of(&path).path).unwrap(), text);
        }
    }

    /// A start does not wait for somebody who opens the other end of the pipe, nor for the end of a device.
    #[test]
    fn what_is_no_file_in_the_place_of_a_sidecar_is_an_error_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        let sidecar = sidecar_of(&path);
        assert!(std::process::Command::new("mkfifo").arg(&sidecar.path).status().unwrap().success());
        let error = sidecar.serial().unwrap_err();
        assert_eq!(error.failure(), Failure::Mismatch, "{error}");
        assert!(error.to_string().contains("it is no regular file"), "{error}");
        fs::remove_file(&sidecar.path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &sidecar.path).unwrap();
        assert_eq!(sidecar.serial().unwrap_err().failure(), Failure::Mismatch);
    }

    #[test]
    fn where_a_sidecar_cannot_be_written_the_error_says_what_to_do() {
        let error = serial_of(Path::new("/proc/disk.img")).unwrap_err();
        assert!(error.to_string().contains("/proc/disk.img.forebay, where the serial number"), "{error}");
        assert!(error.to_string().contains("serve a link to the file"), "{error}");
    }
}
