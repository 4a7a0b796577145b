//! The parts that all operations of one write log share: the devices, the locks, the state.
//!
//! Locks, taken in this order and released in any:
//!
//! | lock | held by | keeps |
//! |---|---|---|
//! | `ranges` | every request from when it is let in ([`crate::entrance`]) until it is answered (reads share, until they know where from) | overlapping requests in their order |
//! | `checking`, async | a read of a segment that was found when the log was opened | one such segment in RAM at a time |
//! | `destaging`, async | a batch of level 2 | one batch from overtaking another on the origin |
//! | `moving`, async | a round of level 1 | slots leaving in their order |
//! | `superblock`, async | a checkpoint | one checkpoint at a time |
//! | `below` | reads that wait for a device (shared), what changes the origin | what a read finds on the origin as it was when it began |
//! | `state`, a mutex | never held across an await | map, segments, slots, records under way |
//!
//! Neither level needs `ranges`, so requests that wait for room never stand in the way of what
//! makes it. A sector in the map is never read from the origin, and only batches write there, one
//! at a time; so what a read finds on the origin is not older than what it must return.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::buffer::{Buffer, BufferPool};
use base::clock::{Clock, Instant};
use base::signal::Signal;
use block::completion::Workers;
use block::range_lock::RangeLock;
use block::{Completion, Device, EventHub, Geometry, Response, SharedDevice};
use store::{Life, Superblock};

use crate::appender::Appender;
use crate::checkpointed::Checkpointed;
use crate::contents::Contents;
use crate::counters::Counters;
use crate::destaged::Destaged;
use crate::epoch::Epoch;
use crate::failure::Failure;
use crate::format::ParametersRaw;
use crate::layout::Layout;
use crate::limits::UNIT_BYTES;
use crate::line::Line;
use crate::numbers::{Sector, SegmentNumber};
use crate::options::{DestageOrder, Durability, Level2, OpenOptions};
use crate::origin::Origin;
use crate::pace::Pace;
use crate::room::Room;
use crate::segments::Segments;
use crate::status::RecoveryReport;
use crate::tag::Tag;

/// The parts that all operations of one write log share.
pub(crate) struct Core {
    pub(crate) log_device: SharedDevice,
    pub(crate) origin: Origin,
    pub(crate) life: Life,
    pub(crate) uuid: uuid::Uuid,
    pub(crate) layout: Layout,
    /// The options of the open; level 2's may have changed since ([`Core::level2`]).
    pub(crate) options: OpenOptions,
    pub(crate) level2: Mutex<Level2>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ranges: RangeLock,
    pub(crate) below: RangeLock,
    /// Also guards the unfinished epoch: only the holder, which sends, knows how far it is sent.
    pub(crate) destaging: futures_util::lock::Mutex<Option<Epoch>>,
    pub(crate) moving: futures_util::lock::Mutex<()>,
    pub(crate) checking: futures_util::lock::Mutex<()>,
    /// Held while a checkpoint runs.
    pub(crate) superblock: futures_util::lock::Mutex<Superblock<ParametersRaw>>,
    pub(crate) workers: Workers,
    /// Buffers of records and of segments that level 2 reads, used again and again: new pages would
    /// cost more than the work on them.
    pub(crate) buffers: BufferPool,
    /// Notified when room was made or something came to rest: each waiting task looks again.
    pub(crate) changed: Signal,
    /// Notified when background work may have become necessary.
    pub(crate) background: Signal,
    pub(crate) events: EventHub,
    pub(crate) counters: Counters,
    pub(crate) recovery: RecoveryReport,
    /// Grows with each request: an interruptible batch stops when it does.
    pub(crate) request_count: AtomicU64,
    /// Bytes of writes that were admitted and are not in the queue or the slots yet.
    pub(crate) entering_bytes: AtomicU64,
    /// When the last request came, in nanoseconds of the clock.
    pub(crate) last_request_ns: AtomicU64,
    pub(crate) state: Mutex<State>,
}

/// Guarded by `Core::state`; sections are short and never await.
pub(crate) struct State {
    pub(crate) contents: Contents,
    pub(crate) appender: Appender,
    /// How far the origin has the log (destage order `log`).
    pub(crate) destaged: Destaged,
    /// Count of segments that the next checkpoint releases, as of the last batch.
    pub(crate) releasable_count: u32,
    /// Changes that wait for admission.
    pub(crate) line: Line,
    /// How fast changes are admitted for the room that level 2 makes in the log.
    pub(crate) pace: Pace,
    /// Likewise for the slots that level 1 empties.
    pub(crate) slot_pace: Pace,
    /// The last checkpoint, and what came since.
    pub(crate) checkpointed: Checkpointed,
    /// Whether there is room for records.
    pub(crate) room: Room,
    /// Whether a round of level 1 keeps requests waiting (the paper's profile).
    pub(crate) is_gated: bool,
    /// Where the next batch in order of LBA begins.
    pub(crate) lba_cursor: Sector,
    /// Whether the log device refused a record or a checkpoint. From then on writes go to the
    /// origin.
    pub(crate) failure: Failure,
    /// The error of the last batch of level 2, if it failed.
    pub(crate) destage_failure: Option<String>,
}

impl State {
    /// Count of extents that a checkpoint has room for besides those it names and those under way.
    pub(crate) fn extents_free(&self, layout: &Layout) -> usize {
        layout.extents_max().saturating_sub(self.contents.owed_extents_max() + self.appender.extents_in_flight())
    }

    /// Share of the log that the origin must take before new records can (0.0 to 1.0): of its segments, or of the
    /// extents of a checkpoint.
    pub(crate) fn share_used(&self, layout: &Layout) -> f64 {
        let available = self.contents.segments.reusable_count() + self.releasable_count;
        let segments = 1.0 - f64::from(available) / f64::from(self.contents.segments.count());
        segments.max(self.contents.owed_extents_max() as f64 / layout.extents_max() as f64)
    }

    /// Count of changes that wait for admission or for a record.
    pub(crate) fn waiting_count(&self) -> usize {
        self.line.len() + self.appender.queue_count()
    }

    /// Bytes of the log for new records, by [`State::share_used`].
    pub(crate) fn free_bytes(&self, layout: &Layout) -> u64 {
        let log_bytes = u64::from(layout.segment_count) * layout.segment_bytes;
        (log_bytes as f64 * (1.0 - self.share_used(layout)).max(0.0)) as u64
    }
}

impl Core {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls a future once now; the workers carry it on if it is not done.
    pub(crate) fn start(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(Completion::task(&self.workers, async move {
            future.await;
            Response::done(Buffer::empty())
        }));
    }

    /// Whether writes are acknowledged from slots.
    pub(crate) fn is_staged(&self) -> bool {
        self.options.durability != Durability::Log
    }

    /// Whether the origin is kept a prefix of epochs.
    pub(crate) fn keeps_order(&self) -> bool {
        self.options.order == DestageOrder::Log
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let origin = self.origin.device().geometry();
        Geometry { is_write_cache_volatile: self.options.durability == Durability::UnsafeVolatile, ..origin }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state().failure.has_come()
    }

    /// Whether a write of this length goes to slots. Where the order is kept every write does, a
    /// piece at a time; else large ones go straight to the log.
    pub(crate) fn fits_stage(&self, state: &State, length: u64) -> bool {
        if !self.is_staged() {
            return false;
        }
        let Some(stage) = &state.contents.stage else { return false };
        let stage_bytes = stage.slot_count() as u64 * stage.slot_sectors() * UNIT_BYTES;
        !state.failure.has_come() && (self.keeps_order() || length <= stage_bytes / 8)
    }

    /// The present options of level 2.
    pub(crate) fn level2(&self) -> Level2 {
        *self.level2.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Age of data written at `at`, as a share of the largest age.
    pub(crate) fn share_of_age(&self, at: Instant) -> f64 {
        self.clock.now().since(at).as_secs_f64() / self.level2().age_max.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// Counts sectors of the log that were written again before they were sent. In order `log` they
    /// count only within one epoch: else they are sent all the same.
    pub(crate) fn count_superseded(&self, sectors: u64) {
        if !self.keeps_order() {
            self.counters.superseded(sectors);
        }
    }

    /// A buffer with arbitrary former contents.
    pub(crate) fn used_buffer(&self, length: usize) -> Buffer {
        self.buffers.try_acquire(length).unwrap_or_else(|| Buffer::zeroed(length))
    }

    /// Time since the last request.
    pub(crate) fn idle_for(&self) -> Duration {
        self.clock.now().since(Instant::from_nanoseconds(self.last_request_ns.load(Ordering::Relaxed)))
    }

    /// The tag of data that goes to a segment now.
    pub(crate) fn tag_for(segments: &Segments, segment: SegmentNumber) -> Tag {
        Tag::dirty(segments.get(segment).generation)
    }
}
