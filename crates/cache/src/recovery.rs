//! What the cache holds after its program stopped: the table, and the log replayed over it.
//!
//! After an orderly close the table is complete and the log is empty. Otherwise:
//!
//! 1. Clean lines are dropped unless the crash mode keeps them: their mappings were not kept up on the device, and the origin has their data.
//! 2. Log entries are applied in order. Each carries a whole state, so it does not matter that some are in the table already.
//! 3. An entry whose data travelled with it is *unproven* until something later shows that its write was acknowledged: a later entry
//!    about the same line or one that uses the frame it freed (both happen only after the acknowledgement), or a later record that
//!    calls it settled. For what stays unproven, a handful, the data is read and compared with the checksum. If it did not land, the
//!    write was never acknowledged and the line is what it was before; the frame it was in has not been touched since.
//!
//! Nothing is written here. Whoever opens the cache makes the result durable in a checkpoint before anything else happens; a power loss before
//! that finds everything as it was.

use std::collections::BTreeMap;

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::{Error, ErrorKind, SharedDevice};
use store::{LogPosition, Record, Replayed, Superblock, replay};
use zerocopy::FromBytes;

use crate::crash_mode::CrashMode;
use crate::format::{
    ENTRY_CLEAN, ENTRY_STATE, ENTRY_WRITE, FRAME_NONE, Line, LogEntryRaw, ParametersRaw, STATE_CLOSED,
};
use crate::layout::Layout;
use crate::limits::LINE_BYTES;
use crate::status::RecoveryReport;
use crate::table::{Loaded, Table, load};
use crate::write_back::checksum_of;

/// What was found.
pub(crate) struct Recovered {
    pub(crate) table: Table,
    /// What each frame holds.
    pub(crate) lines: Vec<Line>,
    /// Frames whose table entry on the device differs from `lines`.
    pub(crate) changed: Vec<u32>,
    /// Those of them that differ in what is dirty.
    pub(crate) urgent: Vec<u32>,
    /// Behind the last record.
    pub(crate) end: LogPosition,
    pub(crate) report: RecoveryReport,
}

/// Reads table and log.
///
/// # Errors
/// `Corrupt` when they contradict themselves, the device's own.
pub(crate) async fn recover(
    device: &SharedDevice,
    layout: &Layout,
    superblock: &Superblock<ParametersRaw>,
) -> Result<Recovered, Error> {
    let parameters = &superblock.payload;
    let Loaded { table, lines: stored } =
        load(device, layout, superblock.uuid(), parameters.table_sequence.get()).await?;
    let was_closed = parameters.state == STATE_CLOSED;
    let keeps_clean = CrashMode::from_raw(parameters.crash_mode)?.keeps_clean();
    let is_all_trusted = was_closed || keeps_clean;
    let mut replaying =
        Replaying::new(layout, if is_all_trusted { stored.clone() } else { only_dirty(&stored) }, keeps_clean);
    let start = LogPosition::from(parameters.log_position);
    let replayed = replay(device, layout.log, superblock.uuid(), start, |record| replaying.apply(&record)).await?;
    if was_closed && replayed.record_count > 0 {
        return Err(Error::new(ErrorKind::Corrupt, "the cache was closed, yet its log goes on"));
    }
    let mut report = replaying.verify(device, &replayed).await;
    let lines = replaying.lines;
    check_lines(layout, &lines)?;
    report.was_closed = was_closed;
    report.log_records = replayed.record_count;
    report.log_bytes = replayed.record_bytes;
    report.dirty_lines = lines.iter().filter(|line| line.dirty != 0).count() as u64;
    report.lost_lines = lines.iter().filter(|line| line.is_lost).count() as u64;
    report.clean_lines_dropped =
        if is_all_trusted { 0 } else { stored.iter().filter(|line| line.valid != 0 && line.dirty == 0).count() as u64 };
    let differing = |differs: fn(&Line, &Line) -> bool| {
        let pairs = stored.iter().zip(&lines).enumerate();
        pairs.filter(|(_, (stored, line))| differs(stored, line)).map(|(frame, _)| frame as u32).collect()
    };
    let changed = differing(|stored, line| stored != line);
    let urgent = differing(|stored, line| without_clean(*stored) != without_clean(*line));
    Ok(Recovered { table, lines, changed, urgent, end: replayed.end, report })
}

fn only_dirty(lines: &[Line]) -> Vec<Line> {
    lines.iter().copied().map(without_clean).collect()
}

/// The line as far as the device keeps it after a crash.
fn without_clean(line: Line) -> Line {
    if line.dirty == 0 { Line::default() } else { Line { valid: line.dirty, ..line } }
}

struct Replaying<'a> {
    layout: &'a Layout,
    lines: Vec<Line>,
    unproven: BTreeMap<u64, Unproven>,
    /// Which block's unproven write freed a frame.
    freed_by: BTreeMap<u32, u64>,
    entry_count: u64,
    /// Whether entries may say that clean sectors count.
    keeps_clean: bool,
}

/// A write whose data may not have landed, and what was there before it.
struct Unproven {
    sequence: u64,
    entry: LogEntryRaw,
    frame_before: Line,
    freed_before: Line,
}

impl<'a> Replaying<'a> {
    fn new(layout: &'a Layout, lines: Vec<Line>, keeps_clean: bool) -> Self {
        Self { layout, lines, unproven: BTreeMap::new(), freed_by: BTreeMap::new(), entry_count: 0, keeps_clean }
    }

    fn apply(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let entries = record.payload.chunks(size_of::<LogEntryRaw>());
        for bytes in entries {
            let entry = LogEntryRaw::read_from_bytes(bytes).map_err(|_| corrupt("a log record has a torn entry"))?;
            self.apply_entry(record.sequence, entry)?;
        }
        Ok(())
    }

    fn apply_entry(&mut self, sequence: u64, entry: LogEntryRaw) -> Result<(), Error> {
        let (block, frame, freed) = (entry.block.get(), entry.frame.get(), entry.frame_freed.get());
        let frame_before = self.line_at(frame)?;
        let freed_before = if freed == FRAME_NONE { Line::default() } else { self.line_at(freed)? };
        if self.layout.set_of(block) != frame / self.layout.ways {
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
                if freed != FRAME_NONE {
                    self.freed_by.insert(freed, block);
                }
            }
            ENTRY_STATE | ENTRY_CLEAN => {}
            _ => return Err(corrupt("a log entry is of an unknown kind")),
        }
        if freed != FRAME_NONE && freed_before.block == block {
            self.set(freed, Line::default());
        }
        let counts_whole = entry.kind == ENTRY_CLEAN && self.keeps_clean;
        self.set(frame, if counts_whole { entry.line() } else { without_clean(entry.line()) });
        Ok(())
    }

    /// Something later shows that the last write of `block` was acknowledged.
    fn prove(&mut self, block: u64) {
        if let Some(unproven) = self.unproven.remove(&block) {
            self.freed_by.remove(&unproven.entry.frame_freed.get());
        }
    }

    /// Looks at the data of what stayed unproven, and takes back what did not land.
    async fn verify(&mut self, device: &SharedDevice, replayed: &Replayed) -> RecoveryReport {
        let mut report = RecoveryReport { log_entries: self.entry_count, ..RecoveryReport::default() };
        for unproven in std::mem::take(&mut self.unproven).into_values() {
            if unproven.sequence <= replayed.settled {
                continue;
            }
            report.writes_verified += 1;
            let frame = unproven.entry.frame.get();
            let offset = self.layout.frame_offset(frame);
            match device.read(offset, Buffer::zeroed(LINE_BYTES as usize)).await {
                Ok(data) if checksum_of(unproven.entry.checked, &data) == unproven.entry.checksum.get() => {}
                Ok(_) => {
                    report.writes_taken_back += 1;
                    self.set(frame, unproven.frame_before);
                    let freed = unproven.entry.frame_freed.get();
                    if freed != FRAME_NONE {
                        self.set(freed, unproven.freed_before);
                    }
                }
                Err(error) => {
                    // It may have been acknowledged, so the line must not silently be what it was before.
                    tracing::error!(%error, frame, "the cache device cannot return data written before the crash");
                    let line = Line { is_lost: true, ..without_clean(unproven.entry.line()) };
                    self.set(frame, line);
                }
            }
        }
        report
    }

    fn line_at(&self, frame: u32) -> Result<Line, Error> {
        self.lines.get(frame as usize).copied().ok_or_else(|| corrupt("a log entry names a frame that does not exist"))
    }

    fn set(&mut self, frame: u32, line: Line) {
        if let Some(place) = self.lines.get_mut(frame as usize) {
            *place = line;
        }
    }
}

/// Refuses a table in which a block is in two frames or in another set.
fn check_lines(layout: &Layout, lines: &[Line]) -> Result<(), Error> {
    let mut blocks = Vec::new();
    for (frame, line) in lines.iter().enumerate() {
        if line.valid == 0 {
            continue;
        }
        if layout.set_of(line.block) != frame as u32 / layout.ways {
            return Err(corrupt("the table puts a line into another set"));
        }
        blocks.push(line.block);
    }
    blocks.sort_unstable();
    match blocks.windows(2).any(|pair| pair[0] == pair[1]) {
        true => Err(corrupt("a block is in two frames")),
        false => Ok(()),
    }
}

fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the cache's metadata is damaged: {what}"))
}
