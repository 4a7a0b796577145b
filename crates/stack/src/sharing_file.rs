//! The durable state of the hosts that share a LUN: a file beside the sidecar, under its name with
//! `-sharing` at the end.
//!
//! It is replaced as a whole, like the sidecar, and belongs to the LUN with that serial number
//! alone. The number of a start is durable before a host can register: client ids are never used
//! twice. So is the secret by which hosts prove after a start who they were before; only the owner
//! may read the file.

use std::io::ErrorKind;
use std::path::PathBuf;

use logical_unit::change_marks::Saving;
use logical_unit::limits::ENDED_SPANS_MAX;
use logical_unit::sharing::proof::SECRET_BYTES;
use logical_unit::{EndedLives, LifeSecret, SavedSharing, SharingStore};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Failure, Result};
use crate::record_file::{parse, read, replace};
use crate::sidecar::Sidecar;

/// Version 1.
#[derive(Serialize, Deserialize)]
struct Record {
    /// Version of this record; this is 1.
    version: u32,
    /// The LUN's serial number.
    serial: String,
    boot_epoch: u32,
    reclaimable_from: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    longest_lease_ms: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    may_lack_writes: bool,
    /// In hexadecimal; `None` in a file of an older release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    /// First and last of the lives that have ended, each as the start and the registration in it; not in a file of an
    /// older release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ended: Vec<[(u32, u32); 2]>,
}

impl Record {
    fn new(serial: &str, saved: SavedSharing) -> Self {
        let SavedSharing { boot_epoch, reclaimable_from, longest_lease_ms, may_lack_writes, secret, ended } = saved;
        let (serial, secret) = (serial.to_owned(), secret.map(|secret| to_hex(&secret.bytes())));
        let ended = ended.spans().map(|span| [*span.start(), *span.end()].map(numbers_of)).collect();
        Self { version: 1, serial, boot_epoch, reclaimable_from, longest_lease_ms, may_lack_writes, secret, ended }
    }
}

/// The file. It is written on a thread for blocking calls, since the calling thread serves other
/// LUNs, too.
pub struct SharingFile {
    path: PathBuf,
    serial: String,
}

impl SharingFile {
    /// Opens the file of a LUN. Returns also the state at this start.
    ///
    /// # Errors
    /// When it cannot be read or written, or is damaged.
    pub fn open(sidecar: &Sidecar) -> Result<(Self, SavedSharing)> {
        let file = Self { path: sidecar.sharing_path(), serial: sidecar.serial()? };
        let mut saved = file.read()?.next_start();
        if saved.secret.is_none() {
            let mut bytes = [0; SECRET_BYTES];
            let drawn = getrandom::fill(&mut bytes);
            drawn.map_err(|error| Error::new(Failure::Other, format!("no random numbers: {error}")))?;
            saved.secret = Some(LifeSecret::from_bytes(bytes));
        }
        let written = replace(&file.path, &Record::new(&file.serial, saved.clone()));
        written.map_err(|error| Error::io(format!("cannot write {}", file.path.display()), &error))?;
        Ok((file, saved))
    }

    fn read(&self) -> Result<SavedSharing> {
        let damaged = |why: &dyn std::fmt::Display| {
            let message = format!(
                "{} is damaged ({why}): remove it when no host that shares the LUN has it attached",
                self.path.display()
            );
            Error::new(Failure::Mismatch, message)
        };
        let text = match read(&self.path) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(SavedSharing::default()),
            Err(error) if error.kind() == ErrorKind::InvalidData => return Err(damaged(&error)),
            Err(error) => return Err(Error::io(format!("cannot read {}", self.path.display()), &error)),
        };
        let record: Record = parse(&text).map_err(|error| damaged(&error))?;
        // A sidecar that was made anew means another LUN.
        if record.serial != self.serial {
            return Ok(SavedSharing::default());
        }
        let Record { boot_epoch, reclaimable_from, longest_lease_ms, may_lack_writes, secret, ended, .. } = record;
        if boot_epoch == u32::MAX || reclaimable_from > boot_epoch {
            return Err(damaged(&"the numbers of its starts cannot be"));
        }
        let secret = secret.map(|text| from_hex(&text).ok_or_else(|| damaged(&"its secret is none"))).transpose()?;
        let secret = secret.map(LifeSecret::from_bytes);
        if ended.iter().any(|[first, last]| first > last) || ended.len() > ENDED_SPANS_MAX {
            return Err(damaged(&"the lives that have ended cannot be"));
        }
        let spans = ended.into_iter().map(|ends| ends.map(life_of)).map(|[first, last]| first..=last);
        let ended = EndedLives::from_spans(spans);
        Ok(SavedSharing { boot_epoch, reclaimable_from, longest_lease_ms, may_lack_writes, secret, ended })
    }
}

/// The start at which a life began, and the number of its registration.
fn numbers_of(life: u64) -> (u32, u32) {
    ((life >> 32) as u32, life as u32)
}

fn life_of((start, registration): (u32, u32)) -> u64 {
    u64::from(start) << 32 | u64::from(registration)
}

fn to_hex(bytes: &[u8; SECRET_BYTES]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; SECRET_BYTES]> {
    let digits: Vec<u8> =
        text.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.as_chunks().0.iter().map(|[high, low]| high << 4 | low).collect();
    (digits.len() == 2 * SECRET_BYTES).then_some(bytes)?.try_into().ok()
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
    use std::fs;
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
        let secret = first.secret;
        assert!(secret.is_some());
        let new = SavedSharing { boot_epoch: 1, reclaimable_from: 1, secret, ..SavedSharing::default() };
        assert_eq!(first, new);
        file.save(SavedSharing { longest_lease_ms: Some(10_000), ..first.clone() }).await.unwrap();
        let (_, second) = open(&image).unwrap();
        assert_eq!(second, SavedSharing { boot_epoch: 2, longest_lease_ms: Some(10_000), ..first });
        fs::remove_file(directory.path().join("a.img.forebay")).unwrap();
        let another = open(&image).unwrap().1;
        assert_eq!(another.boot_epoch, 1, "another LUN");
        assert!(another.secret.is_some() && another.secret != secret, "with a secret of its own");
    }

    /// A file of a release without secrets: its hosts can reclaim nothing after this start, later
    /// ones can.
    #[test]
    fn a_file_without_a_secret_gets_one() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("a.img");
        let (file, first) = open(&image).unwrap();
        replace(&file.path, &Record::new(&file.serial, SavedSharing { secret: None, ..first })).unwrap();
        let second = open(&image).unwrap().1;
        assert_eq!((second.boot_epoch, second.secret.is_some()), (2, true));
        assert_eq!(open(&image).unwrap().1.secret, second.secret);
    }

    /// A file of a release that noted none: whoever was there before may claim back.
    #[tokio::test]
    async fn lives_that_have_ended_are_known_at_the_next_start_and_a_file_without_any_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("a.img");
        let (file, first) = open(&image).unwrap();
        let ended =
            EndedLives::from_spans([(1, 3), (5, 5)].map(|(first, last)| life_of((1, first))..=life_of((1, last))));
        let held = SavedSharing { longest_lease_ms: Some(10_000), ended: ended.clone(), ..first };
        file.save(held.clone()).await.unwrap();
        let text: String = fs::read_to_string(&file.path).unwrap().split_whitespace().collect();
        assert!(text.contains(r#""ended":[[[1,1],[1,3]],[[1,5],[1,5]]]"#), "{text}");
        assert_eq!(open(&image).unwrap().1.ended, ended);
        file.save(SavedSharing { ended: EndedLives::default(), ..held.clone() }).await.unwrap();
        assert!(!fs::read_to_string(&file.path).unwrap().contains("ended"), "as it was before");
        assert!(open(&image).unwrap().1.ended.is_empty());
        file.save(SavedSharing { longest_lease_ms: None, ..held }).await.unwrap();
        assert!(open(&image).unwrap().1.ended.is_empty(), "nobody can reclaim anything");
    }

    #[test]
    fn what_is_damaged_is_said_and_not_taken_for_the_first_start() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("a.img");
        open(&image).unwrap();
        let path = directory.path().join("a.img.forebay-sharing");
        let text = fs::read_to_string(&path).unwrap();
        for damaged in [
            "{",
            &text.replace("\"version\": 1", "\"version\": 2"),
            &text.replace(": 1,", ": 4294967295,"),
            &text.replace("\"secret\": \"", "\"secret\": \"0"),
            &text.replace("\"secret\": \"", "\"secret\": \"x"),
            &text.replace("\"secret\"", "\"ended\": [[[1, 2], [1, 1]]], \"secret\""),
        ] {
            fs::write(&path, damaged).unwrap();
            let error = open(&image).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains("is damaged"), "{error}");
        }
        fs::write(&path, [0, 0xff]).unwrap();
        assert_eq!(open(&image).map(|_| ()).unwrap_err().failure(), Failure::Mismatch, "no UTF-8");
    }

    /// A start does not wait for somebody who opens the other end of the pipe, nor for the end of a device.
    #[test]
    fn what_is_no_file_in_the_place_of_the_state_of_sharing_is_an_error_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("a.img");
        let path = directory.path().join("a.img.forebay-sharing");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = open(&image).map(|_| ()).unwrap_err();
        assert!(error.failure() == Failure::Mismatch && error.to_string().contains("no regular file"), "{error}");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(open(&image).map(|_| ()).unwrap_err().failure(), Failure::Mismatch);
    }
}
