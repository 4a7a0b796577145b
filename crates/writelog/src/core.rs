//! One open write log: the parts that all operations share. It holds the parts, and knows no operation.
//!
//! | part | keeps |
//! |---|---|
//! | [`LogState`] | what is where, what is under way and how fast, behind a mutex; the signals of a change |
//! | [`Origin`], [`OriginEvents`] | the origin; how often it lost something, and what is done about its events |
//! | [`Admission`] | which changes may start; the bytes of those on their way |
//! | [`RecordSender`](crate::append::RecordSender) | the log device for records |
//! | [`SlotMover`] | the rounds of level 1 |
//! | [`Epochs`], [`Destager`] | the epoch under way; the batches of level 2 |
//! | [`Checkpoints`], [`FailureNotes`] | the superblock; what a later start knows of a failure |
//! | [`Reader`], [`Writer`], [`Flusher`] | what their requests need, and no state but the check of found segments |
//! | [`LostData`] | how much cannot be read back |
//! | [`Life`] | whether requests are taken, and background work goes on |
//!
//! [`crate::assemble`] makes them. What each uses of the others is in its fields.
//!
//! Locks, taken in this order and released in any:
//!
//! | lock | held by | keeps |
//! |---|---|---|
//! | `ranges` | every request from when it is let in ([`crate::entrance`]) until it is answered (reads share, until they know where from) | overlapping requests in their order |
//! | `Reader::checking`, async | a read of a segment that was found when the log was opened | one such segment in RAM at a time |
//! | `SlotMover::moving`, async | a round of level 1 | slots leaving in their order |
//! | `Epochs::destaging`, async | a batch of level 2 | one batch from overtaking another on the origin |
//! | `Checkpoints::superblock`, async | a checkpoint | one checkpoint at a time |
//! | `below` | reads that wait for a device (shared), what changes the origin | what a read finds on the origin as it was when it began |
//! | `LogState::state`, a mutex | never held across an await | map, segments, slots, records under way |
//!
//! Neither level needs `ranges`, so requests that wait for room never stand in the way of what
//! makes it. A sector in the map is never read from the origin, and only batches write there, one
//! at a time; so what a read finds on the origin is not older than what it must return.

use std::sync::Arc;

use base::clock::Clock;
use base::range::ByteRange;
use block::completion::Workers;
use block::range_lock::{RangeGuard, RangeLock};
use block::{Device, EventHub, Geometry};
use store::Life;

use crate::activity::Activity;
use crate::checkpoint::Checkpoints;
use crate::counters::Counters;
use crate::entrance::Admission;
use crate::events::OriginEvents;
use crate::failure_note::FailureNotes;
use crate::flush::Flusher;
use crate::level1::SlotMover;
use crate::level2::Destager;
use crate::log_state::LogState;
use crate::lost::LostData;
use crate::next_epoch::Epochs;
use crate::options::Durability;
use crate::origin::Origin;
use crate::read::Reader;
use crate::settings::Settings;
use crate::status::RecoveryReport;
use crate::write::Writer;

/// The parts that all operations of one write log share.
pub(crate) struct Core {
    pub(crate) log: Arc<LogState>,
    pub(crate) origin: Arc<Origin>,
    pub(crate) origin_events: Arc<OriginEvents>,
    pub(crate) life: Arc<Life>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ranges: RangeLock,
    pub(crate) below: RangeLock,
    pub(crate) mover: Arc<SlotMover>,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) destager: Arc<Destager>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) notes: Arc<FailureNotes>,
    pub(crate) workers: Workers,
    pub(crate) lost: Arc<LostData>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) writer: Arc<Writer>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) events: EventHub,
    pub(crate) counters: Arc<Counters>,
    pub(crate) recovery: RecoveryReport,
}

impl Core {
    pub(crate) fn geometry(&self) -> Geometry {
        let origin = self.origin.device().geometry();
        Geometry { is_write_cache_volatile: self.settings.durability == Durability::UnsafeVolatile, ..origin }
    }

    /// Waits until no request is under way, and keeps new ones out until the guards are dropped.
    /// Changes that wait for admission go on waiting: while clients write more than the log takes
    /// in there always are some.
    pub(crate) async fn exclude_requests(&self) -> (RangeGuard, RangeGuard) {
        let everything = ByteRange { offset: 0, length: u64::MAX };
        let requests = self.ranges.exclusive(everything).await;
        (requests, self.below.exclusive(everything).await)
    }
}
