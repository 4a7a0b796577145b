//! Small files of JSON, each one record that is replaced whole: after a crash either the old one is there, or the new
//! one.
//!
//! A new one is written beside the old one, made durable, and renamed; then the folder is made durable.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// How their names end.
pub(crate) const EXTENSION: &str = "json";

/// The bytes of a record; `None` where there is none.
///
/// # Errors
/// Of the file system.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts a record in the place of the old one, if there is one, durably.
///
/// # Errors
/// Of the file system. The old one is there then, and nothing beside it.
pub(crate) fn replace(path: &Path, record: &impl Serialize) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let beside = PathBuf::from(name);
    write_and_rename(&beside, path, &serde_json::to_vec_pretty(record)?).inspect_err(|_| {
        // A folder that is full is not to be fuller for that.
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

/// Removes a record, durably. One that is not there is no error.
///
/// # Errors
/// Of the file system.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => sync_directory_of(path),
    }
}

/// The files of a folder whose names end so. What [`replace`] had not renamed when it was stopped is none of them.
///
/// # Errors
/// Of the file system.
pub(crate) fn files_in(directory: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        files.push(entry?.path());
    }
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    Ok(files)
}

/// Makes durable that there is a file, or that there is none any more.
///
/// # Errors
/// Of the file system.
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
