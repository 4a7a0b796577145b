//! The contents of the log: the map of the origin's sectors, with the segments, slots and RAM
//! copies that depend on it.
//!
//! Every change that takes part of a sector's newest copy away, or makes it clean, is made here. So
//! the counts of dirty sectors of a segment, and of live ones of a slot, agree with the map.

use base::clock::Instant;
use base::range::ByteRange;
use block::Error;
use store::ConflictingChanges;

use crate::layout::{Layout, LogPlace};
use crate::limits::UNIT_BYTES;
use crate::map::{ExtentMap, Piece};
use crate::numbers::{Sector, SlotNumber};
use crate::place::PlaceView;
use crate::records::RecordCache;
use crate::sectors::whole_sectors;
use crate::segments::Segments;
use crate::shadow::Shadow;
use crate::stage::{Slot, Stage, stage_tag};
use crate::sums::Sums;

/// The map of the log, with the segments and slots whose counts depend on it.
pub(crate) struct Contents {
    pub(crate) layout: Layout,
    pub(crate) map: ExtentMap,
    /// Pieces that the log has below volatile slots.
    pub(crate) shadow: Shadow,
    pub(crate) segments: Segments,
    pub(crate) stage: Option<Stage>,
    /// The newest records in RAM.
    pub(crate) records: RecordCache,
    pub(crate) sums: Sums,
    /// Place behind the last record applied to the map: a checkpoint of now lets replay start
    /// there.
    pub(crate) applied: LogPlace,
    /// Since when there have been zeroes that the origin lacks; `None` when there are none.
    pub(crate) zeroes_since: Option<Instant>,
}

impl Contents {
    /// Puts `piece` into the map as the newest of its sectors, and updates segments and slots for
    /// what it replaces. Returns the count of sectors in the log that it supersedes.
    pub(crate) fn index(&mut self, piece: Piece) -> u64 {
        let Self { layout, map, shadow, segments, stage, .. } = self;
        let mut superseded = 0;
        let is_shadowing = shadow.is_kept() && piece.is_in_stage();
        map.insert(piece, |old| {
            if is_shadowing && old.tag.is_dirty() && !old.is_in_stage() {
                superseded += old.sectors;
                shadow.insert(old, |_| {});
            } else {
                superseded += drop_piece(layout, segments, stage, &old);
            }
        });
        if !is_shadowing {
            shadow.remove(piece.sector, piece.sectors, |old| {
                drop_piece(layout, segments, stage, &old);
            });
        }
        if piece.is_in_segment() && piece.tag.is_dirty() {
            segments.add_dirty(layout.segment_of(piece.unit()), piece.sectors);
        }
        if map.clean_extents() > layout.extents_max() {
            // The origin has the data of clean extents.
            map.sweep(|_| false);
        }
        superseded
    }

    /// Removes some sectors from the map: the origin has newer data.
    pub(crate) fn forget(&mut self, sector: Sector, sectors: u64) {
        let Self { layout, map, shadow, segments, stage, .. } = self;
        let mut forget = |old| {
            drop_piece(layout, segments, stage, &old);
        };
        map.remove(sector, sectors, &mut forget);
        shadow.remove(sector, sectors, forget);
    }

    /// Removes clean copies of `sectors` from `sector` on from the map.
    pub(crate) fn forget_clean_in(&mut self, (sector, sectors): (Sector, u64)) {
        let clean: Vec<Piece> = self.map.pieces(sector, sectors).filter(|piece| !piece.tag.is_dirty()).collect();
        clean.iter().for_each(|piece| self.forget(piece.sector, piece.sectors));
    }

    /// Likewise, what is clean at the place of `copy`.
    pub(crate) fn forget_clean_at(&mut self, copy: &Piece) {
        let clean: Vec<Piece> = self.map.pieces_at(copy).filter(|found| !found.tag.is_dirty()).collect();
        clean.iter().for_each(|found| self.forget(found.sector, found.sectors));
    }

    /// Refuses dirty data where other hosts changed the origin. A range counts in whole sectors; a
    /// sector in two ranges counts twice.
    ///
    /// # Errors
    /// [`ConflictingChanges`], as the source of `Unsupported`.
    pub(crate) fn check_kept_changes(&self, ranges: &[ByteRange]) -> Result<(), Error> {
        let sectors = ranges.iter().flat_map(|&range| {
            let (first, sectors) = whole_sectors(range);
            let pieces = self.map.pieces(first, sectors);
            pieces.filter(|piece| piece.tag.is_dirty()).map(|piece| piece.sectors)
        });
        match sectors.sum::<u64>() * UNIT_BYTES {
            0 => Ok(()),
            bytes => Err(ConflictingChanges { bytes }.into()),
        }
    }

    /// A piece that is still needed of a slot that touches these sectors.
    pub(crate) fn piece_in_slot_of(&self, (sector, sectors): (Sector, u64)) -> Option<Piece> {
        let touches = |slot: &Slot| slot.sector < sector + sectors && sector < slot.sector + u64::from(slot.sectors);
        let slots = self.stage.iter().flat_map(Stage::slots_by_age).filter(|(_, _, slot)| touches(slot));
        let wholes = slots.map(|(_, place, slot)| Piece {
            sector: slot.sector,
            sectors: slot.sectors.into(),
            place,
            tag: stage_tag(),
        });
        wholes.filter_map(|whole| self.map.pieces_at(&whole).next()).next()
    }

    /// Marks clean what is still at the place from which a batch sent it. Returns the sectors that
    /// became clean.
    pub(crate) fn mark_clean(&mut self, sent: &Piece) -> u64 {
        if sent.is_in_stage() {
            // It went straight to the origin, since the log failed: its slot is not needed any
            // more.
            let there: Vec<Piece> = self.map.pieces_at(sent).collect();
            there.iter().for_each(|piece| self.forget(piece.sector, piece.sectors));
            return there.iter().map(|piece| piece.sectors).sum();
        }
        let Self { layout, map, shadow, segments, stage, .. } = self;
        let mut cleaned = 0;
        let mut clean = |piece: Piece| cleaned += drop_piece(layout, segments, stage, &piece);
        map.retag(sent, |tag| (tag.is_dirty() && !tag.is_lost()).then(|| tag.to_clean()), &mut clean);
        let shadowed: Vec<Piece> = shadow.pieces_at(sent).filter(|piece| !piece.tag.is_lost()).collect();
        shadowed.iter().for_each(|piece| shadow.remove(piece.sector, piece.sectors, &mut clean));
        if sent.is_zero() {
            // Clean zeroes need no extent: the origin has them.
            let zeroes: Vec<Piece> = map
                .pieces(sent.sector, sent.sectors)
                .filter(|piece| piece.is_zero() && !piece.tag.is_dirty())
                .collect();
            zeroes.iter().for_each(|piece| map.remove(piece.sector, piece.sectors, |_| {}));
        }
        cleaned
    }

    /// The parts of `held` that are still at its place and that the origin lacks.
    pub(crate) fn owed_at(&self, held: &Piece) -> impl Iterator<Item = Piece> + '_ {
        self.map.pieces_at(held).filter(|piece| piece.tag.is_dirty()).chain(self.shadow.pieces_at(held))
    }

    /// Pieces in the log that the origin lacks, from `sector` on, ascending: all dirty ones except
    /// those in slots.
    pub(crate) fn owed_from(&self, sector: Sector) -> impl Iterator<Item = Piece> + '_ {
        let mut logged = self.map.dirty_from(sector).filter(|piece| !piece.is_in_stage()).peekable();
        let mut shadowed = self.shadow.from(sector).peekable();
        std::iter::from_fn(move || match (logged.peek(), shadowed.peek()) {
            (Some(one), Some(other)) if one.sector < other.sector => logged.next(),
            (_, Some(_)) => shadowed.next(),
            (_, None) => logged.next(),
        })
    }

    /// The piece of [`Contents::owed_from`] that begins before `sector` and reaches behind it, from
    /// there on.
    pub(crate) fn owed_across(&self, sector: Sector) -> impl Iterator<Item = Piece> + '_ {
        let logged = self.map.dirty_across(sector).filter(|piece| !piece.is_in_stage());
        logged.into_iter().chain(self.shadow.across(sector))
    }

    /// Most extents that a checkpoint names: slots are not among them.
    pub(crate) fn owed_extents_max(&self) -> usize {
        self.map.dirty_extents() - self.map.staged_extents() + self.shadow.len()
    }

    /// Most extents of the map: those that a checkpoint names, as many clean ones, and those in
    /// slots, a sector each.
    pub(crate) fn map_extents_max(&self) -> usize {
        let slots = self.stage.as_ref().map_or(0, |stage| stage.slot_count() * stage.slot_sectors() as usize);
        2 * self.layout.extents_max() + slots
    }

    /// Whether the place of an extent is valid: that of a dirty one always is, that of a clean one
    /// until its segment is used again.
    pub(crate) fn is_current(&self, piece: &Piece) -> bool {
        piece.tag.is_dirty()
            || !piece.is_in_segment()
            || piece.tag.is_of(self.segments.get(self.layout.segment_of(piece.unit())).generation)
    }

    /// When the oldest data was written that the log has and the origin lacks, approximately.
    pub(crate) fn oldest_in_log_at(&self) -> Option<Instant> {
        earlier(self.segments.oldest_dirty_at(), self.zeroes_since)
    }

    /// Likewise, with the data in slots.
    pub(crate) fn oldest_dirty_at(&self) -> Option<Instant> {
        earlier(self.oldest_in_log_at(), self.stage.as_ref().and_then(Stage::oldest_at))
    }

    /// Notes that the data of a slot is in the log now. A newer slot that covers part of it remains
    /// the newest.
    pub(crate) fn note_moved(&mut self, slot: SlotNumber, piece: &Piece) {
        let Self { layout, map, shadow, segments, stage, .. } = self;
        let Some(stage) = stage else { return };
        let from = Piece { place: stage.place(slot), ..*piece };
        let found: Vec<Piece> = map.pieces(piece.sector, piece.sectors).filter(Piece::is_in_stage).collect();
        for found in found {
            let moved = piece.clip(found.sector, found.end());
            let is_newest = found.place == from.clip(found.sector, found.end()).place;
            if !is_newest && !shadow.is_kept() {
                continue;
            }
            segments.add_dirty(layout.segment_of(moved.unit()), moved.sectors);
            let superseded = |old: Piece| {
                if old.is_in_segment() {
                    segments.remove_dirty(layout.segment_of(old.unit()), old.sectors);
                }
            };
            if is_newest {
                map.insert(moved, |_| {});
                shadow.remove(moved.sector, moved.sectors, superseded);
            } else {
                shadow.insert(moved, superseded);
            }
        }
        stage.finish_move(slot);
    }

    /// Removes stale clean extents when they are many; and all clean ones when too many are left.
    pub(crate) fn sweep_if_large(&mut self) {
        if self.map.len() <= 2 * self.map.dirty_extents() + self.layout.extents_max() / 2 {
            return;
        }
        let Self { layout, map, segments, .. } = self;
        map.sweep(|piece| {
            piece.is_in_segment() && piece.tag.is_of(segments.get(layout.segment_of(piece.unit())).generation)
        });
        if map.clean_extents() > layout.extents_max() / 4 * 3 {
            // Otherwise the next sweep would soon follow, and find little.
            map.sweep(|_| false);
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

fn drop_piece(layout: &Layout, segments: &mut Segments, stage: &mut Option<Stage>, old: &Piece) -> u64 {
    if let PlaceView::Slot(unit) = old.place.view() {
        if let Some(stage) = stage {
            stage.supersede(unit, old.sectors);
        }
        return 0;
    }
    if !old.tag.is_dirty() {
        return 0;
    }
    if old.is_in_segment() {
        segments.remove_dirty(layout.segment_of(old.unit()), old.sectors);
    }
    old.sectors
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use store::Sequence;

    use super::*;
    use crate::numbers::SegmentNumber;
    use crate::nvram::VolatileRegion;
    use crate::options::FormatOptions;
    use crate::place::{Place, Zeroed};
    use crate::tag::Tag;

    const SECTORS: u64 = 48;
    const SECTORS_MAX: u64 = 4;

    /// The contents, with a model of each sector beside them.
    struct World {
        contents: Contents,
        twin: [Known; SECTORS as usize],
        open: SegmentNumber,
        offset: u64,
        sequence: Sequence,
    }

    #[derive(Clone, Copy, Default)]
    struct Known {
        /// Place of its newest bytes, and whether the origin lacks them.
        newest: Option<(Place, bool)>,
        /// Place in the log below a slot that the origin lacks.
        below: Option<Place>,
    }

    impl World {
        fn new(is_volatile: bool) -> Self {
            let slot_bytes = (SECTORS_MAX * UNIT_BYTES) as u32;
            let options = FormatOptions { slot_bytes, ..FormatOptions::paper() };
            let layout = Layout::new(4 << 20, &options).expect("it is large enough");
            let region = Arc::new(VolatileRegion::new(128 << 10));
            let stage = Stage::open(region, uuid::Uuid::nil(), layout.slot_bytes, false, false, Instant::START);
            let mut segments = Segments::new(layout.segment_count);
            let open = segments.take_next().expect("all are free");
            segments.open(open, Instant::START);
            let contents = Contents {
                layout,
                map: ExtentMap::default(),
                shadow: Shadow::new(is_volatile),
                segments,
                stage: Some(stage.expect("it is nobody's")),
                records: RecordCache::new(0),
                sums: Sums::new(layout.segment_count, false),
                applied: LogPlace::default(),
                zeroes_since: None,
            };
            Self { contents, twin: [Known::default(); SECTORS as usize], open, offset: 0, sequence: Sequence::NONE }
        }

        /// The next place of the log for `sectors`, and a tag for them.
        fn next_place(&mut self, sectors: u64) -> (Place, Tag) {
            let segments = &mut self.contents.segments;
            if self.offset + sectors * UNIT_BYTES > self.contents.layout.segment_bytes {
                segments.close(self.open);
                self.open = segments.take_next().expect("there are enough");
                segments.open(self.open, Instant::START);
                self.offset = 0;
            }
            let place = Place::segment(self.contents.layout.unit(self.open, self.offset));
            self.offset += sectors * UNIT_BYTES;
            (place, Tag::dirty(segments.get(self.open).generation))
        }

        fn twins(&mut self, piece: &Piece) -> impl Iterator<Item = (Place, &mut Known)> {
            let piece = *piece;
            let places = piece.sector.up_to(piece.end()).map(move |sector| piece.clip(sector, sector + 1).place);
            places.zip(&mut self.twin[piece.sector.0 as usize..piece.end().0 as usize])
        }

        fn is_staged(&self, sector: Sector, sectors: u64) -> bool {
            self.contents.map.pieces(sector, sectors).any(|piece| piece.is_in_stage())
        }

        fn write_slot(&mut self, sector: Sector, sectors: u64) {
            let is_volatile = self.contents.shadow.is_kept();
            let data = vec![1; (sectors * UNIT_BYTES) as usize];
            let stage = self.contents.stage.as_mut().expect("there are slots");
            let Some(unit) = stage.write(sector, &data, Instant::START) else { return };
            let piece = Piece { sector, sectors, place: Place::slot(unit), tag: Tag::dirty(0) };
            self.contents.index(piece);
            for (place, known) in self.twins(&piece) {
                let covered = known.newest.filter(|&(place, is_dirty)| is_dirty && !place.is_in_stage());
                known.below = covered.map(|(place, _)| place).or(known.below).filter(|_| is_volatile);
                known.newest = Some((place, true));
            }
        }

        /// Writes to the log what no slot has: slots are emptied first.
        fn write_log(&mut self, sector: Sector, sectors: u64, is_zeroing: bool) {
            if self.is_staged(sector, sectors) {
                return;
            }
            self.sequence = self.sequence.next();
            let (place, tag) = match is_zeroing {
                true => (Place::zeroes(self.sequence, Zeroed::Kept), Tag::dirty(0)),
                false => self.next_place(sectors),
            };
            let piece = Piece { sector, sectors, place, tag };
            self.contents.index(piece);
            self.twins(&piece).for_each(|(place, known)| *known = Known { newest: Some((place, true)), below: None });
        }

        fn move_oldest_slot(&mut self) {
            let is_volatile = self.contents.shadow.is_kept();
            let stage = self.contents.stage.as_mut().expect("there are slots");
            stage.begin_round(0.0);
            let [slot] = stage.take_moving(1)[..] else { return };
            stage.end_round();
            let (found, from) = (*stage.slot(slot), stage.place(slot));
            let (place, tag) = self.next_place(found.sectors.into());
            let piece = Piece { sector: found.sector, sectors: found.sectors.into(), place, tag };
            self.contents.note_moved(slot, &piece);
            for (index, (place, known)) in (0..).zip(self.twins(&piece)) {
                if known.newest == Some((from.advance(index), true)) {
                    *known = Known { newest: Some((place, true)), below: None };
                } else if is_volatile && known.newest.is_some_and(|(place, _)| place.is_in_stage()) {
                    known.below = Some(place);
                }
            }
        }

        fn clean(&mut self, from: Sector) {
            let Some(sent) = self.contents.owed_from(from).next() else { return };
            self.contents.mark_clean(&sent);
            for (place, known) in self.twins(&sent) {
                known.below = known.below.filter(|&below| below != place);
                if known.newest == Some((place, true)) {
                    known.newest = (!sent.is_zero()).then_some((place, false));
                }
            }
        }

        fn forget(&mut self, sector: Sector, sectors: u64) {
            self.contents.forget(sector, sectors);
            self.twin[sector.0 as usize..][..sectors as usize].fill(Known::default());
        }

        fn check(&self) {
            let contents = &self.contents;
            for (number, twin) in (0..).zip(&self.twin) {
                let sector = Sector(number);
                let found = contents.map.pieces(sector, 1).next().map(|piece| piece.clip(sector, sector + 1));
                assert_eq!(found.map(|piece| (piece.place, piece.tag.is_dirty())), twin.newest, "sector {number}");
                let below =
                    contents.shadow.from(Sector::FIRST).find(|piece| (piece.sector..piece.end()).contains(&sector));
                assert_eq!(below.map(|piece| piece.clip(sector, sector + 1).place), twin.below, "below {number}");
            }
            for segment in contents.layout.segments() {
                let is_here =
                    |piece: &Piece| piece.is_in_segment() && contents.layout.segment_of(piece.unit()) == segment;
                let owed: u64 = contents.owed_from(Sector::FIRST).filter(is_here).map(|piece| piece.sectors).sum();
                assert_eq!(u64::from(contents.segments.get(segment).dirty_sectors), owed, "segment {segment}");
            }
            let stage = contents.stage.as_ref().expect("there are slots");
            for (_, place, slot) in stage.slots_by_age() {
                let whole = Piece { sector: slot.sector, sectors: slot.sectors.into(), place, tag: Tag::dirty(0) };
                assert!(contents.map.pieces_at(&whole).next().is_some(), "a slot with nothing in it is free");
            }
        }
    }

    proptest! {
        #[test]
        fn segments_and_slots_have_what_the_map_says(
            is_volatile: bool,
            steps in proptest::collection::vec((0..12u8, 0..SECTORS - SECTORS_MAX, 1..=SECTORS_MAX), 0..120),
        ) {
            let mut world = World::new(is_volatile);
            for (step, sector, sectors) in steps {
                let sector = Sector(sector);
                match step {
                    0..4 => world.write_slot(sector, sectors),
                    4 | 5 => world.write_log(sector, sectors, false),
                    6 => world.write_log(sector, sectors, true),
                    7 | 8 => world.move_oldest_slot(),
                    9 | 10 => world.clean(sector),
                    _ => world.forget(sector, sectors),
                }
                world.check();
            }
        }
    }
}
