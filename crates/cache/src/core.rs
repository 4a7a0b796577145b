//! One open cache: the parts that all operations share. It holds the parts, and knows no operation.
//!
//! | part | keeps |
//! |---|---|
//! | [`Lines`] | what is where, behind a mutex |
//! | [`Journal`] | the log and the table on the cache device, and how entries become durable there |
//! | [`Origin`] | the origin, its events, and what it has not flushed |
//! | [`Revocations`] | the ranges that a shared origin has revoked |
//! | [`Cleaner`] | how fast lines are cleaned, and whether |
//! | [`Succession`] | the successor of this cache, while there is one |
//! | [`Life`] | whether requests are taken, and whether the devices are still used |
//!
//! Four locks, taken in this order and released in any:
//!
//! | lock | held by | keeps |
//! |---|---|---|
//! | `ranges`, by whole lines | each request and what follows from it (reads share) | requests of a line in order |
//! | `fetches` | a read that misses, until what it fetched is inserted | two misses of one block from reading it twice |
//! | `Origin::order` | a write to the origin; cleaning takes *only* this | a dirty line from overtaking newer data |
//! | `Lines::state`, a mutex | never held across an await | the maps |
//!
//! A request that waits for cleaning holds its `ranges` and nothing that cleaning needs, so cleaning always gets on.
//! No request waits while it holds a reserved frame for which others wait.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::buffer::{Buffer, BufferPool};
use base::clock::{Clock, Instant};
use base::range::ByteRange;
use block::completion::Workers;
use block::range_lock::{Acquire, RangeGuard, RangeLock};
use block::{Completion, Device, Error, EventHub, Geometry, Response, SharedDevice};
use store::{Forgettings, Life};

use crate::cleaner::Cleaner;
use crate::counters::Counters;
use crate::crash_mode::CrashMode;
use crate::failed_reads::FailedReads;
use crate::journal::Journal;
use crate::layout::Layout;
use crate::line_size::LineSize;
use crate::lines::Lines;
use crate::origin::Origin;
use crate::recovery_report::RecoveryReport;
use crate::refused_writes::RefusedWrites;
use crate::revocations::Revocations;
use crate::succession::Succession;

/// The parts of one open cache, its locks, and what it was opened with.
pub(crate) struct Core {
    /// This core, for tasks that go on after their caller has stopped waiting.
    pub(crate) itself: Weak<Self>,
    pub(crate) lines: Arc<Lines>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) origin: Origin,
    pub(crate) revocations: Revocations,
    pub(crate) cleaner: Cleaner,
    pub(crate) succession: Succession,
    pub(crate) life: Arc<Life>,
    pub(crate) cache_device: SharedDevice,
    pub(crate) layout: Layout,
    /// The crash mode since open.
    pub(crate) crash_mode: CrashMode,
    /// Generation of the origin's content; 0 when the user set none.
    pub(crate) generation: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) opened_at: Instant,
    /// How often clean lines are stored that count after a crash.
    pub(crate) lazy_interval: Duration,
    pub(crate) ranges: RangeLock,
    pub(crate) fetches: RangeLock,
    /// What waits in `ranges` to be forgotten.
    pub(crate) forgettings: Forgettings,
    /// Buffers for copies of data that is to be inserted.
    pub(crate) insert_pool: BufferPool,
    pub(crate) workers: Workers,
    /// The origin's events that are passed on to subscribers of the cache.
    pub(crate) events: EventHub,
    pub(crate) counters: Counters,
    pub(crate) failed_reads: FailedReads,
    pub(crate) refused_writes: RefusedWrites,
    pub(crate) recovery: RecoveryReport,
}

/// The counts of losses and revocations before the origin was asked for data that is to be
/// inserted.
#[derive(Clone, Copy)]
pub(crate) struct Since {
    /// How often the origin had lost writes.
    pub(crate) losses: u64,
    /// How often the origin had revoked copies.
    pub(crate) revocations: u64,
}

impl Core {
    /// The counts now. To be called before the origin is asked.
    pub(crate) fn since(&self) -> Since {
        Since { losses: self.origin.losses.count(), revocations: self.revocations.count() }
    }

    /// How large lines are.
    pub(crate) fn line_size(&self) -> LineSize {
        self.layout.line_size
    }

    /// Polls a future once now; the workers carry it on if it is not done.
    pub(crate) fn start(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(Completion::task(&self.workers, async move {
            future.await;
            Response::done(Buffer::empty())
        }));
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let shape = self.shape();
        let is_write_cache_volatile = shape.is_write_cache_volatile && !self.lines.mode().delays_writes();
        Geometry { is_write_cache_volatile, ..shape }
    }

    /// The geometry without what depends on the mode: enough to check requests against.
    pub(crate) fn shape(&self) -> Geometry {
        let origin = self.origin.geometry();
        let cache_transfer_max = self.cache_device.geometry().transfer_bytes_max;
        Geometry { transfer_bytes_max: origin.transfer_bytes_max.min(cache_transfer_max), ..origin }
    }

    /// Waits for a place in `ranges`.
    ///
    /// # Errors
    /// `Gone` when the cache has ended meanwhile.
    pub(crate) async fn enter(&self, place: Acquire) -> Result<RangeGuard, Error> {
        let guard = place.await;
        if self.life.has_ended() { Err(self.life.closed()) } else { Ok(guard) }
    }

    /// Waits until no request is under way, and keeps new ones out until the guard is dropped.
    pub(crate) async fn exclude_requests(&self) -> RangeGuard {
        self.ranges.exclusive(ByteRange { offset: 0, length: u64::MAX }).await
    }
}
