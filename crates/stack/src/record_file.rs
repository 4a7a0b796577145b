//! Small JSON files, each one record that is replaced as a whole: after a crash either the old or
//! the new one exists.
//!
//! A new one is written beside the old one, made durable, and renamed; then the folder is made durable.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Extension of their names.
pub(crate) const EXTENSION: &str = "json";

/// The bytes of a record; `None` where there is none.
///
/// # Errors
/// Those of the file system.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
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

/// Replaces a record, or makes it, durably.
///
/// # Errors
/// Those of the file system. The old record is kept then, and no temporary file.
pub(crate) fn replace(path: &Path, record: &impl Serialize) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let beside = PathBuf::from(name);
    write_and_rename(&beside, path, &serde_json::to_vec_pretty(record)?).inspect_err(|_| {
        // A full folder must not get fuller.
        let _ = fs::remove_file(&beside);
    })?;
    sync_directory_of(path)
}

fn write_and_rename(beside: &Path, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
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

/// Makes the creation or removal of a file durable.
///
/// # Errors
/// Those of the file system.
pub(crate) fn sync_directory_of(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
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
