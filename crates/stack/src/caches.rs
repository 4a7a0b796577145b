//! The list of caches of this host and user: their places and LUNs, whether they are in use or not.
//!
//! One record for each cache, made when it is attached, and removed when it is discarded, or
//! removed at its end. The registry decides whether a cache may hold data that its LUN lacks; this
//! list is for people and programs. `record` is one of its records.

use std::fs::File;
use std::path::{Path, PathBuf};

use base::range::ByteRange;
use base::units::ByteSize;
use block::Identity;
use file::CutNote;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use store::Tokens;
use uuid::Uuid;

use crate::content::{content_is_there, store_at, uuid_at};
use crate::error::{Error, Failure, Result};
use crate::limits::CHANGE_TIME_MAX;
use crate::open_store::{OpenStore, Standing};
use crate::paths::{Paths, make_private};
use crate::place::Place;
use crate::record_file;
use crate::registry::{Registry, Store, lock_within};

pub mod record;

pub use record::{LunRecord, MarkRecord, MarkStage, StoreRecord};

/// Extension of the files that hold a mark whose store is gone: a [`LunRecord`].
const MARK_EXTENSION: &str = "mark";

/// The record in a file; `None` where there is none, or none any more.
fn read(file: &Path) -> Result<Option<StoreRecord>> {
    record_file::listed(file, || {
        "it should say which cache or write log was used last at its place; restore it, or remove it: then that store \
         begins without clean lines, and what is dirty in it is refused until `--set overwrite-changes=on`"
            .to_owned()
    })
}

fn remove(file: &Path) -> Result<()> {
    record_file::remove(file).map_err(|error| Error::io(file.display(), &error))
}

/// While this lives the mark of an attach under way is not removed.
pub(crate) struct MarkInMaking {
    /// Its note, locked.
    _file: File,
}

/// Whether another attach is making the mark of this note.
fn is_in_making(note: &Path) -> bool {
    let locked = |file: &File| flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
    File::open(note).is_ok_and(|file| locked(&file))
}

/// Name of the file that is locked while a record is changed.
const LOCK: &str = "lock";

/// All records. Several processes change records at once, also those of other processes' stores:
/// attachments that share a LUN note in each other's records that this host writes without them. So
/// every change is read and written under one lock.
#[derive(Clone)]
pub struct Caches {
    directory: PathBuf,
    registry: Registry,
}

/// While this lives no other process of this host changes a record.
struct Changing {
    _file: File,
}

impl Caches {
    /// The caches of this host and user.
    ///
    /// # Errors
    /// When their folder cannot be made.
    pub fn open(paths: &Paths) -> Result<Self> {
        let directory = paths.caches();
        make_private(&directory)?;
        Ok(Self { directory, registry: Registry::open(paths)? })
    }

    /// Waits until no other process changes a record. A change takes no longer than some writes of
    /// a small file: a process that holds the lock for longer was stopped, and is not waited for.
    fn begin_change(&self) -> Result<Changing> {
        let path = self.directory.join(LOCK);
        let context = |error: &std::io::Error| Error::io(format!("cannot lock {}", path.display()), error);
        let file =
            File::options().write(true).create(true).truncate(false).open(&path).map_err(|error| context(&error))?;
        if !lock_within(&file, FlockOperation::NonBlockingLockExclusive, CHANGE_TIME_MAX) {
            let (path, seconds) = (path.display(), CHANGE_TIME_MAX.as_secs());
            let message = format!(
                "{path} has been locked for {seconds} s: a process of this user that changes the records of its caches \
                 does not go on; find it with \"fuser {path}\""
            );
            return Err(Error::new(Failure::InUse, message));
        }
        Ok(Changing { _file: file })
    }

    /// What is noted when the file of `store`, whose place is `place`, is found cut while it is in use.
    pub(crate) fn cut_note(&self, place: &Place, store: &OpenStore) -> CutNote {
        let (caches, place, store) = (self.clone(), place.clone(), store.clone());
        CutNote::new(move || {
            if let Err(error) = caches.note_cut(&place, &store) {
                tracing::error!(
                    %error,
                    "{place} was cut, which cannot be noted: do not use it again, give it up with `forebay cache \
                     discard` or `forebay log discard`"
                );
            }
        })
    }

    fn note_cut(&self, place: &Place, store: &OpenStore) -> Result<()> {
        // What is at its place is another store.
        let Standing::AtPlace(uuid) = store.note_cut() else { return Ok(()) };
        // Each on its own: a list that cannot be read must not keep the other one from being written.
        let (failed, recorded) = (self.registry.note_failed(place, uuid), self.record_cut(place, uuid));
        failed.and(recorded)
    }

    fn record_cut(&self, place: &Place, uuid: Option<Uuid>) -> Result<()> {
        let _changing = self.begin_change()?;
        let Some(record) = self.find(place)?.filter(|record| record.is_of_store(uuid)) else { return Ok(()) };
        self.write(&StoreRecord { is_cut: true, ..record })
    }

    /// Notes a cache, durably: without its record it could be taken for a fresh one.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub fn note(&self, record: &StoreRecord) -> Result<()> {
        let _changing = self.begin_change()?;
        self.write(record)
    }

    fn write(&self, record: &StoreRecord) -> Result<()> {
        let path = self.file(&record.place());
        record_file::note_listed(&path, record, record.is_cut, record.place())
    }

    /// Notes a store that is open, as [`note`](Self::note). What has the UUID of the store and none of its tokens is
    /// another copy from then on, also at other places.
    ///
    /// # Errors
    /// As [`find`](Self::find) and [`note`](Self::note).
    pub(crate) fn note_opened(&self, record: &StoreRecord) -> Result<()> {
        let _changing = self.begin_change()?;
        self.write(record)?;
        let is_older = |other: &StoreRecord| {
            let knows = |token: &u64| other.tokens.contains(token);
            other.uuid.is_some() && other.uuid == record.uuid && !record.tokens.iter().all(knows)
        };
        for other in self.stores()?.into_iter().filter(is_older) {
            self.write(&StoreRecord { tokens: record.tokens.clone(), ..other })?;
        }
        Ok(())
    }

    /// Removes the record of the cache or write log at `place`, if there is one. Its marks are
    /// released: they stay noted until their targets have removed them, too. Where there is no room for
    /// that note, a target keeps one that nobody needs until it needs the slot.
    ///
    /// # Errors
    /// When the record cannot be removed, or a mark cannot be noted for another reason.
    pub fn forget(&self, place: &Place) -> Result<()> {
        for lun in self.find(place)?.into_iter().flat_map(|record| record.luns) {
            match self.note_released(&lun) {
                Err(error) if error.failure() == Failure::NoSpace => {
                    tracing::warn!(%error, "a change mark that nobody needs any more stays at its target");
                }
                noted => noted?,
            }
        }
        remove(&self.file(place))
    }

    /// Notes that no store has the mark of `lun`: its target is to remove it, unless a record names
    /// it by then.
    ///
    /// # Errors
    /// When that note cannot be written.
    pub(crate) fn note_released(&self, lun: &LunRecord) -> Result<()> {
        let Some(mark) = &lun.mark else { return Ok(()) };
        let file = self.mark_file(mark);
        record_file::note(&file, lun).map_err(|error| Error::io(file.display(), &error))
    }

    /// As [`note_released`](Self::note_released), for marks that an attach under way makes: as long as `held` lives no
    /// other process of this host has them removed, and if this one ends, the next one has. `held` is what was noted of
    /// them before.
    ///
    /// # Errors
    /// When that cannot be noted.
    pub(crate) fn note_in_making<'a>(
        &self,
        luns: impl Iterator<Item = &'a LunRecord>,
        held: &mut Vec<MarkInMaking>,
    ) -> Result<()> {
        let _changing = self.begin_change()?;
        held.clear();
        for lun in luns {
            self.note_released(lun)?;
            let Some(mark) = &lun.mark else { continue };
            let path = self.mark_file(mark);
            let file = File::open(&path).map_err(|error| Error::io(path.display(), &error))?;
            // Who asks whether it is in making has the lock of the list.
            let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
            held.push(MarkInMaking { _file: file });
        }
        Ok(())
    }

    /// Notes a new state of a mark of the store at `place`, if that still has it.
    ///
    /// # Errors
    /// As [`find`](Self::find) and [`note`](Self::note).
    pub(crate) fn note_mark(&self, place: &Place, mark: &MarkRecord) -> Result<()> {
        let _changing = self.begin_change()?;
        let Some(mut record) = self.find(place)? else { return Ok(()) };
        let known = record.luns.iter_mut().find_map(|lun| lun.mark.as_mut().filter(|known| known.id == mark.id));
        let Some(known) = known else { return Ok(()) };
        *known = mark.clone();
        self.write(&record)
    }

    /// Notes that the mark `id` reports changes from now on: the store at `place`, if that still
    /// has the mark, is closed, and holds the LUN's content of when the mark was cleared.
    ///
    /// # Errors
    /// As [`find`](Self::find) and [`note`](Self::note).
    pub(crate) fn note_telling(&self, place: &Place, id: &[u8; 16]) -> Result<()> {
        let _changing = self.begin_change()?;
        let Some(mut record) = self.find(place)? else { return Ok(()) };
        let known = record.luns.iter_mut().find_map(|lun| lun.mark.as_mut().filter(|known| known.id.as_bytes() == id));
        let Some(known) = known else { return Ok(()) };
        *known = known.clone().with_stage(MarkStage::Cleared);
        self.write(&StoreRecord { is_stale: false, ..record })
    }

    /// Notes that this host is about to write to one of these LUNs without the stores at other
    /// places than `but`: their clean lines are void, unless the target reports what changed.
    ///
    /// # Errors
    /// As [`find`](Self::find) and [`note`](Self::note).
    pub(crate) fn note_stale(&self, identities: &[Identity], but: &[&Place]) -> Result<()> {
        let _changing = self.begin_change()?;
        for record in self.stores()? {
            if record.is_of(identities) && !record.is_stale && !but.contains(&&record.place()) {
                self.write(&StoreRecord { is_stale: true, ..record })?;
            }
        }
        Ok(())
    }

    /// The mark of the store at `place` that has this id.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(crate) fn mark(&self, place: &Place, id: &[u8; 16]) -> Result<Option<MarkRecord>> {
        let mut marks = self.find(place)?.into_iter().flat_map(|record| record.luns).filter_map(|lun| lun.mark);
        Ok(marks.find(|mark| mark.id.as_bytes() == id))
    }

    /// Notes that another store with `tokens` may take `place` from now on; which of the two is
    /// there is not known.
    ///
    /// # Errors
    /// As [`find`](Self::find) and [`note`](Self::note).
    pub(crate) fn note_successor(&self, place: &Place, tokens: Tokens) -> Result<()> {
        self.registry.note_store(place, None)?;
        let _changing = self.begin_change()?;
        let Some(mut record) = self.find(place)? else { return Ok(()) };
        record.tokens.extend([tokens.in_use, tokens.closed]);
        self.write(&StoreRecord { uuid: None, ..record })
    }

    /// Notes that `successor` is at `place`, durably, before it holds anything that no other store has: what was
    /// lost with the store before it is not its loss.
    ///
    /// # Errors
    /// When the registry cannot be read or written: of the new one is noted then what was of the old one.
    pub(crate) fn note_in_place(&self, place: &Place, successor: &OpenStore) -> Result<()> {
        let uuid = uuid_at(place);
        successor.take_place(uuid);
        self.registry.note_succeeded(place, uuid, || successor.is_cut())
    }

    /// Notes which store is at `place`, of those that may have taken it: `successor`, or else the one that
    /// was there. The tokens of the other one, which are `tokens` or all others, are those of no store any more.
    ///
    /// # Errors
    /// As [`find`](Self::find) and [`note`](Self::note).
    pub(crate) fn note_succeeded(&self, place: &Place, tokens: Tokens, successor: Option<&OpenStore>) -> Result<()> {
        let uuid = uuid_at(place);
        self.registry.note_store(place, uuid)?;
        let _changing = self.begin_change()?;
        let Some(mut record) = self.find(place)? else { return Ok(()) };
        let is_of_successor = |token: &u64| [tokens.in_use, tokens.closed].contains(token);
        if let Some(found) = store_at(place).filter(|found| record.tokens.contains(&found.token)) {
            record.tokens.retain(|token| is_of_successor(token) == is_of_successor(&found.token));
        }
        let is_cut = successor.map_or(record.is_cut, OpenStore::is_cut);
        self.write(&StoreRecord { uuid, is_cut, ..record })
    }

    /// Notes that the store at `place`, which no other process has open, is about to be opened with
    /// `tokens`: from then on it may have these, or its present one, in every record of it.
    /// `is_any_copy_taken`: also another copy than the last one, as the user wants it. That is noted only once it is
    /// [open](Self::note_opened): until then, and where the opening is refused, it is another copy to this list.
    ///
    /// # Errors
    /// As [`check_is_last`](Self::check_is_last) and [`note`](Self::note).
    pub fn note_opening(&self, place: &Place, tokens: Tokens, is_any_copy_taken: bool) -> Result<()> {
        let _changing = self.begin_change()?;
        if !is_any_copy_taken {
            self.check_is_last(place)?;
        } else if self.last_of_other_copy(place)?.is_some() {
            return Ok(());
        }
        let Some(found) = store_at(place) else { return Ok(()) };
        for record in self.stores()?.into_iter().filter(|record| record.uuid == Some(found.uuid)) {
            self.write(&StoreRecord { tokens: vec![found.token, tokens.in_use, tokens.closed], ..record })?;
        }
        Ok(())
    }

    /// Notes that the store at `place` is closed: it has its present token and no other.
    ///
    /// # Errors
    /// As [`find`](Self::find) and [`note`](Self::note).
    pub fn note_closed(&self, place: &Place) -> Result<()> {
        let _changing = self.begin_change()?;
        let (Some(record), Some(found)) = (self.find(place)?, store_at(place)) else { return Ok(()) };
        if record.uuid != Some(found.uuid) || !record.tokens.contains(&found.token) {
            return Ok(());
        }
        self.write(&StoreRecord { tokens: vec![found.token], ..record })
    }

    /// Whether the content of `place` is the store that this host used there last, as far as the
    /// list shows.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn is_last(&self, place: &Place) -> Result<bool> {
        let Some(found) = store_at(place) else { return Ok(true) };
        let Some(record) = self.find(place)? else { return Ok(true) };
        Ok(record.is_of_store(Some(found.uuid)) && record.knows(found.token))
    }

    /// Whether the store at `place` is another copy of it than the one that this host used last,
    /// there or elsewhere, by this list: then the record of the last one.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(crate) fn last_of_other_copy(&self, place: &Place) -> Result<Option<StoreRecord>> {
        let Some(found) = store_at(place) else { return Ok(None) };
        Ok(self.stores()?.into_iter().find(|record| record.is_of_other_copy(&found)))
    }

    /// Refuses the store at `place` if it is [another copy](Self::last_of_other_copy): its clean and
    /// dirty lines are out of date, or from another host, or this list is the older one.
    ///
    /// # Errors
    /// `WouldLoseData`, with advice; as [`find`](Self::find).
    pub(crate) fn check_is_last(&self, place: &Place) -> Result<()> {
        let Some(last) = self.last_of_other_copy(place)? else { return Ok(()) };
        let what = last.store.as_str();
        let message = format!(
            "the {what} {place} is another copy of the one that this host used last, at {}, by this host's list: it is \
             older, or was used elsewhere, or the list is the older one (was the state directory restored?). Bring the \
             last one back; what another host left in this one is written back there. Where the list is the older \
             one, and nobody else wrote to the logical unit, give `--set overwrite-changes=on` (of `log replay`: \
             --overwrite-changes): what this one holds is then written over what is there. Or give up what it holds \
             with `forebay {what} discard {}`",
            last.path.display(),
            place.argument(what)
        );
        Err(Error::new(Failure::WouldLoseData, message))
    }

    /// The stores of these LUNs at other places than `but` that are other copies than the last one:
    /// they may hold data of which this list, if it is the older one, knows nothing.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(crate) fn other_copies(&self, identities: &[Identity], but: &[&Place]) -> Result<Vec<StoreRecord>> {
        let mut records = self.stores()?;
        records.retain(|record| record.is_of(identities) && !but.contains(&&record.place()));
        records.retain(|record| store_at(&record.place()).is_some_and(|found| record.is_of_other_copy(&found)));
        Ok(records)
    }

    /// The marks of the LUN `identity` that belong to no store any more, and to none that is about to be opened.
    ///
    /// # Errors
    /// When the folder cannot be read; a malformed file is ignored.
    pub fn released_marks(&self, identity: &Identity) -> Result<Vec<MarkRecord>> {
        let mut files = self.files(MARK_EXTENSION)?;
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let _changing = self.begin_change()?;
        files.retain(|path| !is_in_making(path));
        let texts = files.iter().filter_map(|path| record_file::read(path).ok().flatten());
        let luns = texts.filter_map(|text| serde_json::from_slice::<LunRecord>(&text).ok());
        let mut released: Vec<MarkRecord> = luns.filter(|lun| lun.is(identity)).filter_map(|lun| lun.mark).collect();
        if !released.is_empty() {
            // A crash came between the record of a store and the removal of the note.
            let owned: Vec<Uuid> = self
                .stores()?
                .into_iter()
                .flat_map(|record| record.luns)
                .filter_map(|lun| lun.mark)
                .map(|mark| mark.id)
                .collect();
            released.retain(|mark| !owned.contains(&mark.id));
        }
        Ok(released)
    }

    /// Notes that a released mark is removed at its target.
    ///
    /// # Errors
    /// When its file cannot be removed.
    pub fn note_forgotten(&self, mark: &MarkRecord) -> Result<()> {
        remove(&self.mark_file(mark))
    }

    fn mark_file(&self, mark: &MarkRecord) -> PathBuf {
        self.directory.join(mark.id.simple().to_string()).with_extension(MARK_EXTENSION)
    }

    /// The files in the folder with this extension.
    fn files(&self, extension: &str) -> Result<Vec<PathBuf>> {
        record_file::files_in(&self.directory, extension).map_err(|error| Error::io(self.directory.display(), &error))
    }

    /// The record of the cache or write log at `place`.
    ///
    /// # Errors
    /// When its record cannot be read; `Mismatch` for a damaged one: whether the store is the last copy, and what was
    /// written to the LUN without it, is not known then.
    pub fn find(&self, place: &Place) -> Result<Option<StoreRecord>> {
        read(&self.file(place))
    }

    /// All known caches, by path.
    ///
    /// # Errors
    /// As [`stores`](Self::stores).
    pub fn list(&self) -> Result<Vec<StoreRecord>> {
        Ok(self.stores()?.into_iter().filter(|record| record.store == Store::Cache).collect())
    }

    /// All known caches and write logs, by path.
    ///
    /// # Errors
    /// When the folder or a record cannot be read; `Mismatch` for a damaged record, which may be of any store.
    pub fn stores(&self) -> Result<Vec<StoreRecord>> {
        let mut records = Vec::new();
        for path in self.files(record_file::EXTENSION)? {
            records.extend(read(&path)?);
        }
        records.sort();
        Ok(records)
    }

    /// The length in bytes of the cache or log at this place, if it is known.
    ///
    /// # Errors
    /// As [`stores`](Self::stores).
    pub(crate) fn length_of(&self, place: &Place) -> Result<Option<u64>> {
        Ok(self.stores()?.into_iter().find(|record| record.place() == *place).and_then(|record| record.length))
    }

    /// Refuses these bytes of the file or block device of `place` when any of them belong to
    /// another store, in use or not.
    ///
    /// # Errors
    /// `InUse`, naming that store, or the other name of this one; as [`stores`](Self::stores).
    pub(crate) fn check_apart(&self, place: &Place, range: ByteRange) -> Result<()> {
        for record in self.stores()? {
            let (other, what) = (record.place(), record.store.as_str());
            let is_in_the_way = other != *place && other.shares_file_with(place) && record.range().overlaps(&range);
            // A store that cannot be examined may exist.
            if !is_in_the_way || matches!(content_is_there(&other), Ok(false)) {
                continue;
            }
            if other.offset == place.offset {
                let message = format!(
                    "{place} is another name (a link) of the cache {other} of \"{}\": use it by that name, {}",
                    record.name,
                    other.argument("cache")
                );
                return Err(Error::new(Failure::InUse, message));
            }
            let whole = || "all of it".to_owned();
            let taken = record.length.map_or_else(whole, |length| format!("{} of it", ByteSize(length)));
            let message = format!(
                "{place} overlaps the {what} {other} of \"{}\" (LUN serial {}), which takes {taken}: choose another \
                 place, or give that {what} up with `forebay {what} discard {}`",
                record.name,
                record.serial,
                other.argument(what)
            );
            return Err(Error::new(Failure::InUse, message));
        }
        Ok(())
    }

    fn file(&self, place: &Place) -> PathBuf {
        let mut bytes = place.path.as_os_str().as_encoded_bytes().to_vec();
        if let Some(offset) = place.offset {
            bytes.extend(format!("\0{offset}").bytes());
        }
        self.directory.join(format!("{}.json", Uuid::new_v5(&Uuid::NAMESPACE_OID, &bytes).simple()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::registry::Entry;

    #[test]
    fn caches_are_listed_until_they_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let identity = |serial: &str| Identity { target: "t".into(), unit: "u".into(), serial: serial.into() };
        let place = |name: &str| Place { path: name.into(), offset: None };
        let records = ["a", "b"].map(|name| StoreRecord::new(&place(name), 4096, &identity(name), "disk"));
        records.iter().rev().for_each(|record| caches.note(record).unwrap());
        caches.note(&records[0]).unwrap();
        assert_eq!(caches.list().unwrap(), records);
        caches.forget(&place("a")).unwrap();
        caches.forget(&place("a")).unwrap();
        assert_eq!(caches.list().unwrap(), records[1..]);
    }

    /// It may say of any store that it is an older copy, or that this host wrote to its LUN without it.
    #[test]
    fn a_record_that_cannot_be_read_or_is_of_another_version_is_said_and_never_taken_for_none() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let place = |name: &str| Place { path: name.into(), offset: None };
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        let record = StoreRecord::new(&place("/a"), 4096, &identity, "disk");
        caches.note(&record).unwrap();
        let file = caches.file(&place("/a"));
        let text = fs::read_to_string(&file).unwrap();
        for (damaged, why) in
            [(text.replace("\"version\": 1", "\"version\": 99"), "version 99 is not 1"), ("{".into(), "EOF")]
        {
            fs::write(&file, damaged).unwrap();
            let refused = [
                caches.find(&place("/a")).err(),
                caches.stores().err(),
                caches.note_stale(std::slice::from_ref(&identity), &[]).err(),
                caches.length_of(&place("/a")).err(),
                caches.other_copies(std::slice::from_ref(&identity), &[]).err(),
            ];
            for error in refused.into_iter().map(|error| error.expect("it is damaged")) {
                assert_eq!(error.failure(), Failure::Mismatch);
                let words = error.to_string();
                assert!(words.contains(why) && words.contains(file.to_str().unwrap()), "{words}");
            }
            caches.note(&StoreRecord::new(&place("/b"), 4096, &identity, "disk")).unwrap();
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(caches.stores().unwrap().len(), 1);
    }

    #[test]
    fn what_is_cut_beside_its_place_is_noted_once_it_has_that_and_of_no_other_store() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let place = Place { path: directory.path().join("a"), offset: None };
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        let uuid = Some(Uuid::from_bytes([1; 16]));
        caches.note(&StoreRecord { uuid, ..StoreRecord::new(&place, 4096, &identity, "disk") }).unwrap();
        caches.registry.insert(&Entry { uuid, ..Entry::new(&identity, &place, "disk") }).unwrap();
        let noted = || {
            let entry = caches.registry.find(&identity, Store::Cache).unwrap().unwrap();
            (entry.has_failed, caches.find(&place).unwrap().unwrap().is_cut)
        };
        let beside = OpenStore::default();
        caches.note_cut(&place, &beside).unwrap();
        caches.note_cut(&place, &OpenStore::at_place(Some(Uuid::from_bytes([2; 16])))).unwrap();
        assert_eq!(noted(), (false, false));
        caches.note_in_place(&place, &beside).unwrap();
        let tokens = Tokens { in_use: 1, closed: 2 };
        caches.note_succeeded(&place, tokens, Some(&beside)).unwrap();
        assert_eq!(noted(), (true, true));
        caches.note_succeeded(&place, tokens, None).unwrap();
        assert_eq!(noted(), (true, true), "it is the same one");
        caches.note_succeeded(&place, tokens, Some(&OpenStore::default())).unwrap();
        assert!(!noted().1, "it has gone");
    }

    #[test]
    fn what_has_the_uuid_of_a_store_that_is_open_is_another_copy_at_every_place() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let place = |name: &str| Place { path: directory.path().join(name), offset: None };
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        let record = |name, uuid, tokens: &[u64]| StoreRecord {
            uuid: Some(Uuid::from_bytes([uuid; 16])),
            tokens: tokens.to_vec(),
            ..StoreRecord::new(&place(name), 4096, &identity, "disk")
        };
        for (name, uuid, tokens) in [("a", 1, &[1, 2][..]), ("b", 1, &[1, 2]), ("c", 1, &[5, 3, 4]), ("d", 2, &[1])] {
            caches.note(&record(name, uuid, tokens)).unwrap();
        }
        caches.note_opened(&record("a", 1, &[3, 4])).unwrap();
        let tokens = caches.stores().unwrap().into_iter().map(|record| record.tokens);
        assert_eq!(tokens.collect::<Vec<_>>(), [vec![3, 4], vec![3, 4], vec![5, 3, 4], vec![1]]);
    }

    #[test]
    fn who_was_stopped_while_it_changes_records_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let stopped = caches.begin_change().unwrap();
        let place = Place { path: "/a".into(), offset: None };
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        let record = StoreRecord::new(&place, 4096, &identity, "disk");
        let error = caches.note(&record).unwrap_err();
        assert_eq!(error.failure(), Failure::InUse);
        assert!(error.to_string().contains("caches/lock"), "{error}");
        drop(stopped);
        caches.note(&record).unwrap();
    }

    #[test]
    fn the_marks_of_a_store_that_is_given_up_are_kept_until_their_target_forgot_them() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let identity = |serial: &str| Identity { target: "t".into(), unit: "u".into(), serial: serial.into() };
        let place = Place { path: "/a".into(), offset: None };
        let marks = [1, 2].map(|byte| MarkRecord::new([byte; 16], 7));
        let mut record = StoreRecord::new(&place, 4096, &identity("one"), "disk");
        record.luns = vec![
            LunRecord::new(&identity("one"), Some(marks[0].clone())),
            LunRecord::new(&identity("two"), Some(marks[1].clone())),
            LunRecord::new(&identity("three"), None),
        ];
        caches.note(&record).unwrap();
        let released = |serial| caches.released_marks(&identity(serial)).unwrap();
        assert_eq!(released("one"), [], "its store is there");
        caches.forget(&place).unwrap();
        assert_eq!((released("one"), released("two")), (vec![marks[0].clone()], vec![marks[1].clone()]));
        assert_eq!(caches.stores().unwrap(), []);
        caches.note_forgotten(&marks[0]).unwrap();
        assert_eq!((released("one"), released("two").len()), (vec![], 1));
        caches.note(&record).unwrap();
        assert_eq!(released("two"), [], "a store has it again");
    }

    /// `/dev/full` is in the place of each new file.
    #[test]
    fn on_a_full_disk_a_store_is_noted_as_cut_and_struck_from_the_list() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let (caches, registry) = (Caches::open(&paths).unwrap(), Registry::open(&paths).unwrap());
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        let place = Place { path: "/a".into(), offset: None };
        let mut record = StoreRecord::new(&place, 4096, &identity, "disk");
        let mark = MarkRecord::new([1; 16], 7);
        record.luns = vec![LunRecord::new(&identity, Some(mark.clone()))];
        caches.note(&record).unwrap();
        registry.insert(&Entry::new(&identity, &place, "disk")).unwrap();
        let fill = || {
            let files =
                [paths.caches(), paths.registry()].map(|folder| record_file::files_in(&folder, "json").unwrap());
            for file in files.into_iter().flatten().chain([caches.mark_file(&mark)]) {
                let new = PathBuf::from(format!("{}.new", file.display()));
                let _ = fs::remove_file(&new);
                std::os::unix::fs::symlink("/dev/full", new).unwrap();
            }
        };
        fill();
        caches.note_cut(&place, &OpenStore::at_place(None)).unwrap();
        assert!(caches.find(&place).unwrap().unwrap().is_cut && caches.list().unwrap()[0].is_cut);
        let [entry] = &registry.entries().unwrap()[..] else { panic!("it is there") };
        assert!(entry.has_failed && registry.find(&identity, Store::Cache).unwrap().unwrap().has_failed);
        fill();
        registry
            .insert(entry)
            .and_then(|()| caches.note(&record))
            .expect("as `discard` looks whether it can write them");
        registry.remove_cache(&place).and_then(|()| caches.forget(&place)).unwrap();
        assert_eq!((registry.entries().unwrap(), caches.stores().unwrap()), (vec![], vec![]));
    }

    /// `/dev/full` is in the place of each new file. The target comes back again and again, and attaches are refused.
    #[test]
    fn that_a_store_was_cut_is_noted_on_a_full_disk_whatever_was_noted_before() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s".into() };
        let place = Place { path: "/a".into(), offset: None };
        let with = |name: String| {
            let mark = MarkRecord::new([1; 16], 7);
            let luns = vec![LunRecord::new(&identity, Some(mark))];
            StoreRecord { luns, tokens: vec![1], ..StoreRecord::new(&place, 4096, &identity, &name) }
        };
        caches.note(&with("disk".into())).unwrap();
        let file = caches.file(&place);
        let fill = || std::os::unix::fs::symlink("/dev/full", format!("{}.new", file.display())).unwrap();
        for number in 0..100 {
            let mark = MarkRecord::new([1; 16], u64::MAX - number);
            let mark = mark.with_candidate(u64::MAX - number).with_stage(MarkStage::TokenOwed);
            fill();
            caches.note_mark(&place, &mark).unwrap();
            fill();
            caches.note_mark(&place, &mark.settled()).unwrap();
            fill();
            caches.note_successor(&place, Tokens { in_use: number, closed: u64::MAX }).unwrap();
            let record = caches.find(&place).unwrap().unwrap();
            fill();
            caches.note(&StoreRecord { tokens: vec![u64::MAX, number, 1], ..record }).unwrap();
        }
        // The longest for which there is room.
        let named = |length: usize| {
            fill();
            caches.note(&with("n".repeat(length)))
        };
        let longest = (0..4096).rev().find(|&length| named(length).is_ok()).unwrap();
        assert!(longest > 512, "{longest}");
        fill();
        caches.note_cut(&place, &OpenStore::at_place(None)).unwrap();
        let record = caches.find(&place).unwrap().unwrap();
        assert!(record.is_cut && record.name.len() == longest);
    }

    #[test]
    fn caches_of_one_device_are_apart() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let disk = directory.path().join("disk");
        fs::write(&disk, vec![1; 64 << 10]).unwrap();
        let at = |offset| Place { path: disk.clone(), offset };
        let identity = Identity { target: "t".into(), unit: "u".into(), serial: "s7".into() };
        let record = StoreRecord::new(&at(Some(8192)), 8192, &identity, "first");
        caches.note(&record).unwrap();
        assert_eq!(caches.length_of(&at(Some(8192))).unwrap(), Some(8192));
        let check = |offset, length| caches.check_apart(&at(Some(offset)), ByteRange { offset, length });
        assert!(check(0, 8192).is_ok() && check(16384, 8192).is_ok() && check(8192, 8192).is_ok());
        let whole = ByteRange { offset: 0, length: u64::MAX };
        for error in [check(0, 12288), check(12288, 4096), caches.check_apart(&at(None), whole)] {
            let error = error.unwrap_err();
            assert_eq!(error.failure(), Failure::InUse);
            for word in ["\"first\"", "serial s7", "takes 8KiB", "--cache-offset 8KiB"] {
                assert!(error.to_string().contains(word), "{error}");
            }
        }
        // Other names of the same cache.
        let names = ["hard", "soft"].map(|name| directory.path().join(name));
        fs::hard_link(&disk, &names[0]).unwrap();
        std::os::unix::fs::symlink(&disk, &names[1]).unwrap();
        for name in names {
            let place = Place { path: name, offset: Some(8192) };
            let error = caches.check_apart(&place, ByteRange { offset: 8192, length: 8192 }).unwrap_err();
            assert_eq!(error.failure(), Failure::InUse);
            let by_its_name = format!("{} --cache-offset 8KiB", disk.display());
            assert!(error.to_string().contains("(a link)") && error.to_string().ends_with(&by_its_name), "{error}");
        }
        // A store that was wiped protects no bytes any more.
        fs::write(&disk, vec![0; 64 << 10]).unwrap();
        assert!(check(0, 12288).is_ok());
        fs::remove_file(&disk).unwrap();
        assert!(caches.check_apart(&at(None), whole).is_ok());
    }
}
