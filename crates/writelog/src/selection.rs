//! The choice of the pieces for one batch of level 2, by the destage order.
//!
//! | order | a batch is |
//! |---|---|
//! | `log` | an *epoch*, or the next part of one ([`crate::epoch`]) |
//! | `lba` | the next dirty extents in ascending order, around and around |
//! | `last-write-first` | what is dirty in the newest segments |
//! | when space is low (but for `lba` over a disk), and to clean everything | what is dirty in the oldest segments |
//!
//! A segment whose records are all still in RAM is taken from there. Other segments are read whole,
//! which is one request, and their records checked. Extents in order of LBA lie all over the log:
//! they are read by their places ([`crate::places`]), and only they stay in RAM.

use std::sync::Arc;

use block::Error;
use futures_util::stream::StreamExt;

use crate::append::RecordSender;
use crate::batch::{Batch, Choice, Goal, batch_bytes};
use crate::epoch::Epoch;
use crate::failure::FailureNote;
use crate::loaded::SegmentLoader;
use crate::log_state::{LogState, State};
use crate::map::Piece;
use crate::next_epoch::Epochs;
use crate::numbers::{Sector, SegmentNumber};
use crate::options::DestageOrder;
use crate::pins::Pins;
use crate::places::PlaceReader;
use crate::settings::Settings;

/// Chooses the pieces of batches, and reads their bytes.
pub(crate) struct Selection {
    pub(crate) log: Arc<LogState>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) records: Arc<RecordSender>,
    pub(crate) loader: Arc<SegmentLoader>,
    pub(crate) places: PlaceReader,
    pub(crate) epochs: Arc<Epochs>,
}

impl Selection {
    /// The choice for the next batch. To be called under the lock `destaging`: an earlier choice
    /// may be wrong by then.
    pub(crate) fn choice(&self, state: &State, goal: Goal) -> Choice {
        // Halfway between where writes slow down and where they stop.
        let is_low =
            state.room.is_wanted() || state.share_used() > f64::midpoint(self.settings.level2().share_slow, 1.0);
        match self.settings.order {
            // Data that only the log has goes first, while it can be read; also that in slots.
            _ if state.failure.has_come() => Choice::Lba,
            DestageOrder::Log => Choice::Epoch,
            _ if goal == Goal::Everything => Choice::Oldest,
            // On a disk a sweep that includes neighbours makes more room than the oldest segments
            // would.
            DestageOrder::Lba if !is_low || self.settings.level2().seek_bytes > 0 => Choice::Lba,
            DestageOrder::LastWriteFirst if !is_low => Choice::Newest,
            _ => Choice::Oldest,
        }
    }

    /// The next batch, or one without pieces when there is nothing to send.
    pub(crate) async fn select(&self, choice: Choice, epoch: &mut Option<Epoch>) -> Result<Batch, Error> {
        if choice != Choice::Epoch {
            // The map has what is left of the epoch.
            *epoch = None;
        }
        let batch = match choice {
            Choice::Epoch => return Ok(self.epochs.select(epoch).await),
            Choice::Lba => return Ok(self.select_by_lba().await),
            Choice::Newest | Choice::Oldest => self.select_segments(choice).await?,
        };
        // Zeroes are not in any segment: they are left when no segment is dirty.
        if batch.pieces.is_empty() { Ok(self.select_by_lba().await) } else { Ok(batch) }
    }

    async fn select_by_lba(&self) -> Batch {
        let (mut pieces, pins) = self.next_by_lba();
        let images = self.places.read(&pieces).await;
        self.keep_owed(&mut pieces);
        Batch { pieces, images, part: None, _pins: pins }
    }

    fn next_by_lba(&self) -> (Vec<Piece>, Pins) {
        let mut pins = Pins::none(&self.records);
        let state = &mut *self.log.state();
        let bytes_max = batch_bytes(state, &self.settings);
        let (mut pieces, mut bytes): (Vec<Piece>, u64) = (Vec::new(), 0);
        let cursor = state.lba_cursor;
        // When the log has failed, data in slots goes straight to the origin, once a later start
        // knows of the failure: it is newer than the log's.
        let dirty_from = |sector| -> Box<dyn Iterator<Item = Piece> + '_> {
            match state.failure.note {
                FailureNote::Untried | FailureNote::Nowhere => Box::new(state.contents.owed_from(sector)),
                _ => Box::new(state.contents.map.dirty_from(sector)),
            }
        };
        let before_cursor = dirty_from(Sector::FIRST).take_while(|piece| piece.sector < cursor);
        for piece in dirty_from(cursor).chain(before_cursor).filter(|piece| !piece.tag.is_lost()) {
            if bytes >= bytes_max {
                break;
            }
            let piece = piece.within(bytes_max - bytes);
            bytes += piece.destage_bytes();
            pieces.push(piece);
        }
        state.lba_cursor = pieces.last().map_or(Sector::FIRST, Piece::end);
        for piece in pieces.iter().filter(|piece| piece.is_in_segment()) {
            pins.add(&mut state.contents.segments, self.log.layout.segment_of(piece.unit()));
        }
        pieces.sort_unstable_by_key(|piece| piece.sector);
        (pieces, pins)
    }

    async fn select_segments(&self, choice: Choice) -> Result<Batch, Error> {
        let mut pins = Pins::none(&self.records);
        let chosen: Vec<SegmentNumber> = {
            let state = &mut *self.log.state();
            let is_dirty = |segment: &SegmentNumber| state.contents.segments.get(*segment).dirty_sectors > 0;
            let count = (batch_bytes(state, &self.settings) / self.log.layout.segment_bytes).max(1) as usize;
            let chosen: Vec<SegmentNumber> = match choice {
                Choice::Newest => state.contents.segments.by_age().rev().filter(is_dirty).take(count).collect(),
                _ => state.contents.segments.by_age().filter(is_dirty).take(count).collect(),
            };
            chosen.iter().for_each(|&segment| pins.add(&mut state.contents.segments, segment));
            chosen
        };
        let mut batch = Batch::new(pins);
        let mut loading = self.loader.load_in_order(chosen);
        while let Some((segment, loaded)) = loading.next().await {
            self.loader.lose_damaged(segment, &loaded);
            batch.pieces.extend(loaded.records.into_iter().flat_map(|record| record.pieces));
            batch.images.extend(loaded.images);
        }
        self.keep_owed(&mut batch.pieces);
        Ok(batch)
    }

    /// Removes pieces that were written again or lost while they were read. Done in one moment, so
    /// that no sector is in two pieces: requests go on.
    fn keep_owed(&self, pieces: &mut Vec<Piece>) {
        {
            let state = self.log.state();
            let owed = pieces.iter().flat_map(|piece| state.contents.owed_at(piece));
            *pieces = owed.filter(|piece| !piece.tag.is_lost()).collect();
        }
        pieces.sort_unstable_by_key(|piece| piece.sector);
        pieces.dedup();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Parts;

    #[test]
    fn pieces_are_chosen_by_the_order_and_the_oldest_first_where_room_is_short() {
        use DestageOrder::{LastWriteFirst, Lba, Log};
        for (order, seek_bytes, usually, when_low) in [
            (Log, 0, Choice::Epoch, Choice::Epoch),
            (Lba, 0, Choice::Lba, Choice::Oldest),
            (Lba, 1 << 20, Choice::Lba, Choice::Lba),
            (LastWriteFirst, 0, Choice::Newest, Choice::Oldest),
        ] {
            let parts = Parts::new(|options| {
                options.order = order;
                options.level2.seek_bytes = seek_bytes;
            });
            let (records, loader) = (Arc::new(parts.assembly.records()), Arc::new(parts.assembly.loader()));
            let epochs = Arc::new(parts.assembly.epochs(&records, &loader));
            let selection = parts.assembly.selection(&records, &loader, &epochs);
            let state = &mut *selection.log.state();
            let chosen = selection.choice(state, Goal::Background);
            state.room.ask();
            assert_eq!((chosen, selection.choice(state, Goal::Background)), (usually, when_low), "{order}");
        }
    }

    #[test]
    fn a_batch_in_order_of_lba_goes_on_where_the_last_one_ended() {
        let mut parts = Parts::new(|options| {
            options.order = DestageOrder::Lba;
            options.level2.batch_bytes = 8 * 512;
        });
        let (records, loader) = (Arc::new(parts.assembly.records()), Arc::new(parts.assembly.loader()));
        let epochs = Arc::new(parts.assembly.epochs(&records, &loader));
        let selection = Arc::new(parts.assembly.selection(&records, &loader, &epochs));
        for sector in [32, 0, 16] {
            parts.append(&records, sector, 8, 1);
        }
        let mut next = || {
            let selection = Arc::clone(&selection);
            let batch = parts.executor.block_on(async move { selection.select(Choice::Lba, &mut None).await });
            batch.expect("nothing fails").pieces.iter().map(|piece| piece.sector.0).collect::<Vec<_>>()
        };
        assert_eq!([next(), next(), next(), next()], [[0], [16], [32], [0]]);
    }
}
