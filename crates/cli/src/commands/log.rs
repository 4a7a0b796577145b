//! `log`: what a write log holds when nobody has it open.

use std::path::Path;

use base::units::ByteSize;
use block::SharedDevice;
use serde_json::json;
use stack::cache_place::{canonical_place, open_device};
use stack::log_place::{LogConfig, NvramConfig};
use stack::paths::Paths;
use stack::registry::{Registry, Store, UnitLock};
use stack::time::system_clock;
use stack::{Error, Failure, Result};
use writelog::{DamagedRange, Durability, Inspection};

use super::subject::remote_config;
use crate::arguments::{Log, LogDiscard, LogPath, LogReplay};
use crate::output::{confirm, print_json, print_line};

/// `forebay log inspect|check|replay|discard`.
pub async fn run(arguments: Log) -> Result<()> {
    match arguments {
        Log::Inspect(arguments) => inspect(arguments).await,
        Log::Check(arguments) => check(arguments).await,
        Log::Replay(arguments) => replay(*arguments).await,
        Log::Discard(arguments) => discard(arguments).await,
    }
}

async fn inspect(arguments: LogPath) -> Result<()> {
    let inspection = look(&arguments.path).await?;
    if arguments.json.json {
        print_json(&json!(inspection));
        return Ok(());
    }
    let state = match (inspection.has_failed, inspection.was_closed) {
        (true, _) => "not: its device failed in use",
        (false, true) => "in order",
        (false, false) => "not: it crashed",
    };
    let lines = [
        ("log of", format!("{} serial {}", inspection.origin_target, inspection.origin_serial)),
        ("unit", inspection.origin_unit.clone()),
        ("origin size", format!("{} bytes", inspection.origin_bytes)),
        (
            "segments",
            format!(
                "{} of {} bytes, {} in use",
                inspection.segments, inspection.segment_bytes, inspection.segments_used
            ),
        ),
        ("dirty", format!("{} bytes in {} runs", inspection.dirty_bytes, inspection.dirty_extents)),
        ("replay", format!("{} records, {} bytes", inspection.recovery.records, inspection.recovery.record_bytes)),
        ("closed", state.to_owned()),
    ];
    for (name, value) in lines {
        print_line(&format!("{name:<13} {value}"));
    }
    Ok(())
}

async fn look(path: &Path) -> Result<Inspection> {
    let device = open_existing(path)?;
    let clock = system_clock()?;
    writelog::inspect(&device, clock.as_ref()).await.map_err(|error| at(path, error))
}

async fn check(arguments: LogPath) -> Result<()> {
    let device = open_existing(&arguments.path)?;
    let clock = system_clock()?;
    let inspection = writelog::check(&device, clock.as_ref()).await.map_err(|error| at(&arguments.path, error))?;
    if arguments.json.json {
        print_json(&json!(inspection));
    }
    let path = arguments.path.display();
    if !inspection.damaged.is_empty() {
        let message =
            format!("{path}: damaged is the newest data of the logical unit's {}", named(&inspection.damaged));
        return Err(Error::new(Failure::Mismatch, message));
    }
    if inspection.has_failed {
        let message = format!("{path}: its device failed in use, and the LUN has newer data than the log");
        return Err(Error::new(Failure::Mismatch, message));
    }
    if !arguments.json.json {
        print_line(&format!("{path}: no damage found"));
    }
    Ok(())
}

/// Ranges that an error names; `--json` has all of them.
const RANGES_NAMED_MAX: usize = 8;

fn named(ranges: &[DamagedRange]) -> String {
    let mut names: Vec<String> = ranges.iter().take(RANGES_NAMED_MAX).map(DamagedRange::to_string).collect();
    if let Some(more) = ranges.len().checked_sub(RANGES_NAMED_MAX).filter(|&more| more > 0) {
        names.push(format!("and {more} more ranges"));
    }
    names.join(", ")
}

/// Opens the log over its LUN, brings everything there, closes it and strikes it from the registry.
async fn replay(arguments: LogReplay) -> Result<()> {
    let paths = Paths::from_environment()?;
    let clock = system_clock()?;
    let place = canonical_place(&arguments.path)?;
    open_existing(&place)?;
    let remote = remote_config(&arguments.url, &arguments.login)?.connect(&clock).await?;
    let identity = block::Device::identity(remote.as_ref());
    let _lock = UnitLock::acquire(&paths, &identity, "forebay")?;
    let registry = Registry::open(&paths)?;
    registry.check(&identity, &[&place])?;
    let config = LogConfig {
        path: place.clone(),
        size_bytes: None,
        durability: Durability::Log,
        nvram: arguments.nvram.map(|path| NvramConfig { path, size_bytes: None }),
        order: None,
        seek_bytes: 0,
        is_paper: false,
    };
    config.check_not_lost(&place, registry.find(&identity, Store::Log)?.as_ref())?;
    let entries = [stack::log_place::entry(&identity, &place, "forebay")];
    let log = config.open(&place, remote.clone(), clock, &registry, &entries).await?;
    let dirty_bytes = log.status().dirty_bytes;
    let background = tokio::spawn(log.run());
    log.close(false).await?;
    background.abort();
    entries.iter().try_for_each(|entry| registry.remove(entry))?;
    remote.close().await;
    print_line(&format!("{}: {dirty_bytes} bytes brought to the logical unit", arguments.path.display()));
    Ok(())
}

/// The device of a log that is there.
fn open_existing(path: &Path) -> Result<SharedDevice> {
    if !path.exists() {
        return Err(Error::new(Failure::NotFound, format!("there is no write log at {}", path.display())));
    }
    open_device(path, None)
}

fn at(path: &Path, error: block::Error) -> Error {
    Error::from(error).context(format!("the write log {}", path.display()))
}

/// Asks, naming what is lost; then makes the file unrecognisable as a log, and strikes it from the registry.
async fn discard(arguments: LogDiscard) -> Result<()> {
    let path = &arguments.path;
    let place = canonical_place(path)?;
    let registry = Registry::open(&Paths::from_environment()?)?;
    if !place.exists() {
        let entries = registry.entries_of(&place)?;
        let Some(entry) = entries.first() else {
            return Err(Error::new(Failure::NotFound, format!("there is no write log at {}", path.display())));
        };
        if !arguments.allow_data_loss {
            confirm(&format!(
                "{} is not there; what it held of {} (serial {}) and was not written back would be given up",
                path.display(),
                entry.target,
                entry.serial
            ))?;
        }
    } else {
        discard_found(&arguments).await?;
    }
    registry.remove_cache(&place)?;
    print_line(&format!("{}: discarded", path.display()));
    Ok(())
}

async fn discard_found(arguments: &LogDiscard) -> Result<()> {
    let path = &arguments.path;
    let inspection = look(path).await?;
    if (inspection.dirty_bytes > 0 || inspection.has_nvram) && !arguments.allow_data_loss {
        confirm(&format!(
            "{} holds {} of data that the logical unit {} (serial {}) does not have, and it would be lost",
            path.display(),
            ByteSize(inspection.dirty_bytes),
            inspection.origin_unit,
            inspection.origin_serial
        ))?;
    }
    let device = open_existing(path)?;
    writelog::discard(&device).await.map_err(|error| at(path, error))?;
    drop(device);
    if path.is_file() {
        std::fs::remove_file(path).map_err(|error| Error::io(format!("cannot remove {}", path.display()), &error))?;
    }
    Ok(())
}
