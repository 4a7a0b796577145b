//! A batch of lines that are cleaned together: picked, sent to the origin, flushed there, and
//! marked clean by one record.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use base::buffer::Buffer;
use base::range::ByteRange;
use block::grants::Use;
use block::range_lock::RangeGuard;
use block::{Completion, Error, ErrorKind, Response};
use futures_util::future::ready;
use futures_util::stream::{self, StreamExt};

use crate::core::Core;
use crate::format::{ENTRY_CLEAN, Line, LogEntry};
use crate::granted::Right;
use crate::limits::CLEAN_WRITES_IN_FLIGHT;
use crate::numbers::{BlockNumber, FrameNumber};
use crate::origin_write::Pick;
use crate::pace::Force;
use crate::pins::Pins;
use crate::sectors::Sectors;

/// Lines picked for one batch, ascending.
pub(crate) struct Batch {
    pub(crate) picks: Vec<Pick>,
    /// Places in the origin's write order: no other write of these lines reaches the origin before
    /// this batch's.
    orders: Vec<RangeGuard>,
    /// Uses of the grants under which the batch is sent.
    uses: Vec<Use>,
    pins: Pins,
    /// Whether a candidate was passed over that can be cleaned later.
    pub(crate) has_deferred: bool,
    /// Whether a candidate was passed over for whose range this host holds no grant now.
    pub(crate) lacks_right: bool,
    /// Whether a candidate is not dirty any more.
    pub(crate) has_clean: bool,
}

impl Core {
    /// The next dirty blocks that can be sent at least in part, ascending, from the frame where the
    /// last batch ended, around.
    pub(crate) fn next_dirty_blocks(&self, count: usize) -> Vec<BlockNumber> {
        let (end, run_max) = (self.origin.end(), self.run_lines_max());
        let state = self.lines.state();
        let is_sendable = |&block: &BlockNumber| {
            state.frames.find(block).is_some_and(|(_, line)| !self.sendable(block, &line, end).is_empty())
        };
        let mut cursor = self.cleaner.cursor();
        let mut is_around = cursor == FrameNumber::FIRST;
        loop {
            let (mut blocks, next) = state.frames.dirty_batch(cursor, count, run_max);
            blocks.retain(is_sendable);
            cursor = next;
            if !blocks.is_empty() || (next == FrameNumber::FIRST && is_around) {
                self.cleaner.set_cursor(cursor);
                return blocks;
            }
            is_around |= next == FrameNumber::FIRST;
        }
    }

    /// Takes those of `candidates` that can be cleaned now.
    pub(crate) fn pick(self: &Arc<Self>, candidates: &[BlockNumber]) -> Result<Batch, Error> {
        let (pins, end) = (Pins::none(&self.lines), self.origin.end());
        let mut batch = Batch {
            picks: Vec::new(),
            orders: Vec::new(),
            uses: Vec::new(),
            pins,
            has_deferred: false,
            lacks_right: false,
            has_clean: false,
        };
        let state = &mut *self.lines.state();
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
            let used = match self.right_to_send(self.range_of(block, mask)) {
                Right::Unshared => None,
                Right::Granted(used) => Some(used),
                Right::Lacking => {
                    batch.lacks_right = true;
                    continue;
                }
            };
            // Deferred data is not in its frame yet, so it cannot be read from there.
            let is_taken =
                state.cleaning.contains_key(&block) || state.frames.is_busy(frame) || state.deferred.contains(frame);
            let order =
                if is_taken { None } else { self.origin.order.try_exclusive(self.line_size().line_range(block)) };
            match order {
                Some(order) => {
                    state.cleaning.insert(block, mask);
                    batch.pins.add(&mut state.frames, frame);
                    batch.orders.push(order);
                    batch.uses.extend(used);
                    batch.picks.push(Pick { block, frame, mask, checksum: line.checksum });
                }
                None => batch.has_deferred = true,
            }
        }
        batch.picks.sort_unstable_by_key(|pick| pick.block);
        if batch.picks.is_empty() && batch.has_deferred {
            state.deferred.want();
            self.lines.background.notify();
        }
        Ok(batch)
    }

    /// The bytes that a write of these sectors of a line may touch.
    fn range_of(&self, block: BlockNumber, mask: Sectors) -> ByteRange {
        let line = self.line_size().line_range(block);
        mask.hull().map_or(line, |run| ByteRange { offset: line.offset + run.offset(), length: run.length() })
    }

    /// Refuses a batch when the origin became another disk, when a successor is about to write to
    /// it, or when this cache has ended. Sequentially consistent with the count of batches: a batch
    /// that begins now either is waited for, or sees this.
    pub(crate) fn check_may_clean(&self) -> Result<(), Error> {
        if self.life.is_stopped() {
            return Err(self.life.closed());
        }
        if self.origin.reports.is_refused() {
            return Err(Error::new(
                ErrorKind::Gone,
                "nothing can be cleaned: the origin is another disk now, or this host was fenced from it",
            ));
        }
        self.cleaner.check_not_handing_over()
    }

    /// Cleans picked lines. A batch that has begun goes on to its end, also when the caller waits
    /// no more: no other batch takes its lines until then. Returns the first error of the lines
    /// that stay dirty while others became clean.
    pub(crate) async fn clean_batch(self: &Arc<Self>, batch: Batch, force: Force) -> Result<Option<Error>, Error> {
        if batch.picks.is_empty() {
            return Ok(None);
        }
        self.cleaner.begin_batch();
        let core = Arc::clone(self);
        let refusal = Arc::new(OnceLock::new());
        let noted = Arc::clone(&refusal);
        let cleaning = Completion::task(&self.workers, async move {
            let cleaned = core.clean_picked(batch, force).await;
            core.cleaner.end_batch();
            let result = cleaned.map(|refusal| refusal.into_iter().for_each(|error| drop(noted.set(error))));
            Response { result, ..Response::done(Buffer::empty()) }
        });
        cleaning.await.result.map(|()| refusal.get().cloned())
    }

    async fn clean_picked(self: &Arc<Self>, mut batch: Batch, force: Force) -> Result<Option<Error>, Error> {
        let blocks: Vec<BlockNumber> = batch.picks.iter().map(|pick| pick.block).collect();
        self.handle_origin_events();
        if let Err(error) = self.check_may_clean() {
            return self.finish_batch(&blocks, Err(error)).await.map(|()| None);
        }
        let damaged = self.find_damaged(&batch.picks).await;
        batch.picks.retain(|pick| !damaged.contains(&pick.block));
        let losses = self.origin.losses.count();
        let sent = self.send_picks(&batch.picks, force.in_flight()).await;
        drop((batch.pins, batch.orders));
        let mut result = match sent.refusal {
            Some(ref error) if sent.blocks.is_empty() => Err(error.clone()),
            _ => Ok(()),
        };
        if result.is_ok() {
            // When the origin lost something, what was sent may be gone. The lines stay dirty and
            // are sent again later.
            result = self.flush_origin_since(losses).await;
        }
        drop(batch.uses);
        if result.is_err() {
            return self.finish_batch(&blocks, result).await.map(|()| None);
        }
        self.plan_clean(&damaged, false);
        self.plan_clean(&sent.refused_blocks, false);
        self.finish_batch(&sent.blocks, result).await.map(|()| sent.refusal)
    }

    /// Compares the lines to be sent with their checksums, where known. Returns the damaged ones:
    /// their data is lost, and not sent.
    async fn find_damaged(&self, picks: &[Pick]) -> Vec<BlockNumber> {
        let checked = picks.iter().filter(|pick| pick.checksum.is_known());
        let lines: Vec<_> = checked.map(|pick| (pick.block, pick.frame, pick.checksum)).collect();
        let checks = stream::iter(lines).map(|(block, frame, checksum)| async move {
            let is_intact = self.is_line_intact(block, frame, checksum).await;
            (!is_intact).then_some((block, frame))
        });
        let damaged: Vec<_> = checks.buffer_unordered(CLEAN_WRITES_IN_FLIGHT).filter_map(ready).collect().await;
        self.note_damage(&damaged);
        damaged.into_iter().map(|(block, _)| block).collect()
    }

    /// Marks the lines of a batch clean that were sent and not written meanwhile.
    async fn finish_batch(&self, blocks: &[BlockNumber], result: Result<(), Error>) -> Result<(), Error> {
        let entries = self.plan_clean(blocks, result.is_ok());
        self.lines.changed.notify();
        result?;
        let entries_max = self.journal.entries_max();
        for entries in entries.chunks(entries_max) {
            self.journal.commit_states(entries).await?;
        }
        self.counters.cleaned_lines.fetch_add(entries.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn plan_clean(&self, blocks: &[BlockNumber], is_sent: bool) -> Vec<LogEntry> {
        let state = &mut *self.lines.state();
        let mut entries = Vec::new();
        for &block in blocks {
            let mask = state.cleaning.remove(&block).unwrap_or_default();
            let Some((frame, line)) = state.frames.find(block) else { continue };
            if !is_sent || (mask & line.dirty).is_empty() || state.frames.is_busy(frame) {
                continue;
            }
            state.frames.set_busy(frame, true);
            let entry = LogEntry::state(frame, None, Line { dirty: line.dirty & !mask, ..line });
            if self.crash_mode.maps_at_once() && state.frames.mappings.is_safe(frame) {
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
