//! One open cache: what all operations share. It holds the parts, and knows no operation.
//!
//! | part | keeps |
//! |---|---|
//! | [`Lines`] | what is where, behind a mutex |
//! | [`Journal`] | what the cache device says about it, and how that becomes durable |
//! | [`Origin`] | the origin, what it has said, and what it has not flushed |
//! | [`Revocations`] | what an origin that several hosts share has asked back |
//! | [`Cleaner`] | how fast lines are cleaned, and whether |
//! | [`Succession`] | the cache that is to take the place of this one |
//! | [`Life`] | whether requests are taken, and whether anything is done at all |
//!
//! Four locks, taken in this order and released in any:
//!
//! | lock | held by | keeps |
//! |---|---|---|
//! | `ranges`, by whole lines | every request until it and what follows from it is done (reads share) | requests of one line in their order |
//! | `fetches` | a read that misses, until what it fetched is inserted | two misses of one block from reading it twice |
//! | `Origin::order` | whoever writes to the origin, until that write is done; cleaning takes *only* this one | an old dirty line from overtaking newer data on the origin |
//! | `Lines::state`, a mutex | nobody across an await | the maps |
//!
//! A request that waits for cleaning holds its `ranges` and nothing that cleaning needs, so cleaning always gets on.
//! Nobody waits while holding a reserved frame that others wait for.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use base::buffer::{Buffer, BufferPool};
use base::clock::{Clock, Instant};
use base::range::ByteRange;
use block::completion::Workers;
use block::range_lock::{Acquire, RangeGuard, RangeLock};
use block::{Completion, Device, Error, EventHub, Geometry, Response, SharedDevice};
use store::Life;

use crate::cleaner::Cleaner;
use crate::counters::Counters;
use crate::crash_mode::CrashMode;
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
    /// For what goes on when the caller does not wait for it.
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
    /// What counts after a crash, as of open.
    pub(crate) crash_mode: CrashMode,
    /// Of the origin's content; 0 when nobody has said.
    pub(crate) generation: u64,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) opened_at: Instant,
    /// How often clean lines are stored that count after a crash.
    pub(crate) lazy_interval: Duration,
    pub(crate) ranges: RangeLock,
    pub(crate) fetches: RangeLock,
    /// Of what is copied to be inserted.
    pub(crate) insert_pool: BufferPool,
    pub(crate) workers: Workers,
    /// What is passed on of what the origin says.
    pub(crate) events: EventHub,
    pub(crate) counters: Counters,
    pub(crate) refused_writes: RefusedWrites,
    pub(crate) recovery: RecoveryReport,
}

/// What had happened before something was asked of the origin that is to be taken in.
#[derive(Clone, Copy)]
pub(crate) struct Since {
    /// How often it had lost writes.
    pub(crate) losses: u64,
    /// How often it had asked for copies back.
    pub(crate) revocations: u64,
}

impl Core {
    /// From now on. To be called before the origin is asked.
    pub(crate) fn since(&self) -> Since {
        Since { losses: self.origin.losses.count(), revocations: self.revocations.count() }
    }

    /// How large lines are.
    pub(crate) fn line_size(&self) -> LineSize {
        self.layout.line_size
    }

    /// Starts a future now; whatever it leaves undone is done by the workers.
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

    /// The geometry but for what depends on the mode: all that a request is checked against.
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

    /// Waits until nobody is at work, and keeps everybody out until the guard is dropped.
    pub(crate) async fn exclude_requests(&self) -> RangeGuard {
        self.ranges.exclusive(ByteRange { offset: 0, length: u64::MAX }).await
    }
}
