//! Notes, in the state directory, about differences whose file was cut, removed or moved away while
//! they were in use: an attach would read zeroes from what is left, or make an empty one in its place.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::content::uuid_at;
use crate::error::{Error, Failure, Result};
use crate::paths::{Paths, make_private};
use crate::place::Place;
use crate::record_file;

/// What became of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fate {
    /// It was cut, or holes were made in it.
    Cut,
    /// It was removed, or another file was put over it: it went with the process that had it open.
    Removed,
    /// It has another name.
    Moved,
}

/// The words before "while it is in use".
impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cut => "was cut, or holes made in it,",
            Self::Removed => "was removed",
            Self::Moved => "was moved away",
        })
    }
}

/// One note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Version of this record; this is 1.
    version: u32,
    path: PathBuf,
    /// The name of the attachment.
    name: String,
    uuid: Uuid,
    fate: Fate,
}

/// The note about the difference at one place, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct DifferenceNote {
    place: Place,
    file: PathBuf,
}

impl DifferenceNote {
    /// That of `place`.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub(crate) fn of(paths: &Paths, place: &Place) -> Result<Self> {
        let folder = paths.differences();
        make_private(&folder)?;
        let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, place.path.as_os_str().as_bytes());
        let file = folder.join(format!("{}.{}", id.simple(), record_file::EXTENSION));
        Ok(Self { place: place.clone(), file })
    }

    /// Refuses a place with a note, unless the loss `is_accepted`, or what was moved is back.
    ///
    /// # Errors
    /// `WouldLoseData`, with advice; `Mismatch` for a damaged note; errors of reading.
    pub(crate) fn check(&self, is_accepted: bool) -> Result<()> {
        let Some(note) = self.read()?.filter(|_| !is_accepted) else { return Ok(()) };
        let is_back = note.fate == Fate::Moved && uuid_at(&self.place) == Some(note.uuid);
        if is_back {
            return Ok(());
        }
        let (place, name, fate) = (&self.place, &note.name, note.fate);
        let advice = match fate {
            Fate::Moved => "bring it back",
            Fate::Cut => "what it held there is lost, and would read as zeroes: put a whole copy in its place",
            Fate::Removed => "what it held is lost: put a copy in its place, if there is one",
        };
        let message = format!(
            "the difference {place} {fate} while \"{name}\" used it: {advice}; `--set difference.accept-loss=on` takes \
             what is there, or makes a new one where nothing is"
        );
        Err(Error::new(Failure::WouldLoseData, message))
    }

    /// Notes, durably, what became of the difference with this `uuid`, which the attachment `name` uses.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, fate: Fate, name: &str, uuid: Uuid) -> Result<()> {
        let note = Note { version: 1, path: self.place.path.clone(), name: name.to_owned(), uuid, fate };
        let context = |error| Error::io(format!("cannot note it in {}", self.file.display()), &error);
        record_file::note_loss(&self.file, &note).map_err(context)
    }

    /// Makes room for the note, as long as there is some.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn make_room(&self) -> Result<()> {
        let context = |error| Error::io(format!("cannot make room for {}", self.file.display()), &error);
        record_file::make_room(&self.file).map_err(context)
    }

    /// Strikes the note, if there is one.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub(crate) fn strike(&self) -> Result<()> {
        if !self.file.exists() {
            return Ok(());
        }
        record_file::remove(&self.file)
            .map_err(|error| Error::io(format!("cannot remove {}", self.file.display()), &error))
    }

    fn read(&self) -> Result<Option<Note>> {
        let file = self.file.display();
        let text = record_file::read(&self.file).map_err(|error| Error::io(format!("cannot read {file}"), &error))?;
        let Some(text) = text else { return Ok(None) };
        record_file::parse(&text).map(Some).map_err(|error| {
            let message = format!(
                "{file} is damaged ({error}): it should say what became of the difference {} while it was used; \
                 remove the file to take what is there",
                self.place
            );
            Error::new(Failure::Mismatch, message)
        })
    }
}
