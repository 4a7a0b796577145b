//! The registry's entries for the stores of a stack that is not open yet.

use std::sync::Arc;

use block::layer::switch::SwitchLayer;
use cache::Cache;
use writelog::WriteLog;

use crate::error::Result;
use crate::registry::{Entry, Registry, Store};

/// The entries that were added. If the stack is dropped before it is served, they are removed
/// again: the LUN must not be refused without a store that holds nothing it lacks.
pub(super) struct EarlyEntries {
    registry: Registry,
    new: Vec<Entry>,
    /// The cache, with the layer above it.
    cache: Option<(Arc<Cache>, Arc<SwitchLayer>)>,
    log: Option<Arc<WriteLog>>,
}

impl EarlyEntries {
    pub(super) fn of(registry: &Registry) -> Self {
        Self { registry: registry.clone(), new: Vec::new(), cache: None, log: None }
    }

    pub(super) fn note_cache(&mut self, cache: &Arc<Cache>, switch: &Arc<SwitchLayer>) {
        self.cache = Some((Arc::clone(cache), Arc::clone(switch)));
    }

    pub(super) fn note_log(&mut self, log: &Arc<WriteLog>) {
        self.log = Some(Arc::clone(log));
    }

    /// Adds those of `entries` that are of `store`, if it may hold data that the layer below lacks;
    /// otherwise removes them.
    pub(super) fn update(&mut self, entries: &[Entry], store: Store, may_become_dirty: bool) -> Result<()> {
        let mut of_store = entries.iter().filter(|entry| entry.store == store);
        if !may_become_dirty && self.dirty_bytes(store) == 0 {
            return of_store.try_for_each(|entry| self.registry.remove(entry));
        }
        for entry in of_store {
            if self.registry.find(&entry.identity(), entry.store)?.is_none() {
                self.new.push(entry.clone());
            }
            self.registry.insert(entry)?;
        }
        Ok(())
    }

    /// Keeps the added entries, because the stack is served.
    pub(super) fn keep(mut self) {
        self.new.clear();
    }

    fn dirty_bytes(&self, store: Store) -> u64 {
        match store {
            Store::Cache => self.cache.as_ref().map_or(0, |(cache, _)| cache.status().dirty_bytes),
            Store::Log => self.log.as_ref().map_or(0, |log| log.status().dirty_bytes),
        }
    }

    /// Whether `store` may hold data that the layer below lacks. A log's writes to the cache may
    /// still be under way.
    fn may_hold(&self, store: Store) -> bool {
        let has_got = store == Store::Cache && self.cache.as_ref().is_some_and(|(_, switch)| switch.has_written());
        has_got || self.dirty_bytes(store) > 0
    }
}

impl Drop for EarlyEntries {
    fn drop(&mut self) {
        for entry in self.new.iter().filter(|entry| !self.may_hold(entry.store)) {
            if let Err(error) = self.registry.remove(entry) {
                tracing::warn!(%error, "the LUN is refused without a store that has nothing it lacks");
            }
        }
    }
}
