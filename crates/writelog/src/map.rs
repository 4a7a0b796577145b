//! The map: which sectors of the origin are in the log or in RAM, and where, as runs of sectors
//! (*extents*) by their first sector.
//!
//! An extent's bytes stand one behind the other from its [`Place`] on.
//!
//! Dirty extents are what the origin lacks. Clean ones serve reads until their segment is used again: a segment has
//! a *generation*, and an extent of an older one counts for nothing. Such leftovers are swept out when they are many,
//! so that using a segment again costs no search.
//!
//! Memory of an extent: see [`crate::sorted`].

use crate::limits::{UNIT_BYTES, ZERO_BYTES_A_BYTE};
use crate::numbers::Sector;
use crate::place::{Place, PlaceView};
use crate::sorted::{Extent, SortedExtents};
use crate::tag::Tag;
use crate::unit::LogUnit;

/// A run of sectors, with its place and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) sector: Sector,
    pub(crate) sectors: u64,
    pub(crate) place: Place,
    pub(crate) tag: Tag,
}

impl Piece {
    pub(crate) fn end(&self) -> Sector {
        self.sector + self.sectors
    }

    pub(crate) fn is_in_segment(&self) -> bool {
        self.place.is_in_segment()
    }

    pub(crate) fn is_in_stage(&self) -> bool {
        self.place.is_in_stage()
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.place.is_zero()
    }

    /// The unit of the segments at which it begins; only for a piece in a segment.
    pub(crate) fn unit(&self) -> LogUnit {
        match self.place.view() {
            PlaceView::Segment(unit) => unit,
            PlaceView::Slot(_) | PlaceView::Zeroes(_) => {
                unreachable!("only what is in a segment has a unit of the log")
            }
        }
    }

    /// The unit of the segments at which it ends; only for a piece in a segment.
    pub(crate) fn unit_end(&self) -> LogUnit {
        self.unit() + self.sectors
    }

    /// The part of it in `start..end`, which overlaps it.
    pub(crate) fn clip(&self, start: Sector, end: Sector) -> Self {
        let (from, to) = (self.sector.max(start), self.end().min(end));
        Self { sector: from, sectors: to - from, place: self.place.advance(from - self.sector), tag: self.tag }
    }

    /// The cost of sending it, as bytes of data: zeroes and discards are requests without data, but
    /// take the medium some time, too.
    pub(crate) fn destage_bytes(&self) -> u64 {
        let bytes = self.sectors * UNIT_BYTES;
        if self.is_zero() { (bytes / ZERO_BYTES_A_BYTE).max(UNIT_BYTES) } else { bytes }
    }

    /// Its first part that costs about `bytes`: only zeroes, which can be very many, are cut.
    pub(crate) fn within(&self, bytes: u64) -> Self {
        let sectors = (bytes.max(UNIT_BYTES) / UNIT_BYTES).saturating_mul(ZERO_BYTES_A_BYTE);
        if !self.is_zero() || sectors >= self.sectors {
            return *self;
        }
        let end = (self.sector + sectors).next_multiple_of(ZERO_BYTES_A_BYTE);
        if end < self.end() { self.clip(self.sector, end) } else { *self }
    }

    /// Whether `next` continues this piece, in sectors and in place.
    fn is_continued_by(&self, next: &Self) -> bool {
        let is_adjacent = self.place.is_continued_by(self.sectors, next.place);
        self.end() == next.sector && self.tag == next.tag && is_adjacent
    }
}

/// The extents of the log by their first sector.
#[derive(Default)]
pub(crate) struct ExtentMap {
    extents: SortedExtents,
    dirty_sectors: u64,
    dirty_extents: usize,
    /// Count of the dirty extents that are in slots.
    staged_extents: usize,
}

impl ExtentMap {
    /// Count of extents, clean and stale ones included.
    pub(crate) fn len(&self) -> usize {
        self.extents.len()
    }

    /// Count of dirty extents.
    pub(crate) fn dirty_extents(&self) -> usize {
        self.dirty_extents
    }

    /// Count of clean extents, stale ones included.
    pub(crate) fn clean_extents(&self) -> usize {
        self.extents.len() - self.dirty_extents
    }

    /// Count of extents in slots, which are all dirty.
    pub(crate) fn staged_extents(&self) -> usize {
        self.staged_extents
    }

    /// Count of dirty sectors.
    pub(crate) fn dirty_sectors(&self) -> u64 {
        self.dirty_sectors
    }

    /// The pieces in `sector..sector + sectors`, ascending and clipped.
    pub(crate) fn pieces(&self, sector: Sector, sectors: u64) -> impl Iterator<Item = Piece> + '_ {
        let end = sector + sectors;
        let before = self.extents.before(sector).map(piece).filter(|before| before.end() > sector);
        let others = self.extents.from(sector).map(piece).take_while(move |piece| piece.sector < end);
        before.into_iter().chain(others).map(move |piece| piece.clip(sector, end))
    }

    /// Dirty extents from `sector` on, ascending.
    pub(crate) fn dirty_from(&self, sector: Sector) -> impl Iterator<Item = Piece> + '_ {
        self.extents.from(sector).filter(|(_, extent)| extent.tag.is_dirty()).map(piece)
    }

    /// The dirty extent that begins before `sector` and reaches behind it, from `sector` on.
    pub(crate) fn dirty_across(&self, sector: Sector) -> Option<Piece> {
        let before = self.extents.before(sector).map(piece)?;
        (before.tag.is_dirty() && before.end() > sector).then(|| before.clip(sector, before.end()))
    }

    /// Adds a piece behind all others.
    pub(crate) fn append(&mut self, piece: Piece) {
        self.put(piece);
    }

    /// Puts `piece` into the map as the newest of its sectors. `removed` is called with each piece
    /// that it replaces.
    pub(crate) fn insert(&mut self, piece: Piece, mut removed: impl FnMut(Piece)) {
        let mut before = self.extents.before(piece.sector).map(self::piece);
        let next = self.extents.from(piece.sector).next().map(self::piece);
        let is_met = before.is_some_and(|before| before.end() > piece.sector);
        match next {
            // The same range was written again: the usual case.
            Some(same) if !is_met && same.sector == piece.sector && same.sectors == piece.sectors => {
                self.take(same.sector);
                removed(same);
            }
            next if is_met || next.is_some_and(|next| next.sector < piece.end()) => {
                self.remove(piece.sector, piece.sectors, removed);
                before = self.extents.before(piece.sector).map(self::piece);
            }
            _ => {}
        }
        let joined = match before {
            Some(before) if before.is_continued_by(&piece) && before.sectors + piece.sectors <= u64::from(u32::MAX) => {
                self.take(before.sector);
                Piece { sectors: before.sectors + piece.sectors, ..before }
            }
            _ => piece,
        };
        self.put(joined);
    }

    /// Removes what the map has of `sector..sector + sectors`.
    pub(crate) fn remove(&mut self, sector: Sector, sectors: u64, mut removed: impl FnMut(Piece)) {
        let end = sector + sectors;
        let mut next = self.extents.before(sector).map(piece).filter(|before| before.end() > sector);
        loop {
            let is_met = |piece: &Piece| piece.sector < end;
            let found = next.take().or_else(|| self.extents.from(sector).next().map(piece).filter(is_met));
            let Some(found) = found else { return };
            self.take(found.sector);
            if found.sector < sector {
                self.put(found.clip(found.sector, sector));
            }
            if found.end() > end {
                self.put(found.clip(end, found.end()));
            }
            removed(found.clip(sector, end));
        }
    }

    /// The parts of `held` that the map still has at the same place.
    pub(crate) fn pieces_at(&self, held: &Piece) -> impl Iterator<Item = Piece> + '_ {
        let (held, found) = (*held, self.pieces(held.sector, held.sectors));
        found.filter(move |piece| piece.place == held.clip(piece.sector, piece.end()).place)
    }

    /// Changes the tag of all sectors of `range` that are still at its place. `changed` is called
    /// with each changed piece.
    pub(crate) fn retag(&mut self, range: &Piece, tag: impl Fn(Tag) -> Option<Tag>, mut changed: impl FnMut(Piece)) {
        if let Some(whole) = self.retag_whole(range, &tag) {
            if let Some(piece) = whole {
                changed(piece);
            }
            return;
        }
        let found: Vec<Piece> = self.pieces_at(range).collect();
        for piece in found {
            if let Some(tag) = tag(piece.tag) {
                self.insert(Piece { tag, ..piece }, |_| {});
                changed(piece);
            }
        }
    }

    /// [`ExtentMap::retag`] of a range that is one extent, the usual case, without a search; `None`
    /// where it is not one. It is not joined with neighbours, even if that were possible now.
    fn retag_whole(&mut self, range: &Piece, tag: impl Fn(Tag) -> Option<Tag>) -> Option<Option<Piece>> {
        let extent = self.extents.get_mut(range.sector)?;
        if u64::from(extent.sectors) != range.sectors || extent.place != range.place {
            return None;
        }
        let before = extent.tag;
        debug_assert!(!range.is_in_stage() || before.is_dirty(), "slots are dirty until they are forgotten");
        let Some(after) = tag(before) else { return Some(None) };
        extent.tag = after;
        if before.is_dirty() && !after.is_dirty() {
            self.dirty_sectors -= range.sectors;
            self.dirty_extents -= 1;
        } else if !before.is_dirty() && after.is_dirty() {
            self.dirty_sectors += range.sectors;
            self.dirty_extents += 1;
        }
        Some(Some(Piece { tag: before, ..*range }))
    }

    /// Removes all clean extents that `is_wanted` refuses.
    pub(crate) fn sweep(&mut self, is_wanted: impl Fn(&Piece) -> bool) {
        self.extents.retain(|sector, extent| extent.tag.is_dirty() || is_wanted(&piece((sector, *extent))));
    }

    fn put(&mut self, piece: Piece) {
        if piece.tag.is_dirty() {
            self.dirty_sectors += piece.sectors;
            self.dirty_extents += 1;
            self.staged_extents += usize::from(piece.is_in_stage());
        }
        let extent = Extent { sectors: piece.sectors as u32, place: piece.place, tag: piece.tag };
        self.extents.insert(piece.sector, extent);
    }

    fn take(&mut self, sector: Sector) {
        let extent = self.extents.remove(sector).expect("it was found a line ago");
        if extent.tag.is_dirty() {
            self.dirty_sectors -= u64::from(extent.sectors);
            self.dirty_extents -= 1;
            self.staged_extents -= usize::from(extent.place.is_in_stage());
        }
    }
}

fn piece((sector, extent): (Sector, Extent)) -> Piece {
    Piece { sector, sectors: u64::from(extent.sectors), place: extent.place, tag: extent.tag }
}

#[cfg(test)]
mod tests {
    use store::Sequence;

    use super::*;
    use crate::place::Zeroed;
    use proptest::prelude::*;
    use std::collections::HashMap;

    const SECTORS: u64 = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Insert { sector: Sector, sectors: u64, place: u64, is_zero: bool },
        Remove { sector: Sector, sectors: u64 },
        Clean { sector: Sector, sectors: u64, place: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let range =
            (0..SECTORS, 1..24u64).prop_map(|(sector, sectors)| (Sector(sector), sectors.min(SECTORS - sector)));
        let step = prop_oneof![
            4 => (range.clone(), 0..200u64, any::<bool>())
                .prop_map(|((sector, sectors), place, is_zero)| Step::Insert { sector, sectors, place, is_zero }),
            1 => range.clone().prop_map(|(sector, sectors)| Step::Remove { sector, sectors }),
            2 => (range, 0..200u64).prop_map(|((sector, sectors), place)| Step::Clean { sector, sectors, place }),
        ];
        proptest::collection::vec(step, 1..80)
    }

    /// The naive model: one entry a sector.
    type Twin = HashMap<Sector, (Place, bool)>;

    fn in_log(unit: u64) -> Place {
        Place::segment(LogUnit(unit))
    }

    fn count(twin: &Twin) -> u64 {
        twin.values().filter(|(_, is_dirty)| *is_dirty).count() as u64
    }

    proptest! {
        #[test]
        fn extents_equal_the_naive_twin(steps in steps()) {
            let (mut map, mut twin) = (ExtentMap::default(), Twin::new());
            for step in steps {
                let mut removed_sectors = 0;
                match step {
                    Step::Insert { sector, sectors, place, is_zero } => {
                        let place = if is_zero { Place::zeroes(Sequence::NONE, Zeroed::Kept) } else { in_log(place) };
                        let piece = Piece { sector, sectors, place, tag: Tag::dirty(1) };
                        let held = sector.up_to(sector + sectors).filter(|sector| twin.contains_key(sector));
                        let expected = held.count() as u64;
                        map.insert(piece, |piece| removed_sectors += piece.sectors);
                        prop_assert_eq!(removed_sectors, expected);
                        for (index, sector) in sector.up_to(sector + sectors).enumerate() {
                            twin.insert(sector, (place.advance(index as u64), true));
                        }
                    }
                    Step::Remove { sector, sectors } => {
                        map.remove(sector, sectors, |_| {});
                        twin.retain(|other, _| !(sector..sector + sectors).contains(other));
                    }
                    Step::Clean { sector, sectors, place } => {
                        let place = in_log(place);
                        let range = Piece { sector, sectors, place, tag: Tag::dirty(1) };
                        map.retag(&range, |tag| tag.is_dirty().then(|| tag.to_clean()), |_| {});
                        for (index, sector) in sector.up_to(sector + sectors).enumerate() {
                            let place = place.advance(index as u64);
                            if let Some(entry) = twin.get_mut(&sector).filter(|entry| entry.0 == place) {
                                entry.1 = false;
                            }
                        }
                    }
                }
                prop_assert_eq!(map.dirty_sectors(), count(&twin));
                prop_assert_eq!(map.dirty_extents(), map.dirty_from(Sector::FIRST).count());
                let mut found = Twin::new();
                for piece in map.pieces(Sector::FIRST, SECTORS) {
                    for index in 0..piece.sectors {
                        let place = piece.place.advance(index);
                        prop_assert!(found.insert(piece.sector + index, (place, piece.tag.is_dirty())).is_none());
                    }
                }
                prop_assert_eq!(&found, &twin);
            }
        }
    }

    #[test]
    fn adjacent_records_of_a_sequential_write_are_one_extent() {
        let mut map = ExtentMap::default();
        for index in 0..100u64 {
            map.insert(
                Piece { sector: Sector(index * 8), sectors: 8, place: in_log(index * 8), tag: Tag::dirty(3) },
                |_| {},
            );
        }
        assert_eq!((map.len(), map.dirty_sectors()), (1, 800));
        map.sweep(|_| false);
        assert_eq!(map.len(), 1, "what is dirty is never swept out");
    }
}
