//! Which copy of a store this host used last, by the tokens in its record: what has others is another copy.

use block::Identity;
use store::Tokens;

use super::Caches;
use super::record::StoreRecord;
use crate::content::{store_at, uuid_at};
use crate::error::{Error, Failure, Result};
use crate::open_store::OpenStore;
use crate::place::Place;

impl Caches {
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
}
