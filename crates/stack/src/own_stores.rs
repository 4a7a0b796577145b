//! The caches and write logs of this host, checked by a target before it serves the file or device
//! that contains them: its initiators would overwrite them.
//!
//! Only a store that this host has noted counts, while it exists. A file that merely contains one,
//! which another host made on its LUN, is an ordinary LUN.

use base::units::ByteSize;
use uuid::Uuid;

use crate::caches::Caches;
use crate::content::store_of;
use crate::error::{Error, Failure, Result};
use crate::lun_spec::{Backend, LunSpec};
use crate::paths::Paths;
use crate::place::Place;
use crate::registry::{Registry, Store};

/// All stores of this host.
pub(crate) struct OwnStores {
    stores: Vec<OwnStore>,
}

struct OwnStore {
    place: Place,
    store: Store,
    uuid: Option<Uuid>,
    /// Its length in bytes, where that is noted.
    length: Option<u64>,
    /// Name of the attachment that used it last.
    name: String,
    /// Serial number of the LUN.
    serial: String,
    /// Whether it may hold data that the LUN lacks.
    is_dirty: bool,
}

impl OwnStores {
    /// The stores that are noted in `paths`.
    ///
    /// # Errors
    /// When the notes cannot be read.
    pub(crate) fn find(paths: &Paths) -> Result<Self> {
        let caches = Caches::open(paths)?;
        // The dirty ones first: that is the more important message about a store that is noted
        // twice.
        let mut stores = Vec::new();
        for entry in Registry::open(paths)?.entries()? {
            stores.push(OwnStore {
                length: caches.length_of(&entry.place())?,
                place: entry.place(),
                store: entry.store,
                uuid: entry.uuid,
                name: entry.name,
                serial: entry.serial,
                is_dirty: true,
            });
        }
        stores.extend(caches.stores()?.into_iter().map(|record| OwnStore {
            place: record.place(),
            store: record.store,
            uuid: record.uuid,
            length: record.length,
            name: record.name,
            serial: record.serial,
            is_dirty: false,
        }));
        Ok(Self { stores })
    }

    /// Refuses a LUN whose initiators could overwrite a store.
    ///
    /// # Errors
    /// `WouldLoseData`, with the store and advice.
    pub(crate) fn check(&self, spec: &LunSpec) -> Result<()> {
        let Backend::File { path, .. } = &spec.backend else { return Ok(()) };
        if spec.is_read_only || !path.exists() {
            return Ok(());
        }
        let served = Place::new(path, None)?;
        let is_in_it = |own: &&OwnStore| own.place.shares_file_with(&served) && own.is_there();
        let Some(own) = self.stores.iter().find(is_in_it) else { return Ok(()) };
        let (what, path) = (own.store.as_str(), path.display());
        let is = own
            .place
            .offset
            .map_or_else(|| format!("is the {what}"), |offset| format!("has, at {}, the {what}", ByteSize(offset)));
        let loss = if own.is_dirty {
            ", with data that the LUN lacks: attach that with it, and detach, which writes it back; then serve another \
             file"
        } else {
            ": serve another file"
        };
        let message = format!(
            "LUN {spec}: {path} {is} of \"{}\" (LUN serial {}), and initiators would write over it{loss}, or give the \
             {what} up with `forebay {what} discard {}`",
            own.name,
            own.serial,
            own.place.argument(what)
        );
        Err(Error::new(Failure::WouldLoseData, message))
    }
}

impl OwnStore {
    /// Whether it still is at its noted place, and has not been replaced by other content.
    fn is_there(&self) -> bool {
        let found = store_of(&self.place, self.length);
        found.is_some_and(|found| self.uuid.is_none_or(|known| known == found.uuid))
    }
}
