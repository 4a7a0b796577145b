//! The sidecar of a file LUN: `PATH.forebay`, which gives the file a serial number that stays with it.
//!
//! A cache is bound to this serial number. It is made at random when the file is first served, and made durable before
//! anybody can see it. Copying a disk image without its sidecar makes another LUN, as it should.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::{Error, Failure, Result};

#[derive(Serialize, Deserialize)]
struct Sidecar {
    /// Version of this record; this is 1.
    version: u32,
    serial: String,
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

fn parse(text: &str, sidecar: &Path) -> Result<String> {
    let damaged = |why: &dyn std::fmt::Display| {
        let message = format!(
            "{} is damaged ({why}): restore it, or remove it to give the LUN a new serial number (caches of it will not match any more)",
            sidecar.display()
        );
        Error::new(Failure::Mismatch, message)
    };
    let parsed: Sidecar = serde_json::from_str(text).map_err(|error| damaged(&error))?;
    if parsed.version != 1 {
        return Err(damaged(&format_args!("version {} is not 1", parsed.version)));
    }
    let is_serial =
        |serial: &str| !serial.is_empty() && serial.len() <= 64 && serial.chars().all(|c| c.is_ascii_graphic());
    if !is_serial(&parsed.serial) {
        return Err(damaged(&"the serial number is not one"));
    }
    Ok(parsed.serial)
}

fn make(sidecar: &Path) -> Result<String> {
    let serial = Uuid::new_v4().simple().to_string();
    let record = Sidecar { version: 1, serial: serial.clone() };
    let write = || -> std::io::Result<()> {
        let text = serde_json::to_vec_pretty(&record)?;
        let mut file = OpenOptions::new().write(true).create_new(true).open(sidecar)?;
        file.write_all(&text)?;
        file.sync_all()?;
        let parent = sidecar.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
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
