//! `cache list|move|inspect|check|discard`: the caches of this host.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::units::ByteSize;
use block::SharedDevice;
use cache::{Load, LoadTotals};
use serde::Serialize;
use serde_json::json;
use stack::caches::{Caches, StoreRecord};
use stack::content::uuid_at;
use stack::control::{ControlRequest, call};
use stack::freshness::draw_tokens;
use stack::paths::{Paths, check_name};
use stack::place::Place;
use stack::registry::{Entry, Registry, Store};
use stack::status::{self, Shown, ShownAttachment};
use stack::store_file::{open_device, open_to_read};
use stack::time::system_clock;
use stack::{Error, Failure, Result};

use super::existing::{Open, open_existing};
use super::{discard, superblock};
use crate::arguments::{Cache, CacheDiscard, CacheList, CacheMove, CachePath, CachePlace};
use crate::output::{age, confirm, print_json, print_line};

/// `forebay cache list|move|inspect|check|discard`.
pub async fn run(arguments: Cache) -> Result<()> {
    match arguments {
        Cache::List(arguments) => list(&arguments).await,
        Cache::Move(arguments) => move_size(&arguments).await,
        Cache::Inspect(arguments) => inspect(arguments).await,
        Cache::Check(arguments) => check(arguments).await,
        Cache::Discard(CacheDiscard { place, beyond_end: true, allow_data_loss }) => {
            discard_beyond_end(&place, allow_data_loss).await
        }
        Cache::Discard(CacheDiscard { place: CachePlace { path, cache_offset }, allow_data_loss, .. }) => {
            discard::run(Store::Cache, &path, cache_offset.map(|offset| offset.0), allow_data_loss).await
        }
    }
}

/// The attachment `name`, if it answers and is one.
async fn attachment(paths: &Paths, name: &str) -> Option<ShownAttachment> {
    let status = call(&paths.control_socket(name), &ControlRequest::Status, |_| {}).await.ok()?;
    status::read::<Shown>(&status).ok()?.attachment()
}

/// The totals of the cache of an attachment, if the attachment answers and has a cache.
async fn totals(paths: &Paths, name: &str) -> Option<LoadTotals> {
    Some(attachment(paths, name).await?.cache?.load)
}

/// The load of each cache during `time`, by attachment.
async fn loads(paths: &Paths, records: &[StoreRecord], time: Duration) -> BTreeMap<String, Load> {
    let all = async || {
        let mut all = BTreeMap::new();
        for record in records {
            if let Some(totals) = totals(paths, &record.name).await {
                all.insert(record.name.clone(), totals);
            }
        }
        all
    };
    let before = all().await;
    tokio::time::sleep(time).await;
    let between = |(name, now): (String, LoadTotals)| {
        let load = now.since(before.get(&name)?)?;
        Some((name, load))
    };
    all().await.into_iter().filter_map(between).collect()
}

/// A row of the list.
#[derive(Serialize)]
struct Listed {
    path: PathBuf,
    offset: Option<u64>,
    target: String,
    unit: String,
    serial: String,
    uuid: Option<String>,
    name: String,
    bytes: Option<u64>,
    state: &'static str,
    load: Option<Load>,
}

/// Prints the caches of this host and their states. A pruned cache is listed once more.
async fn list(arguments: &CacheList) -> Result<()> {
    let paths = Paths::from_environment()?;
    let registry = Registry::open(&paths)?;
    let known = Caches::open(&paths)?;
    let records = known.list()?;
    let loads = match arguments.load {
        Some(time) => loads(&paths, &records, time).await,
        None => BTreeMap::new(),
    };
    let mut caches = Vec::new();
    for record in records {
        let is_here = |status: ShownAttachment| {
            status.cache_path.as_ref() == Some(&record.path) && status.cache_offset == record.offset
        };
        let is_attached = attachment(&paths, &record.name).await.is_some_and(is_here);
        let bytes = std::fs::metadata(&record.path).ok().map(|file| record.length.unwrap_or(file.len()));
        let entries = registry.entries_of(&record.place())?;
        let (may_be_dirty, has_failed) = (!entries.is_empty(), entries.iter().any(|entry| entry.has_failed));
        let state = match (is_attached, bytes, may_be_dirty) {
            (true, ..) => "attached",
            (false, Some(_), true) if has_failed => "failed",
            // Lost with dirty data ("lost"), or without.
            (false, None, true) => "lost",
            (false, None, false) if arguments.prune && is_gone(&record.path) => {
                known.forget(&record.place())?;
                "pruned"
            }
            (false, None, false) => "missing",
            (false, Some(_), true) if is_clean(&record.place(), &known).await => "clean",
            // As far as anybody knows: it may be damaged, or in use by who does not answer.
            (false, Some(_), true) => "dirty",
            (false, Some(_), false) => "clean",
        };
        caches.push(Listed {
            uuid: uuid_at(&record.place()).map(|uuid| uuid.to_string()),
            load: loads.get(&record.name).filter(|_| is_attached).copied(),
            bytes,
            state,
            path: record.path,
            offset: record.offset,
            target: record.target,
            unit: record.unit,
            serial: record.serial,
            name: record.name,
        });
    }
    if arguments.json.json {
        print_json(&json!({ "caches": caches }));
        return Ok(());
    }
    for cache in &caches {
        let Listed { state, name, serial, path, offset, .. } = cache;
        let bytes = cache.bytes.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string());
        let place = Place { path: path.clone(), offset: *offset };
        print_line(&format!("{state:<9} {bytes:>9} {name:<20} {place} serial {serial}"));
        if let Some(Load { reads_per_second, writes_per_second, hit_ratio, in_flight }) = cache.load {
            let hits = hit_ratio.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0));
            print_line(&format!(
                "          {reads_per_second:.0} reads/s, {hits} of them hits, {writes_per_second:.0} writes/s, \
                 {in_flight:.2} requests in flight"
            ));
        }
    }
    Ok(())
}

/// Whether a cache that this host has noted as one that may have dirty data has none: it was not closed in order.
async fn is_clean(place: &Place, known: &Caches) -> bool {
    let Ok(device) = open_to_read(place, known) else { return false };
    cache::inspect(&device).await.is_ok_and(|inspection| inspection.dirty_bytes == 0)
}

/// Whether nothing is there: what merely cannot be looked at may be.
fn is_gone(path: &Path) -> bool {
    std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Shrinks the one cache, which makes room, then grows the other. When that fails, the first gets
/// its size back.
async fn move_size(arguments: &CacheMove) -> Result<()> {
    let (CacheMove { size, from, to }, paths) = (arguments, Paths::from_environment()?);
    let bytes_of = async |name: &str| -> Result<u64> {
        check_name(name)?;
        let status = call(&paths.control_socket(name), &ControlRequest::Status, |_| {}).await?;
        let bytes = status::read::<Shown>(&status)?.attachment().and_then(|status| status.cache_bytes);
        bytes.ok_or_else(|| Error::new(Failure::Usage, format!("\"{name}\" has no cache")))
    };
    let resize = async |name: &str, bytes: u64| {
        let request = ControlRequest::Set { key: "cache.size".to_owned(), value: bytes.to_string() };
        call(&paths.control_socket(name), &request, |_| {}).await
    };
    let (from_bytes, to_bytes) = (bytes_of(from).await?, bytes_of(to).await?);
    let (Some(smaller), Some(larger)) = (from_bytes.checked_sub(size.0), to_bytes.checked_add(size.0)) else {
        let message = format!("the cache of \"{from}\" has {}, which is less than {size}", ByteSize(from_bytes));
        return Err(Error::new(Failure::Usage, message));
    };
    if from == to {
        return Err(Error::new(Failure::Usage, "size is moved from one attachment to another"));
    }
    resize(from, smaller).await?;
    if let Err(error) = resize(to, larger).await {
        resize(from, from_bytes).await?;
        return Err(error.context(format!("\"{from}\" has its size back")));
    }
    print_line(&format!("{from}: {}, {to}: {}", ByteSize(smaller), ByteSize(larger)));
    Ok(())
}

async fn inspect(arguments: CachePath) -> Result<()> {
    let (place, device) = opened(&arguments.place, open_to_read)?;
    let inspection = cache::inspect(&device).await.map_err(|error| at(&place, error))?;
    if arguments.json.json {
        print_json(&json!(inspection));
        return Ok(());
    }
    let dirty = match inspection.dirty_bytes {
        0 => "nothing".to_owned(),
        bytes => {
            format!("{} lines, {bytes} bytes, written {}", inspection.dirty_lines, age(inspection.clean_at))
        }
    };
    let beyond = match inspection.stranded.bytes {
        0 => "nothing".to_owned(),
        _ => format!("{}: they cannot be written back", inspection.stranded.words()),
    };
    let lines = [
        ("cache of", format!("{} serial {}", inspection.origin_target, inspection.origin_serial)),
        ("unit", inspection.origin_unit.clone()),
        ("origin size", format!("{} bytes", inspection.origin_bytes)),
        (
            "lines",
            format!("{} of {}, in sets of {}", inspection.lines, ByteSize(inspection.line_bytes), inspection.ways),
        ),
        ("valid", format!("{} lines", inspection.valid_lines)),
        ("dirty", dirty),
        ("beyond the end", beyond),
        (
            "generation",
            inspection.generation.map_or_else(|| "not said".to_owned(), |generation| generation.to_string()),
        ),
        ("crash mode", inspection.crash_mode.to_string()),
        ("superblock", inspection.superblock.to_string()),
        ("closed", if inspection.was_closed { "in order" } else { "not: it crashed" }.to_owned()),
    ];
    for (name, value) in lines {
        print_line(&format!("{name:<15} {value}"));
    }
    Ok(())
}

async fn check(arguments: CachePath) -> Result<()> {
    let (place, device) = opened(&arguments.place, open_to_read)?;
    let inspection = cache::check(&device).await.map_err(|error| at(&place, error))?;
    if arguments.json.json {
        print_json(&json!(inspection));
    }
    let lost = inspection.unreadable_lines + inspection.recovery.lost_lines;
    if lost > 0 {
        let message = format!("{place}: {lost} dirty lines cannot be read any more");
        return Err(Error::new(Failure::Mismatch, message));
    }
    if inspection.recovery.is_table_older {
        let message = format!(
            "{place}: its table is not the one that it was closed with; nothing was dirty, and it begins without clean \
             lines"
        );
        return Err(Error::new(Failure::Mismatch, message));
    }
    superblock::check(&place, inspection.superblock)?;
    if let Some(words) = failure_of(&place)? {
        return Err(Error::new(Failure::Mismatch, words));
    }
    if !arguments.json.json {
        print_line(&format!("{place}: no damage found"));
    }
    Ok(())
}

/// Why the cache at `place`, as the user wrote it, must not be used any more, if that is so.
fn failure_of(place: &Place) -> Result<Option<String>> {
    let entries = Registry::open(&Paths::from_environment()?)?.entries_of(&Place::new(&place.path, place.offset)?)?;
    Ok(entries.iter().find_map(Entry::words_of_failure))
}

/// Gives up what is dirty beyond the end of the logical unit, and nothing else.
async fn discard_beyond_end(at_place: &CachePlace, is_loss_allowed: bool) -> Result<()> {
    let (shown, device) = opened(at_place, open_device)?;
    if let Some(words) = failure_of(&shown)? {
        return Err(Error::new(Failure::WouldLoseData, words));
    }
    let inspection = cache::inspect(&device).await.map_err(|error| at(&shown, error))?;
    let stranded = &inspection.stranded;
    if stranded.bytes == 0 {
        print_line(&format!("{shown}: nothing dirty lies beyond the end of the logical unit"));
        return Ok(());
    }
    if !is_loss_allowed {
        confirm(&format!(
            "{shown} holds {}, written {}, beyond the end of the logical unit {} (serial {}), which has {} bytes, and \
             they would be lost",
            stranded.words(),
            age(inspection.clean_at),
            inspection.origin_unit,
            inspection.origin_serial,
            inspection.origin_bytes
        ))?;
    }
    let (place, caches) = (Place::new(&shown.path, shown.offset)?, Caches::open(&Paths::from_environment()?)?);
    let tokens = draw_tokens();
    caches.note_opening(&place, tokens, false)?;
    let discarded = cache::discard_beyond_end(&device, system_clock()?, Some(tokens)).await;
    caches.note_closed(&place)?;
    let bytes = discarded.map_err(|error| at(&shown, error))?;
    let left = inspection.dirty_bytes.saturating_sub(bytes);
    if left == 0 {
        Registry::open(&Paths::from_environment()?)?.remove_cache(&place)?;
    }
    print_line(&format!("{shown}: {bytes} bytes discarded, {left} stay dirty"));
    Ok(())
}

/// The place with the path as the user wrote it, and the device of the cache there.
fn opened(CachePlace { path, cache_offset }: &CachePlace, open: Open) -> Result<(Place, SharedDevice)> {
    let named = Place { path: path.clone(), offset: cache_offset.map(|offset| offset.0) };
    let (_, device) = open_existing("cache", &named, open)?;
    Ok((named, device))
}

fn at(place: &Place, error: block::Error) -> Error {
    Error::from(error).context(format!("the cache {place}"))
}
