//! What the registry comes to say of the stores of a stack before it is open.

use std::sync::Arc;

use block::layer::switch::SwitchLayer;
use cache::Cache;
use writelog::WriteLog;

use crate::error::Result;
use crate::registry::{Entry, Registry, Store};

/// The entries that were not there before. Dropped before it is served, they are struck again: the LUN is not to be
/// refused without a store that has nothing it lacks.
pub(super) struct EarlyEntries {
    registry: Registry,
    new: Vec<Entry>,
    /// With what leads to it.
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

    /// Names those of `entries` that are of `store`, if it may hold what is below lacks, and strikes them if not.
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

    /// It is served: what was named stays.
    pub(super) fn keep(mut self) {
        self.new.clear();
    }

    fn dirty_bytes(&self, store: Store) -> u64 {
        match store {
            Store::Cache => self.cache.as_ref().map_or(0, |(cache, _)| cache.status().dirty_bytes),
            Store::Log => self.log.as_ref().map_or(0, |log| log.status().dirty_bytes),
        }
    }

    /// Whether `store` may have something that is below lacks. What a log sent to a cache may be under way still.
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
