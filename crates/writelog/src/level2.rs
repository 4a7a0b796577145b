//! Level 2 destage: from the log to the origin.
//!
//! ```text
//!   choose ─► read from the log ─► write to the origin, adjacent pieces as one ─► flush the origin ─► clean
//! ```
//! - What is superseded before it is chosen is never sent. What is written again while it is sent stays dirty, whatever
//!   was sent.
//! - Clean means flushed: a piece is clean when the origin's flush has returned and no event said in between that it
//!   lost writes.
//! - A batch is due when the log is fuller than `share_start`, when data is nearly as old as it may become, from when
//!   records had to wait for room until a share of the log is free, and in an idle moment. Its writes in flight grow
//!   evenly from one at `share_start` to all at `share_slow`, and likewise with the age: under constant load it finds
//!   the rate at which as much leaves as comes, and never waits for idleness.
//! - In an idle moment a batch stops when a request comes, and another goes on later: in order `log` with the same
//!   epoch, where this one stopped.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::{Device, Error, ErrorKind};
use futures_util::stream::{FuturesUnordered, StreamExt};
use store::Sequence;

use crate::batch::{Batch, Goal};
use crate::core::{Core, State};
use crate::epoch::Epoch;
use crate::format::STATE_IN_USE;
use crate::images::Images;
use crate::level1::{wait_for, warn_of_failure};
use crate::limits::{
    AGE_SHARES, DESTAGE_RETRY_MS, DESTAGE_WRITE_BYTES_MAX, DESTAGE_WRITES_A_WRITER, EMPTY_BATCHES_BEFORE_CHECKPOINT,
    EMPTY_BATCHES_MAX, FAILURES_BEFORE_GIVING_UP, PIECES_AT_ONCE, RUNS_A_LOOK, UNIT_BYTES,
};
use crate::map::Piece;
use crate::numbers::Sector;
use crate::options::Level2;
use crate::place::PlaceView;
use crate::runs::{Bounds, Run, joined, runs};
use crate::sectors::range_of;
use crate::stage::Stage;

/// Progress of a destage of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DestageProgress {
    /// Bytes that the origin lacked when it began.
    pub bytes_total: u64,
    /// Bytes of these that are done.
    pub bytes_done: u64,
}

/// The reason for a batch, which says whether requests may interrupt it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Nothing is dirty.
    Nothing,
    /// Not yet: look again after this time.
    Later(Duration),
    /// An idle moment.
    Idle,
    /// Space or age require it.
    Due,
}

/// `share` of `time`, without overflow.
fn part_of(time: Duration, share: f64) -> Duration {
    Duration::try_from_secs_f64(time.as_secs_f64() * share).unwrap_or(Duration::MAX)
}

impl Core {
    /// Destages as it becomes due. Ends when the log closes.
    pub(crate) async fn destage_in_background(self: Arc<Self>) {
        let (mut failures, mut empty_batches) = (0, 0);
        loop {
            let count = self.background.count();
            if self.life.is_stopped() {
                return;
            }
            let need = self.need(&self.state());
            let is_due = match need {
                Need::Nothing => {
                    if let Err(error) = self.origin.check() {
                        // No batch will ever make room.
                        self.give_up_queue(&error);
                    }
                    self.background.changed_since(count).await;
                    continue;
                }
                Need::Later(most) => {
                    wait_for(&self, count, most).await;
                    continue;
                }
                Need::Idle => false,
                Need::Due => true,
            };
            let lost_before = self.lost_bytes_ever();
            let result = self.destage(Goal::Background, !is_due && self.level2().is_interruptible).await;
            if result.is_err() && self.life.is_stopped() {
                // The log was closed while this waited for its turn, which is no failure.
                return;
            }
            self.note_destaged(&result);
            if !matches!(result, Ok(0)) {
                self.changed.notify();
            }
            failures = if result.is_ok() { 0 } else { failures + 1 };
            if !matches!(result, Ok(0)) {
                empty_batches = 0;
            }
            match result {
                Ok(0) if is_due => {
                    wait_for(&self, count, Duration::from_millis(DESTAGE_RETRY_MS)).await;
                    empty_batches += 1;
                    if empty_batches >= EMPTY_BATCHES_BEFORE_CHECKPOINT && self.state().room.was_full() {
                        self.make_room_without_batch().await;
                        empty_batches = 0;
                    }
                    continue;
                }
                Ok(0) => wait_for(&self, count, self.level2().idle).await,
                Ok(_) => self.state().room.note_batch(),
                // Unreadable data is now marked lost, and left out of the next batch.
                Err(_) if self.lost_bytes_ever() > lost_before => {}
                Err(error) => {
                    warn_of_failure(&error, failures, "level 2 destage failed; it is tried again");
                    self.state().pace.room_failed();
                    if failures >= FAILURES_BEFORE_GIVING_UP {
                        self.give_up_queue(&error);
                    }
                    self.clock.sleep(Duration::from_millis(DESTAGE_RETRY_MS)).await;
                }
            }
        }
    }

    /// The log is full, and there is nothing to send. Either all of it is on the origin, and a
    /// checkpoint frees it; or what fills it cannot be read, and waiting writers get the error.
    async fn make_room_without_batch(self: &Arc<Self>) {
        let frees_nothing = self.releasable(&self.state()).is_empty();
        match self.lost_bytes_now() {
            lost if lost > 0 && frees_nothing => {
                let context = format!("the log is full, and {lost} bytes that only it has cannot be read back from it");
                self.give_up_queue(&Error::new(ErrorKind::Media, context));
            }
            _ => drop(self.checkpoint(STATE_IN_USE).await),
        }
    }

    /// Changes the options of level 2, from the next batch and the next write on.
    pub(crate) fn set_level2(&self, level2: Level2) {
        *self.level2.lock().unwrap_or_else(PoisonError::into_inner) = level2;
        let log_bytes = u64::from(self.layout.segment_count) * self.layout.segment_bytes;
        {
            let state = &mut *self.state();
            state.pace.set_limits(level2.pause_max, level2.reserve_bytes(log_bytes));
            let slots_bytes = state.contents.stage.as_ref().map_or(0, Stage::size_bytes);
            state.slot_pace.set_limits(level2.pause_max, self.options.level1.reserve_bytes(slots_bytes));
        }
        self.changed.notify();
        self.background.notify();
    }

    fn need(&self, state: &State) -> Need {
        let level2 = &self.level2();
        if self.origin.reports.is_refused() || !self.is_anything_dirty(state) {
            return Need::Nothing;
        }
        let [_, share_old, _] = AGE_SHARES;
        let age = state.contents.oldest_in_log_at().map_or(Duration::ZERO, |at| self.clock.now().since(at));
        let age_due = part_of(level2.age_max, share_old);
        let is_full = state.share_used(&self.layout) >= level2.share_start;
        if is_full || age >= age_due || state.room.was_full() || state.failure.has_come() {
            return Need::Due;
        }
        let idle_left = level2.idle.saturating_sub(self.idle_for());
        match idle_left.is_zero() {
            true => Need::Idle,
            false => Need::Later(idle_left.min(age_due.saturating_sub(age))),
        }
    }

    /// Whether level 2 has anything to send: slots are moved by level 1, and lost data is never
    /// sent.
    fn is_anything_dirty(&self, state: &State) -> bool {
        if state.failure.has_come() {
            return state.contents.map.dirty_from(Sector::FIRST).any(|piece| !piece.tag.is_lost());
        }
        state.contents.segments.oldest_dirty_at().is_some()
            || (self.keeps_order() && state.destaged.sequence().next() < state.contents.applied.position.sequence)
            || state.contents.zeroes_since.is_some()
    }

    /// Destages one batch. Returns the count of pieces that were sent.
    pub(crate) async fn destage(self: &Arc<Self>, goal: Goal, may_stop: bool) -> Result<usize, Error> {
        let epoch = &mut *self.destaging.lock().await;
        if self.life.is_stopped() {
            // A close has waited for the batch before: the log may be open elsewhere by now.
            return Err(self.life.closed());
        }
        self.origin.check()?;
        self.state().pace.work_began(self.clock.now());
        let result = self.destage_batch(epoch, goal, may_stop).await;
        self.state().pace.work_stopped(self.clock.now());
        result
    }

    async fn destage_batch(
        self: &Arc<Self>,
        epoch: &mut Option<Epoch>,
        goal: Goal,
        may_stop: bool,
    ) -> Result<usize, Error> {
        let requests = self.request_count.load(Ordering::Relaxed);
        if self.has_failed() {
            // If noting it fails less is sent; that is no error of the batch.
            drop(self.note_failure().await);
        }
        // Chosen only under the lock: during the batch before the log may have failed, and newer
        // data gone past it.
        let choice = self.choice(&self.state(), goal);
        let mut batch = self.select(choice, epoch).await?;
        if batch.pieces.is_empty() && batch.part.is_none() {
            return Ok(0);
        }
        let losses = self.losses_until_now();
        self.origin.check()?;
        let stopped_at = self.send(&mut batch, may_stop.then_some(requests)).await?;
        if !batch.pieces.is_empty() {
            // Where it lost something, what was sent may be gone: it stays dirty and is sent again.
            self.flush_origin_since(losses).await?;
        }
        let free_before = self.state().free_bytes(&self.layout);
        let is_whole = stopped_at.is_none() && batch.part.is_none_or(|part| part.is_last);
        let cleaned = match batch.part {
            None => self.mark_all_clean(&batch.pieces),
            Some(part) => self.advance(epoch, stopped_at.unwrap_or(part.end_sector), is_whole),
        };
        {
            let state = &mut *self.state();
            if state.contents.zeroes_since.is_some()
                && !state.contents.owed_from(Sector::FIRST).any(|piece| piece.is_zero())
            {
                state.contents.zeroes_since = None;
            }
            state.releasable_count = self.releasable(state).len() as u32;
            if is_whole {
                let freed = state.free_bytes(&self.layout).saturating_sub(free_before);
                state.pace.room_made(self.clock.now(), freed);
            }
            let share_used = state.share_used(&self.layout);
            state.room.note_share_used(share_used);
        }
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        self.counters.cleaned_bytes.fetch_add(cleaned * UNIT_BYTES, Ordering::Relaxed);
        self.state().contents.sweep_if_large();
        if !self.has_failed() {
            self.checkpoint_if_it_helps().await?;
        }
        // Also when no segment came free: a checkpoint may have room for extents again.
        self.start_records();
        Ok(batch.pieces.len().max(1))
    }

    /// Returns the sectors that became clean.
    fn mark_all_clean(&self, pieces: &[Piece]) -> u64 {
        let mark = |pieces: &[Piece]| {
            let state = &mut *self.state();
            pieces.iter().map(|piece| state.contents.mark_clean(piece)).sum::<u64>()
        };
        pieces.chunks(PIECES_AT_ONCE).map(mark).sum()
    }

    /// Notes that a step of the epoch is on the origin up to `sector`, durably, or all of it.
    /// Sectors become clean only with the whole step: an opening cannot go on from part of one.
    /// Returns the sectors that became clean.
    fn advance(&self, epoch: &mut Option<Epoch>, sector: Sector, is_all: bool) -> u64 {
        if !is_all {
            epoch.iter_mut().for_each(|epoch| epoch.sent_to(sector));
            return 0;
        }
        let Some((end, pieces)) = epoch.as_mut().and_then(Epoch::end_step) else { return 0 };
        epoch.take_if(|epoch| epoch.is_sent());
        {
            let state = &mut *self.state();
            state.destaged.note_step(end);
        }
        self.mark_all_clean(&pieces)
    }

    /// Sends all pieces; if `requests` is given, only until a later request comes. Removes from the
    /// batch what was not sent: all pieces from the returned sector on.
    async fn send(self: &Arc<Self>, batch: &mut Batch, requests: Option<u64>) -> Result<Option<Sector>, Error> {
        let runs = runs(&batch.pieces, &self.bounds(self.level2().seek_bytes));
        let mut in_flight = FuturesUnordered::new();
        let mut runs = runs.into_iter();
        let mut sent: Vec<Piece> = Vec::new();
        let (mut stopped_at, mut result) = (None, Ok(()));
        let mut writes_in_flight = self.writes_in_flight();
        loop {
            let is_interrupted =
                requests.is_some_and(|requests| self.request_count.load(Ordering::Relaxed) != requests);
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
        let level2 = &self.level2();
        let state = self.state();
        let over = |value: f64, start: f64, full: f64| ((value - start) / (full - start).max(0.01)).clamp(0.0, 1.0);
        let space = over(state.share_used(&self.layout), level2.share_start, level2.share_slow);
        let [_, share_old, share_full] = AGE_SHARES;
        let age =
            state.contents.oldest_in_log_at().map_or(0.0, |at| over(self.share_of_age(at), share_old, share_full));
        let share = if state.room.was_full() { 1.0 } else { space.max(age) };
        let most = level2.writes_in_flight.max(1) as f64;
        let waiting_count = if self.is_staged() { 0 } else { state.waiting_count() };
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
        let buffer = self.used_buffer(run.range.length as usize);
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
                if let Some(stage) = &self.state().contents.stage {
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

    /// Notes the result of a batch for the status.
    fn note_destaged(&self, result: &Result<usize, Error>) {
        self.state().destage_failure = result.as_ref().err().map(ToString::to_string);
    }

    /// Destages all that is acknowledged now. `progress` is called after each batch.
    pub(crate) async fn destage_all(self: &Arc<Self>, mut progress: impl FnMut(DestageProgress)) -> Result<(), Error> {
        if !self.has_failed() {
            self.move_round(1.0).await?;
        }
        let (end, bytes_total) = {
            let state = self.state();
            (state.contents.applied.position.sequence, state.contents.map.dirty_sectors() * UNIT_BYTES)
        };
        let mut empty_batches = 0;
        loop {
            let dirty_bytes = {
                let state = self.state();
                if !self.is_dirty_before(&state, end) {
                    break;
                }
                state.contents.map.dirty_sectors() * UNIT_BYTES
            };
            progress(DestageProgress { bytes_total, bytes_done: bytes_total.saturating_sub(dirty_bytes) });
            let lost_before = self.lost_bytes_ever();
            let result = self.destage(Goal::Everything, false).await;
            self.note_destaged(&result);
            match result {
                // The whole batch was lost.
                Ok(0) if self.lost_bytes_ever() > lost_before => {}
                // All that was chosen was superseded while it was read; or nothing can be sent.
                Ok(0) if empty_batches == EMPTY_BATCHES_MAX => break,
                Ok(0) => {
                    empty_batches += 1;
                    // An epoch ends with the round that is under way.
                    if !self.has_failed() {
                        self.move_round(1.0).await?;
                    }
                }
                Ok(_) => {}
                // Unreadable data is now marked lost, and left out of the next batch.
                Err(_) if self.lost_bytes_ever() > lost_before => {}
                Err(error) => return Err(error),
            }
        }
        progress(DestageProgress { bytes_total, bytes_done: bytes_total });
        let lost = self.lost_bytes_now();
        if lost > 0 {
            let context = format!("{lost} bytes that only the log had cannot be read back from it");
            return Err(Error::new(ErrorKind::Media, context));
        }
        let is_left = self.is_dirty_before(&self.state(), end);
        if is_left {
            return Err(Error::new(ErrorKind::Busy, "some of the log's data could not be brought to the LUN yet"));
        }
        Ok(())
    }

    /// Whether anything of the records before `end` is not on the origin, except lost data.
    fn is_dirty_before(&self, state: &State, end: Sequence) -> bool {
        if state.failure.has_come() {
            return state.contents.map.dirty_from(Sector::FIRST).any(|piece| !piece.tag.is_lost());
        }
        if self.keeps_order() && state.destaged.sequence().next() < end {
            return true;
        }
        let oldest =
            state.contents.segments.by_age().find(|&segment| state.contents.segments.get(segment).dirty_sectors > 0);
        let is_segment_dirty = oldest.is_some_and(|segment| state.contents.segments.get(segment).first_sequence < end);
        let newest = state.contents.applied.position.sequence.before();
        let is_zero_before = |piece: Piece| piece.is_zero() && piece.place.record(newest) < end;
        is_segment_dirty && state.contents.owed_from(Sector::FIRST).any(|piece| !piece.tag.is_lost())
            || state.contents.owed_from(Sector::FIRST).any(is_zero_before)
    }
}
