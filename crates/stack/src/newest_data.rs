//! Whether the newest data of a LUN may be in a store of this host that is not used with it.
//!
//! | known from | refused |
//! |---|---|
//! | the [registry](crate::registry) | the LUN without a store that may be dirty |
//! | the same, for a LUN of our own target | the same LUN under another target name or number |
//! | the list of [`caches`](crate::caches), and the stores themselves | the LUN without a store that is dirty and newer than this list |
//!
//! The serial number of a LUN of our own target is in no other LUN; a foreign target may give all of
//! its LUNs one.

use base::clock::Clock;
use block::Device;
use logical_unit::LogicalUnitOptions;

use crate::caches::{Caches, StoreRecord};
use crate::error::{Error, Failure, Result};
use crate::place::Place;
use crate::registry::{Registry, Store};
use crate::remotes::Remotes;
use crate::store_file::open_to_read;

/// Refuses LUNs whose newest data may be in other stores than those at `places`.
///
/// # Errors
/// `WouldLoseData`, with advice; `Mismatch` for a store of the LUN under its former name; errors of
/// this host's list.
pub async fn check(
    remotes: &Remotes,
    (registry, caches): (&Registry, &Caches),
    places: &[&Place],
    clock: &dyn Clock,
) -> Result<()> {
    check_registered(remotes, registry, places)?;
    check_listed(remotes, caches, places, clock).await
}

/// [`check`] by the registry alone.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_registered(remotes: &Remotes, registry: &Registry, places: &[&Place]) -> Result<()> {
    remotes.identities().iter().try_for_each(|identity| registry.check(identity, places))?;
    let own = LogicalUnitOptions::default().vendor;
    for lun in remotes.member_luns().into_iter().flat_map(|member| member.luns) {
        if lun.vendor() == own {
            registry.check_other_names(&lun.identity(), places)?;
        }
    }
    Ok(())
}

/// [`check`] by the list of stores, where a store is another copy than the list says.
///
/// # Errors
/// As [`check`].
pub(crate) async fn check_listed(
    remotes: &Remotes,
    caches: &Caches,
    places: &[&Place],
    clock: &dyn Clock,
) -> Result<()> {
    for record in caches.other_copies(&remotes.identities(), places)? {
        check_record(&record, caches, clock).await?;
    }
    Ok(())
}

async fn check_record(record: &StoreRecord, caches: &Caches, clock: &dyn Clock) -> Result<()> {
    let place = record.place();
    // Whoever uses it, or has damaged it, is not known here.
    let Ok(device) = open_to_read(&place, caches) else { return Ok(()) };
    let dirty_bytes = match record.store {
        Store::Cache => cache::inspect(&device).await.map(|inspection| inspection.dirty_bytes),
        Store::Log => writelog::inspect(&device, clock).await.map(|inspection| inspection.dirty_bytes),
    };
    let dirty_bytes = dirty_bytes.unwrap_or_default();
    if dirty_bytes == 0 {
        return Ok(());
    }
    let (what, argument) = (record.store.as_str(), place.argument(record.store.as_str()));
    let message = format!(
        "the newest data of {} LUN serial {} may be in the {what} {place}: it holds {dirty_bytes} bytes that the \
         logical unit does not have, and is another copy than this host's list says, or the list is the older one (was \
         the state directory restored?). If the list is, and nobody else wrote to the logical unit, attach it with \
         --{what} {argument} --set overwrite-changes=on; or give that data up with `forebay {what} discard {argument}`",
        record.target, record.serial
    );
    Err(Error::new(Failure::WouldLoseData, message))
}
