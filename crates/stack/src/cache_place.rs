//! Where a cache lies, and how it is made and opened.
//!
//! The path may be a file, a block device, or a directory (then a file in it, named after the LUN's identity). A cache that does
//! not exist is made beside its place, formatted, and only then moved there: whatever happens in between, the place holds a whole
//! cache or none.
//!
//! At an offset it is a part of a file or block device that is there, and claims no more than that. It is made in place, where nothing is yet. Neither
//! it nor one that takes everything is made, or opened, where another cache of this host lies.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::clock::Clock;
use base::range::ByteRange;
use base::units::ByteSize;
use block::layer::window::WindowLayer;
use block::{Identity, SharedDevice};
use cache::{
    Alignment, Associativity, Cache, CleaningRate, CrashMode, DirtyLimits, FormatOptions, LineSize, Mode, OpenOptions,
    Replacement, Tuning,
};
use file::{FileDevice, FileOptions};
use store::limits::SUPERBLOCK_BYTES;
use store::superblock;

use crate::caches::Caches;
use crate::error::{Error, Failure, Result};
use crate::limits::ZERO_WRITTEN_BYTES_MAX;
use crate::place::{PLACE_UNIT_BYTES, Place};
use crate::registry::{Entry, file_stem};
use crate::time;

/// The cache of an attachment, as asked for.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// File, block device, or directory.
    pub path: PathBuf,
    /// Where in the file or block device it begins; `None` for a cache that takes all of it.
    pub offset: Option<u64>,
    /// Size of a cache that is made.
    pub size_bytes: Option<u64>,
    /// When a write is acknowledged.
    pub mode: Mode,
    /// What a crash leaves; `None` for what the cache has, or the usual for one that is made.
    pub crash_mode: Option<CrashMode>,
    /// Which generation of its content the LUN has; `None` to take a cache as it is.
    pub generation: Option<u64>,
    /// How a victim is chosen.
    pub replacement: Replacement,
    /// What is worth a frame.
    pub tuning: Tuning,
    /// How much may be dirty.
    pub dirty: DirtyLimits,
    /// How fast lines are cleaned.
    pub cleaning: CleaningRate,
    /// How large the lines of a cache are that is made.
    pub line_size: LineSize,
    /// Ways of a cache that is made.
    pub associativity: Associativity,
    /// Where lines of a cache begin that is made.
    pub alignment: Alignment,
    /// Whether a cache that is made has checksums of its data.
    pub has_checksums: bool,
    /// Most lines of a cache that is made; `None` for as many as fit.
    pub lines_max: Option<u64>,
    /// Most bytes of memory that it and the caches of the host's other attachments may take together; `None` for no bound.
    pub memory_max: Option<u64>,
}

impl CacheConfig {
    /// The place of the cache of the LUN `identity`.
    ///
    /// # Errors
    /// When the directory it lies in does not exist; `Usage` for an offset in a directory, or one that no cache can have.
    pub fn place(&self, identity: &Identity) -> Result<Place> {
        if !self.path.is_dir() {
            return Place::new(&self.path, self.offset);
        }
        if self.offset.is_some() {
            let message =
                format!("{} is a directory: a cache at an offset lies in a file or block device", self.path.display());
            return Err(Error::new(Failure::Usage, message));
        }
        Place::new(&self.path.join(format!("{}.cache", file_stem(identity))), None)
    }

    /// Refuses to make a cache where the registry says that one with the LUN's newest data should be.
    ///
    /// # Errors
    /// `WouldLoseData`, saying how to go on.
    pub fn check_not_lost(&self, place: &Place, registered: Option<&Entry>) -> Result<()> {
        let Some(entry) = registered.filter(|entry| entry.place() == *place) else { return Ok(()) };
        if content_is_there(place)? {
            return Ok(());
        }
        let message = format!(
            "the newest data of {} LUN serial {} should be in the cache {place}, but nothing is there: bring it back (is its file system \
             mounted?), or give that data up with `forebay cache discard {}`",
            entry.target,
            entry.serial,
            place.argument("cache")
        );
        Err(Error::new(Failure::WouldLoseData, message))
    }

    /// Opens a cache that [`Unfinished::make`] has made, to take the place of `old`.
    ///
    /// # Errors
    /// The devices' own.
    pub(crate) async fn open_successor(
        &self,
        device: SharedDevice,
        origin: SharedDevice,
        clock: Arc<dyn Clock>,
        old: &Cache,
        memory_max: Option<u64>,
    ) -> Result<Arc<Cache>> {
        let options = OpenOptions {
            replacement: old.status().replacement,
            crash_mode: None,
            generation: old.status().generation,
            mode: old.mode(),
            ..self.open_options(clock, memory_max)
        };
        Ok(Cache::open(device, origin, options).await?)
    }

    /// Opens the cache at `place` over `origin`, made first if there is none, and says how many bytes of its device it takes. It may take `memory_max`
    /// bytes of memory.
    ///
    /// # Errors
    /// Another LUN's cache, something that is no cache, a cache in use, one of `caches` in the way, no room, too little memory.
    pub async fn open(
        &self,
        place: &Place,
        caches: &Caches,
        origin: SharedDevice,
        clock: Arc<dyn Clock>,
        memory_max: Option<u64>,
    ) -> Result<(Arc<Cache>, u64)> {
        let options = self.format_options();
        // What opening would refuse is not made.
        let format = async |device: &SharedDevice| {
            options.crash_mode.check_mode(self.mode)?;
            cache::memory::check(device.geometry().size_bytes, &options, self.replacement, memory_max)?;
            Cache::format(device, &origin, options).await
        };
        let device = open_or_make(PlaceKind::Cache, place, caches, self.size_bytes, format).await?;
        let device_bytes = device.geometry().size_bytes;
        let context = |error| Error::from(error).context(format!("the cache {place}"));
        let cache = Cache::open(device, origin, self.open_options(clock, memory_max)).await.map_err(context)?;
        Ok((cache, device_bytes))
    }

    fn open_options(&self, clock: Arc<dyn Clock>, memory_max: Option<u64>) -> OpenOptions {
        OpenOptions {
            crash_mode: self.crash_mode,
            generation: self.generation,
            replacement: self.replacement,
            tuning: self.tuning,
            time_of_day: Some(Arc::new(time::seconds_since_1970)),
            dirty: self.dirty,
            cleaning: self.cleaning,
            memory_max,
            ..OpenOptions::new(self.mode, clock)
        }
    }

    fn format_options(&self) -> FormatOptions {
        FormatOptions {
            line_size: self.line_size,
            associativity: self.associativity,
            frames_max: self.lines_max,
            crash_mode: self.crash_mode.unwrap_or_default(),
            alignment: self.alignment,
            has_checksums: self.has_checksums,
            ..FormatOptions::default()
        }
    }
}

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
            part(kind, place, offset, size_bytes)?
        }
    };
    let opened = open_as(kind, &place.path, space);
    // Before the error that only says that it is in use: this one says by whom, and whether or not it is used now.
    caches.check_apart(place, space.range())?;
    let device = opened?;
    match found {
        // Unless somebody was there before it was ours.
        Content::Blank if matches!(content(place)?, Content::Blank) => format(&device).await?,
        // Nobody else has the place, so nobody is making anything beside it: what is there was left behind.
        _ if place.offset.is_none() => remove_unfinished(&place.path)?,
        _ => {}
    }
    Ok(device)
}

async fn make_file(
    kind: PlaceKind,
    place: &Place,
    size_bytes: Option<u64>,
    format: impl AsyncFn(&SharedDevice) -> std::result::Result<(), block::Error>,
) -> Result<SharedDevice> {
    let size_bytes = size_bytes.ok_or_else(|| no_size(kind, place))?;
    let unfinished = Unfinished::make(kind, &place.path, size_bytes, format).await?;
    unfinished.put_in_place()
}

fn no_size(kind: PlaceKind, place: &Place) -> Error {
    let what = kind.name();
    Error::new(Failure::NotFound, format!("there is no {what} at {place}: give --{what}-size to make one"))
}

/// The part of a file or block device from `offset` on.
fn part(kind: PlaceKind, place: &Place, offset: u64, length: Option<u64>) -> Result<Space> {
    let length = length.ok_or_else(|| no_size(kind, place))?;
    check_size(kind.name(), length)?;
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
    path: PathBuf,
    place: PathBuf,
    device: SharedDevice,
    is_in_place: bool,
}

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
        check_size(kind.name(), size_bytes)?;
        remove_unfinished(place)?;
        let path = unfinished_path(place);
        let device = open_as(kind, &path, Space::New(size_bytes)).inspect_err(|_| {
            // The error that matters is the first one.
            let _ = fs::remove_file(&path);
        })?;
        let unfinished = Self { path, place: place.to_owned(), device, is_in_place: false };
        format(&unfinished.device).await?;
        Ok(unfinished)
    }

    /// Its device.
    pub(crate) fn device(&self) -> SharedDevice {
        Arc::clone(&self.device)
    }

    /// Makes it what the next start finds at its place.
    ///
    /// # Errors
    /// When its directory takes no change.
    pub(crate) fn put_in_place(mut self) -> Result<SharedDevice> {
        let context = |error: &std::io::Error| Error::io(format!("cannot make {}", self.place.display()), error);
        fs::rename(&self.path, &self.place).map_err(|error| context(&error))?;
        let directory = self.place.parent().unwrap_or(Path::new("/"));
        if let Err(error) = fs::File::open(directory).and_then(|directory| directory.sync_all()) {
            // Nobody knows what the next start finds there: rather nothing, which it notices, than what is old by then.
            let _ = fs::remove_file(&self.place);
            return Err(context(&error));
        }
        self.is_in_place = true;
        Ok(self.device())
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

fn check_size(what: &str, size_bytes: u64) -> Result<()> {
    if size_bytes.is_multiple_of(PLACE_UNIT_BYTES) {
        return Ok(());
    }
    let message = format!("a {what} of {size_bytes} bytes cannot be made: its size is a multiple of 4 KiB");
    Err(Error::new(Failure::Usage, message))
}

/// Removes what was begun beside `place` and never finished.
fn remove_unfinished(place: &Path) -> Result<()> {
    let unfinished = unfinished_path(place);
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::io(format!("cannot remove {}", unfinished.display()), &error))
        }
        _ => Ok(()),
    }
}

/// The file a cache is made in before it is moved to its place.
fn unfinished_path(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(".unfinished");
    PathBuf::from(name)
}

/// Whether anything is at `place`.
pub(crate) fn content_is_there(place: &Place) -> Result<bool> {
    Ok(matches!(content(place)?, Content::Something { .. }))
}

#[derive(Clone, Copy, Debug)]
enum Content {
    Nothing,
    /// Bytes that are not zero. Those of a store say on how many bytes it was made.
    Something {
        made_with: Option<u64>,
    },
    /// A block device, or a part of one or of a file, whose first bytes are zero.
    Blank,
}

fn content(place: &Place) -> Result<Content> {
    let context = |error: &std::io::Error| Error::io(format!("the cache {place}"), error);
    let metadata = match fs::metadata(&place.path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Content::Nothing),
        Err(error) => return Err(context(&error)),
    };
    if place.offset.is_none() && !metadata.file_type().is_block_device() {
        return Ok(if metadata.len() == 0 { Content::Nothing } else { Content::Something { made_with: None } });
    }
    let head = match head_at(&place.path, place.offset.unwrap_or(0)) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            let message = format!("nothing can be at {place}: it ends before");
            return Err(Error::new(Failure::Usage, message));
        }
        read => read.map_err(|error| context(&error))?,
    };
    let is_blank = head.iter().all(|&byte| byte == 0);
    Ok(if is_blank { Content::Blank } else { Content::Something { made_with: superblock::device_bytes(&head) } })
}

/// What would be the first superblock of a store at `offset`.
fn head_at(path: &Path, offset: u64) -> std::io::Result<[u8; SUPERBLOCK_BYTES]> {
    let mut head = [0; SUPERBLOCK_BYTES];
    fs::File::open(path)?.read_exact_at(&mut head, offset)?;
    Ok(head)
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
    let space = match (place.offset, content(place)?) {
        (None, _) => Space::Whole,
        (Some(offset), Content::Something { made_with }) => {
            part(PlaceKind::Cache, place, offset, made_with.or(caches.length_of(place)?))?
        }
        (Some(offset), _) => part(PlaceKind::Cache, place, offset, caches.length_of(place)?)?,
    };
    let opened = open_as(PlaceKind::Cache, &place.path, space);
    caches.check_apart(place, space.range())?;
    opened
}

fn open_as(kind: PlaceKind, path: &Path, space: Space) -> Result<SharedDevice> {
    let identity = Identity { target: "file".into(), unit: path.display().to_string(), serial: String::new() };
    let (size, part) = match space {
        Space::Whole => (None, None),
        Space::New(size_bytes) => (Some(size_bytes), None),
        Space::Part(range) => (None, Some(range)),
    };
    let options = FileOptions {
        size,
        part,
        preallocate: true,
        zero_written: size.is_some_and(|size_bytes| size_bytes <= ZERO_WRITTEN_BYTES_MAX),
        direct: true,
        exclusive: true,
        identity,
        is_write_cache_volatile: true,
        waits_for_fast_writes: kind.waits_for_fast_writes(),
        ..FileOptions::default()
    };
    let device: SharedDevice = match FileDevice::open(path, options.clone()) {
        // tmpfs and some network file systems cannot bypass the page cache.
        Err(error) if error.kind() == block::ErrorKind::Unsupported => {
            FileDevice::open(path, FileOptions { direct: false, ..options })?
        }
        opened => opened?,
    };
    Ok(match part {
        None => device,
        Some(range) => Arc::new(WindowLayer::new(device, range)?),
    })
}
