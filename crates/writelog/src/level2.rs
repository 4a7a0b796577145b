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
//!   records had to wait for room until a share of the log is free, and in an idle moment. How much of it is under way
//!   at once [`crate::batch_writer`] decides.
//! - In an idle moment a batch stops when a request comes, and another goes on later: in order `log` with the same
//!   epoch, where this one stopped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::clock::Clock;
use block::{Error, ErrorKind};
use futures_util::lock::Mutex;
use store::Life;

use crate::activity::Activity;
use crate::append::RecordSender;
use crate::batch::Goal;
use crate::batch_writer::BatchWriter;
use crate::checkpoint::Checkpoints;
use crate::counters::Counters;
use crate::epoch::Epoch;
use crate::events::OriginEvents;
use crate::failure_note::FailureNotes;
use crate::format::STATE_IN_USE;
use crate::level1::{SlotMover, warn_of_failure};
use crate::limits::{
    DESTAGE_RETRY_MS, EMPTY_BATCHES_BEFORE_CHECKPOINT, EMPTY_BATCHES_MAX, FAILURES_BEFORE_GIVING_UP, PIECES_AT_ONCE,
    UNIT_BYTES,
};
use crate::log_state::LogState;
use crate::lost::LostData;
use crate::map::Piece;
use crate::need::{Need, is_dirty_before, need};
use crate::numbers::Sector;
use crate::options::Level2;
use crate::origin::Origin;
use crate::selection::Selection;
use crate::settings::Settings;
use crate::stage::Stage;

/// Progress of a destage of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DestageProgress {
    /// Bytes that the origin lacked when it began.
    pub bytes_total: u64,
    /// Bytes of these that are done.
    pub bytes_done: u64,
}

/// Brings what the log has to the origin: level 2.
pub(crate) struct Destager {
    pub(crate) log: Arc<LogState>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) origin_events: Arc<OriginEvents>,
    pub(crate) selection: Selection,
    pub(crate) writer: BatchWriter,
    /// See [`Epochs::destaging`](crate::next_epoch::Epochs::destaging).
    pub(crate) destaging: Arc<Mutex<Option<Epoch>>>,
    /// Empties the slots before everything is destaged.
    pub(crate) mover: Arc<SlotMover>,
    pub(crate) records: Arc<RecordSender>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) notes: Arc<FailureNotes>,
    pub(crate) lost: Arc<LostData>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) life: Arc<Life>,
}

impl Destager {
    /// Destages as it becomes due. Ends when the log closes.
    pub(crate) async fn run(&self) {
        let (mut failures, mut empty_batches) = (0, 0);
        loop {
            let count = self.log.background.count();
            if self.life.is_stopped() {
                return;
            }
            let need = match self.origin.reports.is_refused() {
                true => Need::Nothing,
                false => need(&self.log.state(), &self.settings, self.clock.now(), self.activity.idle_for()),
            };
            let is_due = match need {
                Need::Nothing => {
                    if let Err(error) = self.origin.check() {
                        // No batch will ever make room.
                        self.records.give_up_queue(&error);
                    }
                    self.log.background.changed_since(count).await;
                    continue;
                }
                Need::Later(most) => {
                    self.log.wait_for_work(self.clock.as_ref(), count, most).await;
                    continue;
                }
                Need::Idle => false,
                Need::Due => true,
            };
            let lost_before = self.lost.bytes_ever();
            let result = self.destage(Goal::Background, !is_due && self.settings.level2().is_interruptible).await;
            if result.is_err() && self.life.is_stopped() {
                // The log was closed while this waited for its turn, which is no failure.
                return;
            }
            self.note_destaged(&result);
            if !matches!(result, Ok(0)) {
                self.log.changed.notify();
            }
            failures = if result.is_ok() { 0 } else { failures + 1 };
            if !matches!(result, Ok(0)) {
                empty_batches = 0;
            }
            match result {
                Ok(0) if is_due => {
                    self.log.wait_for_work(self.clock.as_ref(), count, Duration::from_millis(DESTAGE_RETRY_MS)).await;
                    empty_batches += 1;
                    if empty_batches >= EMPTY_BATCHES_BEFORE_CHECKPOINT && self.log.state().room.was_full() {
                        self.make_room_without_batch().await;
                        empty_batches = 0;
                    }
                    continue;
                }
                Ok(0) => self.log.wait_for_work(self.clock.as_ref(), count, self.settings.level2().idle).await,
                Ok(_) => self.log.state().room.note_batch(),
                // Unreadable data is now marked lost, and left out of the next batch.
                Err(_) if self.lost.bytes_ever() > lost_before => {}
                Err(error) => {
                    warn_of_failure(&error, failures, "level 2 destage failed; it is tried again");
                    self.log.state().pace.room_failed();
                    if failures >= FAILURES_BEFORE_GIVING_UP {
                        self.records.give_up_queue(&error);
                    }
                    self.clock.sleep(Duration::from_millis(DESTAGE_RETRY_MS)).await;
                }
            }
        }
    }

    /// The log is full, and there is nothing to send. Either all of it is on the origin, and a
    /// checkpoint frees it; or what fills it cannot be read, and waiting writers get the error.
    async fn make_room_without_batch(&self) {
        let frees_nothing = self.log.state().releasable(self.settings.keeps_order()).is_empty();
        match self.lost.bytes_now() {
            lost if lost > 0 && frees_nothing => {
                let context = format!("the log is full, and {lost} bytes that only it has cannot be read back from it");
                self.records.give_up_queue(&Error::new(ErrorKind::Media, context));
            }
            _ => drop(self.checkpoints.make(STATE_IN_USE).await),
        }
    }

    /// Changes the options of level 2, from the next batch and the next write on.
    pub(crate) fn set_level2(&self, level2: Level2) {
        self.settings.set_level2(level2);
        let log_bytes = self.log.layout.log_bytes();
        {
            let state = &mut *self.log.state();
            state.pace.set_limits(level2.pause_max, level2.reserve_bytes(log_bytes));
            let slots_bytes = state.contents.stage.as_ref().map_or(0, Stage::size_bytes);
            state.slot_pace.set_limits(level2.pause_max, self.settings.level1.reserve_bytes(slots_bytes));
        }
        self.log.wake_all();
    }

    /// Destages one batch. Returns the count of pieces that were sent.
    pub(crate) async fn destage(&self, goal: Goal, may_stop: bool) -> Result<usize, Error> {
        let epoch = &mut *self.destaging.lock().await;
        if self.life.is_stopped() {
            // A close has waited for the batch before: the log may be open elsewhere by now.
            return Err(self.life.closed());
        }
        self.origin.check()?;
        self.log.state().pace.work_began(self.clock.now());
        let result = self.destage_batch(epoch, goal, may_stop).await;
        self.log.state().pace.work_stopped(self.clock.now());
        result
    }

    async fn destage_batch(&self, epoch: &mut Option<Epoch>, goal: Goal, may_stop: bool) -> Result<usize, Error> {
        let requests = self.activity.count();
        if self.log.has_failed() {
            // If noting it fails less is sent; that is no error of the batch.
            drop(self.notes.note().await);
        }
        // Chosen only under the lock: during the batch before the log may have failed, and newer
        // data gone past it.
        let choice = self.selection.choice(&self.log.state(), goal);
        let mut batch = self.selection.select(choice, epoch).await?;
        if batch.pieces.is_empty() && batch.part.is_none() {
            return Ok(0);
        }
        let losses = self.origin_events.losses_until_now();
        self.origin.check()?;
        let stopped_at = self.writer.send(&mut batch, may_stop.then_some(requests)).await?;
        if !batch.pieces.is_empty() {
            // Where it lost something, what was sent may be gone: it stays dirty and is sent again.
            self.origin_events.flush_origin_since(losses).await?;
        }
        let free_before = self.log.state().free_bytes();
        let is_whole = stopped_at.is_none() && batch.part.is_none_or(|part| part.is_last);
        let cleaned = match batch.part {
            None => self.mark_all_clean(&batch.pieces),
            Some(part) => self.advance(epoch, stopped_at.unwrap_or(part.end_sector), is_whole),
        };
        {
            let state = &mut *self.log.state();
            if state.contents.zeroes_since.is_some()
                && !state.contents.owed_from(Sector::FIRST).any(|piece| piece.is_zero())
            {
                state.contents.zeroes_since = None;
            }
            state.releasable_count = state.releasable(self.settings.keeps_order()).len() as u32;
            if is_whole {
                let freed = state.free_bytes().saturating_sub(free_before);
                state.pace.room_made(self.clock.now(), freed);
            }
            let share_used = state.share_used();
            state.room.note_share_used(share_used);
        }
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        self.counters.cleaned_bytes.fetch_add(cleaned * UNIT_BYTES, Ordering::Relaxed);
        self.log.state().contents.sweep_if_large();
        if !self.log.has_failed() {
            self.checkpoints.make_if_due().await?;
        }
        // Also when no segment came free: a checkpoint may have room for extents again.
        self.records.start();
        Ok(batch.pieces.len().max(1))
    }

    /// Returns the sectors that became clean.
    fn mark_all_clean(&self, pieces: &[Piece]) -> u64 {
        let mark = |pieces: &[Piece]| {
            let state = &mut *self.log.state();
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
            let state = &mut *self.log.state();
            state.destaged.note_step(end);
        }
        self.mark_all_clean(&pieces)
    }

    /// Notes the result of a batch for the status.
    fn note_destaged(&self, result: &Result<usize, Error>) {
        self.log.state().destage_failure = result.as_ref().err().map(ToString::to_string);
    }

    /// Destages all that is acknowledged now. `progress` is called after each batch.
    pub(crate) async fn destage_all(&self, mut progress: impl FnMut(DestageProgress)) -> Result<(), Error> {
        if !self.log.has_failed() {
            self.mover.move_round(1.0).await?;
        }
        let (end, bytes_total) = {
            let state = self.log.state();
            (state.contents.applied.position.sequence, state.contents.map.dirty_sectors() * UNIT_BYTES)
        };
        let mut empty_batches = 0;
        loop {
            let dirty_bytes = {
                let state = self.log.state();
                if !is_dirty_before(&state, self.settings.keeps_order(), end) {
                    break;
                }
                state.contents.map.dirty_sectors() * UNIT_BYTES
            };
            progress(DestageProgress { bytes_total, bytes_done: bytes_total.saturating_sub(dirty_bytes) });
            let lost_before = self.lost.bytes_ever();
            let result = self.destage(Goal::Everything, false).await;
            self.note_destaged(&result);
            match result {
                // The whole batch was lost.
                Ok(0) if self.lost.bytes_ever() > lost_before => {}
                // All that was chosen was superseded while it was read; or nothing can be sent.
                Ok(0) if empty_batches == EMPTY_BATCHES_MAX => break,
                Ok(0) => {
                    empty_batches += 1;
                    // An epoch ends with the round that is under way.
                    if !self.log.has_failed() {
                        self.mover.move_round(1.0).await?;
                    }
                }
                Ok(_) => {}
                // Unreadable data is now marked lost, and left out of the next batch.
                Err(_) if self.lost.bytes_ever() > lost_before => {}
                Err(error) => return Err(error),
            }
        }
        progress(DestageProgress { bytes_total, bytes_done: bytes_total });
        let lost = self.lost.bytes_now();
        if lost > 0 {
            let context = format!("{lost} bytes that only the log had cannot be read back from it");
            return Err(Error::new(ErrorKind::Media, context));
        }
        let is_left = is_dirty_before(&self.log.state(), self.settings.keeps_order(), end);
        if is_left {
            return Err(Error::new(ErrorKind::Busy, "some of the log's data could not be brought to the LUN yet"));
        }
        Ok(())
    }
}
