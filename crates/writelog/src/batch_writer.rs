//! The writes of a batch to the origin: how many at a time, and what each carries.
//!
//! Writes in flight grow evenly from one at `share_start` of the log to all at `share_slow`, and likewise with the age
//! of its data: under constant load that finds the rate at which as much leaves as comes, and never waits for idleness.

use std::sync::Arc;

use base::buffer::Buffer;
use base::clock::Clock;
use block::device::DeviceExt;
use block::range_lock::RangeLock;
use block::{Device, Error, ErrorKind};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::activity::Activity;
use crate::batch::Batch;
use crate::counters::Counters;
use crate::images::Images;
use crate::limits::{AGE_SHARES, DESTAGE_WRITE_BYTES_MAX, DESTAGE_WRITES_A_WRITER, RUNS_A_LOOK};
use crate::log_state::LogState;
use crate::map::Piece;
use crate::numbers::Sector;
use crate::origin::Origin;
use crate::place::PlaceView;
use crate::runs::{Bounds, Run, joined, runs};
use crate::sectors::range_of;
use crate::settings::Settings;
use crate::used_buffers::UsedBuffers;

/// Sends batches to the origin.
pub(crate) struct BatchWriter {
    pub(crate) origin: Arc<Origin>,
    pub(crate) log: Arc<LogState>,
    pub(crate) settings: Arc<Settings>,
    /// Whether a request has come that interrupts a batch.
    pub(crate) activity: Arc<Activity>,
    /// Keeps reads of the origin from what changes there.
    pub(crate) below: RangeLock,
    pub(crate) buffers: UsedBuffers,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl BatchWriter {
    /// Sends all pieces; if `requests` is given, only until a later request comes. Removes from the
    /// batch what was not sent: all pieces from the returned sector on.
    pub(crate) async fn send(&self, batch: &mut Batch, requests: Option<u64>) -> Result<Option<Sector>, Error> {
        let runs = runs(&batch.pieces, &self.bounds(self.settings.level2().seek_bytes));
        let mut in_flight = FuturesUnordered::new();
        let mut runs = runs.into_iter();
        let mut sent: Vec<Piece> = Vec::new();
        let (mut stopped_at, mut result) = (None, Ok(()));
        let mut writes_in_flight = self.writes_in_flight();
        loop {
            let is_interrupted = requests.is_some_and(|requests| self.activity.count() != requests);
            if is_interrupted && !sent.is_empty() {
                stopped_at = stopped_at.or(runs.next().and_then(|run| run.pieces.first().map(|piece| piece.sector)));
                runs = Vec::new().into_iter();
            }
            if runs.len().is_multiple_of(RUNS_A_LOOK) {
                writes_in_flight = self.writes_in_flight();
            }
            if result.is_ok()
                && in_flight.len() < writes_in_flight
                && let Some(run) = runs.next()
            {
                let images = &batch.images;
                in_flight.push(async move { self.send_run(images, &run).await.map(|()| run) });
                continue;
            }
            match in_flight.next().await {
                Some(Ok(run)) => sent.extend(run.pieces),
                Some(Err(error)) => result = result.and(Err(error)),
                None => break,
            }
        }
        drop(in_flight);
        result?;
        sent.retain(|piece| !piece.tag.is_lost());
        batch.pieces = sent;
        Ok(stopped_at)
    }

    fn bounds(&self, seek_bytes: u64) -> Bounds {
        let geometry = self.origin.device().geometry();
        let block_bytes = u64::from(geometry.logical_block_bytes);
        let length_max = DESTAGE_WRITE_BYTES_MAX.min(u64::from(geometry.transfer_bytes_max));
        Bounds { block_bytes, length_max: (length_max / block_bytes * block_bytes).max(block_bytes), seek_bytes }
    }

    /// The rate controller: writes in flight for the share of the log in use, for the age of its
    /// data, and for the count of writers that wait for room.
    fn writes_in_flight(&self) -> usize {
        let level2 = &self.settings.level2();
        let state = self.log.state();
        let over = |value: f64, start: f64, full: f64| ((value - start) / (full - start).max(0.01)).clamp(0.0, 1.0);
        let space = over(state.share_used(), level2.share_start, level2.share_slow);
        let [_, share_old, share_full] = AGE_SHARES;
        let age = state.contents.oldest_in_log_at().map_or(0.0, |at| {
            over(self.settings.level2().share_of_age(self.clock.now().since(at)), share_old, share_full)
        });
        let share = if state.room.was_full() { 1.0 } else { space.max(age) };
        let most = level2.writes_in_flight.max(1) as f64;
        let waiting_count = if self.settings.is_staged() { 0 } else { state.waiting_count() };
        let for_waiting = (waiting_count * DESTAGE_WRITES_A_WRITER).min(level2.writes_when_full);
        ((1.0 + (most - 1.0) * share).round() as usize).max(for_waiting)
    }

    async fn send_run(&self, images: &Images, run: &Run) -> Result<(), Error> {
        let _below = self.below.exclusive(run.range).await;
        let named = run.pieces.first().filter(|_| run.is_zeroing).map(|piece| piece.place.view());
        if let Some(PlaceView::Zeroes(zeroed)) = named {
            return self.origin.zero(run.range, zeroed).await;
        }
        // Filled completely: by the pieces, or by the data read first.
        let buffer = self.buffers.take(run.range.length as usize);
        if !run.has_gaps() {
            return self.write_run(images, run, buffer).await;
        }
        match self.origin.device().read(run.range.offset, buffer).await {
            Ok(buffer) => self.write_run(images, run, buffer).await,
            Err(error) => {
                tracing::warn!(%error, range = %run.range, "what lies between destaged pieces cannot be read: they are \
                                                            sent one by one");
                let parts = joined(&run.pieces, &self.bounds(0));
                if parts.iter().any(Run::has_gaps) {
                    return Err(error);
                }
                for part in parts {
                    let buffer = Buffer::zeroed(part.range.length as usize);
                    self.write_run(images, &part, buffer).await?;
                }
                Ok(())
            }
        }
    }

    /// Writes the pieces, with the bytes of `buffer` between them.
    async fn write_run(&self, images: &Images, run: &Run, buffer: Buffer) -> Result<(), Error> {
        let mut buffer = buffer;
        for piece in &run.pieces {
            let range = range_of(piece);
            let at = (range.offset - run.range.offset) as usize;
            self.load(images, piece, &mut buffer[at..at + range.length as usize])?;
        }
        self.counters.destaged(run.range.length, run.pieces.len());
        self.origin.device().write(run.range.offset, buffer, false).await.map(drop)
    }

    /// Copies a piece's bytes: from its slot, or from the image that was read and checked when it
    /// was chosen.
    fn load(&self, images: &Images, piece: &Piece, target: &mut [u8]) -> Result<(), Error> {
        match piece.place.view() {
            PlaceView::Zeroes(_) => target.fill(0),
            PlaceView::Slot(unit) => {
                if let Some(stage) = &self.log.state().contents.stage {
                    stage.load(unit, target);
                }
            }
            PlaceView::Segment(unit) => {
                let bytes = images.get(unit, target.len()).ok_or_else(|| {
                    let context = format!("{} of the log were not read before they were sent", range_of(piece));
                    Error::new(ErrorKind::Corrupt, context)
                })?;
                target.copy_from_slice(bytes);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::buffer::Buffer;

    use super::*;
    use crate::append::RecordSender;
    use crate::pins::Pins;
    use crate::tests::Parts;

    /// A batch of `sectors` at a time from each of these, in RAM.
    fn batch_of(parts: &mut Parts, records: &Arc<RecordSender>, starts: &[u64], sectors: u64) -> Batch {
        let mut batch = Batch::new(Pins::none(records));
        for &start in starts {
            let piece = parts.append(records, start, sectors, 7);
            batch.images.insert(piece.unit(), Arc::new(Buffer::copy_of(&vec![7; (sectors * 512) as usize])));
            batch.pieces.push(piece);
        }
        batch
    }

    #[test]
    fn adjacent_pieces_are_one_write() {
        let mut parts = Parts::new(|_| {});
        let (records, writer) = (Arc::new(parts.assembly.records()), parts.assembly.batch_writer());
        let mut batch = batch_of(&mut parts, &records, &[0, 8, 32], 8);
        let sent = parts
            .executor
            .block_on(async move { writer.send(&mut batch, None).await.map(|at| (at, batch.pieces.len())) });
        assert_eq!(sent.map_err(|error| error.kind()), Ok((None, 3)));
        assert_eq!(parts.origin.writes_seen(), 2);
    }

    #[test]
    fn a_request_that_has_come_ends_a_batch_after_what_is_sent() {
        let mut parts = Parts::new(|options| options.level2.writes_in_flight = 1);
        let (records, writer) = (Arc::new(parts.assembly.records()), parts.assembly.batch_writer());
        let mut batch = batch_of(&mut parts, &records, &[0, 16, 32], 8);
        let before = parts.assembly.activity.count();
        parts.assembly.activity.note_request();
        let sent = parts.executor.block_on(async move {
            let stopped_at = writer.send(&mut batch, Some(before)).await;
            stopped_at.map(|at| (at, batch.pieces.len()))
        });
        assert_eq!(sent.map_err(|error| error.kind()), Ok((Some(Sector(16)), 1)));
    }
}
