//! `cache inspect|check|discard`: caches that nobody has open.

use std::path::Path;

use base::units::ByteSize;
use block::SharedDevice;
use serde_json::json;
use stack::cache_place::{canonical_place, open_device};
use stack::paths::Paths;
use stack::registry::Registry;
use stack::time::seconds_since_1970;
use stack::{Error, Failure, Result};

use crate::arguments::{Cache, CacheDiscard, CachePath};
use crate::output::{confirm, print_json, print_line};

/// `forebay cache inspect|check|discard`.
pub async fn run(arguments: Cache) -> Result<()> {
    match arguments {
        Cache::Inspect(arguments) => inspect(arguments).await,
        Cache::Check(arguments) => check(arguments).await,
        Cache::Discard(arguments) => discard(arguments).await,
    }
}

async fn inspect(arguments: CachePath) -> Result<()> {
    let device = open_existing(&arguments.path)?;
    let inspection = cache::inspect(&device).await.map_err(|error| at(&arguments.path, error))?;
    if arguments.json.json {
        print_json(&json!(inspection));
        return Ok(());
    }
    let dirty = match inspection.dirty_bytes {
        0 => "nothing".to_owned(),
        bytes => format!("{} lines, {bytes} bytes, written {}", inspection.dirty_lines, age(inspection.clean_at)),
    };
    let lines = [
        ("cache of", format!("{} serial {}", inspection.origin_target, inspection.origin_serial)),
        ("unit", inspection.origin_unit.clone()),
        ("origin size", format!("{} bytes", inspection.origin_bytes)),
        ("lines", format!("{} in sets of {}", inspection.lines, inspection.ways)),
        ("valid", format!("{} lines", inspection.valid_lines)),
        ("dirty", dirty),
        ("crash mode", inspection.crash_mode.to_string()),
        ("closed", if inspection.was_closed { "in order" } else { "not: it crashed" }.to_owned()),
    ];
    for (name, value) in lines {
        print_line(&format!("{name:<13} {value}"));
    }
    Ok(())
}

async fn check(arguments: CachePath) -> Result<()> {
    let device = open_existing(&arguments.path)?;
    let inspection = cache::check(&device).await.map_err(|error| at(&arguments.path, error))?;
    if arguments.json.json {
        print_json(&json!(inspection));
    }
    let lost = inspection.unreadable_lines + inspection.recovery.lost_lines;
    if lost > 0 {
        let message = format!("{}: {lost} dirty lines cannot be read any more", arguments.path.display());
        return Err(Error::new(Failure::Mismatch, message));
    }
    if !arguments.json.json {
        print_line(&format!("{}: no damage found", arguments.path.display()));
    }
    Ok(())
}

/// The device of a cache that is there.
fn open_existing(path: &Path) -> Result<SharedDevice> {
    if !path.exists() {
        return Err(Error::new(Failure::NotFound, format!("there is no cache at {}", path.display())));
    }
    open_device(path, None)
}

fn at(path: &Path, error: block::Error) -> Error {
    Error::from(error).context(format!("the cache {}", path.display()))
}

/// Asks, naming what is lost; then makes the file unrecognisable as a cache, and strikes it from the registry.
async fn discard(arguments: CacheDiscard) -> Result<()> {
    let path = &arguments.path;
    let place = canonical_place(path)?;
    let registry = Registry::open(&Paths::from_environment()?)?;
    if !place.exists() {
        return discard_lost(&arguments, &place, &registry);
    }
    let device = open_device(path, None)?;
    let inspection = cache::inspect(&device).await.map_err(|error| at(path, error))?;
    if inspection.dirty_bytes > 0 && !arguments.allow_data_loss {
        confirm(&format!(
            "{} holds {} of data, written {}, that the logical unit {} (serial {}) does not have, and it would be lost",
            path.display(),
            ByteSize(inspection.dirty_bytes),
            age(inspection.clean_at),
            inspection.origin_unit,
            inspection.origin_serial
        ))?;
    }
    cache::discard(&device).await.map_err(|error| at(path, error))?;
    drop(device);
    if path.is_file() {
        std::fs::remove_file(path).map_err(|error| Error::io(format!("cannot remove {}", path.display()), &error))?;
    }
    registry.remove_cache(&place)?;
    print_line(&format!("{}: discarded", path.display()));
    Ok(())
}

/// How old dirty data may be, when nothing was dirty at `clean_at`.
fn age(clean_at: Option<u64>) -> String {
    match clean_at {
        Some(clean_at) => {
            let seconds = seconds_since_1970().saturating_sub(clean_at);
            let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
            match (days, hours, minutes) {
                (0, 0, 0) => format!("in the last {seconds} s"),
                (0, 0, _) => format!("in the last {minutes} min {} s", seconds % 60),
                (0, ..) => format!("in the last {hours} h {minutes} min"),
                _ => format!("in the last {days} days {hours} h"),
            }
        }
        None => "at an unknown time".to_owned(),
    }
}

/// A cache that is not there any more, but that the registry knows: gives up what it may have held.
fn discard_lost(arguments: &CacheDiscard, place: &Path, registry: &Registry) -> Result<()> {
    let path = arguments.path.display();
    let entries = registry.entries_of(place)?;
    let Some(entry) = entries.first() else {
        return Err(Error::new(Failure::NotFound, format!("there is no cache at {path}")));
    };
    if !arguments.allow_data_loss {
        confirm(&format!(
            "{path} is not there; what it held of {} (serial {}) and was not written back would be given up",
            entry.target, entry.serial
        ))?;
    }
    registry.remove_cache(place)?;
    print_line(&format!("{path}: struck from the registry"));
    Ok(())
}
