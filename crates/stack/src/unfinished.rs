//! A store that is made beside its place, and moved there when it is whole: whatever happens in between, the place
//! holds a whole one or none.
//!
//! Each is made under a name of its own, `PLACE.unfinished-UUID`, and locked while it is made, so that who makes
//! another at the same moment neither takes it for a left-over nor moves it. One of them comes to the place, and the
//! others find it taken: nothing is replaced but an empty file, and the store of who replaces it himself.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::SharedDevice;
use rustix::fs::{FlockOperation, RenameFlags};
use rustix::io::Errno;
use uuid::Uuid;

use crate::error::{Error, Failure, Result};
use crate::place_device::{PlaceKind, Space, check_lasts, fitting_size, open_with};
use crate::record_file::sync_directory_of;

/// A cache or log that is made beside its place. Dropped before it is put there, it is removed.
pub(crate) struct Unfinished {
    kind: PlaceKind,
    path: PathBuf,
    place: PathBuf,
    device: SharedDevice,
    is_in_place: bool,
}

/// Makes the names in the directory of a file durable.
type SyncDirectory = dyn Fn(&Path) -> io::Result<()>;

impl Unfinished {
    /// Makes a file of `size_bytes` beside `place` and formats it.
    ///
    /// # Errors
    /// No room, a size that is none; whatever formatting meets.
    pub(crate) async fn make(
        kind: PlaceKind,
        place: &Path,
        size_bytes: u64,
        format: impl AsyncFn(&SharedDevice) -> std::result::Result<(), block::Error>,
    ) -> Result<Self> {
        let size_bytes = fitting_size(kind, size_bytes)?;
        // By the name that the user gave it.
        check_lasts(kind, place)?;
        remove_unfinished(place)?;
        let (path, device) = loop {
            let path = unfinished_path(place);
            // Messages, those of later, too, name what the user named.
            let device = open_with(kind, &path, place, Space::New(size_bytes), true).inspect_err(|_| {
                // The error that matters is the first one.
                let _ = fs::remove_file(&path);
            })?;
            // Before it was locked, others may have taken it for a left-over. From now on nobody does.
            if path.exists() {
                break (path, device);
            }
        };
        let unfinished = Self { kind, path, place: place.to_owned(), device, is_in_place: false };
        format(&unfinished.device).await.map_err(making_failed)?;
        Ok(unfinished)
    }

    /// Its device.
    pub(crate) fn device(&self) -> SharedDevice {
        Arc::clone(&self.device)
    }

    /// Makes it what the next start finds at its place, where nothing is, or an empty file.
    ///
    /// # Errors
    /// `InUse` when something has come there; when its directory takes no change.
    pub(crate) fn put_in_free_place(mut self) -> Result<SharedDevice> {
        self.move_to_free_place()?;
        self.is_in_place = true;
        if let Err(error) = sync_directory_of(&self.place) {
            // Nobody knows what the next start finds there: rather nothing, as before.
            let _ = fs::remove_file(&self.place);
            return Err(self.failed(&error));
        }
        Ok(self.device())
    }

    fn move_to_free_place(&self) -> Result<()> {
        loop {
            match rename_to_new(&self.path, &self.place) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(self.failed(&error)),
            }
            let is_free = match lock_empty(&self.place).map_err(|error| self.failed(&error))? {
                // Whoever makes another takes the same lock before he replaces it.
                Taken::ByNothing(empty) => {
                    fs::rename(&self.path, &self.place).map_err(|error| self.failed(&error))?;
                    drop(empty);
                    return Ok(());
                }
                Taken::NotAnyMore => true,
                Taken::BySomething => false,
            };
            if !is_free {
                let (what, place) = (self.kind.name(), self.place.display());
                let message = format!("a {what} was made at {place} by another process at the same time: try again");
                return Err(Error::new(Failure::InUse, message));
            }
        }
    }

    /// Makes it what the next start finds at its place, instead of what is there, which is the caller's.
    ///
    /// # Errors
    /// When its directory takes no change: what was there is there again, and what was to take its place is nothing any
    /// more.
    pub(crate) fn replace(self) -> Result<SharedDevice> {
        self.replace_with(&sync_directory_of)
    }

    fn replace_with(mut self, sync: &SyncDirectory) -> Result<SharedDevice> {
        let mut old = self.path.as_os_str().to_owned();
        old.push(".old");
        let old = PathBuf::from(old);
        fs::hard_link(&self.place, &old).map_err(|error| self.failed(&error))?;
        let replaced = fs::rename(&self.path, &self.place).and_then(|()| {
            self.is_in_place = true;
            sync(&self.place)
        });
        if let Err(error) = replaced {
            // Nobody knows which of the two the next start finds. So the new one, which has nothing of what is written
            // from now on, must not be one.
            if self.is_in_place {
                let undone = empty(&self.place).and_then(|()| fs::rename(&old, &self.place));
                let undone = undone.and_then(|()| sync(&self.place));
                if let Err(error) = undone {
                    let place = self.place.display();
                    tracing::error!(%error, "what was at {place} may not be found there after a crash");
                }
            } else {
                let _ = fs::remove_file(&old);
            }
            return Err(self.failed(&error));
        }
        // It is a left-over for the next start at worst.
        let _ = fs::remove_file(&old);
        Ok(self.device())
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::io(format!("cannot make {}", self.place.display()), error)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_in_place {
            // Whoever drops it has an error already; at the next start it is removed as well.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Leaves nothing in a file, durably.
fn empty(path: &Path) -> io::Result<()> {
    let file = fs::File::options().write(true).open(path)?;
    file.set_len(0)?;
    file.sync_all()
}

/// Renames, where nothing is at `to`.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, RenameFlags::NOREPLACE) {
        // Network file systems do not know how.
        Err(Errno::INVAL | Errno::NOSYS) => fs::hard_link(from, to).and_then(|()| fs::remove_file(from)),
        renamed => Ok(renamed?),
    }
}

/// What keeps something new from a place.
enum Taken {
    /// An empty file, which nobody else replaces as long as this is kept.
    ByNothing(fs::File),
    BySomething,
    NotAnyMore,
}

fn lock_empty(place: &Path) -> io::Result<Taken> {
    let file = match fs::File::open(place) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Taken::NotAnyMore),
        opened => opened?,
    };
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(Taken::BySomething);
    }
    let locked = file.metadata()?;
    Ok(match fs::metadata(place) {
        Ok(there) if (there.dev(), there.ino()) != (locked.dev(), locked.ino()) => Taken::NotAnyMore,
        Ok(there) if there.is_file() && there.len() == 0 => Taken::ByNothing(file),
        Ok(_) => Taken::BySomething,
        Err(error) if error.kind() == ErrorKind::NotFound => Taken::NotAnyMore,
        Err(error) => return Err(error),
    })
}

/// What follows the name of a place in the name of what is made beside it.
const UNFINISHED: &str = ".unfinished";

/// Removes what was begun beside `place` and never finished, and what a replacement that was interrupted left of the
/// names of what is there.
pub(crate) fn remove_unfinished(place: &Path) -> Result<()> {
    let Some(name) = place.file_name() else { return Ok(()) };
    let prefix = [name.as_encoded_bytes(), UNFINISHED.as_bytes()].concat();
    let directory = place.parent().unwrap_or(Path::new("/"));
    let entries = fs::read_dir(directory).map_err(|error| Error::io(directory.display(), &error))?;
    let is_unfinished = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(&prefix);
    for entry in entries.flatten().filter(is_unfinished) {
        let path = entry.path();
        match remove_if_abandoned(&path, place) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io(format!("cannot remove {}", path.display()), &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes `path` unless somebody is making it now, who has it locked.
fn remove_if_abandoned(path: &Path, place: &Path) -> io::Result<()> {
    let file = fs::File::open(path)?;
    let (ours, there) = (file.metadata()?, fs::metadata(place).ok());
    let is_other_name = there.is_some_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()));
    if is_other_name || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// A file that a cache is made in before it is moved to its place, which nobody else makes one in.
fn unfinished_path(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(format!("{UNFINISHED}-{}", Uuid::new_v4().simple()));
    PathBuf::from(name)
}

/// Why nothing was made. What cannot be made as it was asked for is a mistake of who asked.
pub(crate) fn making_failed(error: block::Error) -> Error {
    match error.kind() {
        block::ErrorKind::InvalidRange => Error::new(Failure::Usage, Error::from(error).to_string()),
        _ => error.into(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use block::device::DeviceExt;

    use super::*;

    const SIZE: u64 = 1 << 20;

    /// Makes the first page of `device` this byte.
    pub(crate) async fn write(device: &SharedDevice, byte: u8) {
        let mut bytes = block::Buffer::zeroed(4096);
        bytes.fill(byte);
        device.write(0, bytes, true).await.unwrap();
    }

    /// What is in a directory that begins with `disk`.
    pub(crate) fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("disk")).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn what_was_begun_and_abandoned_is_removed_and_what_is_being_made_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap().join("disk");
        fs::write(directory.path().join("disk.unfinished"), "x").unwrap();
        fs::write(directory.path().join("disk.unfinished-1"), "x").unwrap();
        let format = async |_: &SharedDevice| Ok(());
        let first = Unfinished::make(PlaceKind::Cache, &place, SIZE, format).await.unwrap();
        let second = Unfinished::make(PlaceKind::Cache, &place, SIZE, format).await.unwrap();
        assert_eq!(names(directory.path()).len(), 2);
        drop(first);
        assert_eq!(second.put_in_free_place().unwrap().geometry().size_bytes, SIZE);
        assert_eq!(names(directory.path()), ["disk"]);
    }

    #[tokio::test]
    async fn a_replacement_that_cannot_be_made_durable_leaves_the_old_one_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap().join("disk");
        let format = async |_: &SharedDevice| Ok(());
        let old = Unfinished::make(PlaceKind::Cache, &place, SIZE, format).await.unwrap();
        let old = old.put_in_free_place().unwrap();
        write(&old, 1).await;
        let new = Unfinished::make(PlaceKind::Cache, &place, SIZE, format).await.unwrap();
        write(&new.device(), 2).await;
        let fails = |_: &Path| Err(io::Error::from(ErrorKind::Other));
        assert!(new.replace_with(&fails).is_err());
        write(&old, 3).await;
        old.flush().await.unwrap();
        assert_eq!(fs::read(&place).unwrap()[0], 3, "the old one has its name");
        assert_eq!(names(directory.path()), ["disk"]);
        let new = Unfinished::make(PlaceKind::Cache, &place, SIZE, format).await.unwrap();
        write(&new.device(), 4).await;
        new.replace().unwrap().flush().await.unwrap();
        assert_eq!(fs::read(&place).unwrap()[0], 4);
        assert_eq!(names(directory.path()), ["disk"]);
    }

    #[tokio::test]
    async fn messages_name_what_the_user_named_and_not_what_it_is_made_under() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap().join("disk");
        let made = async |size_bytes| Unfinished::make(PlaceKind::Log, &place, size_bytes, async |_| Ok(())).await;
        let message = made(1 << 60).await.err().expect("no disk has so much room").to_string();
        assert!(message.contains(&place.display().to_string()) && !message.contains(UNFINISHED), "{message}");
        let made = made(SIZE).await.expect("it is small");
        assert_eq!(made.device().identity().unit, place.display().to_string());
    }
}
