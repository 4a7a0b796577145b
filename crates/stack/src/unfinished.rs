//! A store that is made beside its place, and moved there when it is complete: at any time the
//! place holds a complete one or none.
//!
//! Each is made under a name of its own, `PLACE.unfinished-UUID`, and locked while it is made, so
//! that another process neither takes it for a left-over nor moves it. The first to be complete is
//! moved to the place, and the others find it taken: only an empty file is replaced, or the store
//! that its own user replaces.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use block::SharedDevice;
use file::CutNote;
use rustix::fs::{FlockOperation, RenameFlags};
use rustix::io::Errno;
use uuid::Uuid;

use crate::error::{Error, Failure, Result};
use crate::place_device::{Access, PlaceKind, Space, check_lasts, fitting_size, open_with};
use crate::record_file::sync_directory_of;
use crate::registry::lock_within;

/// A cache or log that is made beside its place. If it is dropped before it is moved there, it is
/// removed.
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
    /// Makes a file of `size_bytes` beside `place` and formats it. `note` for when it is cut.
    ///
    /// # Errors
    /// No room, an invalid size; errors of formatting.
    pub(crate) async fn make(
        kind: PlaceKind,
        place: &Path,
        size_bytes: u64,
        note: Option<CutNote>,
        format: impl AsyncFn(&SharedDevice) -> std::result::Result<(), block::Error>,
    ) -> Result<Self> {
        let size_bytes = fitting_size(kind, size_bytes)?;
        // Checked for the name that the user gave.
        check_lasts(kind, place)?;
        remove_unfinished(place, Duration::ZERO)?;
        let (path, device) = loop {
            let path = unfinished_path(place);
            // Messages, also later ones, name what the user named.
            let opened = open_with(kind, &path, place, Space::New(size_bytes), Access::Reserving, note.clone());
            let device = opened.inspect_err(|_| {
                // The error that matters is the first one.
                let _ = fs::remove_file(&path);
            })?;
            // Before it was locked, another process may have removed it as a left-over. From now on
            // none does.
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

    /// Moves it to its place, where there is no file, or an empty one.
    ///
    /// # Errors
    /// `InUse` when there is another file now; when its directory cannot be changed.
    pub(crate) fn put_in_free_place(mut self) -> Result<SharedDevice> {
        self.move_to_free_place()?;
        self.is_in_place = true;
        if let Err(error) = sync_directory_of(&self.place) {
            // It is not known what the next start finds there: no file, as before, is better.
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
                // Another process that makes a store takes the same lock before it replaces the
                // file.
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

    /// Moves it to its place, instead of the store there, which the caller has open.
    ///
    /// # Errors
    /// When its directory cannot be changed: the former store is there again, and the new one is
    /// made unusable.
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
            // It is not known which of the two the next start finds. So the new one, which lacks
            // all later writes, must not be a store any more.
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
        // At worst it is a left-over for the next start.
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
            // The caller has an error already; the next start removes the file as well.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Empties a file, durably.
fn empty(path: &Path) -> io::Result<()> {
    let file = fs::File::options().write(true).open(path)?;
    file.set_len(0)?;
    file.sync_all()
}

/// Renames a file, if there is none at `to`.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(rustix::fs::CWD, from, rustix::fs::CWD, to, RenameFlags::NOREPLACE) {
        // Network file systems do not support this.
        Err(Errno::INVAL | Errno::NOSYS) => fs::hard_link(from, to).and_then(|()| fs::remove_file(from)),
        renamed => Ok(renamed?),
    }
}

/// Why a place is not free.
enum Taken {
    /// By an empty file, which no other process replaces while this is kept.
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

/// The extension of files that are made beside a place.
const UNFINISHED: &str = ".unfinished";

/// Removes unfinished files beside `place`, and the second name that an interrupted replacement
/// left. A process that was killed while it made one may hold its lock for a moment longer, which is
/// waited for up to `time_max`.
pub(crate) fn remove_unfinished(place: &Path, time_max: Duration) -> Result<()> {
    let Some(name) = place.file_name() else { return Ok(()) };
    let prefix = [name.as_encoded_bytes(), UNFINISHED.as_bytes()].concat();
    let directory = place.parent().unwrap_or(Path::new("/"));
    let entries = fs::read_dir(directory).map_err(|error| Error::io(directory.display(), &error))?;
    let is_unfinished = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(&prefix);
    for entry in entries.flatten().filter(is_unfinished) {
        let path = entry.path();
        match remove_if_abandoned(&path, place, time_max) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io(format!("cannot remove {}", path.display()), &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes `path` unless another process is making it now, and has it locked for longer than `time_max`.
fn remove_if_abandoned(path: &Path, place: &Path, time_max: Duration) -> io::Result<()> {
    let file = fs::File::open(path)?;
    let (ours, there) = (file.metadata()?, fs::metadata(place).ok());
    let is_other_name = there.is_some_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()));
    if is_other_name || lock_within(&file, FlockOperation::NonBlockingLockExclusive, time_max) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// The path of a file in which a cache is made before it is moved to its place; no other process
/// uses it.
fn unfinished_path(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(format!("{UNFINISHED}-{}", Uuid::new_v4().simple()));
    PathBuf::from(name)
}

/// The error when making a store failed. A store that cannot be made as configured is an error of
/// the user.
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

    /// Fills the first page of `device` with this byte.
    pub(crate) async fn write(device: &SharedDevice, byte: u8) {
        let mut bytes = block::Buffer::zeroed(4096);
        bytes.fill(byte);
        device.write(0, bytes, true).await.unwrap();
    }

    /// The names in a directory that begin with `disk`.
    pub(crate) fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("disk")).collect();
        names.sort();
        names
    }

    /// The kernel lets go of the files of a killed process a moment after that has ended, where it had requests under
    /// way (`io_uring`).
    #[test]
    fn what_was_left_by_a_process_that_is_still_ending_is_removed_once_it_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("disk");
        let left = fs::File::create(directory.path().join("disk.unfinished-1")).unwrap();
        rustix::fs::flock(&left, FlockOperation::NonBlockingLockExclusive).unwrap();
        remove_unfinished(&place, Duration::ZERO).unwrap();
        assert_eq!(names(directory.path()), ["disk.unfinished-1"], "it may be made just now");
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(left);
        });
        remove_unfinished(&place, Duration::from_secs(60)).unwrap();
        assert!(names(directory.path()).is_empty());
        ends.join().unwrap();
    }

    #[tokio::test]
    async fn what_was_begun_and_abandoned_is_removed_and_what_is_being_made_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap().join("disk");
        fs::write(directory.path().join("disk.unfinished"), "x").unwrap();
        fs::write(directory.path().join("disk.unfinished-1"), "x").unwrap();
        let format = async |_: &SharedDevice| Ok(());
        let first = Unfinished::make(PlaceKind::Cache, &place, SIZE, None, format).await.unwrap();
        let second = Unfinished::make(PlaceKind::Cache, &place, SIZE, None, format).await.unwrap();
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
        let old = Unfinished::make(PlaceKind::Cache, &place, SIZE, None, format).await.unwrap();
        let old = old.put_in_free_place().unwrap();
        write(&old, 1).await;
        let new = Unfinished::make(PlaceKind::Cache, &place, SIZE, None, format).await.unwrap();
        write(&new.device(), 2).await;
        let fails = |_: &Path| Err(io::Error::from(ErrorKind::Other));
        assert!(new.replace_with(&fails).is_err());
        write(&old, 3).await;
        old.flush().await.unwrap();
        assert_eq!(fs::read(&place).unwrap()[0], 3, "the old one has its name");
        assert_eq!(names(directory.path()), ["disk"]);
        let new = Unfinished::make(PlaceKind::Cache, &place, SIZE, None, format).await.unwrap();
        write(&new.device(), 4).await;
        new.replace().unwrap().flush().await.unwrap();
        assert_eq!(fs::read(&place).unwrap()[0], 4);
        assert_eq!(names(directory.path()), ["disk"]);
    }

    #[tokio::test]
    async fn messages_name_what_the_user_named_and_not_what_it_is_made_under() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap().join("disk");
        let made =
            async |size_bytes| Unfinished::make(PlaceKind::Log, &place, size_bytes, None, async |_| Ok(())).await;
        let message = made(1 << 60).await.err().expect("no disk has so much room").to_string();
        assert!(message.contains(&place.display().to_string()) && !message.contains(UNFINISHED), "{message}");
        let made = made(SIZE).await.expect("it is small");
        assert_eq!(made.device().identity().unit, place.display().to_string());
    }
}
