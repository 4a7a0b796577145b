//! What can be changed of an attachment while it works.

use std::pin::pin;
use std::sync::Arc;

use cache::Mode;
use serde_json::{Value, json};

use super::{Attachment, CacheParts, check_takes_writes, memory_left};
use crate::cache_change::{Change, Changing};
use crate::cache_settings;
use crate::error::{Error, Failure, Result};
use crate::freshness::draw_tokens;
use crate::log_settings;
use crate::registry::Store;
use crate::remote::parse_connections;

impl Attachment {
    pub(super) async fn set(&self, key: &str, value: &str) -> Result<Value> {
        if key == "reconnect" {
            check_now(value)?;
            self.remotes.reconnect_now();
            return Ok(json!({ key: value }));
        }
        self.check_stays()?;
        if key == "connections" {
            self.remotes.set_connections(parse_connections(value)?);
            return Ok(json!({ key: value }));
        }
        if !is_setting(key) {
            let known = [cache_settings::KEYS, Change::KEYS, log_settings::KEYS].concat().join(", ");
            let message =
                format!("\"{key}\" is no setting of an attachment: there are connections, reconnect, {known}");
            return Err(Error::new(Failure::Usage, message));
        }
        if log_settings::KEYS.contains(&key) {
            let none =
                || Error::new(Failure::Usage, format!("\"{}\" has no write log: attach it with --log PATH", self.name));
            log_settings::set(self.log.as_ref().ok_or_else(none)?, key, value)?;
            return Ok(json!({ key: value }));
        }
        let (Some(cache), Some(parts)) = (self.cache(), &self.cache_parts) else {
            let message = format!("\"{}\" has no cache: attach it with --cache PATH", self.name);
            return Err(Error::new(Failure::Usage, message));
        };
        if let Some(change) = Change::of(key, value)? {
            self.change_cache(parts, change).await?;
        } else if !cache_settings::set(&cache, key, value)? {
            let mode: Mode = cache_settings::parse(value)?;
            check_takes_writes(mode, self.log.is_some())?;
            let _changing = self.start_changing(parts)?;
            // In the registry before the first write can be dirty, and until the last one is clean.
            self.update_registry(Store::Cache, true)?;
            let changed = tokio::select! {
                changed = cache.set_mode(mode) => changed.map_err(Error::from),
                () = self.wait_for_stop() => Err(self.is_being_detached()),
            };
            self.update_registry(Store::Cache, cache.mode() == Mode::WriteBack)?;
            changed?;
        }
        Ok(json!({ key: value }))
    }

    /// One change at a time of the cache, and of what it promises: a mode that is set must not be that of a cache that is being replaced, nor be
    /// another one by the time that the registry learns of it.
    fn start_changing<'a>(&self, parts: &'a CacheParts) -> Result<tokio::sync::MutexGuard<'a, ()>> {
        parts.changing.try_lock().map_err(|_| {
            let message = format!("the cache of \"{}\" is being changed already", self.name);
            Error::new(Failure::InUse, message)
        })
    }

    /// Puts another cache in place of the one there is.
    async fn change_cache(&self, parts: &CacheParts, change: Change) -> Result<()> {
        let _changing = self.start_changing(parts)?;
        let cache = self.cache().ok_or_else(|| Error::new(Failure::Usage, "there is no cache"))?;
        let CacheParts { config, place, clock, switch, .. } = parts;
        let (origin, clock) = (self.remotes.device(), Arc::clone(clock));
        let memory_max = memory_left(&parts.paths, config, &self.name).await?;
        let successor = &self.successor;
        let tokens = draw_tokens();
        let changing = Changing { cache: &cache, config, place, origin, switch, clock, tokens, memory_max, successor };
        let mut change = pin!(changing.change(change));
        self.caches.note_successor(place, tokens)?;
        let changed = tokio::select! {
            changed = &mut change => changed,
            () = self.wait_for_stop() => {
                // What the new one has sent arrives before the old one goes on, and may send something newer.
                let successor = self.successor.take();
                if let Some(successor) = successor {
                    self.within_ending_time(successor.leave()).await;
                }
                let message = format!("\"{}\" is being detached; its cache is as it was", self.name);
                Err(Error::new(Failure::InUse, message))
            }
        };
        let noted = self.caches.note_succeeded(place);
        // Requests go to it already, whatever the list says.
        *self.cache.borrow_mut() = Some(changed?);
        noted.map_err(|error| error.context("the cache was changed, and the list of caches does not say so"))
    }
}

/// Whether attachments have a setting of this name.
pub fn is_setting(key: &str) -> bool {
    let of_stores = [cache_settings::KEYS, Change::KEYS, log_settings::KEYS];
    matches!(key, "connections" | "reconnect") || of_stores.iter().any(|keys| keys.contains(&key))
}

/// `reconnect=now`: there is no other time for it.
pub(crate) fn check_now(value: &str) -> Result<()> {
    match value {
        "now" => Ok(()),
        _ => Err(Error::new(Failure::Usage, format!("reconnect={value}: the only time to reconnect at is now"))),
    }
}
