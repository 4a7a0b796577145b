//! The durable state of the lines: the log of records, the table of pages into which checkpoints
//! put it, and the superblock that says where both begin.
//!
//! | file | does |
//! |---|---|
//! | `checkpoint` | writes the table, so that the log's room can be used again |
//! | `place` | writes deferred data to its frames |
//! | `records` | appends to the log, and applies a durable record to the lines in memory |
//! | `unmap` | makes mappings of clean lines void or durable, where they count after a crash |

mod checkpoint;
mod place;
mod records;
mod unmap;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Error, SharedDevice};
use store::{Life, LogPosition, LogUsage, RecordLog, Superblock, Tokens};

pub(crate) use self::checkpoint::Extent;
pub(crate) use self::unmap::unmapping;
use crate::crash_mode::CrashMode;
use crate::format::ParametersRaw;
use crate::lines::Lines;
use crate::table::Table;

/// The log, the table and the superblock of one open cache, and what is written to them.
pub(crate) struct Journal {
    device: SharedDevice,
    lines: Arc<Lines>,
    life: Arc<Life>,
    /// The crash mode since open.
    crash_mode: CrashMode,
    /// Tokens by which the host tells the store from other copies of it.
    tokens: Option<Tokens>,
    log: RecordLog,
    uuid: uuid::Uuid,
    /// Held while a checkpoint runs.
    stored: futures_util::lock::Mutex<Stored>,
    /// Held while deferred data is placed, and by a checkpoint from where it notes its position until it has ended: its
    /// flushes may drop what a placing has written.
    placing: futures_util::lock::Mutex<()>,
    counts: JournalCounters,
}

/// What a checkpoint writes.
pub(crate) struct Stored {
    pub(crate) superblock: Superblock<ParametersRaw>,
    pub(crate) table: Table,
}

/// Counts since the cache was opened.
#[derive(Default)]
struct JournalCounters {
    checkpoints: AtomicU64,
    table_pages_written: AtomicU64,
    log_full: AtomicU64,
}

/// The journal's part of the status.
pub(crate) struct JournalStatus {
    pub(crate) checkpoints: u64,
    pub(crate) table_pages_written: u64,
    /// Times that a record found the log full.
    pub(crate) log_full: u64,
    pub(crate) log: LogUsage,
}

impl Journal {
    /// The journal on the device of `stored`; its log begins at `start`, in an epoch of its own.
    ///
    /// # Errors
    /// `Corrupt` when the region cannot be a log's.
    pub(crate) fn new(
        device: SharedDevice,
        stored: Stored,
        start: LogPosition,
        crash_mode: CrashMode,
        tokens: Option<Tokens>,
        lines: &Arc<Lines>,
        life: &Arc<Life>,
    ) -> Result<Self, Error> {
        let uuid = stored.superblock.uuid();
        Ok(Self {
            log: RecordLog::new(Arc::clone(&device), lines.layout.log, uuid, start)?,
            device,
            lines: Arc::clone(lines),
            life: Arc::clone(life),
            crash_mode,
            tokens,
            uuid,
            stored: futures_util::lock::Mutex::new(stored),
            placing: futures_util::lock::Mutex::new(()),
            counts: JournalCounters::default(),
        })
    }

    /// Identifier of the cache.
    pub(crate) fn uuid(&self) -> uuid::Uuid {
        self.uuid
    }

    /// Notes that the cache device failed, and that nothing new can be promised with it.
    pub(crate) fn fail(&self, error: &Error) {
        self.lines.fail(error, || self.log.fail(error.clone()));
    }

    /// The error since which no record is appended.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.log.failure()
    }

    /// Refuses records from now on, and waits for a checkpoint and a placing under way: afterwards
    /// nothing is written to the device.
    pub(crate) async fn end(&self, reason: Error) {
        self.log.fail(reason);
        drop(self.stored.lock().await);
        drop(self.placing.lock().await);
    }

    fn is_log_half_full(&self) -> bool {
        let usage = self.log.usage();
        usage.used_bytes * 2 > usage.region_bytes
    }

    /// Counts now.
    pub(crate) fn status(&self) -> JournalStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        JournalStatus {
            checkpoints: get(&self.counts.checkpoints),
            table_pages_written: get(&self.counts.table_pages_written),
            log_full: get(&self.counts.log_full),
            log: self.log.usage(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use base::executor::Executor;
    use block::memory::MemoryDevice;
    use block::{Device, Identity};

    use super::*;
    use crate::format::KIND;
    use crate::format_cache;
    use crate::frames::Frames;
    use crate::layout::Layout;
    use crate::lines::tests::of;
    use crate::options::FormatOptions;
    use crate::recovery::{Clean, Recovered, recover};
    use crate::replacement::Replacement;

    pub(crate) fn memory() -> SharedDevice {
        Arc::new(MemoryDevice::new(1 << 20, Identity::default()))
    }

    /// The superblock and the recovered state of a device, as an open finds them.
    pub(crate) async fn found(device: &SharedDevice) -> (Superblock<ParametersRaw>, Recovered) {
        let superblock: Superblock<ParametersRaw> = Superblock::read(device, KIND).await.expect("it is a cache");
        let layout = Layout::from_parameters(&superblock.payload, device.geometry().size_bytes).expect("it is whole");
        let keeps_clean = CrashMode::from_raw(superblock.payload.crash_mode).expect("it is known").keeps_clean();
        let frames = Frames::to_restore(layout, Replacement::Lru, keeps_clean);
        let recovered = recover(device, frames, 1 << 20, &superblock, Clean::Keep).await.expect("it is whole");
        (superblock, recovered)
    }

    /// The lines of a journal.
    pub(crate) fn lines_of(journal: &Journal) -> &Arc<Lines> {
        &journal.lines
    }

    /// The journal of an empty cache, in use, on its device.
    pub(crate) fn made(executor: &mut Executor, crash_mode: CrashMode) -> (SharedDevice, Arc<Journal>) {
        let device = memory();
        let made = Arc::clone(&device);
        let journal = executor.block_on(async move {
            let options = FormatOptions { crash_mode, ..FormatOptions::default() };
            format_cache::format(&made, &memory(), options).await.expect("it fits");
            let (superblock, Recovered { frames, table, end, .. }) = found(&made).await;
            let start = LogPosition { epoch: end.epoch + 1, ..end };
            let (lines, life) = (of(frames), Arc::new(Life::new("the cache")));
            let stored = Stored { superblock, table };
            let journal = Journal::new(made, stored, start, crash_mode, None, &lines, &life).expect("it fits");
            journal.checkpoint(Extent::Dirty).await.expect("nothing fails");
            journal.begin().await.expect("nothing fails");
            Arc::new(journal)
        });
        (device, journal)
    }
}
