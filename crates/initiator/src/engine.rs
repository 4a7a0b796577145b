//! The data path: requests become jobs, jobs become commands, outcomes become answers. It outlives sessions.
//!
//! ```text
//! inbox ──► ready ──► under way ──► answered
//!             ▲  ▲        │
//!  no room    │  │ later  │ BUSY, TASK SET FULL, not ready
//!  stalled ───┘  └── delayed
//! ```
//!
//! What it keeps true:
//!
//! - overlapping requests, of which one changes something, are carried out one after the other, in the order in which
//!   they came: the later one is *blocked* until the earlier one is answered. Otherwise one that has to be issued again
//!   could land on top of a later one;
//! - commands leave in the order in which their requests came; after a lost session those that were under way go first,
//!   in their old order;
//! - while retained writes are replayed nothing else leaves;
//! - a write to a volatile unit is answered only when a copy of it is retained;
//! - as long as a copy is retained a flush is a command, whatever the unit says of its cache by then;
//! - a loss of data that the unit reported, with whatever command, is reported to the client's next
//!   flush: a unit may report it only once;
//! - an answer that depends on the state of the cache, as that of a flush does, counts only if no
//!   loss of the cache was reported: else its request is sent again, after what was lost;
//! - where another host may switch a cache on, a write has FUA, so that it is durable when it is
//!   answered. A change that cannot have FUA does not count if it is answered after the switch was
//!   reported. What was answered before, since the last command that proved that no cache was on,
//!   is *exposed*: flushed at once, and reported as lost if the unit may have lost its cache before
//!   that;
//! - on a shared LUN nothing is written again: another host may have written there since. What may
//!   have been carried out ends with an unknown outcome, whether its session is lost or goes on. Of
//!   what was acknowledged and not flushed only the ranges are retained, so that a flush can report
//!   the loss.
//!
//! `loss` decides what becomes of jobs when the session or the unit's cache is lost, `sharing` does
//! what a client of a shared LUN has to do besides.

mod loss;
mod sharing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll};

use base::busy_poll::{BusyPoll, depth_of};
use base::clock::Instant;
use block::range_lock::{Acquire, RangeLock};
use block::{Buffer, Error, ErrorKind, Event};
use iscsi::initiator::{Completed, Event as LinkEvent};
use scsi::Sense;

use crate::alarm::Alarm;
use crate::error::{LinkError, sense_error};
use crate::job::{Job, Kind, Repeat, Reply, Step};
use crate::limits::{ATTEMPTS_MAX, BUSY_WAIT_MAX};
use crate::link::Link;
use crate::log_limit::LogLimit;
use crate::options::InitiatorOptions;
use crate::retained::{Content, Retained};
use crate::retained_replay::Replay;
use crate::shared::{Incoming, Shared};
use crate::sharing::order;
use crate::status::State;
use crate::under_way::UnderWay;
use crate::unit::Unit;
use crate::verdict::{Attention, Verdict, attention, judge};

/// Why the data path stopped.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The session is lost.
    Lost(LinkError),
    /// Nothing is under way, and the unit must be read again because of its report.
    Attention(Attention),
    /// This host is fenced from the shared LUN.
    Fenced(Error),
    /// Every request is answered, and the device is to be closed.
    Closed,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    commands_sent: u64,
    commands_retried: u64,
    writes_replayed: u64,
    /// PDUs and bytes of sessions that are over.
    pdus_sent: u64,
    pdus_received: u64,
    bytes_sent: u64,
    bytes_received: u64,
    connections_recovered: u64,
}

/// Why a command that was issued too often is given up.
const AGAIN_WORDS: &str = "it kept failing with unit attentions or aborted commands";

/// What the target of a shared LUN did, whereupon nothing is written again.
const SHARED_STARTED_AGAIN: &str = "started again before a flush; several hosts share it, so nothing is written again";

/// REPORTED LUNS DATA HAS CHANGED (SPC-4 annex D).
const REPORTED_LUNS_CHANGED: (u8, u8) = (0x3f, 0x0e);

pub(crate) struct Engine {
    options: Arc<InitiatorOptions>,
    shared: Arc<Shared>,
    pub(crate) unit: Unit,
    pub(crate) retained: Retained,
    incoming: VecDeque<Incoming>,
    /// By order of arrival. Boxed, because the map moves what is in it.
    jobs: BTreeMap<u64, Box<Job>>,
    ready: BTreeSet<u64>,
    delayed: BTreeSet<(Instant, u64)>,
    stalled: BTreeSet<u64>,
    ranges: RangeLock,
    /// Requests that wait for earlier ones of overlapping ranges.
    blocked: BTreeMap<u64, Acquire>,
    under_way: UnderWay,
    /// Answers that may not be used yet: see [`UnderWay`]. Their commands count as under way.
    early: Vec<Completed>,
    /// The number of the first command whose answer can confirm that no cache was switched on
    /// before the last change that relies on that; `None` when no change waits for this.
    unconfirmed: Option<u64>,
    /// Whether such changes may be in a cache that was switched on; until a flush.
    is_exposed: bool,
    order_next: u64,
    replay: Replay,
    is_flush_under_way: bool,
    /// Whether the last flush, before closing, was sent.
    has_flushed_last: bool,
    attention: Attention,
    /// The error that the next flush of a client reports: acknowledged data is, or may be, lost.
    unreported_loss: Option<Error>,
    /// Whether a flush of our own failed, and none has succeeded since.
    is_flush_failing: bool,
    failure_log: LogLimit,
    loss_log: LogLimit,
    message_log: LogLimit,
    /// The error of every request since this host was fenced.
    fenced: Option<Error>,
    /// Whether writes of the last lost session are waiting to be issued again, their outcome
    /// unknown.
    has_writes_in_doubt: bool,
    /// Whether the unit carried out what somebody waited for since [`Engine::take_usefulness`]: anything that it does
    /// with its blocks. That it answers questions, renews what a host holds, or takes copies that are written again
    /// brings no request nearer to its end.
    was_useful: bool,
    counts: Counts,
    alarm: Alarm,
    busy_poll: BusyPoll,
}

impl Engine {
    pub(crate) fn new(options: Arc<InitiatorOptions>, shared: Arc<Shared>, unit: Unit) -> Self {
        let retained = Retained::new(options.retained_bytes_max);
        let busy_poll = BusyPoll::new(options.busy_poll);
        Self {
            options,
            shared,
            unit,
            retained,
            incoming: VecDeque::new(),
            jobs: BTreeMap::new(),
            ready: BTreeSet::new(),
            delayed: BTreeSet::new(),
            stalled: BTreeSet::new(),
            ranges: RangeLock::new(),
            blocked: BTreeMap::new(),
            under_way: UnderWay::default(),
            early: Vec::new(),
            unconfirmed: None,
            is_exposed: false,
            order_next: 0,
            replay: Replay::default(),
            is_flush_under_way: false,
            has_flushed_last: false,
            attention: Attention::None,
            unreported_loss: None,
            is_flush_failing: false,
            failure_log: LogLimit::default(),
            loss_log: LogLimit::default(),
            message_log: LogLimit::default(),
            fenced: None,
            has_writes_in_doubt: false,
            was_useful: false,
            counts: Counts::default(),
            alarm: Alarm::default(),
            busy_poll,
        }
    }

    /// Adopts the unit's new properties. Nothing is under way.
    pub(crate) fn adopt(&mut self, unit: Unit) {
        let is_unconfirmed = self.unconfirmed.take().is_some();
        self.is_exposed |= is_unconfirmed && unit.is_volatile();
        self.unit = unit;
    }

    /// Reports exposed changes as lost: the unit may have lost its cache.
    fn lose_exposed(&mut self) {
        if std::mem::take(&mut self.is_exposed) {
            let words =
                format!("{} had a cache switched on, and may have lost it before a flush", self.options.place());
            self.lose_write(Error::new(ErrorKind::OutcomeUnknown, words));
        }
    }

    /// Serves requests over `link` until something else must be done.
    pub(crate) fn poll(&mut self, link: &mut Link, context: &mut Context<'_>) -> Poll<Stop> {
        loop {
            let mut has_progressed = self.accept(context);
            let now = self.options.clock.now();
            self.wake_delayed(now);
            self.wake_unblocked();
            has_progressed |= self.share(link, context, now);
            if let Some(error) = self.fenced.take() {
                return Poll::Ready(Stop::Fenced(error));
            }
            has_progressed |= self.dispatch(link, now);
            let io = link.poll_io(context);
            has_progressed |= self.collect(link, now);
            match io {
                Ok(has_moved) => has_progressed |= has_moved,
                Err(error) => return Poll::Ready(Stop::Lost(error)),
            }
            if self.is_flooded() {
                return Poll::Ready(Stop::Lost(LinkError::Flooded));
            }
            if self.attention > Attention::None && self.under_way.count() == 0 && self.is_member_idle() {
                return Poll::Ready(Stop::Attention(std::mem::take(&mut self.attention)));
            }
            if self.jobs.is_empty() && self.incoming.is_empty() && self.shared.is_closing() {
                let is_flushed = self.has_flushed_last || self.retained.is_empty();
                if is_flushed && self.leave(now) {
                    return Poll::Ready(Stop::Closed);
                }
                if is_flushed {
                    // The logout, or its answer, remains.
                    if has_progressed || self.share(link, context, now) || self.wait_for_deadline(context, now) {
                        continue;
                    }
                    return Poll::Pending;
                }
                // The unit's volatile cache is flushed before the session ends.
                self.has_flushed_last = true;
                self.is_flush_under_way = true;
                self.add(Box::new(Job::new(Kind::Flush, Reply::Nobody, now)));
                continue;
            }
            if !has_progressed {
                if self.wait_for_deadline(context, now) {
                    continue;
                }
                if !self.busy_poll.is_under_way() {
                    self.publish(link);
                }
                self.pause(link, context);
                return Poll::Pending;
            }
            self.busy_poll.note_traffic();
        }
    }

    /// Without progress: waits for a wake-up, or polls the streams again after the thread's other
    /// tasks have run.
    fn pause(&mut self, link: &mut Link, context: &Context<'_>) {
        let depth = if link.can_receive_now() { depth_of(self.under_way.count(), link.bytes_under_way()) } else { 0 };
        link.is_looking = self.busy_poll.goes_on(depth, || self.options.clock.now());
        if link.is_looking {
            context.waker().wake_by_ref();
        } else if let Some(counts) = self.busy_poll.take_counts() {
            self.shared.view().status.busy_poll += counts;
        }
    }

    /// Whether a deadline has passed; the task is woken by the next one.
    fn wait_for_deadline(&mut self, context: &mut Context<'_>, now: Instant) -> bool {
        let replay_from = self.replay.next_deadline(now);
        let sharing = self.shared.member().and_then(|member| member.next_deadline());
        let deadlines = self.delayed.first().map(|(at, _)| *at).into_iter().chain(replay_from).chain(sharing);
        self.alarm.poll(context, &*self.options.clock, deadlines.min())
    }

    /// Takes requests in while there is no session. The task is woken by the next.
    pub(crate) fn accept(&mut self, context: &Context<'_>) -> bool {
        self.shared.receive(context, self.jobs.len(), &mut self.incoming);
        if self.incoming.is_empty() {
            return false;
        }
        let now = self.options.clock.now();
        while let Some(incoming) = self.incoming.pop_front() {
            let job = match incoming {
                Incoming::Request(request, sender) => Job::of_request(request, sender, now).map(Box::new),
                Incoming::Raw(raw, sender) => Some(Box::new(Job::new(Kind::Raw(raw), Reply::Raw(sender), now))),
            };
            if let Some(job) = job {
                self.add(job);
            }
        }
        true
    }

    /// Starts to write again everything that is retained; nothing else is sent before that is done.
    /// A replay that was interrupted in this session starts again after longer and longer waits.
    /// What could not be written again within the replacement timeout is reported as lost.
    pub(crate) fn start_replay(&mut self) {
        if self.options.is_shared {
            return self.lose_retained(SHARED_STARTED_AGAIN);
        }
        if self.shared.change_refusal().is_some() {
            return self.lose_retained("had not flushed it, and others changed the LUN, so it is not written again");
        }
        let now = self.options.clock.now();
        let retained = self.retained.all();
        if self.replay.start(retained, now, self.options.replacement_timeout) {
            return;
        }
        self.retained.release(self.retained.mark());
        let words = format!(
            "{} lost what it was not to lose, and writing that again failed: {AGAIN_WORDS}",
            self.options.place()
        );
        self.lose_write(Error::new(ErrorKind::OutcomeUnknown, words));
    }

    /// Whether retained writes are still to be written again.
    pub(crate) fn is_replaying(&self) -> bool {
        self.replay.is_under_way()
    }

    /// Publishes the counts for [`crate::RemoteLun::status`].
    fn publish(&self, link: &Link) {
        let (pdus_sent, pdus_received) = link.pdu_counts();
        let mut view = self.shared.view();
        let status = &mut view.status;
        status.state = if self.is_replaying() { State::Replaying } else { State::Online };
        status.pdus_sent = self.counts.pdus_sent + pdus_sent;
        status.pdus_received = self.counts.pdus_received + pdus_received;
        status.bytes_sent = self.counts.bytes_sent + link.counters.bytes_sent;
        status.bytes_received = self.counts.bytes_received + link.counters.bytes_received;
        status.connections_recovered = self.counts.connections_recovered + link.recovered_count();
        (status.connections, status.split_connections) = link.connection_counts();
        drop(view);
        self.publish_queues();
    }

    /// Publishes the counts that have a meaning without a session.
    pub(crate) fn publish_queues(&self) {
        let sharing = self.shared.member().map(|member| member.status(self.options.clock.now()));
        let mut view = self.shared.view();
        let status = &mut view.status;
        status.commands_sent = self.counts.commands_sent;
        status.commands_retried = self.counts.commands_retried;
        status.writes_replayed = self.counts.writes_replayed;
        status.in_flight = self.under_way.count();
        status.waiting = self.jobs.values().filter(|job| job.is_idle()).count();
        status.retained_bytes = self.retained.bytes();
        status.retained_changes = self.retained.count();
        status.sharing = sharing;
    }

    fn add(&mut self, mut job: Box<Job>) {
        let range = job.range();
        if !range.is_empty() {
            let mut place = if job.is_exclusive() { self.ranges.exclusive(range) } else { self.ranges.shared(range) };
            job.place = place.try_take();
            if job.place.is_none() {
                self.blocked.insert(self.order_next, place);
            }
        }
        if !self.blocked.contains_key(&self.order_next) {
            self.ready.insert(self.order_next);
        }
        self.jobs.insert(self.order_next, job);
        self.order_next += 1;
    }

    /// Makes ready the requests that are not blocked any more. A place in the range lock is freed
    /// only where a job ends.
    fn wake_unblocked(&mut self) {
        if self.blocked.is_empty() {
            return;
        }
        let Self { blocked, jobs, ready, .. } = self;
        blocked.retain(|order, place| {
            let Some(guard) = place.try_take() else { return true };
            if let Some(job) = jobs.get_mut(order) {
                job.place = Some(guard);
                ready.insert(*order);
            }
            false
        });
    }

    fn wake_delayed(&mut self, now: Instant) {
        while let Some(&(at, order)) = self.delayed.first()
            && at <= now
        {
            self.delayed.pop_first();
            if let Some(job) = self.jobs.get_mut(&order) {
                job.is_delayed = false;
                self.ready.insert(order);
            }
        }
    }

    /// Issues commands. A replay goes first and alone.
    fn dispatch(&mut self, link: &mut Link, now: Instant) -> bool {
        let mut has_progressed = false;
        if self.attention > Attention::None || self.shared.member().is_some_and(|member| !member.may_issue(now)) {
            return false;
        }
        while let Some((range, content)) = self.replay.next(now) {
            let kind = match content {
                Content::Bytes(bytes, part) => Kind::Write { range, buffer: Buffer::copy_of(&bytes[part]), fua: false },
                Content::Zeroes { may_discard } => Kind::Zeroes { range, fua: false, may_discard },
                Content::Discarded => Kind::Discard { range },
            };
            let order = self.order_next;
            self.order_next += 1;
            self.jobs.insert(order, Box::new(Job::new(kind, Reply::Replay, now)));
            self.ready.insert(order);
        }
        self.flush_for_room(now);
        if self.is_replaying() {
            let is_replay = |order: &&u64| self.jobs.get(order).is_some_and(|job| matches!(job.reply, Reply::Replay));
            let candidates: Vec<u64> = self.ready.iter().filter(is_replay).copied().collect();
            for order in candidates {
                if self.under_way.count() >= self.options.queue_depth {
                    break;
                }
                self.ready.remove(&order);
                self.issue(link, now, order);
                has_progressed = true;
            }
            return has_progressed;
        }
        while self.under_way.count() < self.options.queue_depth
            && let Some(order) = self.next_ready()
        {
            self.ready.remove(&order);
            self.issue(link, now, order);
            has_progressed = true;
        }
        has_progressed
    }

    /// Issues the next commands of a job, or ends it when there are none left.
    fn issue(&mut self, link: &mut Link, now: Instant, order: u64) {
        if self.holds_back(now, order) {
            return;
        }
        let timeout = self.command_timeout();
        let Some(job) = self.jobs.get_mut(&order) else { return };
        job.is_flush_needed = self.unit.is_volatile() || !self.retained.is_empty();
        let is_another = job.is_mutation() && !job.has_begun() && !matches!(job.reply, Reply::Replay);
        if is_another && self.retained.is_full() {
            self.stalled.insert(order);
            self.flush_for_room(now);
            return;
        }
        let copy_bytes = if self.options.is_shared { 0 } else { job.copy_bytes(&self.unit) };
        if copy_bytes > 0 && job.copy.is_none() {
            job.copy = self.retained.reserve(copy_bytes);
            if job.copy.is_none() {
                self.stalled.insert(order);
                self.flush_for_room(now);
                return;
            }
        }
        if job.repeat().is_some() && self.retained.overlaps(job.range()) {
            // An older copy of these bytes must not be replayed over the result of this command.
            self.stalled.insert(order);
            self.flush_for_room(now);
            return;
        }
        while self.under_way.count() < self.options.queue_depth
            && let Some(command) = job.next_command(&self.unit, order, timeout)
        {
            if matches!(job.kind, Kind::Flush) {
                job.flush_mark = Some(self.retained.mark());
            }
            job.note_sent(self.under_way.send());
            self.counts.commands_sent += 1;
            link.session.submit(now, command);
        }
        self.go_on(order);
    }

    /// Decides the next step of a job: it has ended, or is ready to issue more, or waits for its
    /// commands under way.
    fn go_on(&mut self, order: u64) {
        let Some(job) = self.jobs.get_mut(&order) else { return };
        let has_next = job.has_next(&self.unit);
        if !job.is_idle() || has_next {
            if has_next && !job.is_delayed {
                self.ready.insert(order);
            }
            return;
        }
        match job.take_failure() {
            Some(error) => self.fail(order, error),
            None => self.complete(order),
        }
    }

    /// Sends a flush of our own when copies take too much room; one at a time.
    fn flush_for_room(&mut self, now: Instant) {
        // After a failed flush another is sent only if requests wait for room. A flush that
        // releases nothing makes no room.
        let is_useful = !self.retained.is_empty() && !self.is_flush_failing;
        let is_needed = self.is_exposed || (self.retained.is_near_bound() && is_useful) || !self.stalled.is_empty();
        if is_needed && !self.is_flush_under_way && !self.is_replaying() {
            self.is_flush_under_way = true;
            self.add(Box::new(Job::new(Kind::Flush, Reply::Nobody, now)));
        }
    }

    /// Takes events and completed commands from the link.
    fn collect(&mut self, link: &mut Link, now: Instant) -> bool {
        let mut has_progressed = false;
        while let Some(event) = link.poll_event() {
            has_progressed = true;
            match event {
                LinkEvent::LogicalUnitReset { .. } => self.note(Attention::PowerOn),
                LinkEvent::LogoutRequested { .. } => self.note(Attention::Leave),
                LinkEvent::ScsiEvent { sense, .. } => {
                    if let Ok(sense) = Sense::parse(&sense) {
                        self.note_sense(&sense);
                    }
                }
                LinkEvent::VendorEvent { message, data } => self.take_message(&message, &data, now),
                LinkEvent::LoggedIn(_) | LinkEvent::Targets(_) | LinkEvent::LoggedOut(_) => {}
            }
        }
        while let Some(completed) = link.session.poll_completed() {
            has_progressed = true;
            match order::number_of(completed.token) {
                Some(number) => self.take_answer(now, number, &completed.outcome),
                None => self.take(now, completed, link.is_wide()),
            }
        }
        self.take_early(now);
        has_progressed
    }

    /// Takes an answer, or keeps it in `early` if it may not be used yet.
    fn take(&mut self, now: Instant, completed: Completed, is_wide: bool) {
        let Self { jobs, under_way, retained, unit, .. } = self;
        let job = jobs.get(&Job::order_of(completed.token));
        let Some((job, number)) = job.and_then(|job| Some((job, job.number_of(completed.token)?))) else { return };
        let is_read = matches!(job.kind, Kind::Read { .. } | Kind::Extents { .. });
        let says_of_cache = job.depends_on_cache(completed.token) && (!is_read || retained.overlaps(job.range()));
        // A unit whose cache no other host can switch on may still do so itself, which is rare: its
        // answers do not wait for those on other connections.
        let relies_on_others = unit.may_get_cache && job.relies_on_no_cache(unit);
        let is_early = is_wide && under_way.has_earlier(number) && (says_of_cache || relies_on_others);
        if is_early {
            self.early.push(completed);
            return;
        }
        let (is_good, relies_on_no_cache) = (completed.outcome.is_good(), job.relies_on_no_cache(unit));
        under_way.answer(number);
        self.handle_completed(now, completed);
        if is_good && self.attention == Attention::None {
            if relies_on_no_cache {
                self.unconfirmed = Some(self.under_way.next());
            } else if !self.under_way.has_earlier(number) {
                self.unconfirmed.take_if(|from| *from <= number);
            }
        }
    }

    /// Takes the early answers that may be used by now.
    fn take_early(&mut self, now: Instant) {
        while let Some(index) = self.early.iter().position(|completed| {
            let job = self.jobs.get(&Job::order_of(completed.token));
            job.and_then(|job| job.number_of(completed.token)).is_none_or(|number| !self.under_way.has_earlier(number))
        }) {
            let completed = self.early.swap_remove(index);
            self.take(now, completed, false);
        }
    }

    fn note(&mut self, attention: Attention) {
        if attention == Attention::PowerOn {
            self.lose_exposed();
        }
        self.attention = self.attention.max(attention);
    }

    fn handle_completed(&mut self, now: Instant, completed: Completed) {
        let Completed { token, mut buffer, outcome } = completed;
        let order = Job::order_of(token);
        let Some(job) = self.jobs.get_mut(&order) else { return };
        if let Some(repeat) = job.repeat() {
            self.handle_raw(now, order, repeat, Completed { token, buffer, outcome });
            return;
        }
        let depends_on_cache = job.depends_on_cache(token);
        let Some(step) = job.take_step(token, &mut buffer) else { return };
        let is_only_once = self.options.is_shared && job.is_mutation();
        if self.attention >= Attention::PowerOn && outcome.is_good() && depends_on_cache {
            // It may have been carried out after the unit lost what is about to be written again.
            match job.kind {
                Kind::Read { .. } | Kind::Extents { .. } => job.reissue(step),
                _ if is_only_once => job.give_up(in_doubt(job, "the unit was reset")),
                _ => job.start_over(),
            }
            self.counts.commands_retried += u64::from(!is_only_once);
            self.go_on(order);
            return;
        }
        if self.attention > Attention::None && outcome.is_good() && job.relies_on_no_cache(&self.unit) {
            // A cache may have been switched on before it was carried out, and no copy of it would
            // be retained.
            match is_only_once {
                true => job.give_up(in_doubt(job, "the unit may have had a cache switched on")),
                false => job.reissue(step),
            }
            self.counts.commands_retried += u64::from(!is_only_once);
            self.go_on(order);
            return;
        }
        // The unit decides how many extents it reports: fewer than asked for is no failure.
        if job.take_extents(&self.unit, &outcome, &buffer) {
            self.was_useful = true;
            self.complete(order);
            return;
        }
        match judge(&outcome, job.read_bytes(step), || job.words()) {
            Verdict::Done => {
                self.was_useful |= job.is_waited_for();
                job.advance(step, &buffer);
            }
            Verdict::Again(sense) => {
                sense.iter().for_each(|sense| self.note_sense(sense));
                self.try_again(now, order, step, AGAIN_WORDS);
            }
            Verdict::Elsewhere(error) if self.options.has_other_paths => job.give_up(error),
            Verdict::Later | Verdict::Elsewhere(_) => self.wait(now, order, step),
            Verdict::Unanswered(words) if is_only_once => job.give_up(in_doubt(job, &words)),
            Verdict::Unanswered(words) | Verdict::Unsent(words) => self.try_again(now, order, step, &words),
            Verdict::Fenced(error) => {
                job.give_up(error);
                self.note_fenced(now);
            }
            Verdict::Failed(error) => {
                job.give_up(error.clone());
                if step.is_synchronize() {
                    // It may be about what others wrote.
                    self.tell_next_flush(error);
                }
            }
        }
        self.go_on(order);
    }

    /// Ends a raw command. Its sense data is noted even where its caller decides what comes next.
    fn handle_raw(&mut self, now: Instant, order: u64, repeat: Repeat, completed: Completed) {
        let Completed { token, mut buffer, outcome } = completed;
        // Its caller judges how much it should bring.
        let verdict = judge(&outcome, 0, || "a SCSI command".to_owned());
        let is_refused = match &verdict {
            Verdict::Again(Some(sense)) => {
                self.note_sense(sense);
                true
            }
            Verdict::Later => true,
            Verdict::Elsewhere(_) => !self.options.has_other_paths,
            _ => false,
        };
        if matches!(verdict, Verdict::Fenced(_)) {
            self.note_fenced(now);
        }
        let Some(job) = self.jobs.get_mut(&order) else { return };
        self.was_useful |= matches!(verdict, Verdict::Done) && job.is_waited_for();
        let is_unanswered = matches!(verdict, Verdict::Again(_) | Verdict::Unanswered(_) | Verdict::Unsent(_));
        if (is_refused && repeat != Repeat::Never) || (is_unanswered && repeat == Repeat::Always) {
            let Some(step) = job.take_step(token, &mut buffer) else { return };
            match verdict {
                Verdict::Later | Verdict::Elsewhere(_) => self.wait(now, order, step),
                _ => self.try_again(now, order, step, AGAIN_WORDS),
            }
            self.go_on(order);
        } else if job.makes_durable(&self.unit, self.attention > Attention::None, &outcome) {
            job.take_step(token, &mut buffer);
            self.go_on(order);
        } else if let Some(job) = self.jobs.remove(&order) {
            self.ready.remove(&order);
            if job.is_mode_select() && outcome.is_good() {
                self.note(Attention::Changed);
            }
            if job.is_synchronizing()
                && let Verdict::Failed(error) = verdict
            {
                self.tell_next_flush(error);
            }
            if self.attention >= Attention::PowerOn && job.is_synchronizing() {
                job.finish(Err(reset_too_early()));
            } else {
                job.finish_raw(&outcome, &buffer);
            }
        }
    }

    /// Notes a report of the unit.
    pub(crate) fn note_sense(&mut self, sense: &Sense) {
        let attention = self.learn(sense);
        self.note(attention);
    }

    /// Notes what a report says of earlier writes and of the list of LUNs. Returns the attention
    /// that it calls for.
    pub(crate) fn learn(&mut self, sense: &Sense) -> Attention {
        if sense.is_deferred && self.retained.is_empty() {
            self.lose_write(sense_error(sense, "an earlier write"));
        }
        if (sense.asc, sense.ascq) == REPORTED_LUNS_CHANGED {
            self.shared.note_lun_list_change();
        }
        attention(sense)
    }

    /// Issues a job's command once more, unless that was tried often enough and long enough.
    fn try_again(&mut self, now: Instant, order: u64, step: Step, words: &str) {
        let Some(job) = self.jobs.get_mut(&order) else { return };
        let attempts = step.attempts() + 1;
        self.counts.commands_retried += 1;
        if attempts >= ATTEMPTS_MAX || now.since(job.since) >= self.options.replacement_timeout {
            let words = format!("{} failed: {words}", job.words());
            let error = final_error(job, &Error::new(ErrorKind::TimedOut, words));
            job.give_up(error);
        } else {
            job.reissue(step.after(attempts));
        }
    }

    /// Delays a job until its command may be issued once more.
    fn wait(&mut self, now: Instant, order: u64, step: Step) {
        let Some(job) = self.jobs.get_mut(&order) else { return };
        if now.since(job.since) >= self.options.replacement_timeout {
            let words = format!("{} failed: {} is busy and does not get better", job.words(), self.options.place());
            job.give_up(Error::new(ErrorKind::Busy, words));
            return;
        }
        job.reissue(step);
        self.counts.commands_retried += 1;
        self.delay(now, order);
    }

    /// Delays what a job has still to issue, longer each time.
    fn delay(&mut self, now: Instant, order: u64) {
        let Some(job) = self.jobs.get_mut(&order) else { return };
        if !std::mem::replace(&mut job.is_delayed, true) {
            self.ready.remove(&order);
            self.delayed.insert((now + job.busy_wait, order));
            job.busy_wait = (job.busy_wait * 2).min(BUSY_WAIT_MAX);
        }
    }

    /// Ends a job that was carried out.
    fn complete(&mut self, order: u64) {
        let Some(mut job) = self.jobs.remove(&order) else { return };
        if matches!(job.reply, Reply::Replay) {
            self.replay.end_one();
            self.counts.writes_replayed += 1;
            if job.is_durable(&self.unit) {
                self.retained.supersede(job.range());
            }
            return;
        }
        if job.is_mutation() {
            self.retain(&mut job);
        }
        if matches!(job.kind, Kind::Flush) {
            let is_ours = matches!(job.reply, Reply::Nobody);
            self.is_flush_under_way &= !is_ours;
            if let Some(mark) = job.flush_mark {
                self.retained.release(mark);
                self.is_exposed = false;
            }
            self.is_flush_failing = false;
            self.ready.append(&mut self.stalled);
            if !is_ours && let Some(error) = self.unreported_loss.take() {
                job.finish(Err(error));
                return;
            }
        }
        job.finish(Ok(()));
    }

    /// Retains what a completed mutation changed, until it is durable.
    fn retain(&mut self, job: &mut Job) {
        let range = job.range();
        if job.is_durable(&self.unit) {
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

    /// Ends a job that cannot be carried out.
    fn fail(&mut self, order: u64, error: Error) {
        let Some(job) = self.jobs.remove(&order) else { return };
        match &job.reply {
            Reply::Replay if self.falls_back(&error, &job) => self.go_back(order, job),
            Reply::Replay => {
                self.replay.end_one();
                if error.kind() == ErrorKind::Unsupported && matches!(job.kind, Kind::Discard { .. }) {
                    return;
                }
                self.retained.supersede(job.range());
                self.lose_write(error);
            }
            Reply::Nobody => {
                self.is_flush_under_way = false;
                self.is_flush_failing = true;
                tracing::warn!(%error, place = self.options.place(), "a flush that was to make room, or the last one, \
                                                                      failed");
                if std::mem::take(&mut self.is_exposed) {
                    // Of that there are no copies, and it is not flushed again.
                    self.lose_write(error.clone());
                } else if error.kind().may_have_lost() {
                    self.tell_next_flush(error.clone());
                }
                self.note_failure(&error);
                // Requests that wait for room must not wait for ever.
                for order in std::mem::take(&mut self.stalled) {
                    self.fail(order, error.clone());
                }
            }
            Reply::Request(_) if self.falls_back(&error, &job) => self.go_back(order, job),
            Reply::Request(_) | Reply::Raw(_) => {
                self.ready.append(&mut self.stalled);
                self.note_failure(&error);
                // A loss is told in place of what went wrong with this flush: who hears that nothing was done asks
                // again, here or on another path, and hears nothing of it.
                let loss = self.unreported_loss.take_if(|_| matches!(job.kind, Kind::Flush));
                job.finish(Err(loss.unwrap_or(error)));
            }
        }
    }

    /// Puts the error into the status and the log. Errors of the request itself concern only its
    /// caller.
    fn note_failure(&mut self, error: &Error) {
        let kind = error.kind();
        if matches!(kind, ErrorKind::InvalidRange | ErrorKind::Unsupported) {
            return;
        }
        self.shared.view().status.last_error = Some(error.to_string());
        let now = self.options.clock.now();
        if let Some(left_out) = self.failure_log.admit(kind, now) {
            tracing::warn!(%error, place = self.options.place(), left_out, "the LUN fails requests");
        }
    }

    /// Whether the unit carried out what somebody waited for since the last call.
    pub(crate) fn take_usefulness(&mut self) -> bool {
        std::mem::take(&mut self.was_useful)
    }

    /// When the oldest request arrived.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        self.jobs.values().map(|job| job.since).min()
    }

    /// Restarts a job.
    fn go_back(&mut self, order: u64, mut job: Box<Job>) {
        job.start_over();
        self.ready.insert(order);
        self.jobs.insert(order, job);
    }

    /// Notes that acknowledged data is, or may be, lost.
    fn lose_write(&mut self, error: Error) {
        if let Some(left_out) = self.loss_log.admit(error.kind(), self.options.clock.now()) {
            tracing::error!(%error, place = self.options.place(), left_out, "data that was acknowledged is lost, or \
                                                                             may be");
        }
        self.tell_next_flush(error);
        self.shared.events.publish(&Event::WritesLost);
    }

    /// The next flush of a client is to end with this, unless it is to tell of an earlier loss already.
    fn tell_next_flush(&mut self, error: Error) {
        self.unreported_loss.get_or_insert_with(|| as_loss(error));
    }

    /// A unit that announces WRITE SAME and refuses it gets plain zeroes from now on; one without GET LBA STATUS is not
    /// asked again.
    fn falls_back(&mut self, error: &Error, job: &Job) -> bool {
        match job.kind {
            _ if error.kind() != ErrorKind::Unsupported => false,
            Kind::Zeroes { .. } => self.unit.write_same_blocks_max.take().is_some(),
            Kind::Extents { .. } => std::mem::replace(&mut self.unit.has_lba_status, false),
            _ => false,
        }
    }
}

/// The error of a raw command that was carried out, but may not be durable.
fn reset_too_early() -> Error {
    let words = "the unit was reset before the command was durable; it may or may not last";
    Error::new(ErrorKind::OutcomeUnknown, words)
}

/// The error as one that whoever hears it takes for a loss, and does not answer by asking again.
fn as_loss(error: Error) -> Error {
    if !error.kind().was_not_done() && error.kind() != ErrorKind::Busy {
        return error;
    }
    let words = format!("what was acknowledged before may be lost: {error}");
    Error::with_source(ErrorKind::OutcomeUnknown, words, error)
}

/// What a change ends with that may have been carried out, where other hosts may have written there since.
fn in_doubt(job: &Job, why: &str) -> Error {
    let words = format!(
        "{} may or may not have happened: {why}, and what several hosts share is not written again unasked",
        job.words()
    );
    Error::new(ErrorKind::OutcomeUnknown, words)
}

/// The error of a job; `OutcomeUnknown` where a mutation may have been carried out, since
/// `TimedOut` would deny that.
fn final_error(job: &Job, error: &Error) -> Error {
    let is_doubtful = error.kind() == ErrorKind::TimedOut;
    if is_doubtful && job.was_sent && job.is_mutation() {
        return Error::with_source(
            ErrorKind::OutcomeUnknown,
            format!("{}; it may or may not have happened", error),
            error.clone(),
        );
    }
    error.clone()
}
