//! The device of a store that is there, for the commands about stores which no process has open.

use block::SharedDevice;
use stack::caches::Caches;
use stack::paths::Paths;
use stack::place::Place;
use stack::{Error, Failure, Result};

/// Opens a store that is there.
pub type Open = fn(&Place, &Caches) -> Result<SharedDevice>;

/// Opens the store, which is called `what`, at `named`: a place with its path as the user wrote it. Returns its place,
/// too.
pub fn open_existing(what: &str, named: &Place, open: Open) -> Result<(Place, SharedDevice)> {
    if !named.path.exists() {
        return Err(Error::new(Failure::NotFound, format!("there is no {what} at {named}")));
    }
    let place = Place::new(&named.path, named.offset)?;
    let device = open(&place, &Caches::open(&Paths::from_environment()?)?)?;
    Ok((place, device))
}
