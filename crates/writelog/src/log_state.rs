//! What the log knows, behind one mutex, and the signals that wake tasks when it changes.
//!
//! A task that waits for something looks, waits for [`LogState::changed`] and looks again. Nothing here knows a device.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::clock::{Clock, Instant};
use base::signal::Signal;
use block::Error;
use futures_util::future::select;
use store::Sequence;

use crate::appender::Appender;
use crate::checkpointed::Checkpointed;
use crate::contents::Contents;
use crate::destaged::Destaged;
use crate::failure::Failure;
use crate::layout::Layout;
use crate::limits::UNIT_BYTES;
use crate::line::Line;
use crate::numbers::{Sector, SegmentNumber};
use crate::pace::Pace;
use crate::room::Room;
use crate::settings::Settings;

/// The state of the log behind its mutex, and the signals that wake tasks when it changes.
pub(crate) struct LogState {
    pub(crate) layout: Layout,
    /// Notified when room was made or something came to rest: each waiting task looks again.
    pub(crate) changed: Signal,
    /// Notified when background work may have become necessary.
    pub(crate) background: Signal,
    state: Mutex<State>,
}

/// Guarded by [`LogState::state`]; sections are short and never await.
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
    /// The state of a log that is opened `now`, without work under way. `pace` and `slot_pace` as in the fields.
    pub(crate) fn new(contents: Contents, pace: Pace, slot_pace: Pace, now: Instant) -> Self {
        let start = contents.applied;
        Self {
            contents,
            appender: Appender::new(&start),
            destaged: Destaged::new(start.position.sequence.before()),
            releasable_count: 0,
            line: Line::new(),
            pace,
            slot_pace,
            checkpointed: Checkpointed::none(now),
            room: Room::default(),
            is_gated: false,
            lba_cursor: Sector::FIRST,
            failure: Failure::none(),
            destage_failure: None,
        }
    }

    /// Count of extents that a checkpoint has room for besides those it names and those under way.
    pub(crate) fn extents_free(&self) -> usize {
        let extents_max = self.contents.layout.extents_max();
        extents_max.saturating_sub(self.contents.owed_extents_max() + self.appender.extents_in_flight())
    }

    /// Share of the log that the origin must take before new records can (0.0 to 1.0): of its segments, or of the
    /// extents of a checkpoint.
    pub(crate) fn share_used(&self) -> f64 {
        let available = self.contents.segments.reusable_count() + self.releasable_count;
        let segments = 1.0 - f64::from(available) / f64::from(self.contents.segments.count());
        segments.max(self.contents.owed_extents_max() as f64 / self.contents.layout.extents_max() as f64)
    }

    /// Count of changes that wait for admission or for a record.
    pub(crate) fn waiting_count(&self) -> usize {
        self.line.len() + self.appender.queue_count()
    }

    /// Bytes of the log for new records, by [`State::share_used`].
    pub(crate) fn free_bytes(&self) -> u64 {
        (self.contents.layout.log_bytes() as f64 * (1.0 - self.share_used()).max(0.0)) as u64
    }

    /// The last record in the map.
    pub(crate) fn newest(&self) -> Sequence {
        self.contents.applied.position.sequence.before()
    }

    /// Segments that a checkpoint made now would not need.
    pub(crate) fn releasable(&self, keeps_order: bool) -> Vec<SegmentNumber> {
        let destaged = keeps_order.then_some(self.destaged.sequence());
        self.contents.segments.releasable(self.contents.applied.position.sequence, destaged)
    }

    /// Whether a write of this length goes to slots. Where the order is kept every write does, a
    /// piece at a time; else large ones go straight to the log.
    pub(crate) fn fits_stage(&self, settings: &Settings, length: u64) -> bool {
        if !settings.is_staged() {
            return false;
        }
        let Some(stage) = &self.contents.stage else { return false };
        let stage_bytes = stage.slot_count() as u64 * stage.slot_sectors() * UNIT_BYTES;
        !self.failure.has_come() && (settings.keeps_order() || length <= stage_bytes / 8)
    }
}

impl LogState {
    pub(crate) fn new(state: State) -> Self {
        Self {
            layout: state.contents.layout,
            changed: Signal::new(),
            background: Signal::new(),
            state: Mutex::new(state),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all tasks that wait for the log, and background work.
    pub(crate) fn wake_all(&self) {
        self.changed.notify();
        self.background.notify();
    }

    /// Whether the log device failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.state().failure.has_come()
    }

    /// The error of the log device, if it failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.state().failure.error().cloned()
    }

    /// Notes that records or slots wait until level 2 has made room, and wakes it.
    pub(crate) fn ask_for_room(&self, state: &mut State) {
        if state.room.ask() {
            self.background.notify();
        }
    }

    /// Waits for a notification of background work since it was counted `count`, at most for the time `most`.
    pub(crate) async fn wait_for_work(&self, clock: &dyn Clock, count: u64, most: Duration) {
        drop(select(clock.sleep(most), self.background.changed_since(count)).await);
    }
}
