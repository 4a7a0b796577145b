//! The status of a stack.

use std::collections::BTreeSet;

use block::{Device, Geometry};

use super::Stack;
use super::cache_parts::CacheParts;
use crate::base_content::Base;
use crate::content::uuid_at;
use crate::difference_place;
use crate::occurrences::Look;
use crate::place::Place;
use crate::registry::{Entry, Store};
use crate::remotes::Session;
use crate::status::attachment::{AttachmentStatus, Detaching};
use crate::status::fronts::FrontsStatus;
use crate::status::stores::FreshnessStatus;
use crate::watch::{self, Observation};

impl Stack {
    /// A line for the service manager.
    pub(crate) fn summary(&self) -> String {
        let state = self.remotes.session().state;
        match self.cache.borrow().is_some() || self.log.is_some() {
            true => format!("{state}, {} bytes dirty", self.dirty_bytes()),
            false => state,
        }
    }

    /// The target for which dirty data waits, and its state.
    pub(super) fn waits_for(&self) -> Option<String> {
        self.ending_time.waits_for(Some(&self.remotes), || self.dirty_bytes())
    }

    /// The dirty data that is left here, its place, and advice.
    pub(super) fn what_stays_dirty(&self) -> String {
        if let Some(place) = self.gone_with_dirty().pop_first() {
            return format!("{} bytes are lost: {place}, which held them, was removed before", self.dirty_bytes());
        }
        let discard = |place: &Place, store: Store| {
            format!("`forebay {what} discard {}`", place.argument(store.as_str()), what = store.as_str())
        };
        if let Some((place, store)) = self.cut_with_dirty().pop_first() {
            return format!(
                "{} bytes are lost: {place}, which held them, was cut, or holes made in it; give up what is left with \
                 {}",
                self.dirty_bytes(),
                discard(&place, store)
            );
        }
        let entries = self.entries.borrow();
        if let Some(entry) = entries.iter().find(|entry| self.has_failed(entry)) {
            let (what, place) = (entry.store.as_str(), entry.place());
            return format!(
                "the {what} {place} failed and must not be used again, with {} bytes dirty here: give it up with {}",
                self.dirty_bytes(),
                discard(&place, entry.store)
            );
        }
        if self.dirty_bytes() == 0 {
            return "what it is in could not be closed in order".to_owned();
        }
        let places = entries.iter().filter(|entry| self.dirty_bytes_in(entry.store) > 0);
        let arguments: BTreeSet<String> = places
            .map(|entry| {
                format!("--{what} {}", entry.place().argument(entry.store.as_str()), what = entry.store.as_str())
            })
            .collect();
        let arguments: Vec<String> = arguments.into_iter().collect();
        format!(
            "{} bytes stay dirty here; attach it again with {} to write them back",
            self.dirty_bytes(),
            arguments.join(" ")
        )
    }

    /// The state that is checked periodically.
    pub(crate) fn observation(&self) -> Observation {
        let Session { state, portal, .. } = self.remotes.session();
        let entries = self.entries.borrow();
        let places = entries.iter().filter(|entry| self.dirty_bytes_in(entry.store) > 0);
        Observation { state, portal, dirty_places: places.map(Entry::place).collect() }
    }

    /// What is looked at for events. `fronts` are those that offer it.
    pub(crate) fn look(&self, fronts: &FrontsStatus) -> Look {
        Look {
            remote: self.remotes.status(),
            losses: self.losses().count(),
            troubles: self.troubles(outdated_clients(fronts)),
            size_bytes: self.remotes.device().geometry().size_bytes,
            is_ending: self.ending_time.has_begun(),
        }
    }

    /// Everything that is wrong although the session is up. `outdated` is the count of applications
    /// that have an old size of the device.
    fn troubles(&self, outdated: u64) -> Vec<String> {
        let places: BTreeSet<Place> = self.gone(|_| true);
        let dirty_bytes = self.dirty_bytes();
        let gone = places.iter().map(|place| watch::gone(place, dirty_bytes));
        let (size, offered) = (self.remotes.device().geometry().size_bytes, self.geometry().size_bytes);
        // The first message is for applications that connect anew, the other for all.
        let resized = match (size == offered, outdated) {
            (true, 0) => None,
            (true, count) => Some(format!(
                "the logical unit has {size} bytes now, and {count} applications know another size: they see this one \
                 when they connect anew"
            )),
            (false, _) => Some(format!(
                "the logical unit has {size} bytes now, and applications see {offered}: detach and attach again"
            )),
        };
        let failures = [
            self.cache().and_then(|cache| cache.status().cleaning_failure),
            self.log.as_ref().and_then(|log| log.status().destage_failure),
        ];
        let refused = self.guard.trouble().filter(|_| dirty_bytes > 0);
        let other_base = self.difference.as_ref().and_then(|difference| difference.refusal()).map(ToString::to_string);
        let stuck = failures.into_iter().flatten().filter(|_| dirty_bytes > 0 && refused.is_none());
        let stuck = stuck.map(|error| format!("what is dirty cannot be written back, which is tried again: {error}"));
        let stuck: Vec<String> = stuck.collect();
        let entries = self.entries.borrow();
        let caches = entries.iter().filter(|entry| entry.store == Store::Cache);
        let noted = caches.filter_map(|entry| self.registry.find(&entry.identity(), entry.store).ok().flatten());
        // A stripe has an entry for each of its parts.
        let of_cache = noted.filter_map(|entry| entry.words_of_failure()).take(1);
        let of_difference = self.difference_file.as_ref().and_then(|file| file.trouble());
        let lost = of_cache.chain(of_difference);
        let losses = gone.chain(lost).chain(resized).chain(other_base).chain(refused);
        losses.chain(self.overwriting()).chain(self.failing()).chain(stuck).collect()
    }

    /// What others wrote and was written over, as a setting says that may be left from another time.
    fn overwriting(&self) -> impl Iterator<Item = String> {
        let stores = [(Store::Cache, &self.freshness.cache), (Store::Log, &self.freshness.log)];
        stores.into_iter().filter_map(|(store, reported)| {
            let bytes = reported.as_ref()?.overwritten_bytes?;
            Some(format!(
                "{bytes} bytes of the {} were written over what others had, or may have, written meanwhile, since \
                 \"overwrite-changes\" is on: leave that out at the next attach, unless it is meant again",
                store.as_str()
            ))
        })
    }

    /// Errors of the devices of the cache and of the log.
    fn failing(&self) -> impl Iterator<Item = String> {
        let cache = self.cache().map_or(Vec::new(), |cache| {
            let cache = cache.status();
            if let Some(error) = cache.failure {
                return vec![format!(
                    "the cache has failed: writes go to the logical unit, but for what was dirty, or was being \
                     written, when it failed; those fail until \"{}\" is attached anew: {error}",
                    self.name
                )];
            }
            let failed = |what: &str, count: u64, error: Option<String>| {
                error.map(|error| format!("the cache's device {what} {count} times, the last time so: {error}"))
            };
            let unread = failed("did not return what it holds", cache.cache_read_errors, cache.failed_read);
            let refused = failed("refused writes", cache.cache_write_errors, cache.refused_write);
            unread.into_iter().chain(refused).collect()
        });
        let log = self.log.as_ref().map(|log| log.status());
        let log = log.and_then(|log| log.failure.map(|error| (error, log.refuses_writes)));
        let log = log.map(|(error, refuses_writes)| match refuses_writes {
            false => format!("the log has failed, and writes go to the logical unit: {error}"),
            true => format!("the log has failed, which could be noted nowhere, and writes and flushes fail: {error}"),
        });
        cache.into_iter().chain(log)
    }

    /// The geometry for applications that connect now.
    fn geometry(&self) -> Geometry {
        match (&self.difference, &self.log, self.cache()) {
            (Some(difference), ..) => difference.geometry(),
            (None, Some(log), _) => log.geometry(),
            (None, None, Some(cache)) => cache.geometry(),
            (None, None, None) => self.remotes.device().geometry(),
        }
    }

    fn freshness(&self) -> FreshnessStatus {
        FreshnessStatus { difference: self.base.as_ref().map(Base::freshness), ..self.freshness.clone() }
    }

    fn log_place(&self) -> Option<Place> {
        self.entries.borrow().iter().find(|entry| entry.store == Store::Log).map(Entry::place)
    }

    /// The status in the form of `forebay status`, with that of the `fronts`.
    pub(crate) fn status(&self, fronts: FrontsStatus) -> AttachmentStatus<cache::Status, writelog::Status> {
        let geometry = self.geometry();
        let outdated = outdated_clients(&fronts);
        let cache_place = self.cache_parts.as_ref().map(|parts| &parts.place);
        let log_place = self.log_place();
        AttachmentStatus {
            name: self.name.clone(),
            pid: std::process::id(),
            fronts,
            lun: Some((&self.remotes.identity()).into()),
            size_bytes: Some(geometry.size_bytes),
            logical_block_bytes: geometry.logical_block_bytes,
            is_read_only: geometry.is_read_only,
            detaching: self.ending_time.has_begun().then(|| Detaching { waits_for: self.waits_for() }),
            troubles: self.troubles(outdated),
            remote: self.remotes.status(),
            stripe: self.remotes.stripe_status(),
            multipath: self.remotes.multipath_status(),
            cache_path: cache_place.map(|place| place.path.clone()),
            cache_offset: cache_place.and_then(|place| place.offset),
            cache_bytes: self.cache_parts.as_ref().and_then(CacheParts::bytes),
            cache_uuid: cache_place.and_then(uuid_at).map(|uuid| uuid.to_string()),
            cache: self.cache().map(|cache| cache.status()),
            difference: self.difference.as_ref().map(|difference| difference_place::status(difference)),
            log_path: log_place.as_ref().map(|place| place.path.clone()),
            log_offset: log_place.and_then(|place| place.offset),
            log: self.log.as_ref().map(|log| log.status()),
            freshness: self.freshness(),
            start: self.start.clone(),
            settings: self.settings.borrow().in_effect().map(|(key, value)| (key.to_owned(), value)).collect(),
        }
    }
}

/// Applications that have an old size of the device.
fn outdated_clients(fronts: &FrontsStatus) -> u64 {
    fronts.fronts.iter().map(|front| front.clients_outdated).sum()
}
