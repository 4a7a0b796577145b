//! The map of lines behind one mutex: frames, work under way on them, and admission.
//!
//! A request that finds a line in use by another waits for [`Lines::changed`] and looks again.
//! Nothing here knows a device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::range::ByteRange;
use base::signal::Signal;
use block::Error;

use crate::admission::Admissions;
use crate::deferred::Deferred;
use crate::format::Line;
use crate::frames::Frames;
use crate::layout::Layout;
use crate::line_checksum::LineChecksum;
use crate::line_size::LineSize;
use crate::mode::Mode;
use crate::numbers::{BlockNumber, each_of};
use crate::options::{DirtyLimits, TimeOfDay};
use crate::sectors::Sectors;

/// The map of lines behind its mutex, and the signals that wake tasks when it changes.
pub(crate) struct Lines {
    pub(crate) layout: Layout,
    /// Notified when a line came to rest, a frame came free or room was made: every waiting task
    /// looks again.
    pub(crate) changed: Signal,
    /// Notified when background work may have become necessary. Apart from `changed`, so that it sleeps while there is
    /// none.
    pub(crate) background: Signal,
    /// Whether the cache device failed: a copy of [`State::failure`] that is read without the lock.
    has_failed: AtomicBool,
    /// Whether the last look found nothing to store without hurry.
    is_lazy_idle: AtomicBool,
    state: Mutex<State>,
}

/// Guarded by [`Lines::state`]; sections are short and never await.
pub(crate) struct State {
    pub(crate) frames: Frames,
    pub(crate) mode: Mode,
    pub(crate) dirty: DirtyLimits,
    /// Seconds since 1970 at which nothing was dirty; 0 when that is not known.
    pub(crate) clean_at: u64,
    pub(crate) admissions: Admissions,
    /// Data that is durable in the log and not in its frame yet.
    pub(crate) deferred: Deferred,
    /// Sectors being cleaned, by block. A write to a sector removes it: the data sent to the origin
    /// is then old.
    pub(crate) cleaning: BTreeMap<BlockNumber, Sectors>,
    /// The error with which the cache device refused a log record or a table page. From then on
    /// nothing new is cached.
    pub(crate) failure: Option<Error>,
    /// Blocks of records that may or may not have landed when the log failed.
    pub(crate) uncertain: BTreeSet<BlockNumber>,
    time_of_day: Option<TimeOfDay>,
}

/// Clean sectors of one line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CleanPart {
    pub(crate) block: BlockNumber,
    pub(crate) mask: Sectors,
    /// Checksum of the line, where this is all of it.
    pub(crate) checksum: LineChecksum,
}

impl State {
    /// The state without work under way. `clean_at` as in the field.
    pub(crate) fn new(
        frames: Frames,
        mode: Mode,
        dirty: DirtyLimits,
        admissions: Admissions,
        deferred: Deferred,
        clean_at: u64,
        time_of_day: Option<TimeOfDay>,
    ) -> Self {
        Self {
            frames,
            mode,
            dirty,
            clean_at,
            admissions,
            deferred,
            cleaning: BTreeMap::new(),
            failure: None,
            uncertain: BTreeSet::new(),
            time_of_day,
        }
    }

    /// Gives a block a frame, if one can be had. Returns how many lines were evicted for it.
    pub(crate) fn give_frame(&mut self, block: BlockNumber) -> u64 {
        let Some(reserved) = self.frames.reserve(block) else { return 0 };
        self.frames.attach(reserved.frame, Line { block, ..Line::default() });
        u64::from(reserved.has_evicted)
    }

    /// Notes that these sectors were written: a cleaning under way does not make them clean.
    pub(crate) fn supersede_cleaning(&mut self, block: BlockNumber, mask: Sectors) {
        if let Some(cleaning) = self.cleaning.get_mut(&block) {
            *cleaning &= !mask;
        }
    }

    /// Notes the time of day while nothing is dirty.
    pub(crate) fn note_clean(&mut self) {
        if self.frames.counts().dirty_lines == 0
            && let Some(time_of_day) = &self.time_of_day
        {
            self.clean_at = time_of_day();
        }
    }

    /// Makes the clean sectors of `range` invalid. Dirty ones stay.
    pub(crate) fn forget_clean(&mut self, range: ByteRange) {
        let line_size = self.frames.layout().line_size;
        for block in self.frames.resident_in(line_size.blocks_of(range)) {
            if let Some((frame, line)) = self.frames.find(block) {
                let (part, _) = line_size.part_of(block, range);
                self.frames.set_sectors(frame, line.valid & (!part | line.dirty), line.dirty);
            }
        }
    }

    /// Whether background cleaning is due. In modes other than write-back all dirty data is due: it
    /// is left from an earlier mode.
    pub(crate) fn is_much_dirty(&self) -> bool {
        let dirty_max = match self.mode.delays_writes() {
            true => self.dirty.clean_above.of(u64::from(self.frames.layout().frame_count())),
            false => 0,
        };
        let unsendable = self.frames.lost_count() + self.frames.stranded.len();
        self.frames.counts().dirty_lines.saturating_sub(unsendable as u64) > dirty_max
    }
}

impl Lines {
    pub(crate) fn new(state: State) -> Self {
        Self {
            layout: *state.frames.layout(),
            changed: Signal::new(),
            background: Signal::new(),
            has_failed: AtomicBool::new(false),
            is_lazy_idle: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.state().mode
    }

    /// How large lines are.
    pub(crate) fn line_size(&self) -> LineSize {
        self.layout.line_size
    }

    /// Wakes all tasks that wait for lines, and background work.
    pub(crate) fn wake_all(&self) {
        self.changed.notify();
        self.background.notify();
    }

    /// Whether the cache device failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Notes that the cache device failed: clean lines no longer count. The first call runs
    /// `refuse_records`, before the failure can be seen.
    pub(crate) fn fail(&self, error: &Error, refuse_records: impl FnOnce()) {
        let mut state = self.state();
        if state.failure.is_none() {
            tracing::error!(%error, "the cache device failed: nothing new is cached; writes go to the origin");
            state.failure = Some(error.clone());
            // What is clean was written without force unit access: a flush that failed, of our own or of a durable
            // write, may have dropped it.
            state.frames.forget_clean();
            self.has_failed.store(true, Ordering::Release);
            refuse_records();
        }
        drop(state);
        self.wake_all();
    }

    /// Sets whether there is nothing to store without hurry.
    pub(crate) fn set_lazy_idle(&self, is_idle: bool) {
        self.is_lazy_idle.store(is_idle, Ordering::Release);
    }

    /// Notes that there may be something to store without hurry, and wakes the task for it.
    pub(crate) fn wake_lazy(&self) {
        if self.is_lazy_idle.swap(false, Ordering::AcqRel) {
            self.background.notify();
        }
    }

    /// Whether a sector of `range` is dirty.
    pub(crate) fn has_dirty(&self, range: ByteRange) -> bool {
        let line_size = self.line_size();
        let state = self.state();
        let is_touched = |block: BlockNumber| {
            let found = state.frames.find(block);
            found.is_some_and(|(_, line)| !(line.dirty & line_size.part_of(block, range).0).is_empty())
        };
        state.frames.dirty_in(line_size.blocks_of(range)).into_iter().any(is_touched)
    }

    /// Gives blocks that are not resident a frame, without asking admission. Returns how many lines
    /// were evicted.
    pub(crate) fn give_frames(&self, range: ByteRange) -> u64 {
        let state = &mut *self.state();
        let blocks = self.line_size().blocks_of(range);
        each_of(blocks)
            .map(|block| if state.frames.lookup(block).is_none() { state.give_frame(block) } else { 0 })
            .sum()
    }

    /// Releases the frames of lines in `range` without a valid sector. The caller keeps others out
    /// of the range.
    pub(crate) fn release_empty(&self, range: ByteRange) {
        let state = &mut *self.state();
        for block in state.frames.resident_in(self.line_size().blocks_of(range)) {
            if let Some((frame, line)) = state.frames.find(block)
                && line.valid.is_empty()
                && !state.frames.is_busy(frame)
            {
                state.frames.release(frame);
            }
        }
    }

    /// Makes the clean sectors of `range` invalid: see [`State::forget_clean`].
    pub(crate) fn forget_clean(&self, range: ByteRange) {
        self.state().forget_clean(range);
    }

    /// Forgets the clean sectors of lines with data that the origin has not flushed: it may have
    /// lost it.
    pub(crate) fn forget_unflushed(&self) {
        let state = &mut *self.state();
        for frame in state.frames.mappings.unflushed_frames() {
            let line = state.frames.line(frame);
            if line.valid != line.dirty {
                state.frames.set_sectors(frame, line.dirty, line.dirty);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::admission::Tuning;
    use crate::numbers::FrameNumber;
    use crate::options::{Associativity, FormatOptions};
    use crate::replacement::Replacement;

    /// Lines of an empty cache on a device of a MiB, in write-back.
    pub(crate) fn empty(associativity: Associativity) -> Arc<Lines> {
        let options = FormatOptions { associativity, ..FormatOptions::default() };
        of(Frames::new(Layout::new(1 << 20, &options).expect("it fits"), Replacement::Lru))
    }

    /// Lines of these frames, in write-back.
    pub(crate) fn of(frames: Frames) -> Arc<Lines> {
        let admissions = Admissions::new(Tuning::default(), 0);
        let (dirty, deferred) = (DirtyLimits::default(), Deferred::new());
        Arc::new(Lines::new(State::new(frames, Mode::WriteBack, dirty, admissions, deferred, 0, None)))
    }

    /// Puts a line with these sectors (each bit of a byte stands for as many) into a frame, and
    /// returns the frame.
    pub(crate) fn put(lines: &Lines, block: u64, valid: u8, dirty: u8) -> FrameNumber {
        let block = BlockNumber(block);
        let state = &mut *lines.state();
        let frame = state.frames.reserve(block).expect("there is a frame").frame;
        let [valid, dirty] = [valid, dirty].map(|bits| Sectors::from_bytes(&[bits]));
        state.frames.attach(frame, Line { block, valid, dirty, ..Line::default() });
        frame
    }

    /// The valid sectors of the line in a frame.
    pub(crate) fn valid(lines: &Lines, frame: FrameNumber) -> Sectors {
        lines.state().frames.line(frame).valid
    }

    #[test]
    fn a_device_that_failed_leaves_what_is_dirty_and_refuses_records_once() {
        let lines = empty(Associativity::Full);
        let [clean, mixed] = [put(&lines, 1, 0xff, 0), put(&lines, 2, 0x0f, 0x03)];
        let mut refused_count = 0;
        for context in ["first", "second"] {
            lines.fail(&Error::new(block::ErrorKind::Media, context), || refused_count += 1);
        }
        assert!(lines.has_failed() && refused_count == 1);
        assert!(lines.state().failure.as_ref().is_some_and(|error| error.to_string().contains("first")));
        assert_eq!([valid(&lines, clean), valid(&lines, mixed)], [Sectors::NONE, Sectors::from_bytes(&[0x03])]);
    }

    #[test]
    fn what_is_forgotten_of_a_range_is_what_is_clean_in_it() {
        let lines = empty(Associativity::Full);
        let [within, beside] = [put(&lines, 1, 0xff, 0x01), put(&lines, 2, 0xff, 0)];
        lines.forget_clean(ByteRange { offset: 4096, length: 4096 + 512 });
        assert_eq!(valid(&lines, within), Sectors::from_bytes(&[0x01]));
        assert_eq!(valid(&lines, beside), Sectors::from_bytes(&[0xfe]));
        assert!(lines.has_dirty(ByteRange { offset: 4096, length: 512 }));
        assert!(!lines.has_dirty(ByteRange { offset: 4096 + 512, length: 4096 }));
    }

    #[test]
    fn what_cannot_be_sent_is_no_reason_to_clean() {
        let lines = empty(Associativity::Full);
        put(&lines, 1, 0xff, 0xff);
        let state = &mut *lines.state();
        assert!(!state.is_much_dirty(), "one line of many");
        state.mode = Mode::WriteThrough;
        assert!(state.is_much_dirty(), "nothing is to stay dirty");
        state.frames.stranded.insert(BlockNumber(1));
        assert!(!state.is_much_dirty());
    }
}
