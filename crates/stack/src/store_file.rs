//! The file, block device, or part of one that a cache, a log or a difference lies in: how it is made and opened.
//!
//! One that does not exist is made beside its place, formatted, and only then moved there: whatever happens in between, the place holds a whole one
//! or none. Each is made under a name of its own, `PLACE.unfinished-UUID`, and locked while it is made, so that who makes another at the same moment
//! neither takes it for a left-over nor moves it. One of them comes to the place, and the others find it taken: nothing is replaced but an empty
//! file, and the store of who replaces it himself.
//!
//! At an offset it is a part of a file or block device that is there, and claims no more than that. It is made in place, where nothing is yet.
//! Neither it nor one that takes everything is made, or opened, where another cache of this host lies.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::range::ByteRange;
use base::units::ByteSize;
use block::layer::small_blocks::{BLOCK_BYTES, SmallBlockLayer};
use block::layer::window::WindowLayer;
use block::{Device, Identity, SharedDevice};
use file::{FileDevice, FileOptions};
use rustix::fs::{FlockOperation, RenameFlags};
use rustix::io::Errno;
use store::superblock::{self, Copies, Superblock};
use uuid::Uuid;

use crate::caches::Caches;
use crate::content::{Content, STORE_BYTES_MIN, content, end_of, head_at};
use crate::error::{Error, Failure, Result};
use crate::foreign;
use crate::limits::ZERO_WRITTEN_BYTES_MAX;
use crate::place::{PLACE_UNIT_BYTES, Place};

/// What stands in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceKind {
    Cache,
    Difference,
    Log,
}

impl PlaceKind {
    /// Its name, and that of its options.
    fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Difference => "difference",
            Self::Log => "log",
        }
    }

    /// Whether applications wait for each durable write to it: then it is not handed from thread to thread while the disk is fast.
    fn waits_for_fast_writes(self) -> bool {
        self == Self::Log
    }
}

/// The device of the cache or log at `place`, made and formatted first if there is none.
///
/// # Errors
/// In use, in the way of one of `caches`, no room, no size to make it with; whatever formatting meets.
pub(crate) async fn open_or_make(
    kind: PlaceKind,
    place: &Place,
    caches: &Caches,
    size_bytes: Option<u64>,
    format: impl AsyncFn(&SharedDevice) -> std::result::Result<(), block::Error>,
) -> Result<SharedDevice> {
    let found = content(place)?;
    let space = match (found, place.offset) {
        (Content::Nothing, None) => return make_file(kind, place, size_bytes, format).await,
        (Content::Nothing, Some(_)) => {
            let message = format!(
                "there is no file or block device {}: a {} at an offset lies in one that is there",
                place.path.display(),
                kind.name()
            );
            return Err(Error::new(Failure::NotFound, message));
        }
        (_, None) => Space::Whole,
        (Content::Something { made_with }, Some(offset)) => {
            part(kind, place, offset, made_with.or(caches.length_of(place)?).or(size_bytes))?
        }
        (Content::Blank, Some(offset)) => {
            check_outside_store(place, offset)?;
            let space = part(kind, place, offset, size_bytes)?;
            check_before_end(kind, place, space)?;
            space
        }
    };
    check_large_enough(kind.name(), place)?;
    let opened = match found {
        Content::Something { .. } => open_made(kind, &place.path, space),
        Content::Nothing | Content::Blank => open_as(kind, &place.path, space),
    };
    // Before the error that only says that it is in use: this one says by whom, and whether or not it is used now.
    caches.check_apart(place, space.range())?;
    let device = opened?;
    if let Some(message) = damage_of(kind, place, &device).await {
        tracing::warn!("{message}");
    }
    match found {
        // Unless somebody was there before it was ours.
        Content::Blank if matches!(content(place)?, Content::Blank) && !has_store(&device).await? => {
            foreign::check(kind.name(), place, caches)?;
            format(&device).await.map_err(making_failed)?;
        }
        // Nobody else has the place, so nobody is making anything beside it: what is there was left behind.
        _ if place.offset.is_none() => remove_unfinished(&place.path)?,
        _ => {}
    }
    if let Some(message) = other_size(kind, place, &device, size_bytes).await {
        tracing::warn!("{message}");
    }
    Ok(device)
}

/// Whether a store is there all the same whose first bytes somebody has made zero: its last superblock says what it is.
async fn has_store(device: &SharedDevice) -> Result<bool> {
    superblock::has_last_copy(device).await.map_err(making_failed)
}

async fn make_file(
    kind: PlaceKind,
    place: &Place,
    size_bytes: Option<u64>,
    format: impl AsyncFn(&SharedDevice) -> std::result::Result<(), block::Error>,
) -> Result<SharedDevice> {
    let size_bytes = size_bytes.ok_or_else(|| no_size(kind, place))?;
    let unfinished = Unfinished::make(kind, &place.path, size_bytes, format).await?;
    unfinished.put_in_free_place(&sync_directory)
}

/// Refuses what could not be made at `place` for its size, where nothing is: before anything else is made that would be beside it.
///
/// # Errors
/// `NotFound` without a size, `Usage` with one that cannot be.
pub(crate) fn check_can_be_made(kind: PlaceKind, place: &Place, size_bytes: Option<u64>) -> Result<()> {
    if place.offset.is_some() || !matches!(content(place)?, Content::Nothing) {
        return Ok(());
    }
    let size_bytes = size_bytes.ok_or_else(|| no_size(kind, place))?;
    fitting_size(kind, size_bytes).map(drop)
}

/// Refuses a part that is to be made and reaches past the end of its file or block device.
fn check_before_end(kind: PlaceKind, place: &Place, space: Space) -> Result<()> {
    let end = end_of(&place.path).map_err(|error| Error::io(place.path.display(), &error))?;
    let range = space.range();
    if range.end() <= end {
        return Ok(());
    }
    let message = format!(
        "{} has {end} bytes, and a {} of {} at {place} would not end before",
        place.path.display(),
        kind.name(),
        ByteSize(range.length)
    );
    Err(Error::new(Failure::NoSpace, message))
}

fn no_size(kind: PlaceKind, place: &Place) -> Error {
    let what = kind.name();
    Error::new(Failure::NotFound, format!("there is no {what} at {place}: give --{what}-size to make one"))
}

/// Why nothing was made. What cannot be made as it was asked for is a mistake of who asked.
pub(crate) fn making_failed(error: block::Error) -> Error {
    match error.kind() {
        block::ErrorKind::InvalidRange => Error::new(Failure::Usage, Error::from(error).to_string()),
        _ => error.into(),
    }
}

/// The part of a file or block device from `offset` on.
fn part(kind: PlaceKind, place: &Place, offset: u64, length: Option<u64>) -> Result<Space> {
    let length = length.ok_or_else(|| no_size(kind, place))?;
    if fitting_size(kind, length)? != length {
        let message =
            format!("a {} of {length} bytes cannot be made: the size of a part is a multiple of 4 KiB", kind.name());
        return Err(Error::new(Failure::Usage, message));
    }
    let range = ByteRange::new(offset, length).filter(|range| !range.is_empty());
    range.map(Space::Part).ok_or_else(|| {
        Error::new(Failure::Usage, format!("a {} of {length} bytes cannot be made at {place}", kind.name()))
    })
}

/// How much of a file or block device is opened.
#[derive(Clone, Copy, Debug)]
enum Space {
    Whole,
    /// A new file of this many bytes.
    New(u64),
    Part(ByteRange),
}

impl Space {
    fn range(self) -> ByteRange {
        match self {
            Self::Part(range) => range,
            Self::Whole | Self::New(_) => ByteRange { offset: 0, length: u64::MAX },
        }
    }
}

/// A cache or log that is made beside its place. Dropped before it is put there, it is removed.
pub(crate) struct Unfinished {
    kind: PlaceKind,
    path: PathBuf,
    place: PathBuf,
    device: SharedDevice,
    is_in_place: bool,
}

/// Makes the names in a directory durable.
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
    fn put_in_free_place(mut self, sync: &SyncDirectory) -> Result<SharedDevice> {
        self.move_to_free_place()?;
        self.is_in_place = true;
        if let Err(error) = sync(directory_of(&self.place)) {
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
    /// When its directory takes no change: what was there is there again, and what was to take its place is nothing any more.
    pub(crate) fn replace(self) -> Result<SharedDevice> {
        self.replace_with(&sync_directory)
    }

    fn replace_with(mut self, sync: &SyncDirectory) -> Result<SharedDevice> {
        let mut old = self.path.as_os_str().to_owned();
        old.push(".old");
        let old = PathBuf::from(old);
        fs::hard_link(&self.place, &old).map_err(|error| self.failed(&error))?;
        let replaced = fs::rename(&self.path, &self.place).and_then(|()| {
            self.is_in_place = true;
            sync(directory_of(&self.place))
        });
        if let Err(error) = replaced {
            // Nobody knows which of the two the next start finds. So the new one, which has nothing of what is written from now on, must not be one.
            if self.is_in_place {
                let undone = empty(&self.place).and_then(|()| fs::rename(&old, &self.place));
                let undone = undone.and_then(|()| sync(directory_of(&self.place)));
                if let Err(error) = undone {
                    tracing::error!(%error, "what was at {} may not be found there after a crash", self.place.display());
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

fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

fn directory_of(place: &Path) -> &Path {
    place.parent().unwrap_or(Path::new("/"))
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

/// The size that the file of a store is made with: the next smaller one that there can be. A part of something is as long as it was said to be, or
/// not there.
///
/// # Errors
/// None, of nothing.
fn fitting_size(kind: PlaceKind, size_bytes: u64) -> Result<u64> {
    match size_bytes - size_bytes % PLACE_UNIT_BYTES {
        0 => Err(Error::new(Failure::Usage, too_small(kind, size_bytes))),
        fitting => Ok(fitting),
    }
}

/// What to say of a size that is too small for any store of this kind, with the least that is not.
fn too_small(kind: PlaceKind, size_bytes: u64) -> String {
    let refused = match kind {
        PlaceKind::Cache => cache::layout::Layout::new(size_bytes, &cache::FormatOptions::default()).err(),
        PlaceKind::Log => writelog::layout::Layout::new(size_bytes, &writelog::FormatOptions::default()).err(),
        // What it needs depends on its base.
        PlaceKind::Difference => None,
    };
    refused.map_or_else(
        || format!("a {} of {size_bytes} bytes cannot be made: it has some MiB, sensibly", kind.name()),
        |error| error.to_string(),
    )
}

/// Refuses a file that is too small for a store, before anything else is said of it: somebody's, or what is left of a store.
fn check_large_enough(what: &str, place: &Place) -> Result<()> {
    let Ok(file) = fs::metadata(&place.path) else { return Ok(()) };
    if !file.is_file() || file.len() >= STORE_BYTES_MIN || place.offset.is_some() {
        return Ok(());
    }
    let made_with = head_at(&place.path, 0).ok().and_then(|head| superblock::device_bytes(&head));
    let message = match made_with {
        Some(bytes) => {
            format!(
                "{place} was cut: the {what} in it was made on {bytes} bytes, and {} are left: bring back what was cut off, or discard it",
                file.len()
            )
        }
        None => format!("{place} has {} bytes, and is no {what}", file.len()),
    };
    Err(Error::new(Failure::Mismatch, message))
}

/// What to say of a size that a store is given which has another: that is for one that is made, and one that was changed while it was used keeps
/// what it was changed to. `None` of what is no store of this kind, which is refused for that.
async fn other_size(kind: PlaceKind, place: &Place, device: &SharedDevice, asked: Option<u64>) -> Option<String> {
    let device_bytes = device.geometry().size_bytes;
    let asked = asked.filter(|asked| asked - asked % PLACE_UNIT_BYTES != device_bytes)?;
    copies_of(kind, device).await?;
    let (what, asked, has) = (kind.name(), ByteSize(asked), ByteSize(device_bytes));
    let change = match kind {
        PlaceKind::Cache => format!("; `forebay set NAME cache.size={asked}` changes it"),
        PlaceKind::Difference | PlaceKind::Log => String::new(),
    };
    Some(format!("the {what} {place} has {has}, and --{what}-size {asked} is for one that is made{change}"))
}

/// The two superblocks of the store on `device`; `None` where there is none of this kind.
async fn copies_of(kind: PlaceKind, device: &SharedDevice) -> Option<Copies> {
    let store = match kind {
        PlaceKind::Cache => cache::format::KIND,
        PlaceKind::Difference => difference::KIND,
        PlaceKind::Log => writelog::format::KIND,
    };
    // What a store keeps in it does not matter here.
    Superblock::<[u8; 0]>::read(device, store).await.ok().map(|superblock| superblock.copies())
}

/// What to say of a store of whose two superblocks only one is left, as `cache check` and `log check` do; `None` of one that is not there yet, too.
async fn damage_of(kind: PlaceKind, place: &Place, device: &SharedDevice) -> Option<String> {
    if kind == PlaceKind::Difference {
        return None;
    }
    let copies = copies_of(kind, device).await?;
    let what = kind.name();
    copies.is_one_damaged().then(|| {
        format!(
            "the {what} {place}: one of the two copies of its superblock is damaged ({copies}). A crash while it was written leaves that; so does a device \
             that was cut or written over, and then what was written last may be gone without a trace: compare with what you expect to be there, or \
             give it up with `forebay {what} discard {}`",
            place.argument(what)
        )
    })
}

/// What follows the name of a place in the name of what is made beside it.
const UNFINISHED: &str = ".unfinished";

/// Removes what was begun beside `place` and never finished, and what a replacement that was interrupted left of the names of what is there.
fn remove_unfinished(place: &Path) -> Result<()> {
    let Some(name) = place.file_name() else { return Ok(()) };
    let prefix = [name.as_encoded_bytes(), UNFINISHED.as_bytes()].concat();
    let directory = directory_of(place);
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

/// Refuses an offset within a store that begins with its file or block device: a log, or a cache that the list does not know, of another user.
fn check_outside_store(place: &Place, offset: u64) -> Result<()> {
    let head = head_at(&place.path, 0).map_err(|error| Error::io(place.path.display(), &error))?;
    match superblock::device_bytes(&head).filter(|&bytes| bytes > offset) {
        None => Ok(()),
        Some(bytes) => {
            let message = format!(
                "{place} is within the cache or write log that takes the first {} of {}: choose another place, or discard that one",
                ByteSize(bytes),
                place.path.display()
            );
            Err(Error::new(Failure::InUse, message))
        }
    }
}

/// Opens the file or block device of the cache or log that lies at `place`, or its part of one, for this process alone; past the page cache where the
/// file system can do that.
///
/// # Errors
/// `NotFound` where nothing is, or no one knows how long it is; in use; one of `caches` in the way.
pub fn open_device(place: &Place, caches: &Caches) -> Result<SharedDevice> {
    let space = match place.offset {
        None => Space::Whole,
        Some(offset) => {
            let length = known_length(place, caches)?.ok_or_else(|| {
                let message = format!(
                    "no cache or write log begins at {place}, as far as its bytes and this host's list say: name the offset that it was made with"
                );
                Error::new(Failure::NotFound, message)
            })?;
            part(PlaceKind::Cache, place, offset, Some(length))?
        }
    };
    check_large_enough("cache or write log", place)?;
    let opened = open_made(PlaceKind::Cache, &place.path, space);
    caches.check_apart(place, space.range())?;
    opened
}

/// How long the store at `place` is, as its first bytes say, or else the list of `caches`.
fn known_length(place: &Place, caches: &Caches) -> Result<Option<u64>> {
    match content(place)? {
        Content::Something { made_with: Some(length) } => Ok(Some(length)),
        _ => caches.length_of(place),
    }
}

/// Whether two stores that are opened together, each made with such a size if it is not there, would have bytes in common, as far as that is known: it does
/// not matter whether they are in use.
///
/// # Errors
/// Whatever reading meets.
pub(crate) fn have_common_bytes(stores: [(&Place, Option<u64>); 2], caches: &Caches) -> Result<bool> {
    let [(one, one_bytes), (other, other_bytes)] = stores;
    if !one.shares_file_with(other) {
        return Ok(false);
    }
    let (Some(start), Some(other_start)) = (one.offset, other.offset) else { return Ok(true) };
    let (first, first_bytes, begin) = match start <= other_start {
        true => (one, one_bytes, start),
        false => (other, other_bytes, other_start),
    };
    let length = known_length(first, caches)?.or(first_bytes).unwrap_or(1);
    Ok(begin.saturating_add(length) > start.max(other_start))
}

/// Whether `path`, or what is to be made there, lies on a file system that forgets everything with the power.
pub fn is_in_memory(path: &Path) -> bool {
    /// `TMPFS_MAGIC` and `RAMFS_MAGIC` of statfs(2).
    const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A device has its name on a file system in memory, and its bytes elsewhere.
    let is_device = fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    // What cannot be asked says what is wrong when it is opened.
    let status = rustix::fs::statfs(path).or_else(|_| rustix::fs::statfs(folder));
    !is_device && status.is_ok_and(|status| IN_MEMORY.contains(&(status.f_type as u32)))
}

/// Refuses a file system in memory for what is to outlive the power.
fn check_lasts(kind: PlaceKind, path: &Path) -> Result<()> {
    if kind == PlaceKind::Difference || !is_in_memory(path) {
        return Ok(());
    }
    let message = format!(
        "{} lies on a file system in memory (tmpfs), where a {} does not outlive the power: choose a place on a disk",
        path.display(),
        kind.name()
    );
    Err(Error::new(Failure::Usage, message))
}

/// Stores read and write units of 512 bytes, also on a disk of larger blocks.
fn in_small_blocks(device: SharedDevice) -> SharedDevice {
    if device.geometry().logical_block_bytes == BLOCK_BYTES {
        return device;
    }
    let layer = SmallBlockLayer::new(device);
    tokio::spawn(base::background::named("small-blocks", layer.run()));
    Arc::new(layer)
}

/// A store that was made before, whose space is reserved where it is not yet. It may hold the LUN's newest data: a full disk does not keep anybody
/// from that.
fn open_made(kind: PlaceKind, path: &Path, space: Space) -> Result<SharedDevice> {
    match open_as(kind, path, space) {
        Err(error) if error.failure() == Failure::NoSpace => {
            tracing::warn!(%error, "the {} is opened without all of its space, and may run out of it", kind.name());
            open_with(kind, path, path, space, false)
        }
        opened => opened,
    }
}

fn open_as(kind: PlaceKind, path: &Path, space: Space) -> Result<SharedDevice> {
    open_with(kind, path, path, space, true)
}

fn open_with(kind: PlaceKind, path: &Path, name: &Path, space: Space, preallocate: bool) -> Result<SharedDevice> {
    check_lasts(kind, path)?;
    let name = name.display().to_string();
    let identity = Identity { target: "file".into(), unit: name.clone(), serial: String::new() };
    let (size, part) = match space {
        Space::Whole => (None, None),
        Space::New(size_bytes) => (Some(size_bytes), None),
        Space::Part(range) => (None, Some(range)),
    };
    let options = FileOptions {
        size,
        part,
        preallocate,
        // A log writes itself when it is made.
        zero_written: kind != PlaceKind::Log && size.is_some_and(|size_bytes| size_bytes <= ZERO_WRITTEN_BYTES_MAX),
        direct: true,
        exclusive: true,
        identity,
        name: Some(name),
        is_write_cache_volatile: true,
        waits_for_fast_writes: kind.waits_for_fast_writes(),
        notices_cuts: kind != PlaceKind::Difference,
        ..FileOptions::default()
    };
    let device: SharedDevice = match FileDevice::open(path, options.clone()) {
        // Some network file systems, and those of containers, cannot bypass the page cache.
        Err(error) if error.kind() == block::ErrorKind::Unsupported => {
            FileDevice::open(path, FileOptions { direct: false, ..options })?
        }
        opened => opened?,
    };
    let device = in_small_blocks(device);
    Ok(match part {
        None => device,
        Some(range) => Arc::new(WindowLayer::new(device, range)?),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::device::DeviceExt;
    use block::memory::MemoryDevice;
    use cache::Cache;
    use tokio::sync::Notify;
    use writelog::WriteLog;

    use super::*;
    use crate::paths::Paths;
    use crate::time::system_clock;

    const SIZE: u64 = 1 << 20;

    fn caches(directory: &Path) -> Caches {
        Caches::open(&Paths::new(directory.join("run"), directory.join("state")).unwrap()).unwrap()
    }

    async fn write(device: &SharedDevice, byte: u8) {
        let mut bytes = block::Buffer::zeroed(4096);
        bytes.fill(byte);
        device.write(0, bytes, true).await.unwrap();
    }

    #[tokio::test]
    async fn a_store_that_was_cut_and_grown_again_is_opened_with_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(&directory.path().join("disk"), None).unwrap();
        let device = |name: &str| -> SharedDevice {
            let identity = Identity { target: "test".into(), unit: name.into(), serial: "1".into() };
            Arc::new(MemoryDevice::new(4 * SIZE, identity))
        };
        let origin = device("origin");
        for kind in [PlaceKind::Cache, PlaceKind::Log] {
            let store = device("store");
            assert_eq!(damage_of(kind, &place, &store).await, None, "there is none yet");
            match kind {
                PlaceKind::Log => WriteLog::format(&store, &origin, writelog::FormatOptions::default()).await.unwrap(),
                _ => Cache::format(&store, &origin, cache::FormatOptions::default()).await.unwrap(),
            }
            assert_eq!(damage_of(kind, &place, &store).await, None);
            store.write(3 * SIZE, block::Buffer::zeroed(SIZE as usize), true).await.unwrap();
            let said = damage_of(kind, &place, &store).await.expect("its last copy is gone");
            assert!(said.contains("first copy whole, last copy all zero"), "{said}");
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("disk")).collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn an_offset_where_nothing_begins_is_told_as_that_to_who_looks_for_a_store_there() {
        let directory = tempfile::tempdir().unwrap();
        let caches = caches(directory.path());
        fs::File::create(directory.path().join("disk")).unwrap().set_len(SIZE).unwrap();
        let place = Place::new(&directory.path().join("disk"), Some(4096)).unwrap();
        let error = open_device(&place, &caches).err().expect("nothing is there");
        assert_eq!(error.failure(), Failure::NotFound);
        assert!(error.to_string().starts_with("no cache or write log begins at"), "{error}");
    }

    #[tokio::test]
    async fn a_file_that_ends_within_the_superblocks_of_a_store_was_cut_and_another_one_is_no_store() {
        let directory = tempfile::tempdir().unwrap();
        let caches = caches(directory.path());
        let place = Place::new(&directory.path().join("disk"), None).unwrap();
        let origin: SharedDevice = Arc::new(MemoryDevice::new(SIZE, Identity::default()));
        let format =
            async |device: &SharedDevice| Cache::format(device, &origin, cache::FormatOptions::default()).await;
        drop(open_or_make(PlaceKind::Cache, &place, &caches, Some(4 * SIZE), format).await.unwrap());
        let file = fs::OpenOptions::new().write(true).open(&place.path).unwrap();
        for (bytes, what) in [
            (
                8191,
                "was cut: the cache in it was made on 4194304 bytes, and 8191 are left: bring back what was cut off, or discard it",
            ),
            (
                4096,
                "was cut: the cache in it was made on 4194304 bytes, and 4096 are left: bring back what was cut off, or discard it",
            ),
            (4095, "has 4095 bytes, and is no cache"),
        ] {
            file.set_len(bytes).unwrap();
            let opened = open_or_make(PlaceKind::Cache, &place, &caches, Some(4 * SIZE), format).await;
            let error = opened.err().expect("it cannot be opened");
            assert_eq!((error.failure(), error.to_string()), (Failure::Mismatch, format!("{place} {what}")));
            assert!(open_device(&place, &caches).is_err() && crate::content::is_cut_off(&place, None).unwrap());
        }
        file.set_len(0).unwrap();
        let opened = open_or_make(PlaceKind::Cache, &place, &caches, None, format).await;
        assert_eq!(opened.err().expect("there is none").failure(), Failure::NotFound);
        open_or_make(PlaceKind::Cache, &place, &caches, Some(4 * SIZE), format)
            .await
            .expect("an empty file is no store");
    }

    #[tokio::test]
    async fn a_part_whose_first_bytes_were_made_zero_is_not_formatted_over_the_store_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let caches = caches(directory.path());
        let path = directory.path().join("disk");
        fs::write(&path, vec![0; 24 << 20]).unwrap();
        let place = Place::new(&path, Some(SIZE)).unwrap();
        const LOG_BYTES: u64 = 16 << 20;
        let log_format = async |device: &SharedDevice| {
            let origin: SharedDevice = Arc::new(MemoryDevice::new(SIZE, block::Identity::default()));
            WriteLog::format(device, &origin, writelog::FormatOptions::default()).await
        };
        drop(open_or_make(PlaceKind::Log, &place, &caches, Some(LOG_BYTES), log_format).await.unwrap());
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 8192], SIZE).unwrap();
        let format = async |_: &SharedDevice| panic!("there is a store");
        let opened = async { open_or_make(PlaceKind::Log, &place, &caches, Some(LOG_BYTES), format).await };
        opened.await.unwrap();
    }

    /// Whoever was second removed what the first had begun, and the first then moved the second's: one of them served from a file without a name.
    #[tokio::test]
    async fn of_two_who_make_a_store_at_one_place_at_once_one_has_it_and_the_other_is_told() {
        for is_empty_file_there in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let place = Place::new(&directory.path().join("disk.log"), None).unwrap();
            if is_empty_file_there {
                fs::write(&place.path, "").unwrap();
            }
            let caches = caches(directory.path());
            let (second_began, first_ended) = (Notify::new(), Notify::new());
            let first = async {
                let format = async |_: &SharedDevice| {
                    second_began.notified().await;
                    Ok(())
                };
                let made = open_or_make(PlaceKind::Log, &place, &caches, Some(SIZE), format).await;
                first_ended.notify_one();
                made
            };
            let second = async {
                let format = async |_: &SharedDevice| {
                    second_began.notify_one();
                    first_ended.notified().await;
                    Ok(())
                };
                open_or_make(PlaceKind::Log, &place, &caches, Some(SIZE), format).await
            };
            let (first, second) = tokio::join!(first, second);
            let device = first.expect("nobody was there before");
            assert_eq!(second.err().expect("the place is taken").failure(), Failure::InUse);
            write(&device, 7).await;
            device.flush().await.unwrap();
            assert_eq!(fs::read(&place.path).unwrap()[0], 7, "what it serves has the name");
            assert_eq!(names(directory.path()), ["disk.log"]);
        }
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
        assert_eq!(second.put_in_free_place(&sync_directory).unwrap().geometry().size_bytes, SIZE);
        assert_eq!(names(directory.path()), ["disk"]);
    }

    #[tokio::test]
    async fn a_replacement_that_cannot_be_made_durable_leaves_the_old_one_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().canonicalize().unwrap().join("disk");
        let format = async |_: &SharedDevice| Ok(());
        let old = Unfinished::make(PlaceKind::Cache, &place, SIZE, format).await.unwrap();
        let old = old.put_in_free_place(&sync_directory).unwrap();
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

    /// A crash between the two names and one.
    #[tokio::test]
    async fn another_name_of_what_is_there_is_a_left_over() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(&directory.path().join("disk"), None).unwrap();
        let format = async |_: &SharedDevice| Ok(());
        let made = Unfinished::make(PlaceKind::Cache, &place.path, SIZE, format).await.unwrap();
        write(&made.device(), 1).await;
        drop(made.put_in_free_place(&sync_directory).unwrap());
        fs::hard_link(&place.path, directory.path().join("disk.unfinished-1.old")).unwrap();
        let opened = open_or_make(PlaceKind::Cache, &place, &caches(directory.path()), None, format).await.unwrap();
        assert_eq!(names(directory.path()), ["disk"]);
        drop(opened);
    }

    /// Cuts the file of a store in the middle, and makes it as long as before.
    fn cut(place: &Place) {
        let file = fs::OpenOptions::new().write(true).open(&place.path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(0).unwrap();
        file.set_len(length).unwrap();
    }

    /// What a cut file has is zeroes, which must not get to the LUN.
    #[tokio::test]
    async fn a_cache_whose_file_was_cut_sends_nothing_of_it_to_the_lun() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(&directory.path().join("disk"), None).unwrap();
        let origin: SharedDevice = Arc::new(MemoryDevice::new(SIZE, Identity::default()));
        write(&origin, 1).await;
        let format =
            async |device: &SharedDevice| Cache::format(device, &origin, cache::FormatOptions::default()).await;
        let caches = caches(directory.path());
        let device = open_or_make(PlaceKind::Cache, &place, &caches, Some(4 * SIZE), format).await.unwrap();
        let mut options = cache::OpenOptions::new(cache::Mode::WriteBack, system_clock().unwrap());
        options.dirty = cache::DirtyLimits { clean_above: cache::Percent::ALL, max: cache::Percent::ALL };
        let opened = Cache::open(device, Arc::clone(&origin), options).await.unwrap();
        let running = tokio::spawn(opened.run());
        let front: SharedDevice = opened.clone();
        write(&front, 2).await;
        cut(&place);
        let refused = opened.clean(|_| {}).await.expect_err("what was to be cleaned is gone");
        assert_eq!(refused.kind(), block::ErrorKind::Media, "{refused}");
        assert_eq!(origin.read(0, block::Buffer::zeroed(4096)).await.unwrap()[..], [1; 4096]);
        assert!(opened.close(true).await.is_err(), "what it holds is not kept");
        running.abort();
    }

    #[tokio::test]
    async fn a_log_whose_file_was_cut_sends_nothing_of_it_to_the_lun() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(&directory.path().join("disk"), None).unwrap();
        let origin: SharedDevice = Arc::new(MemoryDevice::new(SIZE, Identity::default()));
        write(&origin, 1).await;
        let format =
            async |device: &SharedDevice| WriteLog::format(device, &origin, writelog::FormatOptions::default()).await;
        let caches = caches(directory.path());
        let device = open_or_make(PlaceKind::Log, &place, &caches, Some(4 * SIZE), format).await.unwrap();
        let mut options = writelog::OpenOptions::new(system_clock().unwrap());
        // Whatever is sent is read from the file.
        options.record_cache_bytes = 0;
        let opened = WriteLog::open(device, Arc::clone(&origin), options).await.unwrap();
        let running = tokio::spawn(opened.run_requests());
        let front: SharedDevice = opened.clone();
        write(&front, 2).await;
        cut(&place);
        let refused = opened.destage(|_| {}).await.expect_err("what was to be destaged is gone");
        assert_eq!(refused.kind(), block::ErrorKind::Media, "{refused}");
        assert_eq!(origin.read(0, block::Buffer::zeroed(4096)).await.unwrap()[..], [1; 4096]);
        running.abort();
    }
}
