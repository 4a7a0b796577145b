//! Cleaning: dirty lines are written to the origin and then are clean.
//!
//! ```text
//!   pick lines ─► read them from the cache device ─► write to the origin ─► flush the origin ─► log record ─► clean
//!        └ a later write takes its sectors out of `cleaning`: they stay dirty, whatever was sent ┘
//! ```
//! - A line is clean only when the origin's *flush* has returned, and no event said in between that the origin lost unflushed
//!   writes. Until the record is durable its frame is not given to anybody.
//! - Lines are sent in ascending order and adjacent ones as one write, whichever sets they are in: see [`dirty_runs`](crate::dirty_runs) for who leaves
//!   together and [`origin_write`](crate::origin_write) for the writes. A round goes on where the last one ended (an elevator).
//! - Lines that the origin refuses stay dirty and are tried again later; those sent beside them become clean.
//! - Cleaning takes no range lock, so reads and writes of the same lines go on meanwhile; see the table in `core`.
//! - Rounds are as large and as frequent as the foreground bears: see [`pace`](crate::pace). A write that waits for room cleans at once.
//! - Lines whose dirty sectors are lost are left alone: nothing is written to the origin that was not read. So is what lies beyond its end: see
//!   [`stranded`](crate::stranded).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::buffer::Buffer;
use block::range_lock::RangeGuard;
use block::{Completion, Error, ErrorKind, Response};
use futures_util::future::{ready, select};
use futures_util::stream::{self, StreamExt};
use serde::Serialize;

use crate::core::{Core, Pins, State, closed};
use crate::crash_mode::CrashMode;
use crate::dirty_runs::batch_length;
use crate::format::{ENTRY_CLEAN, FRAME_NONE, Line, LogEntry};
use crate::limits::{CLEAN_ATTEMPTS_MAX, CLEAN_BATCH_BYTES, CLEAN_RETRY_MS, CLEAN_WRITES_IN_FLIGHT};
use crate::origin_write::Pick;
use crate::pace::Force;
use crate::write_back::Room;

/// How far a cleaning is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanProgress {
    /// Lines that were dirty when it began.
    pub lines_total: u64,
    /// Lines of these that are done.
    pub lines_done: u64,
}

/// The progress of a cleaning that somebody waits for. Dropped, nobody does any more.
struct ProgressShown<'a>(&'a Core);

impl Drop for ProgressShown<'_> {
    fn drop(&mut self) {
        self.0.state().clean_progress = None;
    }
}

/// Lines picked for one batch, ascending.
struct Batch {
    picks: Vec<Pick>,
    /// Keeps others from writing these lines to the origin until this batch has.
    orders: Vec<RangeGuard>,
    pins: Pins,
    /// Whether a candidate was passed over that can be cleaned later.
    has_deferred: bool,
    /// Whether a candidate is not dirty any more.
    has_clean: bool,
}

impl Core {
    /// Cleans all lines that are dirty now. `progress` is told after each batch.
    pub(crate) async fn clean_all(self: &Arc<Self>, progress: impl FnMut(CleanProgress)) -> Result<(), Error> {
        let _over = ProgressShown(self);
        self.clean_all_lines(progress).await
    }

    async fn clean_all_lines(self: &Arc<Self>, mut progress: impl FnMut(CleanProgress)) -> Result<(), Error> {
        let mut rest = self.state().frames.dirty_in(0..u64::MAX);
        let lines_total = rest.len() as u64;
        let mut first_refusal = None;
        while !rest.is_empty() {
            let count = self.changed.count();
            let batch_lines = self.pace().start_batch(self.clock.now());
            let batch_lines = batch_length(&rest, batch_lines, self.run_lines_max());
            let candidates: Vec<u64> = rest.drain(..batch_lines).collect();
            let batch = self.pick(&candidates)?;
            let picked: Vec<u64> = batch.picks.iter().map(|pick| pick.block).collect();
            if picked.is_empty() && batch.has_deferred {
                self.changed.changed_since(count).await;
            }
            let force = self.pace().force();
            // Lines elsewhere are none the worse for a bad place.
            let refusal = match self.clean_batch(batch, force).await {
                Err(error) if error.kind() == ErrorKind::Media => Some(error),
                refusal => refusal?,
            };
            first_refusal = first_refusal.or(refusal);
            let end = self.origin_end();
            let is_dirty = |block: u64| {
                let found = self.state().frames.find(block);
                found.is_some_and(|(_, line)| !self.sendable(block, &line, end).is_empty())
            };
            // A line that was sent counts as done even when a write has made it dirty again.
            let mut passed_over: Vec<u64> = candidates
                .iter()
                .copied()
                .filter(|&block| picked.binary_search(&block).is_err() && is_dirty(block))
                .collect();
            rest.append(&mut passed_over);
            let now = CleanProgress { lines_total, lines_done: lines_total - rest.len() as u64 };
            self.state().clean_progress = Some(now);
            progress(now);
            if !rest.is_empty() {
                self.wait_for_next(picked.len()).await;
            }
        }
        if let Some(error) = first_refusal {
            return Err(error);
        }
        let lost_count = self.state().frames.lost_count();
        if lost_count == 0 {
            return self.check_nothing_stranded();
        }
        let context = format!("{lost_count} dirty lines cannot be read back from the cache device; they stay dirty");
        Err(Error::new(ErrorKind::Media, context))
    }

    /// Makes what a write waits for more likely; returns when it should look again.
    pub(crate) async fn make_room(self: &Arc<Self>, room: Room, count: u64) -> Result<(), Error> {
        self.counters.writes_delayed.fetch_add(1, Ordering::Relaxed);
        let (mut refused, mut tried) = (None, BTreeSet::new());
        for _ in 0..CLEAN_ATTEMPTS_MAX {
            let candidates = self.candidates_for(room, &tried);
            tried.extend(candidates.iter().copied());
            let batch = self.pick(&candidates)?;
            if batch.picks.is_empty() {
                return match refused {
                    Some(error) if !batch.has_clean => Err(error),
                    Some(_) => Ok(()),
                    None => self.wait_for_room(room, count, &batch, !candidates.is_empty()).await,
                };
            }
            match self.clean_batch(batch, Force::Full).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Media => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// A batch of lines of which one clean one could be the room that a write waits for, other than those that were tried.
    fn candidates_for(&self, room: Room, tried: &BTreeSet<u64>) -> Vec<u64> {
        let lines_max = (CLEAN_BATCH_BYTES / self.line_size().bytes()) as usize;
        match room {
            Room::LineAtRest => Vec::new(),
            Room::Frame { set } if tried.is_empty() => {
                self.state().frames.dirty_batch_of(set, lines_max, self.run_lines_max())
            }
            Room::Frame { set } => {
                let state = self.state();
                let blocks = state.frames.dirty_blocks_of(set).filter(|block| !tried.contains(block));
                blocks.take(lines_max).collect()
            }
            Room::LessDirty if tried.is_empty() => self.next_dirty_blocks(lines_max),
            Room::LessDirty => {
                // Bad places lie together: first what lies behind them.
                let mut blocks = self.state().frames.dirty_in(0..u64::MAX);
                blocks.retain(|block| !tried.contains(block));
                let behind = blocks.partition_point(|block| tried.last().is_some_and(|last| block < last));
                blocks.rotate_left(behind);
                blocks.truncate(lines_max);
                blocks
            }
        }
    }

    /// Waits until something has changed, where nothing can be picked now.
    ///
    /// # Errors
    /// `NoSpace` when nothing of what is dirty can ever be cleaned.
    async fn wait_for_room(&self, room: Room, count: u64, batch: &Batch, has_candidates: bool) -> Result<(), Error> {
        if batch.has_clean {
            return Ok(());
        }
        let has_unsendable = {
            let frames = &self.state().frames;
            frames.lost_count() + frames.stranded.len() > 0
        };
        let is_stuck = match room {
            Room::LineAtRest => false,
            Room::Frame { .. } => has_candidates,
            Room::LessDirty => has_unsendable,
        };
        if is_stuck && !batch.has_deferred {
            let context = "the cache is full of dirty lines that it cannot read back, or that lie beyond the end of its disk; discard them";
            return Err(Error::new(ErrorKind::NoSpace, context));
        }
        self.changed.changed_since(count).await;
        Ok(())
    }

    /// Cleans in the background while too much is dirty. Ends when the cache closes.
    pub(crate) async fn clean_in_background(self: Arc<Self>) {
        loop {
            let (count, changed_count) = (self.background.count(), self.changed.count());
            if self.is_stopped.load(Ordering::Acquire) {
                return;
            }
            let (is_needed, has_failed) = {
                let state = self.state();
                let must_wait = self.check_may_clean().is_err() || self.is_cleaning_held.load(Ordering::Acquire);
                (self.is_much_dirty(&state), state.failure.is_some() || must_wait)
            };
            if !is_needed || has_failed {
                self.background.changed_since(count).await;
                continue;
            }
            let batch_lines = self.pace().start_batch(self.clock.now());
            let candidates = self.next_dirty_blocks(batch_lines);
            let result = match self.pick(&candidates) {
                Ok(batch) if batch.picks.is_empty() => {
                    // Others are at these lines; when they are done there is more to pick.
                    self.changed.changed_since(changed_count).await;
                    Ok(())
                }
                Ok(batch) => {
                    let line_count = batch.picks.len();
                    let force = self.pace().force();
                    let result = self.clean_batch(batch, force).await;
                    self.wait_for_next(line_count).await;
                    result.and_then(|refusal| refusal.map_or(Ok(()), Err))
                }
                Err(error) => Err(error),
            };
            *self.cleaning_failure() = result.as_ref().err().map(ToString::to_string);
            if let Err(error) = result {
                tracing::warn!(%error, "cleaning failed; it is tried again");
                self.clock.sleep(Duration::from_millis(CLEAN_RETRY_MS)).await;
            }
        }
    }

    /// Waits until the next batch may begin, or the cache closes.
    async fn wait_for_next(&self, line_count: usize) {
        let now = self.clock.now();
        let next = self.pace().finish_batch(now, line_count as u64);
        while next > self.clock.now() {
            let count = self.background.count();
            if self.is_stopped.load(Ordering::Acquire) {
                return;
            }
            select(self.clock.sleep_until(next), self.background.changed_since(count)).await;
        }
    }

    /// Whether background cleaning is due. In modes other than write-back nothing is to stay dirty: what is, is of an earlier mode.
    pub(crate) fn is_much_dirty(&self, state: &State) -> bool {
        let dirty_max = match state.mode.delays_writes() {
            true => state.dirty.clean_above.of(u64::from(self.layout.frame_count())),
            false => 0,
        };
        let unsendable = state.frames.lost_count() + state.frames.stranded.len();
        state.frames.counts().dirty_lines.saturating_sub(unsendable as u64) > dirty_max
    }

    /// The next dirty blocks of which something can be sent, ascending, from the frame where the last batch ended, around.
    fn next_dirty_blocks(&self, count: usize) -> Vec<u64> {
        let (end, run_max) = (self.origin_end(), self.run_lines_max());
        let state = self.state();
        let is_sendable = |&block: &u64| {
            state.frames.find(block).is_some_and(|(_, line)| !self.sendable(block, &line, end).is_empty())
        };
        let mut cursor = self.clean_cursor.load(Ordering::Relaxed);
        let mut is_around = cursor == 0;
        loop {
            let (mut blocks, next) = state.frames.dirty_batch(cursor, count, run_max);
            blocks.retain(is_sendable);
            cursor = next;
            if !blocks.is_empty() || (next == 0 && is_around) {
                self.clean_cursor.store(cursor, Ordering::Relaxed);
                return blocks;
            }
            is_around |= next == 0;
        }
    }

    /// Takes those of `candidates` that can be cleaned now.
    fn pick(self: &Arc<Self>, candidates: &[u64]) -> Result<Batch, Error> {
        let (pins, end) = (Pins::none(self), self.origin_end());
        let mut batch = Batch { picks: Vec::new(), orders: Vec::new(), pins, has_deferred: false, has_clean: false };
        let state = &mut *self.state();
        if let Some(error) = &state.failure {
            let context = "nothing can be cleaned: the cache device failed";
            return Err(Error::with_source(ErrorKind::Media, context, error.clone()));
        }
        self.check_may_clean()?;
        for &block in candidates {
            let found = state.frames.find(block).filter(|(_, line)| !line.dirty.is_empty());
            let Some((frame, line)) = found else {
                batch.has_clean = true;
                continue;
            };
            let mask = self.sendable(block, &line, end);
            if mask.is_empty() {
                continue;
            }
            let is_taken = state.cleaning.contains_key(&block) || state.frames.is_busy(frame);
            let order =
                if is_taken { None } else { self.origin_ranges.try_exclusive(self.line_size().line_range(block)) };
            match order {
                Some(order) => {
                    state.cleaning.insert(block, mask);
                    batch.pins.add(&mut state.frames, frame);
                    batch.orders.push(order);
                    batch.picks.push(Pick { block, frame, mask, checksum: line.checksum });
                }
                None => batch.has_deferred = true,
            }
        }
        batch.picks.sort_unstable_by_key(|pick| pick.block);
        Ok(batch)
    }

    /// See [`Cache::hold_cleaning`](crate::Cache::hold_cleaning).
    pub(crate) fn hold_cleaning(&self) {
        self.is_cleaning_held.store(true, Ordering::Release);
    }

    /// See [`Cache::begin_cleaning`](crate::Cache::begin_cleaning).
    pub(crate) fn begin_cleaning(&self) {
        self.is_cleaning_held.store(false, Ordering::Release);
        self.background.notify();
    }

    /// Refuses to send anything to an origin that became another disk, or that a successor is about to write to, or to go on behind the end of this cache.
    /// Sequentially consistent with the count of batches: a batch that begins now either is waited for, or sees this.
    fn check_may_clean(&self) -> Result<(), Error> {
        if self.is_stopped.load(Ordering::SeqCst) {
            return Err(closed());
        }
        if self.is_origin_refused.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Gone, "nothing can be cleaned: the origin is another disk now"));
        }
        if self.is_handing_over.load(Ordering::SeqCst) {
            return Err(Error::new(
                ErrorKind::Gone,
                "nothing can be cleaned: another cache takes the place of this one",
            ));
        }
        Ok(())
    }

    /// Cleans picked lines. A batch that has begun goes on to its end, also when whoever asked for it does not wait any more: its lines are nobody
    /// else's until then. Gives the first error of those lines that stay dirty while others became clean.
    async fn clean_batch(self: &Arc<Self>, batch: Batch, force: Force) -> Result<Option<Error>, Error> {
        if batch.picks.is_empty() {
            return Ok(None);
        }
        self.cleaning_batches.fetch_add(1, Ordering::SeqCst);
        let core = Arc::clone(self);
        let refusal = Arc::new(OnceLock::new());
        let noted = Arc::clone(&refusal);
        let cleaning = Completion::task(&self.workers, async move {
            let cleaned = core.clean_picked(batch, force).await;
            core.cleaning_batches.fetch_sub(1, Ordering::AcqRel);
            core.changed.notify();
            let result = cleaned.map(|refusal| refusal.into_iter().for_each(|error| drop(noted.set(error))));
            Response { result, ..Response::done(Buffer::empty()) }
        });
        cleaning.await.result.map(|()| refusal.get().cloned())
    }

    async fn clean_picked(self: &Arc<Self>, mut batch: Batch, force: Force) -> Result<Option<Error>, Error> {
        let blocks: Vec<u64> = batch.picks.iter().map(|pick| pick.block).collect();
        self.handle_origin_events();
        if let Err(error) = self.check_may_clean() {
            return self.finish_batch(&blocks, Err(error)).await.map(|()| None);
        }
        let damaged = self.find_damaged(&batch.picks).await;
        batch.picks.retain(|pick| !damaged.contains(&pick.block));
        let losses = self.origin_losses.load(Ordering::Acquire);
        let sent = self.send_picks(&batch.picks, force.in_flight()).await;
        drop((batch.pins, batch.orders));
        let mut result = match sent.refusal {
            Some(ref error) if sent.blocks.is_empty() => Err(error.clone()),
            _ => Ok(()),
        };
        if result.is_ok() {
            // When it lost something, what was sent may be gone. The lines stay dirty and are sent again later.
            result = self.flush_origin_since(losses).await;
        }
        if result.is_err() {
            return self.finish_batch(&blocks, result).await.map(|()| None);
        }
        self.plan_clean(&damaged, false);
        self.plan_clean(&sent.refused_blocks, false);
        self.finish_batch(&sent.blocks, result).await.map(|()| sent.refusal)
    }

    /// Compares what is to be sent with its checksum, where that is known. What is damaged is lost, and not to be sent.
    async fn find_damaged(&self, picks: &[Pick]) -> Vec<u64> {
        let checked = picks.iter().filter(|pick| pick.checksum != 0);
        let lines: Vec<_> = checked.map(|pick| (pick.block, pick.frame, pick.checksum)).collect();
        let checks = stream::iter(lines).map(|(block, frame, checksum)| async move {
            let is_intact = self.is_line_intact(block, frame, checksum).await;
            (!is_intact).then_some((block, frame))
        });
        let damaged: Vec<_> = checks.buffer_unordered(CLEAN_WRITES_IN_FLIGHT).filter_map(ready).collect().await;
        self.note_damage(&damaged);
        damaged.into_iter().map(|(block, _)| block).collect()
    }

    /// Makes the lines of a batch clean that were sent and not written meanwhile.
    async fn finish_batch(&self, blocks: &[u64], result: Result<(), Error>) -> Result<(), Error> {
        let entries = self.plan_clean(blocks, result.is_ok());
        self.changed.notify();
        result?;
        let entries_max = self.entries_max();
        for entries in entries.chunks(entries_max) {
            self.commit_states(entries).await?;
        }
        self.counters.cleaned_lines.fetch_add(entries.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn plan_clean(&self, blocks: &[u64], is_sent: bool) -> Vec<LogEntry> {
        let state = &mut *self.state();
        let mut entries = Vec::new();
        for &block in blocks {
            let mask = state.cleaning.remove(&block).unwrap_or_default();
            let Some((frame, line)) = state.frames.find(block) else { continue };
            if !is_sent || (mask & line.dirty).is_empty() || state.frames.is_busy(frame) {
                continue;
            }
            state.frames.set_busy(frame, true);
            let entry = LogEntry::state(frame, FRAME_NONE, Line { dirty: line.dirty & !mask, ..line });
            if self.crash_mode == CrashMode::AllSynchronous {
                // All that is valid is durable, and the origin has flushed it.
                state.frames.set_mapped(frame, true);
                entries.push(LogEntry { kind: ENTRY_CLEAN, ..entry });
            } else {
                entries.push(entry);
            }
        }
        entries
    }
}
