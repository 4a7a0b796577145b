//! What was acknowledged and is not durable: the copies of it that are retained, the replay and the flushes that make
//! it durable, and the losses that a flush has still to report.
//!
//! - A loss is reported to the client's next flush, in place of its own result: a unit may report it only once.
//! - Changes that were acknowledged while no cache was known to be on, since the last command that proved that, are
//!   *unconfirmed*. They become *exposed* when the unit turns out to have a cache: they are flushed at once, and
//!   reported as lost if the unit may have lost its cache before that. Of them there are no copies.

use std::sync::Arc;

use base::clock::Instant;
use block::{ByteRange, Error, ErrorKind, Event};

use super::errors::AGAIN_WORDS;
use crate::job::{Job, Kind};
use crate::log_limit::LogLimit;
use crate::options::InitiatorOptions;
use crate::retained::{Content, Retained};
use crate::retained_replay::Replay;
use crate::shared::Shared;
use crate::unit::Unit;

/// Changes that were acknowledged and are not durable.
pub(super) struct Acknowledged {
    options: Arc<InitiatorOptions>,
    shared: Arc<Shared>,
    retained: Retained,
    replay: Replay,
    /// The number of the first command whose answer can confirm that no cache was switched on
    /// before the last change that relies on that; `None` when no change waits for this.
    unconfirmed: Option<u64>,
    /// Whether such changes may be in a cache that was switched on; until a flush.
    is_exposed: bool,
    is_flush_under_way: bool,
    /// Whether a flush of our own failed, and none has succeeded since.
    is_flush_failing: bool,
    /// Whether the last flush, before closing, was sent.
    has_flushed_last: bool,
    /// The error that the next flush of a client reports: acknowledged data is, or may be, lost.
    unreported_loss: Option<Error>,
    loss_log: LogLimit,
}

impl Acknowledged {
    pub(super) fn new(options: Arc<InitiatorOptions>, shared: Arc<Shared>) -> Self {
        Self {
            retained: Retained::new(options.retained_bytes_max),
            options,
            shared,
            replay: Replay::default(),
            unconfirmed: None,
            is_exposed: false,
            is_flush_under_way: false,
            is_flush_failing: false,
            has_flushed_last: false,
            unreported_loss: None,
            loss_log: LogLimit::default(),
        }
    }

    /// The copies.
    pub(super) fn retained(&self) -> &Retained {
        &self.retained
    }

    /// Retains what a completed mutation changed, until it is durable.
    pub(super) fn retain(&mut self, job: &mut Job, unit: &Unit) {
        let range = job.range();
        if job.is_durable(unit) {
            self.retained.supersede(range);
            return;
        }
        match &job.kind {
            // It is never written again: only its range matters.
            Kind::Write { .. } if self.options.is_shared => self.retained.insert(range, Content::Discarded),
            Kind::Write { buffer, .. } => {
                let Some(mut copy) = job.copy.take() else { return };
                copy.copy_from_slice(buffer);
                let length = copy.len();
                self.retained.insert(range, Content::Bytes(Arc::new(copy), 0..length));
            }
            Kind::Zeroes { may_discard, .. } => {
                self.retained.insert(range, Content::Zeroes { may_discard: *may_discard });
            }
            Kind::Discard { .. } => self.retained.insert(range, Content::Discarded),
            Kind::Read { .. } | Kind::Extents { .. } | Kind::Flush | Kind::Raw(_) => {}
        }
    }

    /// Notes that a change was carried out that is durable only if no cache was switched on before; a command from
    /// number `next` on can confirm that.
    pub(super) fn rely_on_no_cache(&mut self, next: u64) {
        self.unconfirmed = Some(next);
    }

    /// Notes that command `number`, and every one before it, was answered without a report of the unit.
    pub(super) fn confirm(&mut self, number: u64) {
        self.unconfirmed.take_if(|from| *from <= number);
    }

    /// Notes that the properties of the unit were read again.
    pub(super) fn adopt(&mut self, unit: &Unit) {
        let is_unconfirmed = self.unconfirmed.take().is_some();
        self.is_exposed |= is_unconfirmed && unit.is_volatile();
    }

    /// Starts to write again everything that is retained; nothing else is sent before that is done.
    /// A replay that follows another one in this session starts after longer and longer waits, until
    /// the unit is well for a while. If it is not within the replacement timeout, what is retained is
    /// reported as lost.
    pub(super) fn start_replay(&mut self) {
        if self.options.is_shared {
            return self.lose_shared();
        }
        if self.shared.change_refusal().is_some() {
            return self.lose_retained(format!(
                "the target of {} had not flushed it, and others changed the LUN, so it is not written again",
                self.options.place()
            ));
        }
        if self.retained.remove_all_in(&self.shared.changed_by_others()) {
            let words = format!(
                "the target of {} had not flushed it, and others changed it meanwhile, so it is not written again",
                self.options.place()
            );
            self.lose(Error::new(ErrorKind::OutcomeUnknown, words));
        }
        let now = self.options.clock.now();
        let retained = self.retained.all();
        if !self.replay.start(retained, now, self.options.replacement_timeout) {
            self.lose_retained(format!(
                "{} lost what it was not to lose, and writing that again failed: {AGAIN_WORDS}",
                self.options.place()
            ));
        }
    }

    /// Whether retained writes are still to be written again.
    pub(super) fn is_replaying(&self) -> bool {
        self.replay.is_under_way()
    }

    /// When the trouble began because of which retained writes are written again now.
    pub(super) fn replay_since(&self) -> Option<Instant> {
        self.replay.since()
    }

    /// The next retained write that may be sent now; it then counts as under way.
    pub(super) fn next_replay(&mut self, now: Instant) -> Option<(ByteRange, Content)> {
        self.replay.next(now)
    }

    /// When the next retained write may be sent, where that is later than `now`.
    pub(super) fn replay_deadline(&self, now: Instant) -> Option<Instant> {
        self.replay.next_deadline(now)
    }

    /// Notes that a retained write was carried out.
    pub(super) fn end_replay(&mut self, job: &Job, unit: &Unit) {
        self.replay.end_one(self.options.clock.now());
        if job.is_durable(unit) {
            self.retained.supersede(job.range());
        }
    }

    /// Notes that a retained write cannot be carried out.
    pub(super) fn fail_replay(&mut self, job: &Job, error: Error) {
        self.replay.end_one(self.options.clock.now());
        if error.kind() == ErrorKind::Unsupported && matches!(job.kind, Kind::Discard { .. }) {
            return;
        }
        self.retained.supersede(job.range());
        self.lose(error);
    }

    /// Forgets one retained write under way: the replay is about to start again.
    pub(super) fn interrupt_replay(&mut self) {
        self.replay.give_up_one();
    }

    /// Whether a flush of our own is to be sent now, because copies take too much room or requests are stalled; it then
    /// counts as under way. One at a time.
    pub(super) fn begin_flush(&mut self, has_stalled: bool) -> bool {
        // After a failed flush another is sent only if requests wait for room. A flush that
        // releases nothing makes no room.
        let is_useful = !self.retained.is_empty() && !self.is_flush_failing;
        let is_needed = self.is_exposed || (self.retained.is_near_bound() && is_useful) || has_stalled;
        let begins = is_needed && !self.is_flush_under_way && !self.is_replaying();
        self.is_flush_under_way |= begins;
        begins
    }

    /// Whether the last flush, before closing, was sent or is not needed.
    pub(super) fn is_last_flush_over(&self) -> bool {
        self.has_flushed_last || self.retained.is_empty()
    }

    /// Notes that the last flush, before closing, is sent.
    pub(super) fn begin_last_flush(&mut self) {
        self.has_flushed_last = true;
        self.is_flush_under_way = true;
    }

    /// Notes that a flush was carried out: what was acknowledged before `mark` is durable. `is_ours` where no client
    /// asked for it.
    pub(super) fn end_flush(&mut self, mark: Option<u64>, is_ours: bool) {
        self.is_flush_under_way &= !is_ours;
        if let Some(mark) = mark {
            self.retained.release(mark);
            self.replay.end_trouble();
            self.is_exposed = false;
        }
        self.is_flush_failing = false;
    }

    /// Notes that a flush of our own cannot be carried out.
    pub(super) fn fail_flush(&mut self, error: &Error) {
        self.is_flush_under_way = false;
        self.is_flush_failing = true;
        tracing::warn!(%error, place = self.options.place(), "a flush that was to make room, or the last one, failed");
        if std::mem::take(&mut self.is_exposed) {
            // Of that there are no copies, and it is not flushed again.
            self.lose(error.clone());
        } else if error.kind().may_have_lost() {
            self.report_to_next_flush(error.clone());
        }
    }

    /// Forgets what was under way in the session that is lost.
    pub(super) fn end_session(&mut self) {
        self.replay.clear();
        self.is_flush_under_way = false;
        self.lose_exposed();
    }

    /// Reports exposed changes as lost: the unit may have lost its cache.
    pub(super) fn lose_exposed(&mut self) {
        if std::mem::take(&mut self.is_exposed) {
            let words =
                format!("{} had a cache switched on, and may have lost it before a flush", self.options.place());
            self.lose(Error::new(ErrorKind::OutcomeUnknown, words));
        }
    }

    /// Reports as lost what a shared LUN had not made durable: it is never written again.
    pub(super) fn lose_shared(&mut self) {
        let words = format!(
            "the target of {} started again before a flush; several hosts share it, so nothing is written again",
            self.options.place()
        );
        self.lose_retained(words);
    }

    /// Reports as lost all that is retained, if anything is: it is not written again.
    fn lose_retained(&mut self, words: String) {
        if self.retained.is_empty() {
            return;
        }
        self.retained.release(self.retained.mark());
        self.lose(Error::new(ErrorKind::OutcomeUnknown, words));
    }

    /// Notes that acknowledged data is, or may be, lost.
    pub(super) fn lose(&mut self, error: Error) {
        if let Some(left_out) = self.loss_log.admit(error.kind(), self.options.clock.now()) {
            tracing::error!(%error, place = self.options.place(), left_out, "data that was acknowledged is lost, or \
                                                                             may be");
        }
        self.report_to_next_flush(error);
        self.shared.events.publish(&Event::WritesLost);
    }

    /// The next flush of a client is to end with this, unless it is to report an earlier loss already.
    pub(super) fn report_to_next_flush(&mut self, error: Error) {
        self.unreported_loss.get_or_insert_with(|| as_loss(error));
    }

    /// The loss that the client's flush reports now.
    pub(super) fn take_loss(&mut self) -> Option<Error> {
        self.unreported_loss.take()
    }

    /// The error of acknowledged data that may be lost and that no client's flush has reported;
    /// `None` without such data.
    pub(super) fn possible_loss(&mut self) -> Option<Error> {
        self.take_loss().or_else(|| {
            let words = format!("what {} acknowledged last was not flushed", self.options.place());
            (!self.retained.is_empty()).then(|| Error::new(ErrorKind::OutcomeUnknown, words))
        })
    }
}

/// The error as one that whoever hears it takes for a loss, and does not answer by asking again.
fn as_loss(error: Error) -> Error {
    if !error.kind().was_not_done() && error.kind() != ErrorKind::Busy {
        return error;
    }
    let words = format!("what was acknowledged before may be lost: {error}");
    Error::with_source(ErrorKind::OutcomeUnknown, words, error)
}
