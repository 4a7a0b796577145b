//! `cache discard` and `log discard`: gives up a cache or a write log, dirty data too, once that was allowed.
//!
//! The question to the user names the data that would be lost. A damaged store cannot name it, and
//! may be given up too, but only where its superblock names its kind or the registry its place. Any
//! other file belongs to another program, and stays.

use std::path::Path;

use base::clock::Clock;
use base::units::ByteSize;
use block::SharedDevice;
use stack::caches::{Caches, StoreRecord};
use stack::content;
use stack::paths::Paths;
use stack::place::Place;
use stack::registry::{Entry, Registry, Store};
use stack::store_file::open_device;
use stack::time::system_clock;
use stack::{Error, Failure, Result};

use crate::output::{age, confirm, print_line};

/// Gives up the cache or the write log at `path`, or the one that begins at `offset` of it.
///
/// # Errors
/// `WouldLoseData` when that is not allowed, `NotFound` where there is none, `InUse`.
pub async fn run(store: Store, path: &Path, offset: Option<u64>, is_loss_allowed: bool) -> Result<()> {
    let place = Place::new(path, offset)?;
    // The path as the user wrote it, for messages.
    let shown = Place { path: path.to_owned(), offset };
    let paths = Paths::from_environment()?;
    let registry = Registry::open(&paths)?;
    let entry = registry.entries_of(&place)?.into_iter().find(|entry| entry.store == store);
    let allow = |loss: &str| if is_loss_allowed { Ok(()) } else { confirm(loss) };
    let caches = Caches::open(&paths)?;
    let listed = caches.stores()?.into_iter().find(|record| record.place() == place);
    let is_there = place.path.exists();
    // Only a store that this host knows is tested for being cut off.
    let is_known = entry.is_some() || listed.is_some();
    let listed_bytes = listed.as_ref().and_then(|record| record.length);
    let is_cut_off = is_there && is_known && content::is_cut_off(&place, listed_bytes)?;
    let (missing, remains) = match is_cut_off {
        true => ("ends within its file or block device", "; what is left of it was not touched"),
        false => ("is not there", ""),
    };
    let said = if is_there && !is_cut_off {
        let device = open_device(&place, &caches)?;
        let held = held(store, &shown, &device, entry.is_some()).await?;
        let is_last = caches.is_last(&place)?;
        if let Some(loss) = held.loss() {
            let other = entry.as_ref().filter(|_| !is_last).map_or_else(String::new, |_| not_listed(store));
            allow(&format!("{shown} {loss}{other}"))?;
        }
        check_lists((&registry, &caches), &place, listed.as_ref())?;
        give_up(store, &shown, device).await?;
        if let (false, Some(Entry { target, serial, .. })) = (is_last, &entry) {
            print_line(&format!(
                "{shown}: {}; it was not the {} that was used here last, in which the newest data of {target} (serial \
                 {serial}) may be: bring that back, or give it up by the same command again",
                held.farewell(),
                name_of(store)
            ));
            return Ok(());
        }
        held.farewell()
    } else if let Some(Entry { target, serial, .. }) = entry {
        allow(&format!(
            "{shown} {missing}; what it held of {target} (serial {serial}) and was not written back would be given up"
        ))?;
        format!("struck from the registry{remains}")
    } else if store == Store::Cache && listed.is_some_and(|record| record.store == store) {
        format!("struck from the list; it was clean{remains}")
    } else {
        let message = format!("there is no {} at {shown}", name_of(store));
        return Err(Error::new(Failure::NotFound, message));
    };
    registry.remove_cache(&place)?;
    caches.forget(&place)?;
    print_line(&format!("{shown}: {said}"));
    Ok(())
}

/// Tells whoever cannot write the lists while the store is still there. To strike an entry takes no room.
fn check_lists((registry, caches): (&Registry, &Caches), place: &Place, listed: Option<&StoreRecord>) -> Result<()> {
    let entries = registry.entries_of(place)?;
    let written = entries.iter().try_for_each(|entry| registry.insert(entry));
    match written.and_then(|()| listed.map_or(Ok(()), |record| caches.note(record))) {
        Err(error) if error.failure() == Failure::NoSpace => Ok(()),
        written => written,
    }
}

/// The data that only the cache or the log has.
enum Held {
    Nothing,
    /// A description of the data, to follow the path.
    Data(String),
    /// The store is damaged, as described; its data is not known.
    Unknown(String),
}

impl Held {
    /// The loss that the user is to allow, worded to follow the path.
    fn loss(&self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Data(words) => Some(format!("holds {words}, and it would be lost")),
            Self::Unknown(damage) => {
                Some(format!("is damaged, so what would be lost with it cannot be told ({damage})"))
            }
        }
    }

    fn farewell(&self) -> String {
        match self {
            Self::Nothing | Self::Data(_) => "discarded".to_owned(),
            Self::Unknown(damage) => format!("discarded; what is lost cannot be told ({damage})"),
        }
    }
}

/// What is said of a store that is another one than the list has there, whose LUN's newest data may be in either.
fn not_listed(store: Store) -> String {
    let (name, what) = (name_of(store), store.as_str());
    format!(
        "; it is not the {name} that was used here last, by this host's list, whose data is not given up yet: if the \
         list is the older one (was the state directory restored?), what would be lost is the newest data; attach it \
         with --{what} and `--set overwrite-changes=on` to keep it"
    )
}

fn name_of(store: Store) -> &'static str {
    match store {
        Store::Cache => "cache",
        Store::Log => "write log",
    }
}

async fn held(store: Store, place: &Place, device: &SharedDevice, is_registered: bool) -> Result<Held> {
    let found = match store {
        Store::Cache => held_by_cache(device).await,
        Store::Log => held_by_log(device, system_clock()?.as_ref()).await,
    };
    let error = match found {
        Ok(words) => return Ok(words.map_or(Held::Nothing, Held::Data)),
        Err(error) => error,
    };
    let is_one = match store {
        Store::Cache => cache::is_cache(device).await,
        Store::Log => writelog::is_log(device).await,
    };
    if is_one || is_registered {
        return Ok(Held::Unknown(Error::from(error).to_string()));
    }
    Err(Error::from(error).context(format!("the {} {place}", name_of(store))))
}

async fn held_by_cache(device: &SharedDevice) -> std::result::Result<Option<String>, block::Error> {
    let inspection = cache::inspect(device).await?;
    let words = format!(
        "{:#} of data, written {}, that the logical unit {} (serial {}) does not have",
        ByteSize(inspection.dirty_bytes),
        age(inspection.clean_at),
        inspection.origin_unit,
        inspection.origin_serial
    );
    Ok((inspection.dirty_bytes > 0).then_some(words))
}

async fn held_by_log(device: &SharedDevice, clock: &dyn Clock) -> std::result::Result<Option<String>, block::Error> {
    let inspection = writelog::inspect(device, clock).await?;
    let nvram = if inspection.has_nvram { ", besides what is in its NVRAM," } else { "" };
    let words = format!(
        "{:#} of data{nvram} that the logical unit {} (serial {}) does not have",
        ByteSize(inspection.dirty_bytes),
        inspection.origin_unit,
        inspection.origin_serial
    );
    Ok((inspection.dirty_bytes > 0 || inspection.has_nvram).then_some(words))
}

/// Makes the place unrecognisable, also under other names that its file may have, and removes a file of its own.
async fn give_up(store: Store, place: &Place, device: SharedDevice) -> Result<()> {
    let erased = match store {
        Store::Cache => cache::discard(&device).await,
        Store::Log => writelog::discard(&device).await,
    };
    erased.map_err(|error| Error::from(error).context(format!("the {} {place}", name_of(store))))?;
    drop(device);
    let path = &place.path;
    if place.offset.is_none() && path.is_file() {
        std::fs::remove_file(path).map_err(|error| Error::io(format!("cannot remove {}", path.display()), &error))?;
    }
    Ok(())
}
