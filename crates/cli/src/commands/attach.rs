//! `attach`: a remote LUN for local applications, in the foreground.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use cache::LineSize;
use front::{ListenAddress, SocketAccess};
use iscsi::url::Url;
use stack::attach::{AttachConfig, Attachment};
use stack::awaited::Awaited;
use stack::cache_place::CacheConfig;
use stack::difference_place::DifferenceConfig;
use stack::log_place::{DestageConfig, LogConfig, NvramConfig};
use stack::login::attachment_isid;
use stack::paths::Paths;
use stack::{Error, Failure, Result};

use super::signal;
use super::subject::{number_sessions, remotes_config};
use crate::arguments::Attach;
use crate::output::print_line;

/// Ways of a cache that is made, where the user does not say: enough that sets hardly ever fill before the cache does, few enough that a
/// scan of one is short; also the paper's number (dm-cache section 2.4).
const WAYS_DEFAULT: u32 = 256;

/// How long I/O waits for a target that is away, where the user does not say: as long as open-iscsi's, enough for a reboot.
const REPLACEMENT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);

/// `forebay attach`.
pub async fn run(arguments: Attach) -> Result<()> {
    let paths = Paths::from_environment()?;
    let signal = signal::termination()?;
    let mut signal = pin!(signal);
    let is_absence_allowed = arguments.wait;
    let config = config(arguments, &paths)?;
    // Everything runs on this thread, so that each line of the log has the name.
    let _named = tracing::error_span!("attachment", name = %config.name).entered();
    if is_absence_allowed {
        let awaited = Awaited::start(config, &paths)?;
        announce(&awaited.address(), awaited.metrics_address());
        match awaited.attach(&paths, signal.as_mut()).await? {
            Some(attachment) => attachment.run(signal).await,
            None => Ok(()),
        }
    } else {
        let attachment = tokio::select! {
            biased;
            // Nothing is served yet, and what was begun is as a crash leaves it.
            () = signal.as_mut() => return Err(Error::new(Failure::Other, "ended by a signal before anything was attached")),
            started = Attachment::start(config, &paths) => started?,
        };
        announce(&attachment.address(), attachment.metrics_address());
        attachment.run(signal).await
    }
}

fn announce(address: &str, metrics: Option<SocketAddr>) {
    if let Some(metrics) = metrics {
        print_line(&format!("metrics: {metrics}"));
    }
    print_line(&format!("ready: {address}"));
}

fn config(arguments: Attach, paths: &Paths) -> Result<AttachConfig> {
    let mut remotes = remotes_config(&arguments.urls, &arguments.arrange, &arguments.login)?;
    let replacement = arguments.login.patience.replacement_timeout.unwrap_or(REPLACEMENT_TIMEOUT_DEFAULT);
    remotes.remotes.iter_mut().for_each(|remote| remote.waits.replacement = replacement);
    let name = match (arguments.name, remotes.remotes.first()) {
        (Some(name), _) => name,
        (None, Some(first)) => default_name(&first.url),
        (None, None) => return Err(Error::new(Failure::Usage, "there is no URL of a logical unit to attach")),
    };
    let first = arguments.login.isid.unwrap_or_else(|| attachment_isid(&paths.control_socket(&name)));
    number_sessions(&mut remotes.remotes, Some(first));
    if arguments.cache_checksums && arguments.cache_block_size.is_some_and(|size| size != LineSize::default()) {
        return Err(Error::new(
            Failure::Usage,
            "--cache-checksums are of lines of 4KiB, and --cache-block-size is another",
        ));
    }
    // Under a difference the cache is read only.
    if let Some(crash_mode) = arguments.cache_crash.filter(|_| arguments.difference.is_none()) {
        let checked = crash_mode.check_mode(arguments.cache_mode);
        checked.map_err(|error| Error::new(Failure::Usage, format!("--cache-crash {crash_mode}: {error}")))?;
    }
    let cache = arguments.cache.map(|path| CacheConfig {
        path,
        offset: arguments.cache_offset.map(|offset| offset.0),
        size_bytes: arguments.cache_size.map(|size| size.0),
        mode: arguments.cache_mode,
        crash_mode: arguments.cache_crash,
        generation: arguments.generation,
        is_exclusive: arguments.cache_exclusive,
        replacement: arguments.cache_replacement,
        tuning: cache::Tuning {
            admission: arguments.cache_admission,
            cutoff_bytes: arguments.cache_cutoff.map(|size| size.0),
            prefetch_bytes: arguments.cache_prefetch.map_or(0, |size| size.0),
            prefetches_lines: arguments.cache_prefetch_lines,
        },
        dirty: cache::DirtyLimits { clean_above: arguments.cache_clean_above, max: arguments.cache_dirty_max },
        cleaning: cache::CleaningRate {
            min_bytes: arguments.cache_clean_min.0,
            max_bytes: arguments.cache_clean_max.map(|size| size.0),
        },
        alignment: arguments.cache_alignment.map_or(cache::Alignment::Found, |at| cache::Alignment::At(at.0)),
        has_checksums: arguments.cache_checksums,
        lines_max: arguments.cache_lines,
        memory_max: arguments.cache_memory.map(|size| size.0),
        line_size: arguments.cache_block_size.unwrap_or_default(),
        associativity: arguments.cache_associativity.unwrap_or(cache::Associativity::Ways(WAYS_DEFAULT)),
    });
    let log = arguments.log.map(|path| LogConfig {
        path,
        offset: arguments.log_offset.map(|offset| offset.0),
        size_bytes: arguments.log_size.map(|size| size.0),
        segment_bytes: arguments.log_segment_size.map(|size| size.0),
        slot_bytes: arguments.log_slot_size.map(|size| size.0),
        durability: arguments.durability,
        nvram: arguments.nvram.map(|path| NvramConfig { path, size_bytes: arguments.nvram_size.map(|size| size.0) }),
        ram_bytes: arguments.log_ram.map(|size| size.0),
        record_cache_bytes: arguments.log_cache.map(|size| size.0),
        destage: DestageConfig {
            order: arguments.destage_order,
            seek_bytes: arguments.destage_seek.map(|size| size.0),
            slots_start: arguments.slots_start,
            start: arguments.destage_start,
            full_speed: arguments.destage_full_speed,
            idle: arguments.destage_idle,
            age_max: arguments.destage_age,
            batch_bytes: arguments.destage_batch.map(|size| size.0),
            writes: arguments.destage_writes,
        },
        is_paper: arguments.profile.is_some(),
    });
    log.as_ref().map_or(Ok(()), LogConfig::check)?;
    let difference = arguments.difference.map(|path| DifferenceConfig {
        path,
        size_bytes: arguments.difference_size.map(|size| size.0),
        chunk_bytes: arguments.difference_chunk.map(|size| u32::try_from(size.0).unwrap_or(u32::MAX)),
        generation: arguments.generation,
    });
    let front = match arguments.front.split_once(':') {
        None if arguments.front == "auto" => ListenAddress::Unix(paths.nbd_socket(&name)),
        Some(("nbd", address)) => {
            let address = address.parse();
            absolute(
                address.map_err(|error| Error::new(Failure::Usage, format!("--as {}: {error}", arguments.front)))?,
            )?
        }
        _ => {
            let message = format!("--as {}: use nbd:unix:PATH, nbd:ADDRESS:PORT or auto", arguments.front);
            return Err(Error::new(Failure::Usage, message));
        }
    };
    let is_read_only = arguments.read_only;
    Ok(AttachConfig {
        remotes,
        name,
        cache,
        log,
        difference,
        front,
        front_access: SocketAccess { mode: arguments.socket_mode, group: arguments.socket_group },
        is_read_only,
        overwrites_changes: arguments.overwrite_changes,
        metrics: arguments.metrics,
    })
}

/// Other commands, run from other directories, find the socket by what `status` says.
fn absolute(address: ListenAddress) -> Result<ListenAddress> {
    match address {
        ListenAddress::Unix(path) => {
            let path = std::path::absolute(&path).map_err(|error| Error::io(path.display(), &error))?;
            Ok(ListenAddress::Unix(path))
        }
        tcp => Ok(tcp),
    }
}

/// The last part of the IQN and the LUN, in characters a file name can have.
fn default_name(url: &Url) -> String {
    let last = url.target.rsplit(':').next().unwrap_or(&url.target);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let clean: String = last.chars().map(|c| if is_allowed(c) { c } else { '-' }).take(40).collect();
    format!("{}-{}", clean.trim_start_matches('.'), url.lun)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_name_is_a_name() {
        for (url, name) in [
            ("iscsi://h/iqn.2026-11.io.forebay:disk1/0", "disk1-0"),
            ("iscsi://h/iqn.2026-11.io.forebay:a:b.c/3", "b.c-3"),
            ("iscsi://h/iqn.2026-11.io.forebay/0", "iqn.2026-11.io.forebay-0"),
        ] {
            let made = default_name(&url.parse().unwrap());
            assert_eq!(made, name);
            assert!(stack::paths::check_name(&made).is_ok());
        }
    }
}
