//! Recovery: what the cache holds after its program stopped. The table is read, and the log
//! replayed over it.
//!
//! After an orderly close the table is complete and the log is empty. Otherwise, and where a closed cache's log goes on
//! nevertheless:
//!
//! 1. Clean lines are dropped unless the crash mode keeps them: their mappings were not kept up on the device, and the
//!    origin has their data.
//! 2. Log entries are applied in order. Each carries a whole state, so it does not matter that some are in the table
//!    already.
//! 3. An entry whose data travelled with it is *unproven* until something later proves that its
//!    write was acknowledged: a later entry about the same line, or one that uses the frame it freed
//!    (both happen only after the acknowledgement), or a later record that calls it settled. Of
//!    entries that stay unproven, a handful, the data is read and compared with the checksum. If it
//!    did not land, the write was never acknowledged: the line is restored to its state before, in a
//!    frame that has not been written since.
//!
//! 4. An entry with deferred data needs no such check: the record has all of the data. The sectors
//!    that are still dirty, and were not written later, belong into the frame, and may be missing
//!    there.
//!
//! The table goes straight into the frames as it is read: for a large cache it is the larger part
//! of all memory. The states from the log are kept beside it, and replace the table's at the end.
//!
//! Nothing is written here. The open that follows makes the result durable in a checkpoint before
//! anything else happens, and places deferred data then. After a power loss before that, recovery
//! finds the same again; frames may then hold some of the deferred data already.

use std::collections::BTreeMap;

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::{Error, ErrorKind, SharedDevice};
use store::{LogPosition, Record, Replayed, Sequence, Superblock, replay};

use crate::changes::Changes;
use crate::crash_mode::CrashMode;
use crate::deferred::Deferred;
use crate::format::{
    CHECKSUMS_NONE, CHECKSUMS_OF_LINES, ENTRY_CLEAN, ENTRY_DEFERRED, ENTRY_STATE, ENTRY_WRITE, Line, LogEntry,
    ParametersRaw, STATE_CLOSED, StoredLine, checksum_of,
};
use crate::frames::Frames;
use crate::frames::restore::{Restored, SetSeen};
use crate::layout::Layout;
use crate::line_size::LineSize;
use crate::numbers::{BlockNumber, FrameNumber, PageNumber, TableSequence};
use crate::page_set::PageSet;
use crate::recovery_report::RecoveryReport;
use crate::sectors::Sectors;
use crate::table::{Table, load};

/// The recovered content of a cache.
pub(crate) struct Recovered {
    pub(crate) table: Table,
    /// What each frame holds.
    pub(crate) frames: Frames,
    /// Deferred data that may be missing in the frames.
    pub(crate) deferred: Deferred,
    /// Position behind the last record.
    pub(crate) end: LogPosition,
    pub(crate) report: RecoveryReport,
}

/// Which clean lines to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clean {
    Keep,
    /// Those of a cache that was closed in order stay. After a crash all are dropped, whatever the
    /// crash mode: the device may still have revoked ones.
    KeepOfClosed,
    /// All are dropped: the origin has changed since.
    Drop,
}

/// `frames`, with checksums if the cache has them.
///
/// # Errors
/// `Unsupported` for checksums that this program does not know.
pub(crate) fn with_checksums(frames: Frames, parameters: &ParametersRaw) -> Result<Frames, Error> {
    match parameters.checksums {
        CHECKSUMS_NONE => Ok(frames),
        CHECKSUMS_OF_LINES => Ok(frames.with_checksums()),
        other => {
            let context = format!("this cache has checksums of kind {other}, which this program does not know");
            Err(Error::new(ErrorKind::Unsupported, context))
        }
    }
}

/// Reads table and log into empty `frames`, for an origin that has `origin_bytes` now: clean lines beyond are left out.
///
/// # Errors
/// `Corrupt` when they contradict themselves, the device's own.
pub(crate) async fn recover(
    device: &SharedDevice,
    frames: Frames,
    origin_bytes: u64,
    superblock: &Superblock<ParametersRaw>,
    clean: Clean,
) -> Result<Recovered, Error> {
    let parameters = &superblock.payload;
    let layout = *frames.layout();
    let was_closed = parameters.state == STATE_CLOSED;
    let keeps_clean = clean == Clean::Keep && CrashMode::from_raw(parameters.crash_mode)?.keeps_clean();
    let is_table_trusted = keeps_clean || (clean != Clean::Drop && was_closed);
    let mut replaying = Replaying::new(frames, origin_bytes, is_table_trusted, keeps_clean);
    let table_sequence = TableSequence::from(parameters.table_sequence);
    let take = |frame, stored: StoredLine<'_>| replaying.take_stored(frame, stored);
    let table = load(device, &layout, superblock.uuid(), table_sequence, take).await?;
    let start = LogPosition::from(parameters.log_position);
    let replayed = replay(device, layout.log, superblock.uuid(), start, |record| replaying.apply(&record)).await?;
    check_log_end(parameters.log_end.into(), replayed.end.sequence)?;
    let mut report = replaying.verify(device, &replayed).await;
    // Earlier programs that closed a cache during cleaning left such a log. Its records are whole;
    // mappings of clean lines were not kept up then.
    let has_gone_on = was_closed && replayed.record_count > 0;
    report.was_closed = was_closed && !has_gone_on;
    report.log_records = replayed.record_count;
    report.log_bytes = replayed.record_bytes;
    report.clean_lines_dropped = replaying.dropped_count;
    let deferred = replaying.take_deferred()?;
    report.deferred_lines = deferred.line_count() as u64;
    let mut frames = replaying.finish(&table.torn)?;
    if has_gone_on && !keeps_clean {
        report.clean_lines_dropped += Changes::of_everything().drop_from(&mut frames, true).unwrap_or_default();
    }
    report.dirty_lines = frames.counts().dirty_lines;
    report.lost_lines = frames.lost_count() as u64;
    // Pages of an incomplete checkpoint may hold fewer dirty lines: an open that was interrupted
    // may have given some up.
    if report.was_closed && table.sequence_next == table_sequence.next() {
        check_dirty_lines(parameters.dirty_lines.get(), report.dirty_lines)?;
        let digest = parameters.table_digest.get();
        report.is_table_older = digest != 0 && digest != table.digest();
    }
    if report.is_table_older {
        if report.dirty_lines > 0 {
            return Err(corrupt("a page of its table is not the one that it was closed with, and lines are dirty"));
        }
        // A stale table may name wrong blocks for the clean content; the origin has all of it.
        report.clean_lines_dropped += Changes::of_everything().drop_from(&mut frames, false).unwrap_or_default();
    }
    Ok(Recovered { table, frames, deferred, end: replayed.end, report })
}

/// Refuses a log that lacks records at its end which were durable when the superblock was written.
fn check_log_end(durable: Sequence, found: Sequence) -> Result<(), Error> {
    if found >= durable {
        return Ok(());
    }
    Err(corrupt(&format!("its log ends before record {found}, and had all before {durable}")))
}

/// Refuses the table of a closed cache whose count of dirty lines is not that of its close. A page
/// whose newest slot is lost gives the lines of its older one, and a closed cache has no log with
/// the changes since.
fn check_dirty_lines(at_close: u64, in_table: u64) -> Result<(), Error> {
    if at_close == in_table {
        return Ok(());
    }
    Err(corrupt(&format!("it was closed with {at_close} dirty lines, and its table has {in_table}")))
}

/// The line as it counts after a crash in a mode that drops clean lines.
fn without_clean(line: Line) -> Line {
    if line.dirty.is_empty() { Line::default() } else { Line { valid: line.dirty, ..line } }
}

struct Replaying {
    layout: Layout,
    /// The frames as in the table.
    frames: Frames,
    /// States of frames that replace the table's: those from the log. Also table entries that are
    /// impossible unless the log explains them: two frames of one block, or a line beyond the
    /// origin's end.
    changes: BTreeMap<FrameNumber, Line>,
    /// Deferred data of records.
    deferred: Deferred,
    /// Pages that differ from what recovery found.
    changed: PageSet<PageNumber>,
    unproven: BTreeMap<BlockNumber, Unproven>,
    /// The block whose unproven write freed a frame.
    freed_by: BTreeMap<FrameNumber, BlockNumber>,
    entry_count: u64,
    /// Count of clean lines of the table that were dropped.
    dropped_count: u64,
    origin_bytes: u64,
    /// First block that the origin does not have all bytes of.
    whole_end: BlockNumber,
    /// Tags of one set that were restored from the table.
    seen: SetSeen,
    /// Whether clean lines of the table count.
    is_table_trusted: bool,
    /// Whether entries may say that clean sectors count.
    keeps_clean: bool,
}

/// A write whose data may not have landed, and what was there before it.
struct Unproven {
    sequence: Sequence,
    entry: LogEntry,
    frame_before: Line,
    freed_before: Line,
}

impl Replaying {
    fn new(frames: Frames, origin_bytes: u64, is_table_trusted: bool, keeps_clean: bool) -> Self {
        let layout = *frames.layout();
        Self {
            layout,
            frames,
            changes: BTreeMap::new(),
            deferred: Deferred::new(),
            changed: PageSet::new(layout.page_count),
            unproven: BTreeMap::new(),
            freed_by: BTreeMap::new(),
            entry_count: 0,
            dropped_count: 0,
            origin_bytes,
            whole_end: layout.line_size.block_at(origin_bytes),
            seen: SetSeen::new(),
            is_table_trusted,
            keeps_clean,
        }
    }

    /// Takes the table entry of a frame.
    #[inline]
    fn take_stored(&mut self, frame: FrameNumber, stored: StoredLine<'_>) -> Result<(), Error> {
        let restored = match (stored.is_dirty(), self.is_table_trusted) {
            (false, true) if stored.block() < self.whole_end => {
                self.frames.restore_clean(frame, stored, &mut self.seen)
            }
            (false, false) => {
                self.changed.insert(self.layout.page_of(frame));
                self.dropped_count += 1;
                return Ok(());
            }
            _ => self.restore(frame, stored.line()),
        };
        match restored {
            Restored::Done => Ok(()),
            Restored::HeldElsewhere => {
                self.changes.insert(frame, self.counting(stored.line()));
                Ok(())
            }
            Restored::OtherSet => Err(corrupt("the table puts a line into another set")),
        }
    }

    /// Restores a line that is dirty or at the end of the origin. A line beyond the end is treated
    /// as held elsewhere: the log may have a later state of it.
    fn restore(&mut self, frame: FrameNumber, stored: Line) -> Restored {
        let line = self.counting(stored);
        if line != stored {
            self.changed.insert(self.layout.page_of(frame));
        }
        match end_of(self.layout.line_size, &line, line.valid) <= self.origin_bytes {
            true => self.frames.restore(frame, line, &mut self.seen),
            false => Restored::HeldElsewhere,
        }
    }

    /// The part of a line of the table that counts.
    fn counting(&self, stored: Line) -> Line {
        if self.is_table_trusted { stored } else { without_clean(stored) }
    }

    /// Applies the states from the log to the frames.
    fn finish(mut self, torn_pages: &[PageNumber]) -> Result<Frames, Error> {
        let mut urgent = PageSet::new(self.layout.page_count);
        for &page in torn_pages {
            self.changed.insert(page);
            urgent.insert(page);
        }
        for &frame in self.changes.keys() {
            self.changed.insert(self.layout.page_of(frame));
            urgent.insert(self.layout.page_of(frame));
            self.frames.retire(frame);
        }
        for (&frame, &line) in &self.changes {
            let line = within(self.layout.line_size, line, self.origin_bytes)?;
            if line.valid.is_empty() {
                continue;
            }
            if self.frames.lookup(line.block).is_some() {
                return Err(corrupt("a block is in two frames"));
            }
            if self.layout.set_of(line.block) != self.layout.set_of_frame(frame) {
                return Err(corrupt("a line is in another set"));
            }
            self.frames.attach(frame, line);
        }
        // Where clean lines count, a page with an outdated mapping must be rewritten before the log
        // is released.
        let urgent = if self.frames.mappings.is_kept { &self.changed } else { &urgent };
        self.frames.set_stored(&self.changed, urgent);
        Ok(self.frames)
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let line_size = self.layout.line_size;
        let mut payload = record.payload;
        while !payload.is_empty() {
            let taken = LogEntry::take(&mut payload, line_size);
            let (entry, data) = taken.ok_or_else(|| corrupt("a log record has a torn entry"))?;
            self.apply_entry(record.sequence, entry)?;
            self.defer(&entry, data);
        }
        Ok(())
    }

    fn apply_entry(&mut self, sequence: Sequence, entry: LogEntry) -> Result<(), Error> {
        let (block, frame, freed) = (entry.line.block, entry.frame, entry.frame_freed);
        let frame_before = self.line_at(frame)?;
        let freed_before = freed.map_or(Ok(Line::default()), |freed| self.line_at(freed))?;
        if self.layout.set_of(block) != self.layout.set_of_frame(frame) {
            return Err(corrupt("a log entry puts a line into another set"));
        }
        self.entry_count += 1;
        self.prove(block);
        if let Some(&other) = self.freed_by.get(&frame) {
            self.prove(other);
        }
        match entry.kind {
            ENTRY_WRITE => {
                let unproven = Unproven { sequence, entry, frame_before, freed_before };
                self.unproven.insert(block, unproven);
                if let Some(freed) = freed {
                    self.freed_by.insert(freed, block);
                }
            }
            ENTRY_STATE | ENTRY_CLEAN | ENTRY_DEFERRED => {}
            _ => return Err(corrupt("a log entry is of an unknown kind")),
        }
        if let Some(freed) = freed
            && freed_before.block == block
        {
            self.set(freed, Line::default());
        }
        let counts_whole = entry.kind == ENTRY_CLEAN && self.keeps_clean;
        self.set(frame, if counts_whole { entry.line } else { without_clean(entry.line) });
        Ok(())
    }

    /// Keeps the data of a deferred write, and drops earlier deferred data that this entry
    /// replaces.
    fn defer(&mut self, entry: &LogEntry, data: &[u8]) {
        let LogEntry { line, frame, checked, .. } = *entry;
        // Sectors that a write put into the frame are newer there; if that write is taken back they
        // may no longer be dirty.
        let written = if entry.kind == ENTRY_WRITE { checked } else { Sectors::NONE };
        self.deferred.keep_only(frame, line.block, line.dirty & !written);
        if entry.kind == ENTRY_DEFERRED {
            self.deferred.add(frame, line.block, checked, data, None);
        }
    }

    /// The deferred data that is still dirty, in the frame that it was written for.
    fn take_deferred(&mut self) -> Result<Deferred, Error> {
        let mut deferred = std::mem::replace(&mut self.deferred, Deferred::new());
        for frame in deferred.frames() {
            let line = self.line_at(frame)?;
            deferred.keep_only(frame, line.block, line.dirty);
        }
        Ok(deferred)
    }

    /// Proves the last write of `block`: something later shows that it was acknowledged.
    fn prove(&mut self, block: BlockNumber) {
        if let Some(freed) = self.unproven.remove(&block).and_then(|unproven| unproven.entry.frame_freed) {
            self.freed_by.remove(&freed);
        }
    }

    /// Checks the data of the entries that stay unproven, and takes back those that did not land.
    async fn verify(&mut self, device: &SharedDevice, replayed: &Replayed) -> RecoveryReport {
        let mut report = RecoveryReport { log_entries: self.entry_count, ..RecoveryReport::default() };
        for unproven in std::mem::take(&mut self.unproven).into_values() {
            if unproven.sequence <= replayed.settled {
                continue;
            }
            report.writes_verified += 1;
            let frame = unproven.entry.frame;
            let offset = self.layout.frame_offset(frame);
            match read_after_all(device, offset, self.layout.line_size.bytes() as usize).await {
                Ok(data) if checksum_of(unproven.entry.checked, &data) == unproven.entry.checksum => {}
                Ok(_) => {
                    report.writes_taken_back += 1;
                    self.set(frame, unproven.frame_before);
                    if let Some(freed) = unproven.entry.frame_freed {
                        self.set(freed, unproven.freed_before);
                    }
                }
                Err(error) => {
                    // The write may have been acknowledged, so the line must not silently return to
                    // its state before.
                    tracing::error!(%error, %frame, "the cache device cannot return data written before the crash");
                    let line = Line { is_lost: true, ..without_clean(unproven.entry.line) };
                    self.set(frame, line);
                }
            }
        }
        report
    }

    fn line_at(&self, frame: FrameNumber) -> Result<Line, Error> {
        if frame.0 >= self.layout.frame_count() {
            return Err(corrupt("a log entry names a frame that does not exist"));
        }
        Ok(self.changes.get(&frame).copied().unwrap_or_else(|| self.frames.line(frame)))
    }

    fn set(&mut self, frame: FrameNumber, line: Line) {
        self.changes.insert(frame, line);
    }
}

/// Reads, and on an error once more. Data that it does not return now counts as lost for good, even
/// if a later read would return it.
async fn read_after_all(device: &SharedDevice, offset: u64, length: usize) -> Result<Buffer, Error> {
    match device.read(offset, Buffer::zeroed(length)).await {
        Err(_) => device.read(offset, Buffer::zeroed(length)).await,
        read => read,
    }
}

/// The part of a line within an origin of `origin_bytes`; all dirty sectors are kept.
///
/// Dirty sectors stay also beyond the end: see `stranded`.
///
/// # Errors
/// `Corrupt` for dirty sectors beyond the largest possible origin.
fn within(line_size: LineSize, line: Line, origin_bytes: u64) -> Result<Line, Error> {
    if end_of(line_size, &line, line.valid) <= origin_bytes {
        return Ok(line);
    }
    if line.dirty.is_empty() {
        return Ok(Line::default());
    }
    match end_of(line_size, &line, line.dirty) <= i64::MAX as u64 {
        true => Ok(Line { valid: line.dirty, ..line }),
        false => Err(corrupt("a dirty line is where no disk reaches")),
    }
}

/// First byte of the origin behind the sectors of `mask`. A line from the device may name any
/// block: an offset that does not fit counts as behind every end.
fn end_of(line_size: LineSize, line: &Line, mask: Sectors) -> u64 {
    let in_line = mask.hull().map_or(0, |run| run.offset() + run.length());
    let start = line_size.checked_start_of(line.block);
    start.and_then(|start| start.checked_add(in_line)).unwrap_or(u64::MAX)
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the cache's metadata is damaged: {what}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::executor::Executor;
    use block::memory::MemoryDevice;
    use block::{Device, Identity};

    use super::*;
    use crate::journal::Extent;
    use crate::mode::Mode;
    use crate::options::{FormatOptions, OpenOptions};
    use crate::{Cache, CrashMode};

    fn open(executor: &mut Executor, device: &SharedDevice, origin: &SharedDevice) -> Arc<Cache> {
        let options = OpenOptions::new(Mode::WriteBack, Arc::new(executor.clock()));
        let opening = Cache::open(Arc::clone(device), Arc::clone(origin), options);
        let cache = executor.block_on(opening).expect("it opens");
        executor.spawn(cache.run());
        cache
    }

    fn read(executor: &mut Executor, device: &impl Device, offset: u64) -> u8 {
        executor.block_on(device.read(offset, Buffer::zeroed(4096))).expect("nothing fails")[0]
    }

    fn write(executor: &mut Executor, device: &impl Device, offset: u64, byte: u8) {
        executor.block_on(device.write(offset, Buffer::copy_of(&[byte; 4096]), false)).expect("nothing fails");
    }

    /// Earlier programs left such a cache when they closed it during cleaning.
    #[test]
    fn a_closed_cache_whose_log_goes_on_is_what_its_log_says() {
        for crash_mode in [CrashMode::DirtySynchronous, CrashMode::Warm] {
            let mut executor = Executor::in_order();
            let memory = || -> SharedDevice { Arc::new(MemoryDevice::new(1 << 20, Identity::default())) };
            let (device, origin) = (memory(), memory());
            let options = FormatOptions { crash_mode, ..FormatOptions::default() };
            let formatting = (Arc::clone(&device), Arc::clone(&origin));
            executor
                .block_on(async move { Cache::format(&formatting.0, &formatting.1, options).await.expect("it fits") });
            let cache = open(&mut executor, &device, &origin);
            write(&mut executor, &cache, 0, 1);
            write(&mut executor, &cache, 8192, 2);
            read(&mut executor, &cache, 16384);
            executor.run_until_stalled();
            let core = Arc::clone(cache.core());
            executor.block_on(async move { core.journal.checkpoint(Extent::Complete).await.expect("nothing fails") });
            write(&mut executor, &cache, 0, 3);
            let cleaning = Arc::clone(&cache);
            executor.block_on(async move { cleaning.clean(|_| {}).await.expect("nothing fails") });
            write(&mut executor, &cache, 8192, 4);
            drop((cache, executor));
            // Mappings of clean lines were not kept up by then.
            let mut executor = Executor::in_order();
            write(&mut executor, &origin, 16384, 5);
            let cache = open(&mut executor, &device, &origin);
            let recovery = cache.status().recovery;
            assert!(!recovery.was_closed && recovery.log_records > 0, "{recovery:?}");
            assert_eq!(cache.status().dirty_lines, 1);
            let expected_clean = if crash_mode.keeps_clean() { 0 } else { 5 };
            let found = [0, 8192, 16384].map(|offset| read(&mut executor, &cache, offset));
            assert_eq!(found, [3, 4, expected_clean], "{crash_mode}");
        }
    }
}
