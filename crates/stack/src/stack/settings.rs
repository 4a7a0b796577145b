//! The settings of a stack that can be changed while it runs.

use std::pin::pin;
use std::sync::Arc;

use block::{Device, ErrorKind};
use cache::Mode;

use super::Stack;
use super::cache_parts::{CacheParts, check_takes_writes, memory_left};
use crate::cache_change::{Change, Changing};
use crate::cache_settings;
use crate::content::uuid_at;
use crate::error::{Error, Failure, Result};
use crate::freshness::draw_tokens;
use crate::log_place::DestageConfig;
use crate::open_store::OpenStore;
use crate::registry::Store;
use crate::remote::connections;
use crate::settings::setting::{Changes, Part};
use crate::settings::{Settings, find};
use crate::status::Answer;

impl Stack {
    pub(crate) async fn set(&self, key: &str, value: &str) -> Result<Answer> {
        let setting = find(key)?;
        if !setting.is_live() {
            let message = format!("{key} stays as it is while \"{}\" runs: detach, and attach with another", self.name);
            return Err(Error::new(Failure::Usage, message));
        }
        let changed = Settings::of_running(key, value)?;
        if setting.changes == Changes::LiveOnly {
            self.remotes.reconnect_now();
            return Ok(Answer::set(key, value));
        }
        // How fast it is cleaned at its end may be changed meanwhile.
        if !matches!(key, "cache.clean-min" | "cache.clean-max") {
            self.check_stays()?;
        }
        let mut settings = self.settings.borrow().clone();
        settings.take(changed.clone());
        let mut unfinished = None;
        match setting.part {
            Part::Log => {
                let none = || self.has_no("write log", "log");
                let log = self.log.as_ref().ok_or_else(none)?;
                log.set_level2(DestageConfig::of(&changed)?.over(log.level2()));
            }
            Part::Cache => unfinished = self.set_cache(key, &settings).await?,
            // Of these only the count of connections may be changed while it runs.
            Part::Arrangement | Part::Attachment | Part::Front | Part::Difference | Part::Login => {
                self.remotes.set_connections(connections(&settings));
            }
        }
        // Other settings may have been changed meanwhile.
        self.settings.borrow_mut().take(changed);
        unfinished.map_or_else(|| Ok(Answer::set(key, value)), Err)
    }

    fn has_no(&self, what: &str, option: &str) -> Error {
        Error::new(Failure::Usage, format!("\"{}\" has no {what}: attach it with --{option} PATH", self.name))
    }

    /// Changes the setting `key` of the cache to its value in `settings`. Returns what is not done
    /// yet, where the setting is changed all the same.
    async fn set_cache(&self, key: &str, settings: &Settings) -> Result<Option<Error>> {
        let (Some(cache), Some(parts)) = (self.cache(), &self.cache_parts) else {
            return Err(self.has_no("cache", "cache"));
        };
        if let Some(change) = Change::of(key, settings) {
            return self.change_cache(parts, change).await.map(|()| None);
        }
        if key != "cache.mode" {
            return cache_settings::apply(&cache, settings).map(|()| None);
        }
        let mode: Mode = settings.chosen(key)?;
        check_takes_writes(mode, self.log.is_some())?;
        let _changing = self.start_changing(parts)?;
        // Noted in the registry before the first write can be dirty, and until the last one is
        // clean.
        self.update_registry(Store::Cache, true)?;
        let changed = tokio::select! {
            changed = cache.set_mode(mode) => changed.map_err(excluded),
            () = self.wait_for_stop() => Err(self.is_being_detached()),
        };
        self.update_registry(Store::Cache, cache.mode().delays_writes())?;
        match changed {
            Err(error) if cache.mode() == mode => {
                let dirty_bytes = cache.status().dirty_bytes;
                let is_set =
                    format!("{key} is {mode} now, and {dirty_bytes} bytes from before are still to be cleaned");
                Ok(Some(error.context(is_set)))
            }
            changed => changed.map(|()| None),
        }
    }

    /// Locks changes of the cache and of its mode: a new mode must not be set on a cache that is
    /// being replaced, nor differ from what the registry notes.
    fn start_changing<'a>(&self, parts: &'a CacheParts) -> Result<tokio::sync::MutexGuard<'a, ()>> {
        parts.changing.try_lock().map_err(|_| {
            let message = format!("the cache of \"{}\" is being changed already", self.name);
            Error::new(Failure::InUse, message)
        })
    }

    /// Replaces the cache.
    async fn change_cache(&self, parts: &CacheParts, change: Change) -> Result<()> {
        let _changing = self.start_changing(parts)?;
        let cache = self.cache().ok_or_else(|| Error::new(Failure::Usage, "there is no cache"))?;
        if cache.mode().delays_writes() && cache.copies().is_some() {
            let message = "a cache that delays writes of a logical unit that hosts share is not replaced while it \
                           does: set cache.mode to write-through first";
            return Err(Error::new(Failure::Usage, message));
        }
        let CacheParts { config, place, clock, switch, .. } = parts;
        let (origin, clock) = (self.remotes.device(), Arc::clone(clock));
        let memory_max = memory_left(&parts.paths, config, &self.name).await?;
        let successor = &self.successor;
        let (tokens, store) = (draw_tokens(), OpenStore::default());
        let (caches, cache) = (&self.caches, &cache);
        let changing = Changing {
            cache,
            config,
            place,
            caches,
            origin,
            switch,
            clock,
            store: &store,
            tokens,
            memory_max,
            successor,
        };
        let mut change = pin!(changing.change(change));
        self.caches.note_successor(place, tokens)?;
        let changed = tokio::select! {
            changed = &mut change => changed,
            () = self.wait_for_stop() => {
                // Requests that the new cache has sent must end before the old one goes on, and may
                // send newer data.
                let successor = self.successor.take();
                if let Some(successor) = successor {
                    self.ending_time.within(successor.leave()).await;
                }
                let message = format!("\"{}\" is being detached; its cache is as it was", self.name);
                Err(Error::new(Failure::InUse, message))
            }
        };
        let noted = self.caches.note_succeeded(place, tokens, changed.is_ok().then_some(&store));
        // Requests go to the new cache already, even if the list cannot be written.
        let new = changed?;
        self.guard.replace(place, new.clone());
        *self.cache.borrow_mut() = Some(new);
        let mut entries = self.entries.borrow_mut();
        let of_cache = entries.iter_mut().filter(|entry| entry.store == Store::Cache);
        of_cache.for_each(|entry| entry.uuid = uuid_at(place));
        noted.map_err(|error| error.context("the cache was changed, and the list of caches does not say so"))
    }
}

/// A mode that goes not together with what the cache was made with, or with who shares the LUN, is a mistake of who
/// asked for it.
fn excluded(error: block::Error) -> Error {
    match error.kind() {
        ErrorKind::Unsupported => Error::new(Failure::Usage, error.to_string()),
        _ => error.into(),
    }
}
