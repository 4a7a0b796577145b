//! The place of a write log, made and opened like a cache (see `store_file`).

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use block::{Identity, SharedDevice};
use cache::Percent;
use file::PersistentMemory;
use uuid::Uuid;
use writelog::{
    ConflictingChanges, DestageOrder, Durability, FormatOptions, Level2, OpenOptions, PersistentRegion, VolatileRegion,
    WriteLog,
};

use crate::caches::Caches;
use crate::content::{content_is_there, uuid_at};
use crate::error::{Error, Failure, Result};
use crate::freshness::KeptChanges;
use crate::place::Place;
use crate::place_device::PlaceKind;
use crate::registry::{Entry, Registry, Store, file_stem};
use crate::settings::Settings;
use crate::store_file::open_or_make;
use crate::unfinished::making_failed;

/// The write log of an attachment, as configured.
#[derive(Clone, Debug, Default)]
pub struct LogConfig {
    /// File, block device, or directory.
    pub path: PathBuf,
    /// Its offset in the file or block device; `None` for a log that takes all of it.
    pub offset: Option<u64>,
    /// Size of a new log.
    pub size_bytes: Option<u64>,
    /// Size of its segments; `None` for the profile's default.
    pub segment_bytes: Option<u64>,
    /// Size of its slots; `None` for the default.
    pub slot_bytes: Option<u64>,
    /// When a write counts as acknowledged.
    pub durability: Durability,
    /// Persistent memory for it.
    pub nvram: Option<NvramConfig>,
    /// RAM for slots with [`Durability::UnsafeVolatile`]; `None` for the profile's default.
    pub ram_bytes: Option<u64>,
    /// RAM for the newest records; `None` for the profile's default.
    pub record_cache_bytes: Option<u64>,
    /// The settings of destaging.
    pub destage: DestageConfig,
    /// Whether the log behaves as the paper describes.
    pub is_paper: bool,
}

/// The settings of destaging; `None` for the profile's default.
#[derive(Clone, Copy, Debug, Default)]
pub struct DestageConfig {
    /// The order of destaging.
    pub order: Option<DestageOrder>,
    /// Bytes that the LUN's disk transfers in the time of a seek; 0 when it has no seeks, or when
    /// others write to the LUN.
    pub seek_bytes: Option<u64>,
    /// Share of used slots from which level 1 moves them to the log.
    pub slots_start: Option<Percent>,
    /// Whether level 1 moves slots as soon as the log's device is idle and they fill a record
    /// (paper 000, 2.3.1).
    pub moves_slots_eagerly: Option<bool>,
    /// Share of the log in use from which destaging starts under load.
    pub start: Option<Percent>,
    /// Share of the log in use from which destaging runs at full speed.
    pub full_speed: Option<Percent>,
    /// Time without a request that counts as idle.
    pub idle: Option<Duration>,
    /// Age of data from which destaging starts under load.
    pub age_max: Option<Duration>,
    /// Bytes of the log from which one batch is taken.
    pub batch_bytes: Option<u64>,
    /// Writes to the LUN in flight at most.
    pub writes: Option<u64>,
}

impl DestageConfig {
    /// The choices in `settings`; for a running log, the changes.
    ///
    /// # Errors
    /// None, as long as each word in the settings table stands for a value.
    pub(crate) fn of(settings: &Settings) -> Result<Self> {
        Ok(Self {
            order: settings.parsed("log.destage-order")?,
            seek_bytes: settings.number("log.destage-seek"),
            slots_start: settings.share("log.slots-start"),
            moves_slots_eagerly: settings.switch("log.slots-eager"),
            start: settings.share("log.destage-start"),
            full_speed: settings.share("log.destage-full-speed"),
            idle: settings.time("log.destage-idle"),
            age_max: settings.time("log.destage-age"),
            batch_bytes: settings.number("log.destage-batch"),
            writes: settings.number("log.destage-writes"),
        })
    }

    /// `level2` with these choices in place of its values.
    pub(crate) fn over(&self, level2: Level2) -> Level2 {
        let writes = self.writes.map(|writes| writes as usize);
        Level2 {
            seek_bytes: self.seek_bytes.unwrap_or(level2.seek_bytes),
            share_start: self.start.map_or(level2.share_start, Percent::share),
            share_slow: self.full_speed.map_or(level2.share_slow, Percent::share),
            idle: self.idle.unwrap_or(level2.idle),
            age_max: self.age_max.unwrap_or(level2.age_max),
            batch_bytes: self.batch_bytes.unwrap_or(level2.batch_bytes),
            // The setting is the limit, also while writers wait.
            writes_in_flight: writes.unwrap_or(level2.writes_in_flight),
            writes_when_full: writes.unwrap_or(level2.writes_when_full),
            ..level2
        }
    }
}

/// A file in persistent memory, or a device that is such memory.
#[derive(Clone, Debug)]
pub struct NvramConfig {
    /// The file or device.
    pub path: PathBuf,
    /// Size of a new file.
    pub size_bytes: Option<u64>,
}

impl NvramConfig {
    fn open(&self) -> Result<Arc<dyn PersistentRegion>> {
        Ok(Arc::new(Region(PersistentMemory::open(&self.path, self.size_bytes).map_err(making_failed)?)))
    }

    /// Reads its content, without changing it: for a file, which may be a copy anywhere, as it is
    /// now.
    ///
    /// # Errors
    /// When it does not exist, or cannot be read.
    pub fn read(&self) -> Result<Arc<dyn PersistentRegion>> {
        let failed = |error: &std::io::Error| Error::io(format!("reading {}", self.path.display()), error);
        let is_file = std::fs::metadata(&self.path).map_err(|error| failed(&error))?.is_file();
        if !is_file {
            return self.open();
        }
        Ok(Arc::new(VolatileRegion::of(std::fs::read(&self.path).map_err(|error| failed(&error))?)))
    }
}

/// Persistent memory in the form that the log uses.
struct Region(PersistentMemory);

impl PersistentRegion for Region {
    fn size_bytes(&self) -> usize {
        self.0.size_bytes()
    }

    fn load(&self, offset: usize, bytes: &mut [u8]) {
        self.0.load(offset, bytes);
    }

    fn store(&self, offset: usize, bytes: &[u8]) {
        self.0.store(offset, bytes);
    }

    fn persist(&self, offset: usize, length: usize) {
        self.0.persist(offset, length);
    }
}

impl LogConfig {
    /// The log that `settings` ask for, if any.
    ///
    /// # Errors
    /// Choices that exclude each other.
    pub fn of(settings: &Settings) -> Result<Option<Self>> {
        let Some(path) = settings.path("log.path") else { return Ok(None) };
        let nvram = settings.path("log.nvram");
        let log = Self {
            path,
            offset: settings.number("log.offset"),
            size_bytes: settings.number("log.size"),
            segment_bytes: settings.number("log.segment-size"),
            slot_bytes: settings.number("log.slot-size"),
            durability: settings.parsed("log.durability")?.unwrap_or_default(),
            nvram: nvram.map(|path| NvramConfig { path, size_bytes: settings.number("log.nvram-size") }),
            ram_bytes: settings.number("log.ram"),
            record_cache_bytes: settings.number("log.cache"),
            destage: DestageConfig::of(settings)?,
            is_paper: settings.is_given("log.profile"),
        };
        log.check().map(|()| Some(log))
    }

    /// Refuses impossible choices, before any file is read.
    ///
    /// # Errors
    /// `Usage`, with the option.
    pub fn check(&self) -> Result<()> {
        let refused = |message: String| Err(Error::new(Failure::Usage, message));
        if self.durability == Durability::Nvram && self.nvram.is_none() {
            return refused(
                "--durability nvram needs --nvram PATH: a file in persistent memory, or a device /dev/daxN.M".into(),
            );
        }
        if self.is_paper && self.durability == Durability::Log {
            let message = "--profile paper needs slots for level 1, and --durability log has none: give --durability \
                           unsafe-volatile (slots of RAM), or --durability nvram with --nvram PATH";
            return refused(message.into());
        }
        if self.ram_bytes.is_some() && self.durability != Durability::UnsafeVolatile {
            return refused("--log-ram is for --durability unsafe-volatile: the others have no slots of RAM".into());
        }
        if self.destage.slots_start.is_some() && self.durability == Durability::Log {
            return refused("--slots-start is for slots, and --durability log has none".into());
        }
        if self.destage.moves_slots_eagerly == Some(true) && self.durability == Durability::Log {
            return refused("log.slots-eager is for slots, and --durability log has none".into());
        }
        Ok(())
    }

    /// The place of the log of the LUN `identity`.
    ///
    /// # Errors
    /// When the directory of its path does not exist; `Usage` for an offset in a directory, or one
    /// that no log can have.
    pub fn place(&self, identity: &Identity) -> Result<Place> {
        Place::of_store(&self.path, self.offset, &format!("{}.log", file_stem(identity)))
    }

    /// Refuses a log that failed while it was in use; and to make a log, or to use another
    /// one, where the registry names one with the LUN's newest data. `is_any_taken`: another one is
    /// taken, as the user wants it.
    ///
    /// # Errors
    /// `WouldLoseData`, with advice.
    pub fn check_not_lost(&self, place: &Place, registered: Option<&Entry>, is_any_taken: bool) -> Result<()> {
        let Some(entry) = registered.filter(|entry| entry.place() == *place) else { return Ok(()) };
        let (argument, path) = (place.argument("log"), place);
        let is_other = matches!((entry.uuid, uuid_at(place)), (Some(expected), Some(found)) if expected != found);
        let message = if is_other {
            if is_any_taken {
                return Ok(());
            }
            entry.words_of_another()
        } else if let Some(words) = entry.words_of_failure() {
            words
        } else if content_is_there(place)? {
            return Ok(());
        } else {
            format!(
                "the newest data of {} LUN serial {} may have been in the write log {path}, and nothing is there: \
                 bring it back (is its file system mounted?), or give that data up with `forebay log discard \
                 {argument}`",
                entry.target, entry.serial
            )
        };
        Err(Error::new(Failure::WouldLoseData, message))
    }

    /// Opens the log at `place` over `origin`, and makes it first if there is none. Returns also
    /// the registry's entries for as long as it may be dirty, one for each of the LUNs
    /// `identities`, and the bytes of its device. If that device fails, the registry notes it.
    /// `kept` holds the ranges of others' changes that must not be overwritten.
    /// # Errors
    /// Another LUN's log, content that is no log, a log in use, no room, missing NVRAM.
    pub async fn open(
        &self,
        place: &Place,
        caches: &Caches,
        origin: SharedDevice,
        clock: Arc<dyn Clock>,
        registry: &Registry,
        (identities, name, kept): (&[Identity], &str, KeptChanges<'_>),
    ) -> Result<(Arc<WriteLog>, Vec<Entry>, u64)> {
        self.check()?;
        // Before any file is made.
        let nvram = self.nvram.as_ref().map(NvramConfig::open).transpose()?;
        let format =
            async |device: &SharedDevice| WriteLog::format(device, &origin, self.format_options(&place.path)).await;
        let device = open_or_make(PlaceKind::Log, place, caches, self.size_bytes, format).await?;
        let device_bytes = device.geometry().size_bytes;
        let mut options = self.open_options(clock);
        options.nvram = nvram;
        options.kept_changes = kept.ranges().to_vec();
        options.tokens = Some(kept.begin_opening(caches)?);
        // The log is locked, so its identity does not change any more.
        let uuid = uuid_at(place);
        let entries: Vec<Entry> = identities.iter().map(|identity| entry(identity, place, name, uuid)).collect();
        options.failure_note = Some(failure_note(registry.clone(), entries.clone()));
        let context = |error: block::Error| match (ConflictingChanges::of(&error), error.kind()) {
            // The options ask for more than there is room for.
            (None, block::ErrorKind::InvalidRange) => {
                Error::new(Failure::Usage, format!("the write log {place}: {error}"))
            }
            _ => kept.refusal(error),
        };
        Ok((WriteLog::open(device, origin, options).await.map_err(context)?, entries, device_bytes))
    }

    /// The options of a log at `path`.
    fn format_options(&self, path: &Path) -> FormatOptions {
        let mut options = if self.is_paper { FormatOptions::paper() } else { FormatOptions::default() };
        // The table of settings limits the value, so it fits.
        let bytes = |chosen: Option<u64>| chosen.and_then(|bytes| u32::try_from(bytes).ok());
        options.segment_bytes = bytes(self.segment_bytes).or(options.segment_bytes);
        options.slot_bytes = bytes(self.slot_bytes).unwrap_or(options.slot_bytes);
        if !fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
            options.data_bytes_max = writelog::limits::DATA_BYTES_MAX;
        }
        options
    }

    fn open_options(&self, clock: Arc<dyn Clock>) -> OpenOptions {
        let mut options = OpenOptions::new(clock);
        if self.is_paper {
            options = options.paper();
        }
        options.durability = self.durability;
        options.volatile_bytes = self.ram_bytes.map_or(options.volatile_bytes, |bytes| bytes as usize);
        options.record_cache_bytes = self.record_cache_bytes.map_or(options.record_cache_bytes, |bytes| bytes as usize);
        options.order = self.destage.order.unwrap_or(options.order);
        options.level1.share_start = self.destage.slots_start.map_or(options.level1.share_start, Percent::share);
        options.level1.is_eager = self.destage.moves_slots_eagerly.unwrap_or(options.level1.is_eager);
        options.level2 = self.destage.over(options.level2);
        options
    }
}

/// The callback that notes in the registry that the log's device failed.
fn failure_note(registry: Registry, entries: Vec<Entry>) -> Arc<dyn Fn() -> bool + Send + Sync> {
    Arc::new(move || {
        let failed = entries.iter().cloned().map(|entry| Entry { has_failed: true, ..entry });
        failed.map(|entry| registry.insert(&entry)).all(|noted| noted.is_ok())
    })
}

/// The registry's entry for a LUN whose newest data may be in the log `log` at `place`.
fn entry(identity: &Identity, place: &Place, name: &str, log: Option<Uuid>) -> Entry {
    Entry { store: Store::Log, uuid: log, ..Entry::new(identity, place, name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut LogConfig)) -> Option<String> {
        let mut config = LogConfig::default();
        change(&mut config);
        config.check().err().map(|error| {
            assert_eq!(error.failure(), Failure::Usage);
            error.to_string()
        })
    }

    #[test]
    fn what_cannot_be_together_is_refused_by_its_options() {
        assert_eq!(check(|_| {}), None);
        type Change = fn(&mut LogConfig);
        let refused: [(Change, &str); 5] = [
            (|log| log.durability = Durability::Nvram, "--nvram PATH"),
            (|log| log.is_paper = true, "--durability unsafe-volatile"),
            (|log| log.ram_bytes = Some(1 << 20), "--log-ram is for --durability unsafe-volatile"),
            (|log| log.destage.slots_start = Some(Percent::new(5)), "--slots-start is for slots"),
            (|log| log.destage.moves_slots_eagerly = Some(true), "log.slots-eager is for slots"),
        ];
        for (change, words) in refused {
            let said = check(change).expect(words);
            assert!(said.contains(words), "\"{words}\" is missing in: {said}");
        }
    }

    #[test]
    fn what_is_chosen_wins_over_the_profile_and_the_rest_is_the_profiles() {
        let clock: Arc<dyn Clock> = Arc::new(base::executor::Executor::in_order().clock());
        let paper = LogConfig { is_paper: true, durability: Durability::UnsafeVolatile, ..LogConfig::default() };
        assert_eq!(paper.check().map_err(|error| error.to_string()), Ok(()));
        let options = paper.open_options(Arc::clone(&clock));
        assert_eq!((options.order, options.level2.writes_in_flight), (DestageOrder::LastWriteFirst, 1));
        assert_eq!(options.record_cache_bytes, 0);
        let format = paper.format_options(&paper.path);
        assert_eq!((format.segment_bytes, format.data_bytes_max), (Some(64 << 10), writelog::limits::DATA_BYTES_MAX));
        assert!((1 << 20..2 << 20).contains(&options.volatile_bytes), "16 segments and their headers");
        let chosen = LogConfig {
            segment_bytes: Some(128 << 10),
            slot_bytes: Some(512),
            ram_bytes: Some(2 << 20),
            record_cache_bytes: Some(3 << 20),
            destage: DestageConfig {
                slots_start: Some(Percent::new(35)),
                moves_slots_eagerly: Some(true),
                start: Some(Percent::new(40)),
                full_speed: Some(Percent::new(80)),
                idle: Some(Duration::from_secs(2)),
                batch_bytes: Some(1 << 20),
                writes: Some(3),
                ..DestageConfig::default()
            },
            ..paper
        };
        let (format, options) = (chosen.format_options(&chosen.path), chosen.open_options(clock));
        assert_eq!((format.segment_bytes, format.slot_bytes), (Some(128 << 10), 512));
        assert_eq!((options.volatile_bytes, options.level1.share_start), (2 << 20, 0.35));
        assert!(options.level1.is_eager);
        assert_eq!((options.level2.share_start, options.level2.share_slow), (0.4, 0.8));
        assert_eq!(options.record_cache_bytes, 3 << 20);
        assert_eq!((options.level2.idle, options.level2.age_max), (Duration::from_secs(2), Duration::MAX));
        assert_eq!((options.level2.batch_bytes, options.level2.writes_in_flight), (1 << 20, 3));
    }
}
