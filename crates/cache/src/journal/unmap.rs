//! Voids mappings of clean lines on the device before they cease to be true; in crash mode *all*
//! also records new ones.
//!
//! Does nothing in crash modes that drop clean lines. What a mapping is, and when it is voided: see
//! `mappings`.

use base::range::ByteRange;
use block::{Error, ErrorKind};

use crate::format::{ENTRY_CLEAN, Line, LogEntry};
use crate::journal::Journal;
use crate::lines::{CleanPart, State};
use crate::mappings::Mappings;
use crate::numbers::{BlockNumber, FrameNumber};

/// The next step for a set of lines.
enum Plan {
    Done,
    /// A record about one of the lines is on its way.
    Wait,
    Record(Vec<LogEntry>),
}

impl Journal {
    /// Makes the clean sectors of `range` invalid, in memory and after a crash, because the origin
    /// is about to get other data there. The caller keeps others out of the range.
    ///
    /// # Errors
    /// `Media` when the cache device failed, and a restart might bring back the data that is about
    /// to be replaced.
    pub(crate) async fn prepare_supersede(&self, range: ByteRange) -> Result<(), Error> {
        self.place_range(range).await;
        self.invalidate(range)?;
        self.unmap(range).await
    }

    fn invalidate(&self, range: ByteRange) -> Result<(), Error> {
        let state = &mut *self.lines.state();
        if state.failure.is_some() {
            let is_dirty = |block: BlockNumber| {
                let (part, _) = self.lines.line_size().part_of(block, range);
                state.frames.find(block).is_some_and(|(_, line)| !(line.dirty & part).is_empty())
            };
            // The range may be everything there could be: its blocks are not visited one by one.
            let blocks = self.lines.line_size().blocks_of(range);
            let is_uncertain = state.uncertain.range(blocks.clone()).next().is_some();
            if is_uncertain || state.frames.resident_in(blocks).into_iter().any(is_dirty) {
                let context = format!("{range} are dirty in a cache whose device failed; they cannot be replaced");
                return Err(Error::new(ErrorKind::Media, context));
            }
        }
        state.forget_clean(range);
        Ok(())
    }

    /// Makes all mappings in `range` void after a crash, except those of dirty sectors. The caller
    /// keeps others out of the range, and has made the sectors invalid that are going to change.
    ///
    /// # Errors
    /// `Media` when the cache device takes no record: a restart would bring back the data that is
    /// about to be replaced.
    pub(crate) async fn unmap(&self, range: ByteRange) -> Result<(), Error> {
        if !self.crash_mode.keeps_clean() {
            return Ok(());
        }
        let blocks = self.lines.line_size().blocks_of(range);
        let settled = match self.unmap_resident(range).await {
            Ok(()) => self.settle(|mappings| mappings.is_any_unmapped(blocks.clone())).await,
            Err(error) => Err(error),
        };
        if settled.is_ok() {
            return Ok(());
        }
        // The log has failed. The superblock is another place of the device, and can make all
        // mappings void.
        self.void_mappings().await.map_err(|error| {
            let context = format!(
                "the device of the cache failed and would bring back what {range} held: stop using it, and discard the \
                 cache"
            );
            Error::with_source(ErrorKind::Media, context, error)
        })
    }

    /// Like [`Journal::unmap`], for lines that were dirty then and were cleaned since. The caller,
    /// which is about to change the origin, holds the order of writes to it: so no more of these
    /// lines is sent, and from now on what was sent is not taken for clean.
    pub(crate) async fn unmap_cleaned(&self, range: ByteRange) -> Result<(), Error> {
        if !self.crash_mode.keeps_clean() {
            return Ok(());
        }
        loop {
            let count = self.lines.changed.count();
            let is_at_rest = {
                let state = &mut *self.lines.state();
                let blocks = state.frames.resident_in(self.lines.line_size().blocks_of(range));
                for &block in &blocks {
                    state.supersede_cleaning(block, self.lines.line_size().part_of(block, range).0);
                }
                let mut found = blocks.iter().filter_map(|&block| state.frames.lookup(block));
                !found.any(|frame| state.frames.is_busy(frame))
            };
            if is_at_rest {
                self.lines.forget_clean(range);
                return self.unmap(range).await;
            }
            self.lines.changed.changed_since(count).await;
        }
    }

    /// Waits until the lines that left their frames are unmapped durably, where `is_concerned` says
    /// that it matters.
    pub(crate) async fn settle(&self, is_concerned: impl Fn(&Mappings) -> bool) -> Result<(), Error> {
        loop {
            let count = self.lines.changed.count();
            let taken = {
                let state = &mut *self.lines.state();
                if !is_concerned(&state.frames.mappings) {
                    return Ok(());
                }
                if let Some(error) = &state.failure {
                    return Err(error.clone());
                }
                state.frames.mappings.take_unmapped(self.entries_max())
            };
            if taken.is_empty() {
                self.lines.changed.changed_since(count).await;
                continue;
            }
            let gone = |&(block, frame): &(BlockNumber, FrameNumber)| {
                LogEntry::state(frame, None, Line { block, ..Line::default() })
            };
            let entries: Vec<LogEntry> = taken.iter().map(gone).collect();
            if let Err(error) = self.append(&entries).await {
                self.fail(&error);
                return Err(error);
            }
            self.lines.state().frames.mappings.forget_unmapped(&taken);
            self.lines.changed.notify();
        }
    }

    async fn unmap_resident(&self, range: ByteRange) -> Result<(), Error> {
        loop {
            let count = self.lines.changed.count();
            let plan = self.plan_unmap(range)?;
            match plan {
                Plan::Done => return Ok(()),
                Plan::Wait => self.lines.changed.changed_since(count).await,
                Plan::Record(entries) => {
                    let result = self.append(&entries).await.map(drop);
                    let restore = |state: &mut State, entry: &LogEntry| {
                        if result.is_err() {
                            state.frames.set_mapped(entry.frame, true);
                        }
                    };
                    self.finish_records(&entries, restore);
                    if let Err(error) = result {
                        self.fail(&error);
                        return Err(error);
                    }
                }
            }
        }
    }

    fn plan_unmap(&self, range: ByteRange) -> Result<Plan, Error> {
        let state = &mut *self.lines.state();
        let (mut entries, mut must_wait) = (Vec::new(), false);
        for block in state.frames.resident_in(self.lines.line_size().blocks_of(range)) {
            let Some((frame, line)) = state.frames.find(block) else { continue };
            if !state.frames.is_mapped(frame) {
                continue;
            }
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            if state.frames.is_busy(frame) {
                must_wait = true;
            } else if entries.len() < self.entries_max() {
                state.frames.set_busy(frame, true);
                entries.push(unmapping(state, frame, line));
            }
        }
        Ok(plan(entries, must_wait))
    }

    /// In crash mode *all*: makes durable that the frames hold these clean sectors, whose data is
    /// durable. Returns `false` when the record failed. Data that the origin could still lose is
    /// not mapped here, unless `is_safe`: a checkpoint maps it after a flush of the origin.
    pub(crate) async fn map(&self, parts: &[CleanPart], is_safe: impl Fn() -> bool) -> bool {
        if !self.crash_mode.maps_at_once() {
            return true;
        }
        let mut rest = parts.to_vec();
        loop {
            let count = self.lines.changed.count();
            match self.plan_map(&mut rest, &is_safe) {
                Plan::Done => return true,
                Plan::Wait => self.lines.changed.changed_since(count).await,
                Plan::Record(entries) => {
                    // Nothing is left to do after this record, so its hold is dropped before the
                    // wake-up of tasks that wait for log room.
                    let result = self.append(&entries).await.map(drop);
                    self.finish_records(&entries, |_, _| {});
                    if let Err(error) = result {
                        self.fail(&error);
                        return false;
                    }
                }
            }
        }
    }

    /// Plans records for the parts of `rest` that can have one now, and removes these.
    fn plan_map(&self, rest: &mut Vec<CleanPart>, is_safe: impl Fn() -> bool) -> Plan {
        let state = &mut *self.lines.state();
        let (mut entries, mut must_wait) = (Vec::new(), false);
        if state.failure.is_some() || !state.frames.mappings.is_kept || !is_safe() {
            return Plan::Done;
        }
        rest.retain(|&CleanPart { block, mask, checksum }| {
            let Some((frame, line)) = state.frames.find(block) else { return false };
            let is_full = entries.len() >= self.entries_max();
            if is_full || state.frames.is_busy(frame) {
                must_wait |= !is_full;
                return true;
            }
            state.frames.set_busy(frame, true);
            state.frames.set_mapped(frame, true);
            let after = Line { valid: line.valid | mask, checksum, ..line };
            entries.push(LogEntry { kind: ENTRY_CLEAN, ..LogEntry::state(frame, None, after) });
            false
        });
        plan(entries, must_wait)
    }

    fn finish_records(&self, entries: &[LogEntry], finish: impl Fn(&mut State, &LogEntry)) {
        {
            let state = &mut *self.lines.state();
            for entry in entries {
                state.frames.set_busy(entry.frame, false);
                finish(state, entry);
            }
        }
        self.lines.changed.notify();
    }
}

/// The entry that leaves only the dirty sectors of a line mapped. The line is busy.
pub(crate) fn unmapping(state: &mut State, frame: FrameNumber, line: Line) -> LogEntry {
    // Before the record is appended: a page put together from now on comes behind it.
    state.frames.set_mapped(frame, false);
    LogEntry::state(frame, None, Line { valid: line.dirty, ..line })
}

fn plan(entries: Vec<LogEntry>, must_wait: bool) -> Plan {
    match (entries.is_empty(), must_wait) {
        (false, _) => Plan::Record(entries),
        (true, true) => Plan::Wait,
        (true, false) => Plan::Done,
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Wake, Waker};

    use base::executor::Executor;
    use store::{LogPosition, RecordLog};

    use super::*;
    use crate::crash_mode::CrashMode;
    use crate::journal::tests::{found, made};
    use crate::line_checksum::LineChecksum;
    use crate::lines::tests::put;
    use crate::sectors::Sectors;

    /// A waker that looks how far the log is needed at the moment of the wake-up.
    struct Looking {
        log: RecordLog,
        needed: Mutex<Option<LogPosition>>,
    }

    impl Wake for Looking {
        fn wake(self: Arc<Self>) {
            *self.needed.lock().unwrap() = Some(self.log.position_needed());
        }
    }

    /// A task that waits for room in the log looks once when it is woken: if the record were
    /// released only afterwards, it would wait for ever.
    fn check_that_waiters_find_no_hold(
        executor: &mut Executor,
        journal: &Journal,
        recording: impl Future<Output = ()> + 'static,
    ) {
        let looking = Arc::new(Looking { log: journal.log.clone(), needed: Mutex::default() });
        let waker = Waker::from(Arc::clone(&looking));
        let mut waiting = pin!(journal.lines.changed.changed_since(journal.lines.changed.count()));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let before = journal.log.position_needed();
        executor.block_on(recording);
        let end = journal.log.position_needed();
        assert_ne!(before, end, "there was a record");
        assert_eq!(*looking.needed.lock().unwrap(), Some(end));
    }

    #[test]
    fn who_is_woken_by_a_record_finds_it_let_go_of() {
        let mut executor = Executor::in_order();
        let (_device, journal) = made(&mut executor, CrashMode::AllSynchronous);
        let frame = put(&journal.lines, 0, 0xff, 0xff);
        put(&journal.lines, 1, 0, 0);

        journal.lines.state().frames.set_busy(frame, true);
        let line = journal.lines.state().frames.line(frame);
        let clean = LogEntry::state(frame, None, Line { dirty: Sectors::NONE, ..line });
        let cleaning = Arc::clone(&journal);
        let recording = async move { cleaning.commit_states(&[clean]).await.expect("nothing fails") };
        check_that_waiters_find_no_hold(&mut executor, &journal, recording);

        let mapping = Arc::clone(&journal);
        let part =
            CleanPart { block: BlockNumber(1), mask: Sectors::from_bytes(&[0xff]), checksum: LineChecksum::UNKNOWN };
        let recording = async move { assert!(mapping.map(&[part], || true).await) };
        check_that_waiters_find_no_hold(&mut executor, &journal, recording);
    }

    #[test]
    fn a_line_that_left_its_frame_counts_as_unknown_to_the_device_until_its_record_is_durable() {
        let mut executor = Executor::in_order();
        let (_device, journal) = made(&mut executor, CrashMode::AllSynchronous);
        journal.lines.state().frames.mappings.unmap(BlockNumber(3), FrameNumber(0));
        journal.log.fail(Error::new(ErrorKind::Media, "on demand"));
        for nth in ["who appends the record", "who comes later"] {
            let settling = Arc::clone(&journal);
            let settled = executor
                .block_on(async move { settling.settle(|mappings| mappings.is_unmapped(BlockNumber(3))).await });
            assert!(settled.is_err(), "{nth}");
        }
    }

    #[test]
    fn what_is_mapped_comes_back_until_it_is_unmapped_and_what_is_not_flushed_is_not_mapped() {
        for (is_safe, is_unmapped, is_back) in [(true, false, true), (true, true, false), (false, false, false)] {
            let mut executor = Executor::in_order();
            let (device, journal) = made(&mut executor, CrashMode::AllSynchronous);
            let frame = put(&journal.lines, 3, 0, 0);
            let recovered = executor.block_on(async move {
                let part = CleanPart {
                    block: BlockNumber(3),
                    mask: Sectors::from_bytes(&[0x0f]),
                    checksum: LineChecksum::UNKNOWN,
                };
                assert!(journal.map(&[part], || is_safe).await);
                if is_unmapped {
                    journal
                        .prepare_supersede(journal.lines.line_size().line_range(BlockNumber(3)))
                        .await
                        .expect("nothing fails");
                }
                found(&device).await.1
            });
            let found = recovered.frames.find(BlockNumber(3)).map(|(frame, line)| (frame, line.valid));
            assert_eq!(found, is_back.then_some((frame, Sectors::from_bytes(&[0x0f]))));
        }
    }
}
