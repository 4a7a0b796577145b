//! Small JSON files, each one record that is replaced as a whole: after a crash either the old or
//! the new one exists.
//!
//! A new one is written beside the old one, made durable, and renamed; then the folder is made durable.
//!
//! A list of this host must take notes on a full file system, too. So a record of it is made with room behind it, in
//! which [notes] are written there: newer records, however many. Programs from before these take a file with
//! notes for a damaged one. Room for a record that is not there yet can be made early.

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::notes::{ROOM_BYTES, Records, Subject};
pub(crate) use self::syncing::sync_directory_of;
use self::syncing::sync_file;
use crate::error::{Error, Failure};
use crate::limits::RECORD_BYTES_MAX;
use crate::regular_file;

mod notes;
mod syncing;

/// Extension of their names.
pub(crate) const EXTENSION: &str = "json";

/// The bytes of a record; `None` where there is none. Of a damaged one, all that is there.
///
/// # Errors
/// As [`regular_file::read`].
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match regular_file::read(path, RECORD_BYTES_MAX) {
        Ok(bytes) => Ok(Some(match Records::in_file(&bytes) {
            Some(records) => bytes[records.newest()].to_vec(),
            None => bytes,
        })),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a record of a list, or makes it, durably, also where the file system is full and the record, or
/// [room](make_room) for it, is there. Room is left in it for [a loss](note_loss).
///
/// # Errors
/// As [`replace`]: on a full file system one that is much longer than the record may have no room.
pub(crate) fn note(path: &Path, record: &impl Serialize) -> Result<()> {
    note_as(path, record, Subject::State)
}

/// As [`note`], for a record that says that something was lost: on a full file system it has the room that others
/// leave.
///
/// # Errors
/// As [`note`].
pub(crate) fn note_loss(path: &Path, record: &impl Serialize) -> Result<()> {
    note_as(path, record, Subject::Loss)
}

fn note_as(path: &Path, record: &impl Serialize, subject: Subject) -> Result<()> {
    let replaced = replace_by(path, &notes::with_room(serde_json::to_vec_pretty(record)?));
    let Err(error) = replaced else { return Ok(()) };
    if !matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
        return Err(error);
    }
    let text = serde_json::to_string(record)?;
    notes::write(path, &text, subject).or_else(|_| write_to_room(path, text)).map_err(|_| error)
}

fn write_to_room(path: &Path, text: String) -> Result<()> {
    let room = with_suffix(path, ".room");
    let file = OpenOptions::new().write(true).open(&room)?;
    let mut bytes = text.into_bytes();
    if bytes.len() > ROOM_BYTES {
        return Err(ErrorKind::StorageFull.into());
    }
    // All of the room stays the record's.
    bytes.resize(ROOM_BYTES, b' ');
    file.write_all_at(&bytes, 0)?;
    sync_file(&file)?;
    fs::rename(&room, path)?;
    sync_directory_of(path)
}

/// Makes room for a record that may have to be [noted](note) when the file system is full.
///
/// # Errors
/// Those of the file system.
pub(crate) fn make_room(path: &Path) -> Result<()> {
    let room = with_suffix(path, ".room");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&room)?;
    file.write_all_at(&[0; ROOM_BYTES], 0)?;
    sync_file(&file)?;
    sync_directory_of(&room)
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The version of every record so far.
const VERSION: u32 = 1;

/// What records of all versions have.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The record in `text`. One of another version is damage to this program: its keys may mean something else. The error
/// says what is wrong, in words.
///
/// # Errors
/// Text that is no such record.
pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> std::result::Result<T, String> {
    let Versioned { version } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("version {version} is not {VERSION}"));
    }
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

/// The record of a list in a file; `None` where there is none, or none any more. `advice` says what it should be, and
/// what to do about a damaged one.
///
/// # Errors
/// `Mismatch` for a damaged one; those of the file system.
pub(crate) fn listed<T: DeserializeOwned>(
    path: &Path,
    advice: impl FnOnce() -> String,
) -> crate::error::Result<Option<T>> {
    let context = |error| Error::io(format!("cannot read {}", path.display()), &error);
    let Some(text) = read(path).map_err(context)? else { return Ok(None) };
    parse(&text).map(Some).map_err(|error| {
        Error::new(Failure::Mismatch, format!("{} is damaged ({error}): {}", path.display(), advice()))
    })
}

/// [Notes](note) a record of a list of `what`, as [a loss](note_loss) where it says so.
///
/// # Errors
/// As [`note`].
pub(crate) fn note_listed(
    path: &Path,
    record: &impl Serialize,
    says_loss: bool,
    what: impl Display,
) -> crate::error::Result<()> {
    let noted = if says_loss { note_loss(path, record) } else { note(path, record) };
    noted.map_err(|error| Error::io(format!("cannot record {what} in {}", path.display()), &error))
}

/// Replaces a record, or makes it, durably.
///
/// # Errors
/// Those of the file system. The old record is kept then, and no temporary file.
pub(crate) fn replace(path: &Path, record: &impl Serialize) -> Result<()> {
    replace_by(path, &serde_json::to_vec_pretty(record)?)
}

fn replace_by(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = with_suffix(path, ".new");
    write_and_rename(&beside, path, bytes).inspect_err(|_| {
        // A full folder must not get fuller.
        let _ = fs::remove_file(&beside);
    })?;
    sync_directory_of(path)
}

fn write_and_rename(beside: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(beside)?;
    file.write_all(bytes)?;
    sync_file(&file)?;
    fs::rename(beside, path)
}

/// Removes a record, durably. A missing one is no error.
///
/// # Errors
/// Those of the file system.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => sync_directory_of(path),
    }
}

/// The files of a folder with this extension. Temporary files of an interrupted [`replace`] have
/// another one.
///
/// # Errors
/// Those of the file system.
pub(crate) fn files_in(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        files.push(entry?.path());
    }
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::syncing::tests::lose_power;
    use super::*;

    #[test]
    fn a_record_is_the_last_one_until_it_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        assert_eq!(read(&path).unwrap(), None);
        replace(&path, &1).and_then(|()| replace(&path, &2)).unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some(&b"2"[..]));
        remove(&path).and_then(|()| remove(&path)).expect("one that is not there is no error");
        assert_eq!(read(&path).unwrap(), None);
    }

    /// A device that accepts writes and cannot sync them is in the place of the new one: after a power loss that might
    /// be there without its content.
    #[test]
    fn a_record_is_replaced_only_when_the_new_one_is_synced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        replace(&path, &1).unwrap();
        std::os::unix::fs::symlink("/dev/null", directory.path().join("a.json.new")).unwrap();
        let error = replace(&path, &2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "fsync of it is refused: {error}");
        assert_eq!(read(&path).unwrap().as_deref(), Some(&b"1"[..]));
        // No note either: the disk is not full.
        let record = BTreeMap::from([("number", 1)]);
        note(&path, &record).unwrap();
        std::os::unix::fs::symlink("/dev/null", directory.path().join("a.json.new")).unwrap();
        let error = note(&path, &BTreeMap::from([("number", 2)])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(text(&path).is_some_and(|text| text.contains('1')));
    }

    /// There is no room for the new one.
    fn note_when_full(path: &Path, record: &impl Serialize) -> Result<()> {
        std::os::unix::fs::symlink("/dev/full", with_suffix(path, ".new")).unwrap();
        note(path, record)
    }

    fn text(path: &Path) -> Option<String> {
        read(path).unwrap().map(|bytes| String::from_utf8(bytes).unwrap().trim().to_owned())
    }

    #[test]
    fn a_record_of_a_list_is_replaced_on_a_full_disk_however_often() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        let record = |number: u32| BTreeMap::from([("number", number)]);
        assert_eq!(note_when_full(&path, &record(0)).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(text(&path), None);
        note(&path, &record(0)).unwrap();
        let bytes = fs::metadata(&path).unwrap().len();
        for number in 1..1000 {
            note_when_full(&path, &record(number)).unwrap();
            assert_eq!(text(&path), Some(format!("{{\"number\":{number}}}")));
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), bytes, "no room is needed");
        note(&path, &record(1000)).unwrap();
        assert_eq!(text(&path).as_deref(), Some("{\n  \"number\": 1000\n}"), "there is room again");
        // What is damaged names nothing.
        fs::write(&path, "[").unwrap();
        note_when_full(&path, &record(5)).unwrap_err();
        assert_eq!(text(&path).as_deref(), Some("["));
    }

    #[test]
    fn a_loss_is_noted_on_a_full_disk_behind_the_longest_record_that_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        let record = |bytes: usize| BTreeMap::from([("text", "x".repeat(bytes))]);
        note(&path, &record(100)).unwrap();
        let longest = (100..3000).rev().find(|&bytes| note_when_full(&path, &record(bytes)).is_ok()).unwrap();
        note_when_full(&path, &record(longest)).unwrap();
        note_when_full(&path, &record(longest + 20)).unwrap_err();
        std::os::unix::fs::symlink("/dev/full", with_suffix(&path, ".new")).unwrap();
        note_loss(&path, &record(longest + 20)).unwrap();
        assert!(text(&path).is_some_and(|text| text.len() > longest + 20));
    }

    #[test]
    fn a_record_that_was_not_there_is_made_on_a_full_disk_where_room_was_made_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        for _ in 0..2 {
            make_room(&path).and_then(|()| make_room(&path)).unwrap();
            assert_eq!(files_in(directory.path(), EXTENSION).unwrap(), Vec::<PathBuf>::new());
            for number in 1..4 {
                note_when_full(&path, &BTreeMap::from([("number", number)])).unwrap();
                assert_eq!(text(&path), Some(format!("{{\"number\":{number}}}")));
            }
            remove(&path).unwrap();
        }
    }

    /// By each of the ways: anew, on a full disk as a note, and there in the room that was made for it.
    #[test]
    fn a_record_that_is_noted_or_removed_is_so_after_a_power_loss() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        let record = |number: u32| BTreeMap::from([("number", number)]);
        let with = |number: u32| Some(format!("{{\"number\":{number}}}"));
        let left = || {
            lose_power(directory.path());
            text(&path).map(|text| text.split_whitespace().collect::<String>())
        };
        for number in 0..3 {
            note(&path, &record(number)).unwrap();
            assert_eq!(left(), with(number), "anew");
        }
        for number in 3..9 {
            note_when_full(&path, &record(number)).unwrap();
            assert_eq!(left(), with(number), "a note");
        }
        remove(&path).unwrap();
        assert_eq!(left(), None);
        make_room(&path).unwrap();
        assert_eq!(left(), None);
        let room = fs::read(with_suffix(&path, ".room")).unwrap();
        assert_eq!(room.len(), ROOM_BYTES, "a full disk has as many bytes for it");
        note_when_full(&path, &record(9)).unwrap();
        assert_eq!(left(), with(9), "in its room");
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len(), ROOM_BYTES, "which it keeps");
        let parsed: BTreeMap<String, u32> = serde_json::from_slice(&whole).unwrap();
        assert_eq!(parsed, BTreeMap::from([("number".to_owned(), 9)]), "and is nothing else");
        note_when_full(&path, &record(10)).unwrap();
        assert_eq!(left(), with(10), "a note behind it");
        replace(&path, &record(11)).unwrap();
        assert_eq!(left(), with(11));
    }

    /// One that is too long for its room has none, and leaves that as it was.
    #[test]
    fn a_record_that_is_longer_than_the_room_for_it_is_not_made_on_a_full_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        make_room(&path).unwrap();
        let record = |bytes: usize| BTreeMap::from([("text", "x".repeat(bytes))]);
        let refused = note_when_full(&path, &record(ROOM_BYTES)).unwrap_err();
        assert_eq!((refused.kind(), text(&path)), (ErrorKind::StorageFull, None));
        note_when_full(&path, &record(100)).unwrap();
        assert!(text(&path).is_some());
    }

    #[test]
    fn a_record_of_another_version_is_none_whatever_else_it_has() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Record {
            name: String,
        }
        let parsed = |text: &str| parse::<Record>(text.as_bytes());
        assert_eq!(parsed(r#"{"version": 1, "name": "a"}"#), Ok(Record { name: "a".into() }));
        for text in [r#"{"version": 2, "name": "a"}"#, r#"{"version": 2}"#] {
            assert_eq!(parsed(text), Err("version 2 is not 1".into()), "{text}");
        }
        for text in [r#"{"name": "a"}"#, r#"{"version": 1}"#, "{", ""] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_was_not_renamed_is_no_record() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        fs::write(directory.path().join("b.json.new"), "1").unwrap();
        fs::create_dir(directory.path().join("a.json.new")).unwrap();
        replace(&path, &1).expect_err("something is in the way of the new one");
        assert_eq!(files_in(directory.path(), EXTENSION).unwrap(), Vec::<PathBuf>::new());
    }
}
