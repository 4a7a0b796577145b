//! The caches and write logs of this host, as a target sees them that is to serve what they lie in: its initiators
//! would write over them.
//!
//! A store counts where this host has noted it, and while it is there. A file that merely holds one, which another host
//! made on its LUN, is a LUN like any other.

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
    /// How many bytes it takes, where that is noted.
    length: Option<u64>,
    /// Name of the attachment that used it last.
    name: String,
    /// Serial number of the LUN.
    serial: String,
    /// Whether it may hold what the LUN lacks.
    is_dirty: bool,
}

impl OwnStores {
    /// Those that are noted in `paths`.
    ///
    /// # Errors
    /// When what is noted cannot be read.
    pub(crate) fn find(paths: &Paths) -> Result<Self> {
        let caches = Caches::open(paths)?;
        // The dirty ones first: of a store that is noted twice, that is what to say.
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

    /// Refuses a LUN whose initiators could write over one of them.
    ///
    /// # Errors
    /// `WouldLoseData`, with what is there and how to go on.
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
    /// Whether it still is where it was noted, and not something else that has come there since.
    fn is_there(&self) -> bool {
        let found = store_of(&self.place, self.length);
        found.is_some_and(|found| self.uuid.is_none_or(|known| known == found.uuid))
    }
}
