//! Where a write log lies, and how it is made and opened. It is found, made and registered as a cache is (see `cache_place`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::clock::Clock;
use block::{Identity, SharedDevice};
use file::PersistentMemory;
use writelog::{DestageOrder, Durability, FormatOptions, OpenOptions, PersistentRegion, WriteLog};

use crate::cache_place::{PlaceKind, canonical_place, content_is_there, open_or_make};
use crate::error::{Error, Failure, Result};
use crate::registry::{Entry, Registry, Store, file_stem};

/// The write log of an attachment, as asked for.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// File, block device, or directory.
    pub path: PathBuf,
    /// Size of a log that is made.
    pub size_bytes: Option<u64>,
    /// When a write counts as acknowledged.
    pub durability: Durability,
    /// Persistent memory for it.
    pub nvram: Option<NvramConfig>,
    /// The order of destaging; `None` for the profile's.
    pub order: Option<DestageOrder>,
    /// Bytes that the LUN's disk transfers in the time of a seek; 0 when it has none, or when others write to the LUN.
    pub seek_bytes: u64,
    /// Whether the log behaves as the paper describes.
    pub is_paper: bool,
}

/// A file in persistent memory.
#[derive(Clone, Debug)]
pub struct NvramConfig {
    /// The file.
    pub path: PathBuf,
    /// Size of one that is made.
    pub size_bytes: Option<u64>,
}

impl NvramConfig {
    fn open(&self) -> Result<Arc<dyn PersistentRegion>> {
        Ok(Arc::new(Region(PersistentMemory::open(&self.path, self.size_bytes)?)))
    }
}

/// Persistent memory as the log sees it.
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
    /// The log that is at `path`, to bring down what it holds: nothing of it is chosen but where it is.
    pub fn existing(path: PathBuf) -> Self {
        let durability = Durability::Log;
        Self { path, size_bytes: None, durability, nvram: None, order: None, seek_bytes: 0, is_paper: false }
    }

    /// The absolute path of the log of the LUN `identity`.
    ///
    /// # Errors
    /// When the directory it lies in does not exist.
    pub fn place(&self, identity: &Identity) -> Result<PathBuf> {
        let path =
            if self.path.is_dir() { self.path.join(format!("{}.log", file_stem(identity))) } else { self.path.clone() };
        canonical_place(&path)
    }

    /// Refuses a log whose device failed while it was in use, and to make one where the registry says that one with the LUN's newest data
    /// should be.
    ///
    /// # Errors
    /// `WouldLoseData`, saying how to go on.
    pub fn check_not_lost(&self, place: &Path, registered: Option<&Entry>) -> Result<()> {
        let Some(entry) = registered.filter(|entry| entry.cache == place) else { return Ok(()) };
        let path = place.display();
        let message = if entry.has_failed {
            format!(
                "the device of the write log {path} failed while it was in use, and the LUN has got newer data since: what the log holds \
                 may be older; give it up with `forebay log discard {path}`"
            )
        } else if content_is_there(place)? {
            return Ok(());
        } else {
            format!(
                "the newest data of {} LUN serial {} should be in the write log {path}, but nothing is there: bring it back (is its file \
                 system mounted?), or give that data up with `forebay log discard {path}`",
                entry.target, entry.serial
            )
        };
        Err(Error::new(Failure::WouldLoseData, message))
    }

    /// Opens the log at `place` over `origin`, made first if there is none. `entries` are what the registry is told should its device fail.
    ///
    /// # Errors
    /// Another LUN's log, something that is no log, a log in use, no room, NVRAM that is not there.
    pub async fn open(
        &self,
        place: &Path,
        origin: SharedDevice,
        clock: Arc<dyn Clock>,
        registry: &Registry,
        entries: &[Entry],
    ) -> Result<Arc<WriteLog>> {
        if self.durability == Durability::Nvram && self.nvram.is_none() {
            let message = "--durability nvram needs --nvram PATH: a file in persistent memory";
            return Err(Error::new(Failure::Usage, message));
        }
        // Before anything is made.
        let nvram = self.nvram.as_ref().map(NvramConfig::open).transpose()?;
        let format = async |device: &SharedDevice| WriteLog::format(device, &origin, self.format_options()).await;
        let device = open_or_make(PlaceKind::Log, place, self.size_bytes, format).await?;
        let mut options = OpenOptions::new(clock);
        if self.is_paper {
            options = options.paper();
        }
        options.durability = self.durability;
        options.nvram = nvram;
        options.order = self.order.unwrap_or(options.order);
        options.level2.seek_bytes = self.seek_bytes;
        options.failure_note = Some(failure_note(registry.clone(), entries.to_vec()));
        let context = |error| Error::from(error).context(format!("the write log {}", place.display()));
        WriteLog::open(device, origin, options).await.map_err(context)
    }

    fn format_options(&self) -> FormatOptions {
        if self.is_paper { FormatOptions::paper() } else { FormatOptions::default() }
    }
}

/// Notes in the registry that the log's device failed.
fn failure_note(registry: Registry, entries: Vec<Entry>) -> Arc<dyn Fn() -> bool + Send + Sync> {
    Arc::new(move || {
        let failed = entries.iter().cloned().map(|entry| Entry { has_failed: true, ..entry });
        failed.map(|entry| registry.insert(&entry)).all(|noted| noted.is_ok())
    })
}

/// What the registry says of a LUN whose newest data may be in the log at `place`.
pub fn entry(identity: &Identity, place: &Path, name: &str) -> Entry {
    Entry { store: Store::Log, ..Entry::new(identity, place.to_owned(), name) }
}
