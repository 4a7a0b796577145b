//! The place of a cache, and the options with which it is made and opened.
//!
//! The path may be a file, a block device, or a directory (then a file in it, named after the LUN's
//! identity). [`store_file`](crate::store_file) opens and makes it.

use std::path::PathBuf;
use std::sync::Arc;

use base::clock::Clock;
use block::{Identity, SharedDevice};
use cache::{
    Alignment, Associativity, Cache, CleaningRate, CrashMode, DirtyLimits, FormatOptions, LineSize, Mode, OpenOptions,
    Replacement, Tuning,
};
use store::Tokens;

use crate::cache_settings;
use crate::caches::Caches;
use crate::content::{content_is_there, uuid_at};
use crate::error::{Error, Failure, Result};
use crate::freshness::Assessed;
use crate::place::Place;
use crate::place_device::PlaceKind;
use crate::registry::{Entry, file_stem};
use crate::settings::Settings;
use crate::store_file::open_or_make;
use crate::time;

/// The cache of an attachment, as configured.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// File, block device, or directory.
    pub path: PathBuf,
    /// Its offset in the file or block device; `None` for a cache that takes all of it.
    pub offset: Option<u64>,
    /// Size of a new cache.
    pub size_bytes: Option<u64>,
    /// When a write is acknowledged.
    pub mode: Mode,
    /// What a crash leaves; `None` for what the cache has, or the default for a new one.
    pub crash_mode: Option<CrashMode>,
    /// The generation of the LUN's content; `None` to take a cache as it is.
    pub generation: Option<u64>,
    /// Whether the user promises that no other host writes to the LUN; `None` keeps the earlier
    /// promise.
    pub is_exclusive: Option<bool>,
    /// How the line to evict is chosen.
    pub replacement: Replacement,
    /// Which data gets a frame.
    pub tuning: Tuning,
    /// How many lines may be dirty.
    pub dirty: DirtyLimits,
    /// How fast lines are cleaned.
    pub cleaning: CleaningRate,
    /// Bytes of the largest write that is deferred.
    pub deferred_max: u64,
    /// Line size of a new cache.
    pub line_size: LineSize,
    /// Ways of a new cache.
    pub associativity: Associativity,
    /// Alignment of the lines of a new cache.
    pub alignment: Alignment,
    /// Whether a new cache has checksums of its data.
    pub has_checksums: bool,
    /// Most lines of a new cache; `None` for as many as fit.
    pub lines_max: Option<u64>,
    /// Most bytes of memory of this cache and the caches of the host's other attachments together;
    /// `None` for no bound.
    pub memory_max: Option<u64>,
}

impl CacheConfig {
    /// The cache that `settings` ask for, if any.
    ///
    /// # Errors
    /// Choices that exclude each other.
    pub fn of(settings: &Settings) -> Result<Option<Self>> {
        let Some(path) = settings.path("cache.path") else { return Ok(None) };
        let cache = Self {
            path,
            offset: settings.number("cache.offset"),
            size_bytes: settings.number("cache.size"),
            mode: mode(settings)?,
            crash_mode: settings.parsed("cache.crash")?,
            generation: settings.number("generation"),
            is_exclusive: settings.switch("cache.exclusive"),
            replacement: settings.chosen("cache.replacement")?,
            tuning: cache_settings::tuning(settings)?,
            dirty: cache_settings::dirty_limits(settings),
            cleaning: cache_settings::cleaning_rate(settings),
            deferred_max: cache_settings::deferred_max(settings),
            line_size: cache_settings::line_size(settings),
            associativity: cache_settings::associativity(settings),
            alignment: settings.number("cache.alignment").map_or(Alignment::Found, Alignment::At),
            has_checksums: settings.is_on("cache.checksums"),
            lines_max: settings.number("cache.lines"),
            memory_max: settings.number("cache.memory"),
        };
        let refused = |message: String| Err(Error::new(Failure::Usage, message));
        if cache.has_checksums && cache.line_size != LineSize::default() {
            let names = ["cache.checksums", "cache.block-size"].map(|key| settings.name_of(key));
            return refused(format!("{} are of lines of 4KiB, and {} is another", names[0], names[1]));
        }
        // Below a difference the cache is read only.
        if let Some(crash_mode) = cache.crash_mode.filter(|_| !settings.is_given("difference.path"))
            && let Err(error) = crash_mode.check_mode(cache.mode)
        {
            return refused(format!("{} {crash_mode}: {error}", settings.name_of("cache.crash")));
        }
        Ok(Some(cache))
    }

    /// The place of the cache of the LUN `identity`.
    ///
    /// # Errors
    /// When the directory of its path does not exist; `Usage` for an offset in a directory, or one
    /// that no cache can have.
    pub fn place(&self, identity: &Identity) -> Result<Place> {
        Place::of_store(&self.path, self.offset, &format!("{}.cache", file_stem(identity)))
    }

    /// Refuses a cache whose file was found cut while it was in use; and to make one where the
    /// registry names one with the LUN's newest data. `is_any_taken`: another one is taken, as the user
    /// wants it.
    ///
    /// # Errors
    /// `WouldLoseData`, with advice.
    pub fn check_not_lost(
        &self,
        place: &Place,
        registered: Option<&Entry>,
        (caches, is_any_taken): (&Caches, bool),
    ) -> Result<()> {
        let Some(entry) = registered.filter(|entry| entry.place() == *place) else { return Ok(()) };
        if let Some(words) = entry.words_of_failure() {
            return Err(Error::new(Failure::WouldLoseData, words));
        }
        let is_the_one = caches.find(place)?.is_none_or(|record| record.is_of_store(uuid_at(place)));
        let message = match content_is_there(place)? {
            true if is_the_one || is_any_taken => return Ok(()),
            true => entry.words_of_another(),
            false => format!(
                "the newest data of {} LUN serial {} may have been in the cache {place}, and nothing is there: bring \
                 it back (is its file system mounted?), or give that data up with `forebay cache discard {}`",
                entry.target,
                entry.serial,
                place.argument("cache")
            ),
        };
        Err(Error::new(Failure::WouldLoseData, message))
    }

    /// Opens a cache that [`Unfinished::make`] has made, to take the place of `old`, and gives it `tokens`.
    ///
    /// # Errors
    /// The devices' own.
    pub(crate) async fn open_successor(
        &self,
        device: SharedDevice,
        origin: SharedDevice,
        clock: Arc<dyn Clock>,
        (old, tokens): (&Cache, Tokens),
        memory_max: Option<u64>,
    ) -> Result<Arc<Cache>> {
        let options = OpenOptions {
            replacement: old.status().replacement,
            crash_mode: None,
            generation: old.status().generation,
            mode: old.mode(),
            tokens: Some(tokens),
            ..self.open_options(clock, memory_max)
        };
        Ok(old.open_successor(device, origin, options).await?)
    }

    /// Opens the cache at `place` over `origin`, and makes it first if there is none. Returns also
    /// the bytes of its device. It may take `memory_max` bytes of memory. `since` holds what other
    /// hosts changed in the LUN meanwhile, and whether dirty data may overwrite that.
    ///
    /// # Errors
    /// Another LUN's cache, content that is no cache, a cache in use, an overlap with one of
    /// `caches`, no room, too little memory, dirty data where others wrote.
    pub(crate) async fn open(
        &self,
        place: &Place,
        caches: &Caches,
        origin: SharedDevice,
        clock: Arc<dyn Clock>,
        memory_max: Option<u64>,
        (since, overwrites_changes): (&Assessed, bool),
    ) -> Result<(Arc<Cache>, u64)> {
        let options = self.format_options();
        // Nothing is made that opening would refuse.
        let format = async |device: &SharedDevice| {
            options.crash_mode.check_mode(self.mode)?;
            cache::memory::check(device.geometry().size_bytes, &options, self.replacement, memory_max)?;
            Cache::format(device, &origin, options).await
        };
        let device = open_or_make(PlaceKind::Cache, place, caches, self.size_bytes, format).await?;
        let device_bytes = device.geometry().size_bytes;
        let (freshness, tokens) = (since.freshness(), Some(since.begin_opening(caches)?));
        let keeps_shared = since.keeps_shared();
        let options =
            OpenOptions { freshness, overwrites_changes, keeps_shared, tokens, ..self.open_options(clock, memory_max) };
        let cache = Cache::open(device, origin, options).await.map_err(|error| since.refusal(error))?;
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
            deferred_max: self.deferred_max,
            memory_max,
            delays_shared: may_delay_shared_writes(),
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
/// When a write is acknowledged. On a shared LUN the logical unit makes it visible to other hosts.
fn mode(settings: &Settings) -> Result<Mode> {
    match settings.is_on("shared") && !settings.is_given("cache.mode") {
        true => Ok(Mode::WriteThrough),
        false => settings.chosen("cache.mode"),
    }
}
/// Whether a cache may delay writes of a LUN that others share. Not for general use yet: the risks
/// are in `docs/protocol/sharing.md`.
pub(crate) fn may_delay_shared_writes() -> bool {
    std::env::var_os("FOREBAY_UNSAFE_SHARED_WRITE_BACK").is_some()
}
