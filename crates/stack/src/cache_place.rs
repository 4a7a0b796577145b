//! Where a cache lies, and how it is made and opened.
//!
//! The path may be a file, a block device, or a directory (then a file in it, named after the LUN's identity). A cache that does
//! not exist is made beside its place, formatted, and only then moved there: whatever happens in between, the place holds a whole
//! cache or none.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::clock::Clock;
use block::{Identity, SharedDevice};
use cache::{
    Alignment, Associativity, Cache, CleaningRate, CrashMode, DirtyLimits, FormatOptions, LineSize, Mode, OpenOptions,
    Replacement, Tuning,
};
use file::{FileDevice, FileOptions};

use crate::error::{Error, Failure, Result};
use crate::limits::ZERO_WRITTEN_BYTES_MAX;
use crate::registry::{Entry, file_stem};
use crate::time;

/// Caches are made in whole pages, so that any disk can take them past the page cache.
pub(crate) const SIZE_UNIT_BYTES: u64 = 4096;

/// The cache of an attachment, as asked for.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// File, block device, or directory.
    pub path: PathBuf,
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
    /// The absolute path of the cache of the LUN `identity`.
    ///
    /// # Errors
    /// When the directory it lies in does not exist.
    pub fn place(&self, identity: &Identity) -> Result<PathBuf> {
        let path = if self.path.is_dir() {
            self.path.join(format!("{}.cache", file_stem(identity)))
        } else {
            self.path.clone()
        };
        canonical_place(&path)
    }

    /// Refuses to make a cache where the registry says that one with the LUN's newest data should be.
    ///
    /// # Errors
    /// `WouldLoseData`, saying how to go on.
    pub fn check_not_lost(&self, place: &Path, registered: Option<&Entry>) -> Result<()> {
        let Some(entry) = registered.filter(|entry| entry.cache == place) else { return Ok(()) };
        if matches!(content(place)?, Content::Something) {
            return Ok(());
        }
        let message = format!(
            "the newest data of {} LUN serial {} should be in the cache {path}, but nothing is there: bring it back (is its file system \
             mounted?), or give that data up with `forebay cache discard {path}`",
            entry.target,
            entry.serial,
            path = place.display()
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

    /// Opens the cache at `place` over `origin`, made first if there is none. It may take `memory_max` bytes of memory.
    ///
    /// # Errors
    /// Another LUN's cache, something that is no cache, a cache in use, no room, too little memory.
    pub async fn open(
        &self,
        place: &Path,
        origin: SharedDevice,
        clock: Arc<dyn Clock>,
        memory_max: Option<u64>,
    ) -> Result<Arc<Cache>> {
        let options = self.format_options();
        // What opening would refuse is not made.
        let format = async |device: &SharedDevice| {
            options.crash_mode.check_mode(self.mode)?;
            cache::memory::check(device.geometry().size_bytes, &options, self.replacement, memory_max)?;
            Cache::format(device, &origin, options).await
        };
        let device = open_or_make(PlaceKind::Cache, place, self.size_bytes, format).await?;
        let context = |error| Error::from(error).context(format!("the cache {}", place.display()));
        Cache::open(device, origin, self.open_options(clock, memory_max)).await.map_err(context)
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
/// In use, no room, no size to make it with; whatever formatting meets.
pub(crate) async fn open_or_make(
    kind: PlaceKind,
    place: &Path,
    size_bytes: Option<u64>,
    format: impl AsyncFn(&SharedDevice) -> std::result::Result<(), block::Error>,
) -> Result<SharedDevice> {
    match content(place)? {
        Content::Something => {
            let device = open_as(kind, place, None)?;
            // Nobody else has the place, so nobody is making anything beside it: what is there was left behind.
            remove_unfinished(place)?;
            Ok(device)
        }
        Content::BlankDevice => {
            let device = open_as(kind, place, None)?;
            format(&device).await?;
            Ok(device)
        }
        Content::Nothing => make_file(kind, place, size_bytes, format).await,
    }
}

async fn make_file(
    kind: PlaceKind,
    place: &Path,
    size_bytes: Option<u64>,
    format: impl AsyncFn(&SharedDevice) -> std::result::Result<(), block::Error>,
) -> Result<SharedDevice> {
    let Some(size_bytes) = size_bytes else {
        let what = kind.name();
        let message = format!("there is no {what} at {}: give --{what}-size to make one", place.display());
        return Err(Error::new(Failure::NotFound, message));
    };
    let unfinished = Unfinished::make(kind, place, size_bytes, format).await?;
    unfinished.put_in_place()
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
        let device = open_as(kind, &path, Some(size_bytes)).inspect_err(|_| {
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
    if size_bytes.is_multiple_of(SIZE_UNIT_BYTES) {
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

/// The one name of a cache's place, whatever links lead to its directory: what the registry records.
///
/// # Errors
/// When the directory it lies in does not exist.
pub fn canonical_place(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|error| Error::io(path.display(), &error))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(Error::new(Failure::Usage, format!("{} cannot be a cache", path.display())));
    };
    let parent = parent
        .canonicalize()
        .map_err(|error| Error::io(format!("the directory of the cache, {}", parent.display()), &error))?;
    Ok(parent.join(name))
}

/// The file a cache is made in before it is moved to its place.
fn unfinished_path(place: &Path) -> PathBuf {
    let mut name = place.as_os_str().to_owned();
    name.push(".unfinished");
    PathBuf::from(name)
}

/// Whether anything is at `place`.
pub(crate) fn content_is_there(place: &Path) -> Result<bool> {
    Ok(matches!(content(place)?, Content::Something))
}

enum Content {
    Nothing,
    Something,
    /// A block device whose first bytes are zero.
    BlankDevice,
}

fn content(place: &Path) -> Result<Content> {
    use std::io::Read;
    let context = |error: &std::io::Error| Error::io(format!("the cache {}", place.display()), error);
    let metadata = match fs::metadata(place) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Content::Nothing),
        Err(error) => return Err(context(&error)),
    };
    if !metadata.file_type().is_block_device() {
        return Ok(if metadata.len() == 0 { Content::Nothing } else { Content::Something });
    }
    let mut head = [0; 4096];
    fs::File::open(place).and_then(|mut device| device.read_exact(&mut head)).map_err(|error| context(&error))?;
    Ok(if head.iter().all(|&byte| byte == 0) { Content::BlankDevice } else { Content::Something })
}

/// Opens the file or block device of a cache for this process alone, past the page cache where the file system can do that.
///
/// # Errors
/// In use, missing, or no room for `size_bytes`.
pub fn open_device(path: &Path, size_bytes: Option<u64>) -> Result<SharedDevice> {
    open_as(PlaceKind::Cache, path, size_bytes)
}

fn open_as(kind: PlaceKind, path: &Path, size_bytes: Option<u64>) -> Result<SharedDevice> {
    let identity = Identity { target: "file".into(), unit: path.display().to_string(), serial: String::new() };
    let options = FileOptions {
        size: size_bytes,
        preallocate: true,
        zero_written: size_bytes.is_some_and(|size_bytes| size_bytes <= ZERO_WRITTEN_BYTES_MAX),
        direct: true,
        exclusive: true,
        identity,
        is_write_cache_volatile: true,
        waits_for_fast_writes: kind.waits_for_fast_writes(),
        ..FileOptions::default()
    };
    match FileDevice::open(path, options.clone()) {
        // tmpfs and some network file systems cannot bypass the page cache.
        Err(error) if error.kind() == block::ErrorKind::Unsupported => {
            Ok(FileDevice::open(path, FileOptions { direct: false, ..options })?)
        }
        opened => Ok(opened?),
    }
}
