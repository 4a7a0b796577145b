//! `log`: work on a write log that no process has open.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::clock::Clock;
use base::units::ByteSize;
use block::{ErrorKind, SharedDevice};
use serde::Serialize;
use serde_json::json;
use stack::caches::{Caches, StoreRecord};
use stack::control::{ControlRequest, call};
use stack::freshness::{ChangesSince, note_writable_opening, release_refused};
use stack::log_place::{LogConfig, NvramConfig};
use stack::newest_data;
use stack::paths::Paths;
use stack::place::Place;
use stack::registry::{Registry, Store, UnitLock};
use stack::remotes::{Remotes, RemotesConfig};
use stack::status::{self, Shown};
use stack::store_file::open_to_read;
use stack::time::system_clock;
use stack::{Error, Failure, Result};
use writelog::{DamagedRange, Inspection, NvramInspection, PersistentRegion};

use super::existing::open_existing;
use super::{discard, superblock};
use crate::arguments::{Json, Log, LogCheck, LogDiscard, LogPath, LogPlace, LogReplay};
use crate::output::{plain, print_json, print_line, progress_bar};
use crate::settings_arguments::settings;

/// `forebay log list|inspect|check|replay|discard`.
pub async fn run(arguments: Log) -> Result<()> {
    match arguments {
        Log::List(arguments) => list(&arguments).await,
        Log::Inspect(arguments) => inspect(arguments).await,
        Log::Check(arguments) => check(arguments).await,
        Log::Replay(arguments) => replay(*arguments).await,
        Log::Discard(LogDiscard { place: LogPlace { path, log_offset }, allow_data_loss }) => {
            discard::run(Store::Log, &path, log_offset.map(|offset| offset.0), allow_data_loss).await
        }
    }
}

/// A row of the list.
#[derive(Serialize)]
struct Listed {
    path: PathBuf,
    offset: Option<u64>,
    place: String,
    target: String,
    unit: String,
    serial: String,
    name: String,
    bytes: Option<u64>,
    state: &'static str,
}

/// Prints the logs that the registry names: those in use, and those left with data that their
/// logical units may lack.
async fn list(arguments: &Json) -> Result<()> {
    let paths = Paths::from_environment()?;
    let mut entries = Registry::open(&paths)?.entries()?;
    entries.retain(|entry| entry.store == Store::Log);
    // A stripe has an entry for each of its parts.
    entries.dedup_by(|one, other| one.place() == other.place());
    let caches = Caches::open(&paths)?;
    let mut logs = Vec::new();
    for entry in entries {
        let status = call(&paths.control_socket(&entry.name), &ControlRequest::Status, |_| {}).await.ok();
        let status = status.and_then(|status| status::read::<Shown>(&status).ok()?.attachment());
        let is_attached = status
            .is_some_and(|status| status.log_path.as_ref() == Some(&entry.cache) && status.log_offset == entry.offset);
        let length = caches.find(&entry.place())?.and_then(|record| record.length);
        let bytes = std::fs::metadata(&entry.cache).ok().map(|file| length.unwrap_or(file.len()));
        let state = match (is_attached, bytes, entry.has_failed) {
            (true, ..) => "attached",
            (false, None, _) => "lost",
            (false, Some(_), true) => "failed",
            (false, Some(_), false) => "dirty",
        };
        logs.push(Listed {
            place: entry.place().to_string(),
            path: entry.cache,
            offset: entry.offset,
            target: entry.target,
            unit: entry.unit,
            serial: entry.serial,
            name: entry.name,
            bytes,
            state,
        });
    }
    if arguments.json {
        print_json(&json!({ "logs": logs }));
        return Ok(());
    }
    for log in &logs {
        let Listed { state, name, place, serial, .. } = log;
        let bytes = log.bytes.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string());
        print_line(&format!("{state:<9} {bytes:>9} {name:<20} {place} serial {}", plain(serial)));
    }
    Ok(())
}

async fn inspect(arguments: LogPath) -> Result<()> {
    let inspection = look(&arguments.place).await?;
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
        ("superblock", inspection.superblock.to_string()),
        ("closed", state.to_owned()),
    ];
    for (name, value) in lines {
        print_line(&format!("{name:<13} {value}"));
    }
    Ok(())
}

async fn look(place: &LogPlace) -> Result<Inspection> {
    let device = opened(place)?.1;
    let clock = system_clock()?;
    writelog::inspect(&device, clock.as_ref()).await.map_err(|error| at(&shown(place), error))
}

async fn check(arguments: LogCheck) -> Result<()> {
    let device = opened(&arguments.place)?.1;
    let path = shown(&arguments.place);
    let nvram = arguments.nvram.as_deref().map(read_nvram).transpose()?;
    let clock = system_clock()?;
    let checked = writelog::check(&device, nvram.as_deref(), clock.as_ref()).await;
    let inspection = checked.map_err(|error| match error.kind() {
        // Where replay begins cannot be read.
        ErrorKind::Media => Error::new(Failure::Mismatch, at(&path, error).to_string()),
        _ => at(&path, error),
    })?;
    if arguments.json.json {
        print_json(&json!(inspection));
    }
    let nvram = inspection.nvram.unwrap_or_default();
    if nvram.is_damaged() {
        let message = format!(
            "{path}: {} slots of its NVRAM are damaged, of the logical unit's {}",
            nvram.slots_torn,
            named(&inspection.damaged)
        );
        return Err(Error::new(Failure::Mismatch, message));
    }
    if !inspection.damaged.is_empty() {
        let message =
            format!("{path}: damaged is the newest data of the logical unit's {}", named(&inspection.damaged));
        return Err(Error::new(Failure::Mismatch, message));
    }
    if inspection.has_failed {
        let message = format!("{path}: its device failed in use, and the LUN has newer data than the log");
        return Err(Error::new(Failure::Mismatch, message));
    }
    superblock::check(&path, inspection.superblock)?;
    if !arguments.json.json {
        let not_looked_at = match (inspection.has_nvram, inspection.nvram) {
            (true, None) => "; acknowledged data may be in its NVRAM, which was not looked at: give --nvram PATH",
            (_, Some(NvramInspection { slots_torn: 1.., .. })) => {
                "; one slot of its NVRAM is torn, as a power loss leaves it of a write that nobody was told of"
            }
            _ => "",
        };
        print_line(&format!("{path}: no damage found{not_looked_at}"));
    }
    Ok(())
}

/// The content of an NVRAM, opened for reading.
fn read_nvram(path: &Path) -> Result<Arc<dyn PersistentRegion>> {
    NvramConfig { path: path.to_owned(), size_bytes: None }.read()
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

/// Opens the log over its LUN and writes all its dirty data there. The registry names the log until
/// none is dirty.
async fn replay(arguments: LogReplay) -> Result<()> {
    let paths = Paths::from_environment()?;
    let clock: Arc<dyn Clock> = system_clock()?;
    let place = opened(&arguments.place)?.0;
    let settings = settings(&arguments.login, &arguments.arrange)?;
    let remotes = RemotesConfig::of(&arguments.urls, &settings)?.connect(&clock).await?;
    let replayed = replay_to(&remotes, &place, &arguments, &paths, clock).await;
    let closed = remotes.close().await;
    let replayed_bytes = replayed?;
    closed?;
    print_line(&format!("{}: {replayed_bytes} bytes brought to the logical unit", shown(&arguments.place)));
    Ok(())
}

/// The name of a replay, where an attachment would give its own.
const NAME: &str = "forebay";

/// Replays the log to its LUN. Returns the count of bytes written.
async fn replay_to(
    remotes: &Remotes,
    place: &Place,
    arguments: &LogReplay,
    paths: &Paths,
    clock: Arc<dyn Clock>,
) -> Result<u64> {
    let (identity, identities) = (remotes.identity(), remotes.identities());
    let _lock = UnitLock::acquire(paths, &identities, NAME)?;
    let registry = Registry::open(paths)?;
    let caches = Caches::open(paths)?;
    newest_data::check(remotes, (&registry, &caches), &[place], clock.as_ref()).await?;
    let nvram = arguments.nvram.clone().map(|path| NvramConfig { path, size_bytes: None });
    let config = LogConfig { path: place.path.clone(), offset: place.offset, nvram, ..LogConfig::default() };
    let registered = registry.find(&identity, Store::Log)?;
    config.check_not_lost(place, registered.as_ref(), arguments.overwrite_changes)?;
    let opening = async {
        let changed = ChangesSince::assess(remotes, &caches, place, arguments.overwrite_changes).await?;
        note_writable_opening(&caches, &identities, &[place])?;
        let kept = changed.kept(arguments.overwrite_changes);
        let names = (&identities[..], NAME, kept);
        let (log, entries, device_bytes) =
            config.open(place, &caches, remotes.device(), clock, &registry, names).await?;
        let record = StoreRecord::new(place, device_bytes, &identity, NAME);
        let marks = changed.commit(&caches, record, (&log, arguments.overwrite_changes)).await?;
        Ok::<_, Error>((log, entries, marks))
    };
    let (log, entries, marks) = match opening.await {
        Ok(opened) => opened,
        Err(error) => {
            release_refused(remotes, &caches).await;
            return Err(error);
        }
    };
    entries.iter().try_for_each(|entry| registry.insert(entry))?;
    let dirty_bytes = log.status().dirty_bytes;
    let background = tokio::spawn(base::background::named("log-replay", log.run()));
    let bar = progress_bar("replaying", dirty_bytes);
    let destaged = log
        .destage(|progress| {
            bar.set_length(progress.bytes_total);
            bar.set_position(progress.bytes_done);
        })
        .await;
    bar.finish_and_clear();
    let closed = log.close(destaged.is_err()).await;
    background.abort();
    marks.finish(closed.is_ok()).await;
    let status = log.status();
    let left = status.dirty_bytes;
    // The log may be forgotten once it was closed with nothing dirty, even if its device failed
    // before.
    if left == 0 && closed.is_ok() {
        entries.iter().try_for_each(|entry| registry.remove(entry))?;
    }
    let stays = format!("{left} bytes stay dirty in {place}");
    if status.lost_bytes > 0 {
        let message = format!(
            "{stays}: {} of them are damaged or cannot be read, and `forebay log check` names them",
            status.lost_bytes
        );
        return Err(Error::new(Failure::Mismatch, message));
    }
    destaged.and(closed).map_err(|error| Error::from(error).context(&stays))?;
    if left > 0 {
        return Err(Error::new(Failure::Other, stays));
    }
    Ok(dirty_bytes)
}

/// The place of an existing log, and its device for reading.
fn opened(named: &LogPlace) -> Result<(Place, SharedDevice)> {
    open_existing("write log", &shown(named), open_to_read)
}

/// The place with the path as the user wrote it.
fn shown(named: &LogPlace) -> Place {
    Place { path: named.path.clone(), offset: named.log_offset.map(|offset| offset.0) }
}

fn at(place: &Place, error: block::Error) -> Error {
    Error::from(error).context(format!("the write log {place}"))
}
