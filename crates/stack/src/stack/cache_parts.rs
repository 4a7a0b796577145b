//! What is needed to replace a cache, and checks for caches of this host.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::clock::Clock;
use block::layer::switch::SwitchLayer;
use cache::Mode;
use serde_json::Value;

use crate::cache_place::CacheConfig;
use crate::caches::Caches;
use crate::control::{ControlRequest, call};
use crate::error::{Error, Failure, Result};
use crate::limits::STATUS_TIME_MAX;
use crate::paths::Paths;
use crate::place::Place;
use crate::status::{Shown, read};

/// What is needed to replace a cache while it is used.
pub(super) struct CacheParts {
    pub(super) config: CacheConfig,
    pub(super) place: Place,
    /// Bytes it takes, when it is not a file of its own.
    fixed_bytes: Option<u64>,
    pub(super) clock: Arc<dyn Clock>,
    /// Passes requests on to the present cache.
    pub(super) switch: Arc<SwitchLayer>,
    /// The directories in which the host's other attachments are found.
    pub(super) paths: Paths,
    /// Held by the one task that replaces the cache.
    pub(super) changing: tokio::sync::Mutex<()>,
}

impl CacheParts {
    /// The parts for a cache that is not being replaced.
    pub(super) fn new(
        config: CacheConfig,
        place: Place,
        fixed_bytes: Option<u64>,
        clock: Arc<dyn Clock>,
        switch: Arc<SwitchLayer>,
        paths: Paths,
    ) -> Self {
        Self { config, place, fixed_bytes, clock, switch, paths, changing: tokio::sync::Mutex::default() }
    }

    /// How many bytes the cache takes.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.fixed_bytes.or_else(|| std::fs::metadata(&self.place.path).ok().map(|file| file.len()))
    }
}

/// Bytes of memory that the cache of the attachment `name` may take: what the caches of other
/// attachments leave of its limit. An attachment that does not answer soon does not count.
pub(super) async fn memory_left(paths: &Paths, config: &CacheConfig, name: &str) -> Result<Option<u64>> {
    let Some(memory_max) = config.memory_max else { return Ok(None) };
    let mut left = memory_max;
    let names: BTreeSet<String> = Caches::open(paths)?.list()?.into_iter().map(|record| record.name).collect();
    for other in names.iter().filter(|other| *other != name) {
        let socket = paths.control_socket(other);
        let answer = tokio::time::timeout(STATUS_TIME_MAX, call(&socket, &ControlRequest::Status, |_| {})).await;
        if let Ok(Ok(status)) = answer {
            left = left.saturating_sub(memory_of(&status));
        }
    }
    Ok(Some(left))
}

/// Bytes of memory of a process's cache, by its status; 0 where it has none.
fn memory_of(status: &Value) -> u64 {
    let attachment = read::<Shown>(status).ok().and_then(Shown::attachment);
    attachment.and_then(|attachment| attachment.cache).map_or(0, |cache| cache.memory_bytes)
}

/// Refuses a cache without writes below a write log: the log would go on acknowledging data that it
/// can never destage.
pub(super) fn check_takes_writes(mode: Mode, has_log: bool) -> Result<()> {
    if has_log && !mode.takes_writes() {
        let message =
            "a cache under a write log cannot be read-only: the log would acknowledge writes that it can send nowhere";
        return Err(Error::new(Failure::Usage, message));
    }
    Ok(())
}
