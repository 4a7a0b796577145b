//! The sidecar of a file LUN: `PATH.forebay`, which gives the file a serial number that stays with it.
//!
//! A cache is bound to this serial number. It is made at random when the file is first served, and made durable before
//! anybody can see it. Copying a disk image without its sidecar makes another LUN, as it should.
//!
//! Persistent reservations that are to outlive power loss (APTPL) are kept here, too. The record is replaced whole: a new one is written
//! beside it, made durable and renamed, so that at any moment one of the two is there.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use logical_unit::{ReservationStore, SavedReservations};
use scsi::persistent_reservation::ReservationType;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Failure, Result};

/// Version 1; `reservations` came later and is left out when there are none, so that records without it stay what they were.
#[derive(Serialize, Deserialize)]
struct Sidecar {
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

/// The reservations of one file LUN.
pub struct SidecarReservations {
    sidecar: PathBuf,
    serial: String,
}

impl ReservationStore for SidecarReservations {
    fn save(&self, reservations: &SavedReservations) -> std::result::Result<(), String> {
        let of = |(nexus, key): &(String, u64)| RegistrationRecord { nexus: nexus.clone(), key: *key };
        let record = ReservationsRecord {
            registrations: reservations.registrations.iter().map(of).collect(),
            held: reservations
                .reservation
                .as_ref()
                .map(|(kind, holder)| HeldRecord { holder: holder.clone(), kind: kind.code() }),
        };
        let is_needed = !record.registrations.is_empty();
        let record = Sidecar { version: 1, serial: self.serial.clone(), reservations: is_needed.then_some(record) };
        replace(&self.sidecar, &record).map_err(|error| format!("cannot write {}: {error}", self.sidecar.display()))
    }
}

/// The reservations kept for the file LUN at `path`, and where they will be kept.
///
/// # Errors
/// As [`serial_of`].
pub fn reservations_of(path: &Path) -> Result<(SidecarReservations, SavedReservations)> {
    let serial = serial_of(path)?;
    let sidecar = sidecar_path(path);
    let text = fs::read_to_string(&sidecar)
        .map_err(|error| Error::io(format!("cannot read {}", sidecar.display()), &error))?;
    let record = record_in(&text, &sidecar)?;
    let mut saved = SavedReservations::default();
    if let Some(record) = record.reservations {
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

/// The serial number of the file LUN at `path`, made now if it has none.
///
/// # Errors
/// When the sidecar cannot be read or written, or is not one.
pub fn serial_of(path: &Path) -> Result<String> {
    let sidecar = sidecar_path(path);
    match fs::read_to_string(&sidecar) {
        Ok(text) => parse(&text, &sidecar),
        Err(error) if error.kind() == ErrorKind::NotFound => make(&sidecar),
        Err(error) => Err(Error::io(format!("cannot read {}", sidecar.display()), &error)),
    }
}

fn sidecar_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".forebay");
    PathBuf::from(name)
}

fn damaged(sidecar: &Path, why: &dyn std::fmt::Display) -> Error {
    let message = format!(
        "{} is damaged ({why}): restore it, or remove it to give the LUN a new serial number (caches of it will not match any more)",
        sidecar.display()
    );
    Error::new(Failure::Mismatch, message)
}

fn parse(text: &str, sidecar: &Path) -> Result<String> {
    record_in(text, sidecar).map(|record| record.serial)
}

fn record_in(text: &str, sidecar: &Path) -> Result<Sidecar> {
    let parsed: Sidecar = serde_json::from_str(text).map_err(|error| damaged(sidecar, &error))?;
    if parsed.version != 1 {
        return Err(damaged(sidecar, &format_args!("version {} is not 1", parsed.version)));
    }
    let is_serial =
        |serial: &str| !serial.is_empty() && serial.len() <= 64 && serial.chars().all(|c| c.is_ascii_graphic());
    if !is_serial(&parsed.serial) {
        return Err(damaged(sidecar, &"the serial number is not one"));
    }
    Ok(parsed)
}

/// Puts a new record in the place of the old one, durably.
fn replace(sidecar: &Path, record: &Sidecar) -> std::io::Result<()> {
    let mut name = sidecar.as_os_str().to_owned();
    name.push(".new");
    let beside = PathBuf::from(name);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&beside)?;
    file.write_all(&serde_json::to_vec_pretty(record)?)?;
    file.sync_all()?;
    fs::rename(&beside, sidecar)?;
    sync_directory_of(sidecar)
}

fn sync_directory_of(sidecar: &Path) -> std::io::Result<()> {
    let parent = sidecar.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn make(sidecar: &Path) -> Result<String> {
    let serial = Uuid::new_v4().simple().to_string();
    let record = Sidecar { version: 1, serial: serial.clone(), reservations: None };
    let write = || -> std::io::Result<()> {
        let text = serde_json::to_vec_pretty(&record)?;
        let mut file = OpenOptions::new().write(true).create_new(true).open(sidecar)?;
        file.write_all(&text)?;
        file.sync_all()?;
        sync_directory_of(sidecar)
    };
    write().map_err(|error| Error::io(format!("cannot write {}", sidecar.display()), &error))?;
    Ok(serial)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_serial_number() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("a.img"), directory.path().join("b.img"));
        let serial = serial_of(&first).unwrap();
        assert_eq!(serial_of(&first).unwrap(), serial);
        assert_ne!(serial_of(&second).unwrap(), serial);
    }

    #[test]
    fn reservations_are_kept_with_the_serial_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.img");
        let serial = serial_of(&path).unwrap();
        let (store, saved) = reservations_of(&path).unwrap();
        assert_eq!(saved, SavedReservations::default());
        let kept = SavedReservations {
            registrations: vec![("a,i,0x1,t,t,0x1".into(), u64::MAX), ("b".into(), 2)],
            reservation: Some((ReservationType::WriteExclusive, "b".into())),
        };
        store.save(&kept).unwrap();
        assert_eq!(reservations_of(&path).unwrap().1, kept);
        assert_eq!(serial_of(&path).unwrap(), serial);
        store.save(&SavedReservations::default()).unwrap();
        assert_eq!(reservations_of(&path).unwrap().1, SavedReservations::default());
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
            fs::write(sidecar_path(&path), text).unwrap();
            assert_eq!(serial_of(&path).unwrap_err().failure(), Failure::Mismatch, "{text}");
            assert_eq!(fs::read_to_string(sidecar_path(&path)).unwrap(), text);
        }
    }
}
