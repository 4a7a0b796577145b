//! The list of caches and write logs of this host and user: their places and LUNs, whether they are in use or not.
//!
//! One record for each of them, made when it is attached, and removed when it is discarded, or removed at its end. It
//! says which copy of the store this host used last, whether what is clean in it still counts, and which marks it has.
//!
//! The [`registry`](crate::registry) stays a list of its own, since its files are: an entry there is found by its LUN,
//! and lives while data may be missing at that; a record here is found by its place, and lives from the attach to the
//! discard.
//!
//! | part | holds |
//! |---|---|
//! | [`record`] | a record |
//! | `changing` | the lock under which records are changed |
//! | `copies` | which copy of a store this host used last |
//! | `released_marks` | the marks that no store has |

use std::path::{Path, PathBuf};

use base::range::ByteRange;
use base::units::ByteSize;
use block::Identity;
use file::CutNote;
use uuid::Uuid;

use self::changing::Changing;
use self::released_marks::{ReleasedMarks, marks_in};
use crate::content::content_is_there;
use crate::error::{Error, Failure, Result};
use crate::open_store::{OpenStore, Standing};
use crate::paths::{Paths, make_private};
use crate::place::Place;
use crate::record_file;
use crate::registry::{Registry, Store};

mod changing;
mod copies;
pub mod record;
mod released_marks;

pub use record::{LunRecord, MarkRecord, MarkStage, StoreRecord};
pub(crate) use released_marks::MarkInMaking;

/// The record in a file; `None` where there is none, or none any more.
fn read(file: &Path) -> Result<Option<StoreRecord>> {
    record_file::listed(file, || {
        "it should say which cache or write log was used last at its place; restore it, or remove it: then that store \
         begins without clean lines, and what is dirty in it is refused until `--set overwrite-changes=on`"
            .to_owned()
    })
}

/// All records. Several processes change records at once, also those of other processes' stores:
/// attachments that share a LUN note in each other's records that this host writes without them. So
/// every change is read and written under one lock.
#[derive(Clone)]
pub struct Caches {
    directory: PathBuf,
    registry: Registry,
    released: ReleasedMarks,
}

impl Caches {
    /// The caches of this host and user.
    ///
    /// # Errors
    /// When their folder cannot be made.
    pub fn open(paths: &Paths) -> Result<Self> {
        let directory = paths.caches();
        make_private(&directory)?;
        let released = ReleasedMarks { directory: directory.clone() };
        Ok(Self { directory, registry: Registry::open(paths)?, released })
    }

    fn begin_change(&self) -> Result<Changing> {
        Changing::begin(&self.directory)
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
        let file = self.file(place);
        record_file::remove(&file).map_err(|error| Error::io(file.display(), &error))
    }

    /// Notes that no store has the mark of `lun`: its target is to remove it, unless a record names
    /// it by then.
    ///
    /// # Errors
    /// When that note cannot be written.
    pub(crate) fn note_released(&self, lun: &LunRecord) -> Result<()> {
        self.released.note(lun)
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
            held.extend(self.released.note_in_making(lun)?);
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

    /// The marks of the LUN `identity` that belong to no store any more, and to none that is about to be opened.
    ///
    /// # Errors
    /// When the folder cannot be read; a malformed file is ignored.
    pub fn released_marks(&self, identity: &Identity) -> Result<Vec<MarkRecord>> {
        let files = self.released.files()?;
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let _changing = self.begin_change()?;
        let mut released = marks_in(files, identity);
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
        self.released.forget(mark)
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
        let files = record_file::files_in(&self.directory, record_file::EXTENSION);
        for path in files.map_err(|error| Error::io(self.directory.display(), &error))? {
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
mod tests;
