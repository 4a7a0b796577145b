//! The file, block device, or part of one that contains a cache, a log or a difference: how it is
//! made and opened.
//!
//! A new file is made beside its place, and moved there when it is complete: see
//! [`unfinished`](crate::unfinished).
//!
//! With an offset it is a part of an existing file or block device, and uses no more than that. It
//! is made in place, where there is no data yet. No store is made or opened where it would overlap
//! another cache of this host.

use std::fs;
use std::path::Path;

use base::range::ByteRange;
use base::units::ByteSize;
use block::{Device, SharedDevice};
use store::superblock::{self, Copies, Superblock};

use crate::caches::Caches;
use crate::content::{Content, STORE_BYTES_MIN, content, end_of, head_at, uuid_at};
use crate::error::{Error, Failure, Result};
use crate::foreign;
use crate::limits::ENDING_TIME_MAX;
use crate::open_store::OpenStore;
use crate::place::{PLACE_UNIT_BYTES, Place};
use crate::place_device::{self, PlaceKind, Space, fitting_size, open_as, open_made};
use crate::unfinished::{Unfinished, making_failed, remove_unfinished};

/// The device of the cache or log at `place`, made and formatted first if there is none.
///
/// # Errors
/// In use, an overlap with one of `caches`, no room, no size for a new one; errors of formatting.
pub(crate) async fn open_or_make(
    kind: PlaceKind,
    place: &Place,
    caches: &Caches,
    size_bytes: Option<u64>,
    format: impl AsyncFn(&SharedDevice) -> std::result::Result<(), block::Error>,
) -> Result<SharedDevice> {
    let found = content(place)?;
    let space = match (found, place.offset) {
        (Content::Nothing, None) => return make_file(kind, place, caches, size_bytes, format).await,
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
    let store = match found {
        Content::Something { .. } => OpenStore::at_place(uuid_at(place)),
        Content::Nothing | Content::Blank => OpenStore::default(),
    };
    let note = Some(caches.cut_note(place, &store));
    let opened = match found {
        Content::Something { .. } => open_made(kind, &place.path, space, note),
        Content::Nothing | Content::Blank => open_as(kind, &place.path, space, note),
    };
    // Before the error that it is in use: this one names the user, and also applies when the store
    // is not in use now.
    caches.check_apart(place, space.range())?;
    let device = opened?;
    if let Some(message) = damage_of(kind, place, &device).await {
        tracing::warn!("{message}");
    }
    match found {
        // Unless another process made a store before this one had it locked.
        Content::Blank if matches!(content(place)?, Content::Blank) && !has_store(&device).await? => {
            foreign::check(kind.name(), place, caches)?;
            format(&device).await.map_err(making_failed)?;
        }
        // The place is locked, so no other process makes a store beside it: such files are left
        // over.
        _ if place.offset.is_none() => remove_unfinished(&place.path, ENDING_TIME_MAX)?,
        _ => {}
    }
    store.take_place(uuid_at(place));
    if let Some(message) = other_size(kind, place, &device, size_bytes).await {
        tracing::warn!("{message}");
    }
    Ok(device)
}

/// Whether there is a store whose first bytes were overwritten with zeroes: its last superblock
/// shows it.
async fn has_store(device: &SharedDevice) -> Result<bool> {
    superblock::has_last_copy(device).await.map_err(making_failed)
}

async fn make_file(
    kind: PlaceKind,
    place: &Place,
    caches: &Caches,
    size_bytes: Option<u64>,
    format: impl AsyncFn(&SharedDevice) -> std::result::Result<(), block::Error>,
) -> Result<SharedDevice> {
    let size_bytes = size_bytes.ok_or_else(|| no_size(kind, place))?;
    let store = OpenStore::default();
    let note = Some(caches.cut_note(place, &store));
    let unfinished = Unfinished::make(kind, &place.path, size_bytes, note, format).await?;
    let device = unfinished.put_in_free_place()?;
    store.take_place(uuid_at(place));
    Ok(device)
}

/// Refuses a store that could not be made at `place` because of its size, where there is none:
/// before any other file is made for it.
///
/// # Errors
/// `NotFound` without a size, `Usage` with an impossible one, or one that a whole device does not have.
pub(crate) fn check_can_be_made(kind: PlaceKind, place: &Place, size_bytes: Option<u64>) -> Result<()> {
    match (content(place)?, place.offset) {
        (Content::Nothing, None) => {
            let size_bytes = size_bytes.ok_or_else(|| no_size(kind, place))?;
            fitting_size(kind, size_bytes).map(drop)
        }
        (Content::Blank, None) if !place.path.is_file() => {
            let device_bytes = end_of(&place.path).map_err(|error| Error::io(place.path.display(), &error))?;
            check_takes_all(kind, place, device_bytes, size_bytes)
        }
        _ => Ok(()),
    }
}

/// Refuses another size than its own for a store that takes a whole block device.
fn check_takes_all(kind: PlaceKind, place: &Place, device_bytes: u64, asked: Option<u64>) -> Result<()> {
    let whole_units = |bytes: u64| bytes - bytes % PLACE_UNIT_BYTES;
    let Some(asked) = asked.filter(|&asked| whole_units(asked) != whole_units(device_bytes)) else { return Ok(()) };
    let (what, has) = (kind.name(), ByteSize(device_bytes));
    let advice = match asked < device_bytes {
        true => format!("leave --{what}-size out, or give --set {what}.offset=0 to take no more than that"),
        false => format!("leave --{what}-size out"),
    };
    let message =
        format!("the {what} takes all of the device {place}, which has {has}, and not {}: {advice}", ByteSize(asked));
    Err(Error::new(Failure::Usage, message))
}

/// Refuses a new part that reaches past the end of its file or block device.
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

/// Refuses a file that is too small for a store, before any other check: a foreign file, or the
/// rest of a store.
fn check_large_enough(what: &str, place: &Place) -> Result<()> {
    let Ok(file) = fs::metadata(&place.path) else { return Ok(()) };
    if !file.is_file() || file.len() >= STORE_BYTES_MIN || place.offset.is_some() {
        return Ok(());
    }
    let made_with = head_at(&place.path, 0).ok().and_then(|head| superblock::device_bytes(&head));
    let message = match made_with {
        Some(bytes) => {
            format!(
                "{place} was cut: the {what} in it was made on {bytes} bytes, and {} are left: bring back what was cut \
                 off, or discard it",
                file.len()
            )
        }
        None => format!("{place} has {} bytes, and is no {what}", file.len()),
    };
    Err(Error::new(Failure::Mismatch, message))
}

/// The message for an existing store with another size than the configured one, which is for new
/// stores: a store whose size was changed while it was used keeps the changed size. `None` if it is
/// no store of this kind, which is refused for that.
async fn other_size(kind: PlaceKind, place: &Place, device: &SharedDevice, asked: Option<u64>) -> Option<String> {
    let device_bytes = device.geometry().size_bytes;
    let asked = asked.filter(|asked| asked - asked % PLACE_UNIT_BYTES != device_bytes)?;
    copies_of(kind, device).await?;
    let (what, asked, has) = (kind.name(), ByteSize(asked), ByteSize(device_bytes));
    let change = match kind {
        // Only a file of its own is made larger or smaller.
        PlaceKind::Cache if place.offset.is_none() && place.path.is_file() => {
            format!("; `forebay set NAME cache.size={asked}` changes it")
        }
        PlaceKind::Cache | PlaceKind::Difference | PlaceKind::Log => String::new(),
    };
    Some(format!("the {what} {place} has {has}, and --{what}-size {asked} is for one that is made{change}"))
}

/// The two superblocks of the store on `device`; `None` where there is no store of this kind.
async fn copies_of(kind: PlaceKind, device: &SharedDevice) -> Option<Copies> {
    let store = match kind {
        PlaceKind::Cache => cache::format::KIND,
        PlaceKind::Difference => difference::KIND,
        PlaceKind::Log => writelog::format::KIND,
    };
    // The store's own fields do not matter here.
    Superblock::<[u8; 0]>::read(device, store).await.ok().map(|superblock| superblock.copies())
}

/// The message for a store with only one superblock left, as in `cache check` and `log check`;
/// `None` also for a store that does not exist yet.
async fn damage_of(kind: PlaceKind, place: &Place, device: &SharedDevice) -> Option<String> {
    let copies = copies_of(kind, device).await?;
    let what = kind.name();
    let give_up = match kind {
        PlaceKind::Difference => "remove it".to_owned(),
        PlaceKind::Cache | PlaceKind::Log => {
            format!("give it up with `forebay {what} discard {}`", place.argument(what))
        }
    };
    copies.is_one_damaged().then(|| {
        format!(
            "the {what} {place}: one of the two copies of its superblock is damaged ({copies}). A crash while it was \
             written leaves that; so does a device that was cut or written over, and then what was written last may be \
             gone without a trace: compare with what you expect to be there, or {give_up}"
        )
    })
}

/// Refuses an offset within a store that begins with its file or block device: a log, or a cache of
/// another user that is not in the list.
fn check_outside_store(place: &Place, offset: u64) -> Result<()> {
    let head = head_at(&place.path, 0).map_err(|error| Error::io(place.path.display(), &error))?;
    match superblock::device_bytes(&head).filter(|&bytes| bytes > offset) {
        None => Ok(()),
        Some(bytes) => {
            let message = format!(
                "{place} is within the cache or write log that takes the first {} of {}: choose another place, or \
                 discard that one",
                ByteSize(bytes),
                place.path.display()
            );
            Err(Error::new(Failure::InUse, message))
        }
    }
}

/// Opens the file or block device of the cache or log at `place`, or its part of one, for this
/// process alone; without the page cache where the file system can do that.
///
/// # Errors
/// `NotFound` where there is none, or its length is not known; in use; an overlap with one of
/// `caches`.
pub fn open_device(place: &Place, caches: &Caches) -> Result<SharedDevice> {
    open_by(|kind, path, space| open_made(kind, path, space, None), place, caches)
}

/// The same for who only reads it, also where nothing can be written.
///
/// # Errors
/// As [`open_device`].
pub fn open_to_read(place: &Place, caches: &Caches) -> Result<SharedDevice> {
    open_by(place_device::open_to_read, place, caches)
}

fn open_by(
    open: fn(PlaceKind, &Path, Space) -> Result<SharedDevice>,
    place: &Place,
    caches: &Caches,
) -> Result<SharedDevice> {
    let space = match place.offset {
        None => Space::Whole,
        Some(offset) => {
            let length = known_length(place, caches)?.ok_or_else(|| {
                let message = format!(
                    "no cache or write log begins at {place}, as far as its bytes and this host's list say: name the \
                     offset that it was made with"
                );
                Error::new(Failure::NotFound, message)
            })?;
            part(PlaceKind::Cache, place, offset, Some(length))?
        }
    };
    check_large_enough("cache or write log", place)?;
    let opened = open(PlaceKind::Cache, &place.path, space);
    caches.check_apart(place, space.range())?;
    opened
}

/// The length of the store at `place`, by its first bytes, or else by the list of `caches`.
fn known_length(place: &Place, caches: &Caches) -> Result<Option<u64>> {
    match content(place)? {
        Content::Something { made_with: Some(length) } => Ok(Some(length)),
        _ => caches.length_of(place),
    }
}

/// Whether two stores that are opened together, each with the size for a new one, would overlap, as
/// far as that is known, in use or not.
///
/// # Errors
/// Errors of reading.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::Identity;
    use block::device::DeviceExt;
    use block::memory::MemoryDevice;
    use cache::Cache;
    use tokio::sync::Notify;
    use writelog::WriteLog;

    use super::*;
    use crate::paths::Paths;
    use crate::time::system_clock;
    use crate::unfinished::tests::{names, write};

    const SIZE: u64 = 1 << 20;

    fn caches(directory: &Path) -> Caches {
        Caches::open(&Paths::new(directory.join("run"), directory.join("state")).unwrap()).unwrap()
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
        for kind in [PlaceKind::Cache, PlaceKind::Difference, PlaceKind::Log] {
            let store = device("store");
            assert_eq!(damage_of(kind, &place, &store).await, None, "there is none yet");
            match kind {
                PlaceKind::Log => WriteLog::format(&store, &origin, writelog::FormatOptions::default()).await.unwrap(),
                PlaceKind::Difference => {
                    let options = difference::DifferenceOptions::new(uuid::Uuid::new_v4());
                    difference::Difference::format(&store, &origin, options).await.unwrap();
                }
                PlaceKind::Cache => Cache::format(&store, &origin, cache::FormatOptions::default()).await.unwrap(),
            }
            assert_eq!(damage_of(kind, &place, &store).await, None);
            store.write(3 * SIZE, block::Buffer::zeroed(SIZE as usize), true).await.unwrap();
            let said = damage_of(kind, &place, &store).await.expect("its last copy is gone");
            assert!(said.contains("first copy whole, last copy all zero"), "{said}");
        }
    }

    #[test]
    fn a_device_that_is_taken_as_a_whole_takes_no_other_size() {
        let place = Place { path: "/dev/disk".into(), offset: None };
        let refused = |asked| {
            let refused = check_takes_all(PlaceKind::Log, &place, SIZE + 512, asked).err();
            refused.map(|error| (error.failure(), error.to_string()))
        };
        for asked in [None, Some(SIZE), Some(SIZE + 512)] {
            assert_eq!(refused(asked), None);
        }
        for (asked, advice) in [(SIZE / 2, "log.offset=0"), (2 * SIZE, "leave --log-size out")] {
            let (failure, words) = refused(Some(asked)).expect("it does not have that");
            assert!(failure == Failure::Usage && words.contains(advice), "{words}");
        }
    }

    /// Also where nothing can be written.
    #[tokio::test]
    async fn a_store_that_is_only_looked_at_is_not_opened_to_write() {
        let directory = tempfile::tempdir().unwrap();
        let caches = caches(directory.path());
        for offset in [None, Some(SIZE)] {
            let place = Place::new(&directory.path().join(format!("{offset:?}")), offset).unwrap();
            fs::File::create(&place.path).unwrap().set_len(if offset.is_some() { 5 * SIZE } else { 0 }).unwrap();
            let origin: SharedDevice = Arc::new(MemoryDevice::new(SIZE, Identity::default()));
            let format =
                async |device: &SharedDevice| Cache::format(device, &origin, cache::FormatOptions::default()).await;
            drop(open_or_make(PlaceKind::Cache, &place, &caches, Some(4 * SIZE), format).await.unwrap());
            let device = open_to_read(&place, &caches).unwrap();
            assert!(device.geometry().is_read_only);
            cache::inspect(&device).await.expect("it is looked at");
            cache::check(&device).await.expect("and read as a whole");
            let user = open_device(&place, &caches).err().map(|error| error.failure());
            assert_eq!(user, Some(Failure::InUse), "nobody changes it meanwhile");
        }
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
                "was cut: the cache in it was made on 4194304 bytes, and 8191 are left: bring back what was cut off, \
                 or discard it",
            ),
            (
                4096,
                "was cut: the cache in it was made on 4194304 bytes, and 4096 are left: bring back what was cut off, \
                 or discard it",
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

    /// The second process removed what the first had begun, and the first then moved the second's
    /// file: one of them served from a file without a name.
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

    /// A crash while the file had both names.
    #[tokio::test]
    async fn another_name_of_what_is_there_is_a_left_over() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::new(&directory.path().join("disk"), None).unwrap();
        let format = async |_: &SharedDevice| Ok(());
        let made = Unfinished::make(PlaceKind::Cache, &place.path, SIZE, None, format).await.unwrap();
        write(&made.device(), 1).await;
        drop(made.put_in_free_place().unwrap());
        fs::hard_link(&place.path, directory.path().join("disk.unfinished-1.old")).unwrap();
        let opened = open_or_make(PlaceKind::Cache, &place, &caches(directory.path()), None, format).await.unwrap();
        assert_eq!(names(directory.path()), ["disk"]);
        drop(opened);
    }

    /// Cuts the file of a store in the middle, and restores its length.
    fn cut(place: &Place) {
        let file = fs::OpenOptions::new().write(true).open(&place.path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(0).unwrap();
        file.set_len(length).unwrap();
    }

    /// The rest of a cut file reads as zeroes, which must not be sent to the LUN.
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
        // So that all that is sent is read from the file.
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
