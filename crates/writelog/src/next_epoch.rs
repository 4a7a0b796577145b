//! The choice of the next epoch from the records of the log, and its bytes ([`crate::epoch`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use base::buffer::Buffer;
use futures_util::lock::Mutex;
use futures_util::stream::StreamExt;
use store::Sequence;

use crate::append::RecordSender;
use crate::batch::{Batch, batch_bytes};
use crate::counters::Counters;
use crate::epoch::Epoch;
use crate::format::FLAG_EPOCH_END;
use crate::found::Found;
use crate::images::Images;
use crate::limits::UNIT_BYTES;
use crate::loaded::{Loaded, SegmentLoader, without};
use crate::log_state::{LogState, State};
use crate::map::{ExtentMap, Piece};
use crate::numbers::{Sector, SegmentNumber};
use crate::pins::Pins;
use crate::place::PlaceView;
use crate::settings::Settings;
use crate::stage::Stage;
use crate::unit::LogUnit;

/// Chooses the next epoch and reads its bytes.
pub(crate) struct Epochs {
    pub(crate) log: Arc<LogState>,
    pub(crate) loader: Arc<SegmentLoader>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) records: Arc<RecordSender>,
    /// Held during a batch of level 2. Also guards the unfinished epoch: only the holder, which sends, knows how far it
    /// is sent.
    pub(crate) destaging: Arc<Mutex<Option<Epoch>>>,
}

impl Epochs {
    /// The next part of the epoch under way, or of the next one.
    pub(crate) async fn select(&self, epoch: &mut Option<Epoch>) -> Batch {
        let mut known = None;
        if epoch.is_none() {
            (*epoch, known) = self.find_epoch().await;
        }
        let pins = Pins::none(&self.records);
        let Some(epoch) = epoch else {
            return Batch { pieces: Vec::new(), images: Images::default(), part: None, _pins: pins };
        };
        let bytes_max = if known.is_some() { u64::MAX } else { batch_bytes(&self.log.state(), &self.settings) };
        let (pieces, part) = epoch.next_part(bytes_max);
        // A segment with records of the epoch is not used again before it is sent, so none is
        // pinned.
        let (pieces, images) = match known {
            Some(images) => (pieces, images),
            None => self.read_pieces(pieces).await,
        };
        Batch { pieces, images, part: Some(part), _pins: pins }
    }

    /// Makes the found records the first epoch, unless slots have newer data: the map has the
    /// newest of each sector, and what would have followed was lost with the RAM.
    pub(crate) async fn begin_with_found(&self) {
        let mut epoch = self.destaging.lock().await;
        let state = self.log.state();
        let is_all = state.contents.stage.as_ref().is_none_or(Stage::is_empty);
        if is_all && state.destaged.sequence() < state.destaged.found() {
            *epoch =
                Some(self.epoch_of(&state, state.contents.owed_from(Sector::FIRST).collect(), state.destaged.found()));
        }
    }

    /// Makes the data that another order left the first epoch. It is part of no epoch, so all of it
    /// is one, and goes before anything newer. The records do not say what the origin lacks:
    /// segments with newer ones may have been used again.
    pub(crate) async fn begin_with_leftovers(&self) {
        let mut epoch = self.destaging.lock().await;
        let state = &mut *self.log.state();
        let found = state.destaged.found();
        let pieces: Vec<Piece> = state.contents.owed_from(Sector::FIRST).collect();
        if pieces.is_empty() {
            state.destaged.begin_at(found);
            return;
        }
        state.destaged.begin_with_leftovers();
        *epoch = Some(self.epoch_of(state, pieces, found));
    }

    /// The epoch up to `end` of these pieces, one for each sector.
    fn epoch_of(&self, state: &State, pieces: Vec<Piece>, end: Sequence) -> Epoch {
        let last_of = |segment: SegmentNumber| state.contents.segments.get(segment).last_sequence.min(end);
        let lasts: Vec<Sequence> = state.contents.segments.by_age().map(last_of).collect();
        let newest = state.newest();
        let mut rest = BTreeMap::from([(end, Vec::new())]);
        for piece in pieces {
            let last = if piece.is_zero() {
                let record = piece.place.record(newest);
                lasts.get(lasts.partition_point(|&last| last < record)).copied().unwrap_or(end)
            } else {
                last_of(self.log.layout.segment_of(piece.unit()))
            };
            rest.entry(last).or_insert_with(Vec::new).push(piece);
        }
        Epoch::new(rest)
    }

    /// The epoch behind the last one, if it has an end; with its bytes, if they are no more than a
    /// batch.
    async fn find_epoch(&self) -> (Option<Epoch>, Option<Images>) {
        let (mut segments, destaged, applied, found, count) = {
            let state = &mut *self.log.state();
            if !state.destaged.take_epoch_hint() {
                return (None, None);
            }
            let (destaged, applied) = (state.destaged.sequence(), state.newest());
            let is_behind =
                |segment: &SegmentNumber| state.contents.segments.get(*segment).last_sequence.min(applied) > destaged;
            let segments: Vec<SegmentNumber> = state.contents.segments.by_age().filter(is_behind).collect();
            let count = (batch_bytes(state, &self.settings) / self.log.layout.segment_bytes).max(1) as usize;
            (segments, destaged, applied, state.destaged.found(), count)
        };
        let (mut images, mut end) = (Some(Images::default()), None);
        // Oldest first; `waiting` has the pieces behind the last end of an epoch.
        let (mut pieces, mut waiting) = (Vec::new(), Vec::new());
        // Reads no further ahead than needed, unless an epoch is longer. The first epoch of this
        // opening has all records that the program before may have sent without recording it: sent
        // again up to an earlier end, it would take the origin back there.
        let mut seen = destaged;
        let rest = segments.split_off(count.min(segments.len()));
        let (mut loading, mut index) = (self.loader.load_in_order(segments).chain(self.loader.load_in_order(rest)), 0);
        while index < count || end.is_none() || seen < found.min(applied) {
            let Some((segment, loaded)) = loading.next().await else { break };
            index += 1;
            let last = self.log.state().contents.segments.get(segment).last_sequence.min(applied);
            seen = seen.max(last);
            self.loader.lose_damaged(segment, &loaded);
            images = images.filter(|_| index <= count).map(|mut images| {
                images.extend(loaded.images);
                images
            });
            let is_new = |record: &Found| (destaged.next()..=applied).contains(&record.sequence);
            for record in loaded.records.into_iter().filter(is_new) {
                waiting.extend(record.pieces);
                if record.flags & FLAG_EPOCH_END != 0 {
                    end = Some(record.sequence);
                    pieces.append(&mut waiting);
                }
            }
            if !loaded.is_whole {
                // The order ends here: the rest that can still be read is sent with this batch.
                end = end.max(Some(last).filter(|&last| last > destaged));
                pieces.append(&mut waiting);
            }
        }
        let sectors = |pieces: &[Piece]| pieces.iter().map(|piece| piece.sectors).sum::<u64>();
        let written = sectors(&pieces);
        let pieces = newest(pieces);
        self.counters.superseded(written - sectors(&pieces));
        let epoch = end.map(|end| self.epoch_of(&self.log.state(), pieces, end));
        (epoch, images)
    }

    /// Removes what is dirty in records up to `destaged_sequence`: it is on the origin. A
    /// checkpoint collects dirty extents first and reads that number last, so nothing behind it is
    /// missing.
    pub(crate) async fn forget_destaged(&self) {
        let destaged = self.log.state().destaged.sequence();
        let across = {
            let state = self.log.state();
            let is_across = |segment: &SegmentNumber| {
                let entry = state.contents.segments.get(*segment);
                (entry.first_sequence..entry.last_sequence).contains(&destaged)
            };
            state.contents.segments.by_age().find(is_across)
        };
        let mut end = LogUnit(0);
        if let Some(segment) = across {
            let records = self.loader.load_segment(segment).await.records;
            let sent = records.iter().filter(|record| record.sequence <= destaged);
            end = self.log.layout.unit(segment, sent.map(|record| record.end).max().unwrap_or(0));
        }
        let state = &mut *self.log.state();
        let newest = state.newest();
        let is_sent = |piece: &Piece| match piece.place.view() {
            PlaceView::Zeroes(_) => piece.place.record(newest) <= destaged,
            PlaceView::Segment(unit) if Some(self.log.layout.segment_of(unit)) == across => unit < end,
            PlaceView::Segment(unit) => {
                state.contents.segments.get(self.log.layout.segment_of(unit)).last_sequence <= destaged
            }
            PlaceView::Slot(_) => false,
        };
        let sent: Vec<Piece> = state.contents.owed_from(Sector::FIRST).filter(is_sent).collect();
        // Removed rather than marked clean: these bytes were not compared with their checksums, and
        // the origin has them.
        sent.iter().for_each(|piece| state.contents.forget(piece.sector, piece.sectors));
    }

    /// Reads the bytes of these pieces; damaged ones are left out.
    async fn read_pieces(&self, pieces: Vec<Piece>) -> (Vec<Piece>, Images) {
        let (logged, mut whole): (Vec<Piece>, Vec<Piece>) = pieces.into_iter().partition(Piece::is_in_segment);
        let mut by_segment: BTreeMap<SegmentNumber, Vec<Piece>> = BTreeMap::new();
        for piece in logged {
            by_segment.entry(self.log.layout.segment_of(piece.unit())).or_default().push(piece);
        }
        let mut images = Images::default();
        let mut loading = self.loader.load_in_order(by_segment.keys().copied().collect());
        while let Some((segment, loaded)) = loading.next().await {
            self.loader.lose_damaged(segment, &loaded);
            for piece in by_segment.remove(&segment).into_iter().flatten().flat_map(|piece| intact(&loaded, &piece)) {
                if let Some(bytes) = loaded.images.get(piece.unit(), (piece.sectors * UNIT_BYTES) as usize) {
                    images.insert(piece.unit(), Arc::new(Buffer::copy_of(bytes)));
                    whole.push(piece);
                }
            }
        }
        whole.sort_unstable_by_key(|piece| piece.sector);
        (whole, images)
    }
}

/// The parts of a piece that whole records have.
fn intact(loaded: &Loaded, piece: &Piece) -> Vec<Piece> {
    loaded.missing_of(piece).iter().fold(vec![*piece], |parts, missing| {
        parts.iter().flat_map(|part| without(part, missing.unit(), missing.unit_end())).collect()
    })
}

/// For each sector the newest of these pieces, which are in the order of their records; ascending.
/// The usual case, that some have the same range, takes a sort; other overlaps take a map.
fn newest(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut sorted = pieces.clone();
    sorted.sort_by_key(|piece| piece.sector);
    // Of pieces with the same range the last one stays.
    sorted.dedup_by(|next, kept| {
        let is_same = (next.sector, next.sectors) == (kept.sector, kept.sectors);
        if is_same {
            *kept = *next;
        }
        is_same
    });
    if sorted.windows(2).all(|pair| pair[0].end() <= pair[1].sector) {
        return sorted;
    }
    let mut map = ExtentMap::default();
    pieces.into_iter().for_each(|piece| map.insert(piece, |_| {}));
    map.dirty_from(Sector::FIRST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Place;
    use crate::tag::Tag;
    use crate::tests::Parts;
    use proptest::prelude::*;

    const SECTORS: u64 = 64;

    proptest! {
        /// Against a table of sectors.
        #[test]
        fn the_newest_piece_of_each_sector_is_left(
            writes in proptest::collection::vec((0..SECTORS / 4, 1..3u64), 0..40),
        ) {
            let pieces: Vec<Piece> = (0u64..).zip(writes).map(|(index, (at, count))| {
                let place = Place::segment(LogUnit(index * 100));
                Piece { sector: Sector(at * 4), sectors: count * 4, place, tag: Tag::dirty(0) }
            }).collect();
            let mut twin = vec![None; SECTORS as usize + 8];
            for piece in &pieces {
                let place = |sector| piece.clip(sector, sector + 1).place;
                piece.sector.up_to(piece.end()).for_each(|sector| twin[sector.0 as usize] = Some(place(sector)));
            }
            let mut found = vec![None; twin.len()];
            let mut last = Sector::FIRST;
            for piece in newest(pieces) {
                prop_assert!(piece.sector >= last);
                last = piece.end();
                let place = |sector| piece.clip(sector, sector + 1).place;
                piece.sector.up_to(last).for_each(|sector| found[sector.0 as usize] = Some(place(sector)));
            }
            prop_assert_eq!(found, twin);
        }
    }

    /// Alone, without a log around it: the newest of each sector *in the epoch*, with its bytes.
    #[test]
    fn an_epoch_is_found_in_the_records_with_the_bytes_of_its_newest() {
        let mut parts = Parts::new(|_| {});
        let (records, loader) = (Arc::new(parts.assembly.records()), Arc::new(parts.assembly.loader()));
        let epochs = Arc::new(parts.assembly.epochs(&records, &loader));
        parts.append(&records, 0, 8, 1);
        let [newer, beside] = [(0, 2), (16, 3)].map(|(sector, byte)| parts.append(&records, sector, 8, byte));
        let finding = Arc::clone(&epochs);
        let batch = parts.executor.block_on(async move { finding.select(&mut None).await });
        let places: Vec<Place> = batch.pieces.iter().map(|piece| piece.place).collect();
        assert_eq!(places, [newer.place, beside.place]);
        assert_eq!(batch.images.get(newer.unit(), 512), Some(&[2; 512][..]));
        assert!(batch.part.is_some_and(|part| part.is_last));
    }
}
