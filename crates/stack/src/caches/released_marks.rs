//! The notes of change marks that no store has: it is gone, or is not open yet for the first time. Their targets are to
//! remove them.

use std::fs::File;
use std::path::{Path, PathBuf};

use block::Identity;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::record::{LunRecord, MarkRecord};
use crate::error::{Error, Result};
use crate::record_file;

/// Extension of the files that hold a mark whose store is gone: a [`LunRecord`].
const EXTENSION: &str = "mark";

/// The notes, in the folder of the records.
#[derive(Clone)]
pub(super) struct ReleasedMarks {
    pub(super) directory: PathBuf,
}

/// While this lives the mark of an attach under way is not removed.
pub(crate) struct MarkInMaking {
    /// Its note, locked.
    _file: File,
}

impl ReleasedMarks {
    /// Notes the mark of `lun`, if it has one.
    ///
    /// # Errors
    /// When the note cannot be written.
    pub(super) fn note(&self, lun: &LunRecord) -> Result<()> {
        let Some(mark) = &lun.mark else { return Ok(()) };
        let file = self.file(mark);
        record_file::note(&file, lun).map_err(|error| Error::io(file.display(), &error))
    }

    /// As [`note`](Self::note), for a mark that an attach under way makes. Whoever asks whether it is in making has the
    /// lock of the list.
    ///
    /// # Errors
    /// When that cannot be noted.
    pub(super) fn note_in_making(&self, lun: &LunRecord) -> Result<Option<MarkInMaking>> {
        self.note(lun)?;
        let Some(mark) = &lun.mark else { return Ok(None) };
        let path = self.file(mark);
        let file = File::open(&path).map_err(|error| Error::io(path.display(), &error))?;
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(Some(MarkInMaking { _file: file }))
    }

    /// The files of all notes.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub(super) fn files(&self) -> Result<Vec<PathBuf>> {
        let files = record_file::files_in(&self.directory, EXTENSION);
        files.map_err(|error| Error::io(self.directory.display(), &error))
    }

    /// Removes the note of a mark that its target has removed.
    ///
    /// # Errors
    /// When its file cannot be removed.
    pub(super) fn forget(&self, mark: &MarkRecord) -> Result<()> {
        let file = self.file(mark);
        record_file::remove(&file).map_err(|error| Error::io(file.display(), &error))
    }

    pub(super) fn file(&self, mark: &MarkRecord) -> PathBuf {
        self.directory.join(mark.id.simple().to_string()).with_extension(EXTENSION)
    }
}

/// The marks of the LUN `identity` that `files` note, without those that an attach under way makes. A malformed file is
/// ignored.
pub(super) fn marks_in(mut files: Vec<PathBuf>, identity: &Identity) -> Vec<MarkRecord> {
    files.retain(|path| !is_in_making(path));
    let texts = files.iter().filter_map(|path| record_file::read(path).ok().flatten());
    let luns = texts.filter_map(|text| serde_json::from_slice::<LunRecord>(&text).ok());
    luns.filter(|lun| lun.is(identity)).filter_map(|lun| lun.mark).collect()
}

/// Whether another attach is making the mark of this note.
fn is_in_making(note: &Path) -> bool {
    let locked = |file: &File| flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
    File::open(note).is_ok_and(|file| locked(&file))
}
