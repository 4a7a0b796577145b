//! Replaces a cache, while it is used, by one of another size, with other lines or other sets:
//! `forebay set NAME cache.size=SIZE`.
//!
//! The new cache is made beside the place of the old one, filled from it, and moved there at a
//! moment in which requests wait. Until then the old one holds everything: after any failure or
//! power loss it is the cache, and the unfinished new one is removed at the next start.

use std::cell::RefCell;
use std::fs;
use std::sync::Arc;

use base::clock::Clock;
use block::SharedDevice;
use block::layer::switch::SwitchLayer;
use cache::limits::WAYS_DEFAULT;
use cache::{Alignment, Associativity, Cache, FormatOptions, LineSize};
use store::Tokens;

use crate::cache_place::CacheConfig;
use crate::cache_settings;
use crate::caches::Caches;
use crate::error::{Error, Failure, Result};
use crate::open_store::OpenStore;
use crate::place::Place;
use crate::place_device::PlaceKind;
use crate::settings::Settings;
use crate::unfinished::Unfinished;

/// Reciprocal of the share of the new cache that may be dirty before it takes over.
const DIRTY_SHARE: u64 = 16;
/// How often cleaning tries to get below that share while applications write.
const CLEANS_BEFORE_HAND_OVER_MAX: usize = 4;

/// A setting of a cache that needs another cache.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// A file of this many bytes.
    Size(u64),
    /// This many frames in each set.
    Ways(Associativity),
    /// Lines of this size.
    LineSize(LineSize),
    /// At most this many lines; `None` for as many as fit.
    Lines(Option<u64>),
}

impl Change {
    /// The change that the setting `key` asks for; `None` when the setting needs no other cache.
    pub(crate) fn of(key: &str, settings: &Settings) -> Option<Self> {
        match key {
            "cache.size" => settings.number(key).map(Self::Size),
            "cache.associativity" => Some(Self::Ways(cache_settings::associativity(settings))),
            "cache.block-size" => Some(Self::LineSize(cache_settings::line_size(settings))),
            "cache.lines" => Some(Self::Lines(settings.number(key))),
            _ => None,
        }
    }
}

/// The cache to be replaced, and its surroundings.
pub(crate) struct Changing<'a> {
    pub(crate) cache: &'a Arc<Cache>,
    pub(crate) config: &'a CacheConfig,
    pub(crate) place: &'a Place,
    pub(crate) caches: &'a Caches,
    pub(crate) origin: SharedDevice,
    pub(crate) switch: &'a SwitchLayer,
    pub(crate) clock: Arc<dyn Clock>,
    /// The file of the new cache.
    pub(crate) store: &'a OpenStore,
    /// The tokens for the new cache.
    pub(crate) tokens: Tokens,
    /// Bytes of memory that the new cache may take.
    pub(crate) memory_max: Option<u64>,
    /// The new cache, from when it is open until it is in place or abandoned.
    pub(crate) successor: &'a RefCell<Option<Arc<Cache>>>,
}

/// Requests wait while this lives, unless they were sent to the new cache.
struct Held<'a> {
    switch: &'a SwitchLayer,
}

impl<'a> Held<'a> {
    fn new(switch: &'a SwitchLayer) -> Self {
        switch.hold();
        Self { switch }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.switch.release(None);
    }
}

impl Changing<'_> {
    /// Carries out the change. Returns the new cache, which runs and has all requests. If this is
    /// dropped before, the old cache is unchanged, and must wait for the one in `successor` before
    /// it sends anything to its LUN.
    ///
    /// # Errors
    /// Whatever prevents the change; the old cache goes on then.
    pub(crate) async fn change(&self, change: Change) -> Result<Arc<Cache>> {
        let path = &self.place.path;
        let metadata = fs::metadata(path).map_err(|error| Error::io(path.display(), &error))?;
        if self.place.offset.is_some() || !metadata.is_file() {
            let message = format!(
                "the cache {} is not in a file of its own, beside which another could be made: detach, discard it, and \
                 make the other in its place",
                self.place
            );
            return Err(Error::new(Failure::Usage, message));
        }
        let size_bytes = match change {
            Change::Size(size_bytes) => size_bytes,
            Change::Ways(_) | Change::LineSize(_) | Change::Lines(_) => metadata.len(),
        };
        let options = self.format_options(change).await?;
        let (memory_max, replacement) = (self.memory_max, self.cache.status().replacement);
        let format = async |device: &SharedDevice| {
            cache::memory::check(device.geometry().size_bytes, &options, replacement, memory_max)?;
            Cache::format(device, &self.origin, options).await
        };
        self.clean().await?;
        let note = Some(self.caches.cut_note(self.place, self.store));
        let unfinished = Unfinished::make(PlaceKind::Cache, path, size_bytes, note, format).await?;
        let device = unfinished.device();
        let (origin, clock) = (Arc::clone(&self.origin), Arc::clone(&self.clock));
        let new = self.config.open_successor(device, origin, clock, (self.cache, self.tokens), memory_max).await?;
        let running = tokio::spawn(base::background::named("cache", new.run()));
        *self.successor.borrow_mut() = Some(Arc::clone(&new));
        let changed = self.put_in_place(unfinished, &new).await;
        *self.successor.borrow_mut() = None;
        if changed.is_err() {
            running.abort();
        }
        changed.map(|()| new)
    }

    async fn put_in_place(&self, unfinished: Unfinished, new: &Arc<Cache>) -> Result<()> {
        self.cache.copy_to(new, |_| {}).await?;
        for _ in 0..CLEANS_BEFORE_HAND_OVER_MAX {
            self.clean().await?;
            if self.cache.status().dirty_bytes <= new.status().lines * new.status().line_bytes / DIRTY_SHARE {
                break;
            }
        }
        let held = Held::new(self.switch);
        let hand_over = self.cache.hand_over(new).await?;
        unfinished.replace()?;
        // After a crash before this the registry has what it had of the old cache. What that could not return is
        // with the origin: nothing else could be handed over.
        if let Err(error) = self.caches.note_in_place(self.place, self.store) {
            tracing::error!(%error, "what is noted of the former cache {} stands for the new one", self.place);
        }
        self.switch.release(Some(new.clone()));
        hand_over.finish();
        drop(held);
        Ok(())
    }

    /// Cleans, so that little is left to hand over while requests wait.
    async fn clean(&self) -> Result<()> {
        if self.cache.mode().delays_writes() {
            self.cache.clean(|_| {}).await?;
        }
        Ok(())
    }

    /// The options that the cache was made with, with the change.
    async fn format_options(&self, change: Change) -> Result<FormatOptions> {
        let status = self.cache.status();
        let line_size = LineSize::new(status.line_bytes)
            .ok_or_else(|| Error::new(Failure::Usage, "lines of the cache have no size that can be kept"))?;
        let options = FormatOptions {
            line_size,
            associativity: associativity_of(status.ways, status.lines),
            frames_max: status.lines_max,
            crash_mode: status.crash_mode,
            alignment: Alignment::made_with(status.alignment_bytes, line_size, &self.origin).await,
            has_checksums: status.has_checksums,
            ..FormatOptions::default()
        };
        Ok(match change {
            Change::Size(_) => options,
            Change::Ways(associativity) => FormatOptions { associativity, ..options },
            Change::LineSize(line_size) => FormatOptions { line_size, ..options },
            Change::Lines(frames_max) => FormatOptions { frames_max, ..options },
        })
    }
}

/// The associativity of a cache with this many lines. A cache of one set that is no larger than a
/// usual set is small, and gets usual sets when it grows.
fn associativity_of(ways: u64, lines: u64) -> Associativity {
    match u32::try_from(ways) {
        Ok(ways) if u64::from(ways) < lines => Associativity::Ways(ways),
        _ if lines <= u64::from(WAYS_DEFAULT) => Associativity::Ways(WAYS_DEFAULT),
        _ => Associativity::Full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_cache_of_one_set_is_not_taken_for_one_without_sets() {
        assert_eq!(associativity_of(240, 240), Associativity::Ways(256));
        assert_eq!(associativity_of(256, 256), Associativity::Ways(256));
        assert_eq!(associativity_of(16, 240), Associativity::Ways(16));
        assert_eq!(associativity_of(256, 512), Associativity::Ways(256));
        assert_eq!(associativity_of(750, 750), Associativity::Full);
    }
}
