//! The registry of dirty caches.
//!
//! A LUN whose newest data lies in a cache on this host must not be attached without that cache: it would show old
//! data, and the cache would later be written over newer data. So before a write-back cache takes its first write, an
//! entry with the LUN's identity and the cache's path is made durable here; it is removed only after everything dirty
//! has reached the LUN.
//!
//! | module | holds |
//! |---|---|
//! | [`entry`] | an entry |
//! | [`unit_lock`] | the lock on logical units in use |
//! | `stem` | the names of their files |

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use block::Identity;
use uuid::Uuid;

use crate::error::{Error, Failure, Result};
use crate::paths::Paths;
use crate::place::Place;
use crate::record_file;

pub mod entry;
mod stem;
pub mod unit_lock;

pub use entry::{Entry, Store};
pub(crate) use stem::file_stem;
pub use unit_lock::UnitLock;
pub(crate) use unit_lock::lock_within;

/// Both kinds: a LUN has at most one entry of each.
const STORES: [Store; 2] = [Store::Cache, Store::Log];

/// The registry.
#[derive(Clone)]
pub struct Registry {
    directory: PathBuf,
}

/// Held while this process writes an entry. Other processes do not write those of a LUN that this
/// one has locked.
static WRITING: Mutex<()> = Mutex::new(());

impl Registry {
    /// The registry of this host and user.
    ///
    /// # Errors
    /// When its folder cannot be made.
    pub fn open(paths: &Paths) -> Result<Self> {
        let directory = paths.registry();
        make_directory(&directory)?;
        Ok(Self { directory })
    }

    /// The entry of the LUN, if its newest data may lie in a cache, or in a log.
    ///
    /// # Errors
    /// When the entry cannot be read: the LUN must not be used then.
    pub fn find(&self, identity: &Identity, store: Store) -> Result<Option<Entry>> {
        let path = self.path(identity, store);
        record_file::listed(&path, || {
            let what = store.as_str();
            format!(
                "it should name the {what} that holds the newest data of {identity}; remove the file, then attach with \
                 that {what} if there is one"
            )
        })
    }

    /// Refuses a LUN whose newest data may lie in another cache or log than those at `places`.
    ///
    /// # Errors
    /// `WouldLoseData`, naming it.
    pub fn check(&self, identity: &Identity, places: &[&Place]) -> Result<()> {
        let mut entries = Vec::new();
        for store in STORES {
            entries.extend(self.find(identity, store)?);
        }
        let missing: Vec<&Entry> = entries.iter().filter(|entry| !places.contains(&&entry.place())).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if let Some(words) = missing.iter().find_map(|entry| entry.words_of_failure()) {
            return Err(Error::new(Failure::WouldLoseData, words));
        }
        let each = |of: fn(&Entry) -> String| missing.iter().map(|entry| of(entry)).collect::<Vec<_>>().join(" and ");
        let named = each(|entry| format!("the {} {}", entry.store.as_str(), entry.place()));
        let discards = each(|entry| format!("`forebay {} discard {}`", entry.store.as_str(), entry.argument()));
        // All of them are needed at once, also one that was given.
        let options = entries.iter().map(|entry| format!("--{} {}", entry.store.as_str(), entry.argument()));
        let options = options.collect::<Vec<_>>().join(" ");
        let lost: Vec<String> = missing
            .iter()
            .map(|entry| entry.place())
            .filter(|place| !place.path.exists())
            .map(|place| place.to_string())
            .collect();
        let advice = match (lost.is_empty(), missing.len()) {
            (true, _) => format!("attach it with {options} (and detach it to write it back)"),
            (false, 1) => format!("this is not there: bring it back and attach it with {options}"),
            (false, _) => {
                format!("{} is not there: bring it back and attach it with {options}", lost.join(" and "))
            }
        };
        let message =
            format!("the newest data of {identity} may be in {named}: {advice}, or give that data up with {discards}");
        Err(Error::new(Failure::WouldLoseData, message))
    }

    /// Refuses a LUN with the serial number of one whose newest data may be in a store of this host,
    /// under another target name or number. For LUNs whose serial numbers are theirs alone.
    ///
    /// # Errors
    /// `WouldLoseData` without the store, naming both LUNs; `Mismatch` with it at one of `places`: a
    /// store is bound to the name.
    pub(crate) fn check_other_names(&self, identity: &Identity, places: &[&Place]) -> Result<()> {
        let Identity { target, unit, serial } = identity;
        if serial.is_empty() {
            return Ok(());
        }
        for entry in self.entries()? {
            let is_other_name = entry.serial == *serial && (&entry.target, &entry.unit) != (target, unit);
            let is_known_by_this = || {
                self.find(identity, entry.store).map(|known| known.is_some_and(|known| known.place() == entry.place()))
            };
            if !is_other_name || is_known_by_this()? {
                continue;
            }
            let (what, place, argument) = (entry.store.as_str(), entry.place(), entry.argument());
            let (failure, store) = match places.contains(&&place) {
                true => (Failure::Mismatch, format!("the {what} {place} is of {}", entry.identity())),
                false => (
                    Failure::WouldLoseData,
                    format!("the newest data of {} may be in the {what} {place}", entry.identity()),
                ),
            };
            let message = format!(
                "{store}, and {identity} has the same serial number. Is it a copy of that image, served with a copy of \
                 its sidecar? Then end its target, remove the sidecar of the copy (the file beside it with its name \
                 and \".forebay\"), and serve it again: it gets a serial number of its own. Or is it the same logical \
                 unit under another target name or number, to which a {what} is bound? Serve it as it was, attach \
                 that with --{what} {argument} and detach it, which writes everything back; then it may have the other \
                 name. `forebay {what} discard {argument}` gives up the newest data of the first one"
            );
            return Err(Error::new(failure, message));
        }
        Ok(())
    }

    /// Makes `entry` durable. The note that a store has failed is kept as long as there is an entry
    /// of that store.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn insert(&self, entry: &Entry) -> Result<()> {
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        // A damaged entry has no such note; the LUN was refused because of it before its stores
        // were opened.
        let before = self.find(&entry.identity(), entry.store).ok().flatten();
        let has_failed = before.is_some_and(|before| before.has_failed && before.is_of_same_store(entry));
        self.write(&Entry { has_failed: entry.has_failed || has_failed, ..entry.clone() })
    }

    /// Notes, durably, that what the store with this `uuid` at `place` held may be lost or out of date:
    /// it must not be used again. Without an entry it holds nothing that its LUN lacks.
    ///
    /// # Errors
    /// When the registry cannot be read or written: also where that is so of another store's entry alone.
    pub(crate) fn note_failed(&self, place: &Place, uuid: Option<Uuid>) -> Result<()> {
        self.change(place, |entry| Entry { has_failed: entry.has_failed || entry.is_of_store(uuid), ..entry })
    }

    /// Notes, durably, which store is at `place` of those that may have been there; `None`: not known.
    ///
    /// # Errors
    /// When the registry cannot be read or written.
    pub(crate) fn note_store(&self, place: &Place, uuid: Option<Uuid>) -> Result<()> {
        self.change(place, |entry| Entry { uuid, ..entry })
    }

    /// Notes, durably, that the store with this `uuid` has taken `place`: what is noted of the one before
    /// it does not concern it. `has_failed` says whether it has failed by then.
    ///
    /// # Errors
    /// When the registry cannot be read or written.
    pub(crate) fn note_succeeded(
        &self,
        place: &Place,
        uuid: Option<Uuid>,
        has_failed: impl Fn() -> bool,
    ) -> Result<()> {
        self.change(place, |entry| Entry { uuid, has_failed: has_failed(), ..entry })
    }

    /// Changes every entry of `place`, if there is any.
    fn change(&self, place: &Place, changed: impl Fn(Entry) -> Entry) -> Result<()> {
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        // Whatever can be read: this cannot be put off.
        let (mut entries, damaged) = self.readable()?;
        entries.retain(|entry| entry.place() == *place);
        entries.into_iter().try_for_each(|entry| self.write(&changed(entry)))?;
        damaged.map_or(Ok(()), Err)
    }

    /// Whether `entry` is noted as failed.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(crate) fn has_failed(&self, entry: &Entry) -> Result<bool> {
        let found = self.find(&entry.identity(), entry.store)?;
        Ok(found.is_some_and(|found| found.has_failed && found.is_of_same_store(entry)))
    }

    fn write(&self, entry: &Entry) -> Result<()> {
        let path = self.path(&entry.identity(), entry.store);
        let what = format!("the {} {}", entry.store.as_str(), entry.place());
        record_file::note_listed(&path, entry, entry.has_failed, what)
    }

    /// Removes an entry, whose store is clean.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn remove(&self, entry: &Entry) -> Result<()> {
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path(&entry.identity(), entry.store);
        record_file::remove(&path).map_err(|error| Error::io(format!("cannot remove {}", path.display()), &error))
    }

    /// Every entry that names the cache or log at `place`.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    pub fn entries_of(&self, place: &Place) -> Result<Vec<Entry>> {
        Ok(self.entries()?.into_iter().filter(|entry| entry.place() == *place).collect())
    }

    /// Every entry, by place.
    ///
    /// # Errors
    /// When the registry cannot be read; `Mismatch` for a damaged entry, which may be of any LUN and of any store.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let (entries, damaged) = self.readable()?;
        damaged.map_or(Ok(entries), Err)
    }

    /// The entries that can be read, by place, and the error of the first one that cannot.
    ///
    /// # Errors
    /// When the folder cannot be read.
    fn readable(&self) -> Result<(Vec<Entry>, Option<Error>)> {
        let files = record_file::files_in(&self.directory, record_file::EXTENSION);
        let mut files =
            files.map_err(|error| Error::io(format!("cannot read {}", self.directory.display()), &error))?;
        files.sort();
        let (mut entries, mut damaged) = (Vec::new(), None);
        for path in files {
            match read_entry(&path) {
                Ok(entry) => entries.extend(entry),
                Err(error) => _ = damaged.get_or_insert(error),
            }
        }
        entries.sort_by_key(|entry| (entry.place(), entry.identity().to_string()));
        Ok((entries, damaged))
    }

    /// Removes every entry that names `place`, whose dirty data was given up.
    ///
    /// # Errors
    /// When the registry cannot be read or an entry cannot be removed.
    pub fn remove_cache(&self, place: &Place) -> Result<()> {
        self.entries_of(place)?.iter().try_for_each(|entry| self.remove(entry))
    }

    fn path(&self, identity: &Identity, store: Store) -> PathBuf {
        let extension = match store {
            Store::Cache => "json",
            Store::Log => "log.json",
        };
        self.directory.join(format!("{}.{extension}", file_stem(identity)))
    }
}

/// The entry in the file at `path`; `None` where it was removed meanwhile.
fn read_entry(path: &Path) -> Result<Option<Entry>> {
    record_file::listed(path, || {
        "it should name a cache or a write log that holds the newest data of a logical unit; remove the file, then \
         attach that with its cache or log if there is one"
            .to_owned()
    })
}

pub(crate) fn make_directory(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).map_err(|error| Error::io(format!("cannot make {}", directory.display()), &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(serial: &str) -> Identity {
        Identity { target: "iqn.2026-01.lab:disk".into(), unit: "naa.3".into(), serial: serial.into() }
    }

    fn place(path: &str) -> Place {
        Place { path: path.into(), offset: None }
    }

    fn paths(directory: &tempfile::TempDir) -> Paths {
        Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap()
    }

    #[test]
    fn a_lun_with_dirty_data_is_refused_without_its_cache() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&paths(&directory)).unwrap();
        let cache = place("/caches/a");
        registry.insert(&Entry::new(&identity("1"), &cache, "disk")).unwrap();
        assert!(registry.check(&identity("1"), &[&cache]).is_ok());
        let at = Place { offset: Some(4096), ..cache.clone() };
        for wrong in [&[][..], &[&place("/caches/b")], &[&at]] {
            let error = registry.check(&identity("1"), wrong).unwrap_err();
            assert_eq!(error.failure(), Failure::WouldLoseData);
            assert!(error.to_string().contains("/caches/a"), "{error}");
        }
        assert!(registry.check(&identity("2"), &[]).is_ok(), "another LUN is free");
        let entry = registry.find(&identity("1"), Store::Cache).unwrap().unwrap();
        registry.remove(&entry).unwrap();
        assert!(registry.check(&identity("1"), &[]).is_ok());
        registry.remove(&entry).expect("removing twice is no error");
    }

    #[test]
    fn a_lun_with_a_log_over_a_cache_needs_both_until_each_is_clean() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&paths(&directory)).unwrap();
        let (cache, log) = (place("/stores/a"), place("/stores/b"));
        let in_cache = Entry::new(&identity("1"), &cache, "disk");
        let in_log = Entry { store: Store::Log, ..Entry::new(&identity("1"), &log, "disk") };
        registry.insert(&in_cache).and_then(|()| registry.insert(&in_log)).unwrap();
        assert!(registry.check(&identity("1"), &[&cache, &log]).is_ok());
        for given in [&[&cache][..], &[&log], &[]] {
            let error = registry.check(&identity("1"), given).unwrap_err();
            assert_eq!(error.failure(), Failure::WouldLoseData);
            // One alone would be refused for the other.
            assert!(error.to_string().contains("--cache /stores/a --log /stores/b"), "{error}");
        }
        registry.remove(&in_log).unwrap();
        assert!(registry.check(&identity("1"), &[&cache]).is_ok());
        assert!(registry.check(&identity("1"), &[]).unwrap_err().to_string().contains("--cache /stores/a"));
    }

    #[test]
    fn that_a_log_failed_stays_noted_whatever_is_noted_of_it_at_the_same_time() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&paths(&directory)).unwrap();
        let entry = Entry {
            store: Store::Log,
            uuid: Some(Uuid::from_bytes([1; 16])),
            ..Entry::new(&identity("1"), &place("/logs/a"), "disk")
        };
        let has_failed = || registry.find(&identity("1"), Store::Log).unwrap().unwrap().has_failed;
        registry.insert(&entry).unwrap();
        assert!(!has_failed());
        registry.insert(&Entry { has_failed: true, ..entry.clone() }).unwrap();
        registry.insert(&entry).unwrap();
        assert!(has_failed());
        // A new log at its place is another log.
        registry.insert(&Entry { uuid: Some(Uuid::from_bytes([2; 16])), ..entry.clone() }).unwrap();
        assert!(!has_failed());
    }

    #[test]
    fn a_store_that_failed_is_refused_with_it_and_without_it_until_it_is_discarded() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&paths(&directory)).unwrap();
        let [cut, whole] = ["/caches/a", "/caches/b"].map(place);
        registry.note_failed(&cut, None).expect("nothing of it is needed");
        assert!(registry.check(&identity("1"), &[]).is_ok());
        for (serial, place) in [("1", &cut), ("2", &whole)] {
            registry.insert(&Entry::new(&identity(serial), place, "disk")).unwrap();
        }
        registry.note_failed(&cut, None).unwrap();
        let entry = Entry::new(&identity("1"), &cut, "disk");
        registry.insert(&entry).expect("as while it goes on being used");
        assert!(registry.has_failed(&entry).unwrap());
        assert!(!registry.has_failed(&Entry::new(&identity("2"), &whole, "disk")).unwrap());
        let error = registry.check(&identity("1"), &[]).unwrap_err();
        assert_eq!(error.failure(), Failure::WouldLoseData);
        assert!(!error.to_string().contains("attach"), "{error}");
        assert!(error.to_string().contains("forebay cache discard /caches/a"), "{error}");
        registry.remove_cache(&cut).unwrap();
        assert!(registry.check(&identity("1"), &[]).is_ok());
    }

    #[test]
    fn that_a_cache_failed_is_noted_of_that_one_and_of_none_that_has_its_place_since() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&paths(&directory)).unwrap();
        let at = place("/caches/a");
        let [old, new] = [1, 2].map(|byte| Some(Uuid::from_bytes([byte; 16])));
        let entry = Entry { uuid: old, ..Entry::new(&identity("1"), &at, "disk") };
        registry.insert(&entry).unwrap();
        let noted = || {
            let found = registry.find(&identity("1"), Store::Cache).unwrap().unwrap();
            (found.uuid, found.has_failed)
        };
        registry.note_failed(&at, new).unwrap();
        assert_eq!(noted(), (old, false), "another one");
        registry.note_failed(&at, old).unwrap();
        // While it is being replaced.
        registry.note_store(&at, None).unwrap();
        assert!(noted() == (None, true) && registry.has_failed(&entry).unwrap());
        registry.note_succeeded(&at, new, || false).unwrap();
        registry.note_failed(&at, old).expect("its last user is late");
        registry.insert(&Entry { uuid: new, ..entry.clone() }).unwrap();
        assert_eq!(noted(), (new, false));
        registry.note_store(&at, None).unwrap();
        registry.note_failed(&at, old).unwrap();
        registry.note_store(&at, new).unwrap();
        assert_eq!(noted(), (new, true), "it was not replaced");
        registry.note_succeeded(&at, old, || true).unwrap();
        assert_eq!(noted(), (old, true), "cut before it had the place");
        // An entry of an older release has none.
        registry.remove(&entry).unwrap();
        registry.insert(&Entry { uuid: None, has_failed: true, ..entry.clone() }).unwrap();
        registry.insert(&entry).unwrap();
        assert_eq!(noted(), (old, true));
    }

    #[test]
    fn a_lun_with_the_serial_number_of_one_whose_store_is_dirty_is_that_one_under_another_name() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&paths(&directory)).unwrap();
        let (cache, log) = (place("/stores/a"), place("/stores/b"));
        let known = identity("1");
        registry.insert(&Entry::new(&known, &cache, "disk")).unwrap();
        registry.insert(&Entry { store: Store::Log, ..Entry::new(&known, &log, "disk") }).unwrap();
        let renamed = Identity { target: "iqn.2026-01.lab:renamed".into(), ..known.clone() };
        let numbered = Identity { unit: "another".into(), ..known.clone() };
        for other in [&renamed, &numbered] {
            let error = registry.check_other_names(other, &[]).unwrap_err();
            assert_eq!(error.failure(), Failure::WouldLoseData);
            let error = registry.check_other_names(other, &[&cache, &log]).unwrap_err();
            assert_eq!(error.failure(), Failure::Mismatch);
            for words in [known.to_string(), other.to_string(), "/stores/a".into()] {
                assert!(error.to_string().contains(&words), "{error}");
            }
        }
        assert!(registry.check_other_names(&known, &[]).is_ok(), "`check` speaks of it");
        assert!(registry.check_other_names(&identity("2"), &[]).is_ok(), "another LUN is free");
        // Paths to one LUN by several names have an entry each.
        for store in [Store::Cache, Store::Log] {
            let at = if store == Store::Cache { &cache } else { &log };
            registry.insert(&Entry { store, ..Entry::new(&renamed, at, "disk") }).unwrap();
        }
        assert!(registry.check_other_names(&renamed, &[&cache, &log]).is_ok());
    }

    #[test]
    fn a_damaged_entry_keeps_the_lun_from_being_used() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&paths(&directory)).unwrap();
        fs::write(registry.path(&identity("1"), Store::Cache), "{").unwrap();
        assert_eq!(registry.check(&identity("1"), &[]).unwrap_err().failure(), Failure::Mismatch);
    }

    /// It may be of any LUN under another name, and of any store.
    #[test]
    fn an_entry_of_another_version_is_said_whoever_looks_and_what_can_be_read_is_noted_as_failed() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&paths(&directory)).unwrap();
        for (serial, path) in [("1", "/caches/a"), ("2", "/caches/b")] {
            registry.insert(&Entry::new(&identity(serial), &place(path), "disk")).unwrap();
        }
        let path = registry.path(&identity("1"), Store::Cache);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"version\": 1", "\"version\": 99")).unwrap();
        let refused = [
            registry.find(&identity("1"), Store::Cache).err(),
            registry.check(&identity("1"), &[&place("/caches/a")]).err(),
            registry.check_other_names(&identity("3"), &[]).err(),
            registry.entries_of(&place("/caches/b")).err(),
            registry.remove_cache(&place("/caches/b")).err(),
            registry.note_failed(&place("/caches/b"), None).err(),
        ];
        for error in refused.into_iter().map(|error| error.expect("it is of another version")) {
            assert_eq!(error.failure(), Failure::Mismatch);
            let words = error.to_string();
            assert!(words.contains("version 99 is not 1") && words.contains(path.to_str().unwrap()), "{words}");
        }
        let noted = registry.find(&identity("2"), Store::Cache).unwrap().unwrap();
        assert!(noted.has_failed, "what can be read is noted all the same");
        fs::write(&path, text).unwrap();
        assert_eq!(registry.entries().unwrap().len(), 2, "nothing was changed");
    }

    #[test]
    fn an_entry_that_a_crash_kept_from_being_renamed_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&paths(&directory)).unwrap();
        registry.insert(&Entry::new(&identity("1"), &place("/caches/a"), "disk")).unwrap();
        let path = registry.path(&identity("1"), Store::Cache);
        for unfinished in ["json.new", "new"] {
            fs::copy(&path, path.with_extension(unfinished)).unwrap();
        }
        assert_eq!(registry.entries().unwrap().len(), 1);
    }

    #[test]
    fn discarding_a_cache_frees_its_lun() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&paths(&directory)).unwrap();
        registry.insert(&Entry::new(&identity("1"), &place("/caches/a"), "disk")).unwrap();
        registry.insert(&Entry::new(&identity("2"), &place("/caches/b"), "disk2")).unwrap();
        registry.remove_cache(&place("/caches/a")).unwrap();
        assert!(registry.check(&identity("1"), &[]).is_ok());
        assert!(registry.check(&identity("2"), &[]).is_err());
    }
}
