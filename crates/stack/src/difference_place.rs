//! The place of the difference from a shared base, made and opened like a cache (see `store_file`).

use std::path::PathBuf;
use std::sync::Arc;

use block::layer::read_only::ReadOnlyLayer;
use block::{Identity, SharedDevice};
use difference::{Difference, DifferenceOptions};
use uuid::Uuid;

use crate::caches::Caches;
use crate::difference_file::DifferenceFile;
use crate::difference_note::DifferenceNote;
use crate::error::{Error, Result};
use crate::paths::Paths;
use crate::place::{Place, check_keeps};
use crate::place_device::PlaceKind;
use crate::registry::file_stem;
use crate::settings::Settings;
use crate::status::stores::DifferenceStatus;
use crate::store_file::open_or_make;

/// The difference of an attachment, as configured.
#[derive(Clone, Debug)]
pub struct DifferenceConfig {
    /// File, block device, or directory.
    pub path: PathBuf,
    /// Size of a new difference.
    pub size_bytes: Option<u64>,
    /// Bytes copied at once by a new difference; `None` for the default.
    pub chunk_bytes: Option<u32>,
    /// The generation of the LUN's content; `None` to take a difference as it is.
    pub generation: Option<u64>,
    /// Whether one is taken that was cut, removed or moved while it was in use.
    pub accepts_loss: bool,
}

impl DifferenceConfig {
    /// The difference that `settings` ask for, if any.
    pub fn of(settings: &Settings) -> Option<Self> {
        let chunk_bytes = settings.number("difference.chunk");
        Some(Self {
            path: settings.path("difference.path")?,
            size_bytes: settings.number("difference.size"),
            chunk_bytes: chunk_bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
            generation: settings.number("generation"),
            accepts_loss: settings.is_on("difference.accept-loss"),
        })
    }

    /// The place of the difference from the LUN `identity`.
    ///
    /// # Errors
    /// When the directory of its path does not exist.
    pub fn place(&self, identity: &Identity) -> Result<Place> {
        check_keeps(&self.path)?;
        let in_directory = || self.path.join(format!("{}.difference", file_stem(identity)));
        Place::new(&if self.path.is_dir() { in_directory() } else { self.path.clone() }, None)
    }

    /// Opens the difference at `place` from `base` for the attachment `name`, and makes it first if
    /// there is none. `base` is never written. A note that it was lost stays until the file is
    /// [accepted](DifferenceFile::accept).
    ///
    /// # Errors
    /// A difference of another LUN or generation, content that is no difference, one in use, or that
    /// was lost while it was in use; no room.
    pub(crate) async fn open(
        &self,
        place: &Place,
        (caches, paths): (&Caches, &Paths),
        base: SharedDevice,
        name: &str,
    ) -> Result<(Arc<Difference>, Arc<DifferenceFile>)> {
        let note = DifferenceNote::of(paths, place)?;
        note.check(self.accepts_loss)?;
        let base: SharedDevice = Arc::new(ReadOnlyLayer::new(base));
        let usual = DifferenceOptions::new(Uuid::new_v4());
        let options = DifferenceOptions {
            chunk_bytes: self.chunk_bytes.unwrap_or(usual.chunk_bytes),
            generation: self.generation.unwrap_or_default(),
            ..usual
        };
        let format = async |device: &SharedDevice| Difference::format(device, &base, options).await;
        let device = open_or_make(PlaceKind::Difference, place, caches, self.size_bytes, format).await?;
        let context = |error| Error::from(error).context(format!("the difference {place}"));
        let opened = Arc::new(Difference::open(device, Arc::clone(&base), self.generation).await.map_err(context)?);
        let file = DifferenceFile::new(&opened, place, name, note);
        Ok((opened, file))
    }
}

/// Its part of the status.
pub(crate) fn status(difference: &Difference) -> DifferenceStatus {
    let status = difference.status();
    DifferenceStatus {
        generation: (status.generation != 0).then_some(status.generation),
        chunk_bytes: status.chunk_bytes,
        room_bytes: status.room_bytes,
        used_bytes: status.used_bytes,
    }
}
