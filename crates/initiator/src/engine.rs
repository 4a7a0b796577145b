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
//! - where another host may switch a cache on, a write has FUA, so that it is durable when it is
//!   answered;
//! - on a shared LUN nothing is written again: another host may have written there since. What may
//!   have been carried out ends with an unknown outcome, whether its session is lost or goes on. Of
//!   what was acknowledged and not flushed only the ranges are retained, so that a flush can report
//!   the loss.
//!
//! The parts know nothing of each other but for `jobs` and `errors`; the engine joins them:
//!
//! | part | holds |
//! |---|---|
//! | `sharing` | what a client of a shared LUN has to do besides |
//! | `loss` | what becomes of jobs when the session or the unit's cache is lost |
//! | `outcome` | what an answer means for its job, and calls for besides |
//! | `liveness` | whether the target still answers commands, and the unit is there |
//! | `jobs` | the jobs, and what each waits for |
//! | `acknowledged` | what is acknowledged and not durable: copies, their replay, flushes, losses to be reported |
//! | `counts` | counts over all sessions |
//! | `errors` | errors of what may or may not have been carried out |

mod acknowledged;
mod counts;
mod errors;
mod jobs;
mod liveness;
mod loss;
mod outcome;
mod sharing;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::busy_poll::{BusyPoll, depth_of};
use base::clock::Instant;
use block::grants::Standing;
use block::{Buffer, Error, ErrorKind};
use iscsi::initiator::{Completed, Event as LinkEvent, Outcome};
use scsi::Sense;

use crate::alarm::Alarm;
use crate::error::{LinkError, sense_error};
use crate::job::{Job, Kind, Reply};
use crate::limits::BUSY_WAIT_MAX;
use crate::link::Link;
use crate::log_limit::LogLimit;
use crate::options::InitiatorOptions;
use crate::retained::Content;
use crate::shared::{Incoming, Shared};
use crate::sharing::order;
use crate::status::State;
use crate::under_way::UnderWay;
use crate::unit::Unit;
use crate::verdict::{Attention, attention};
use acknowledged::Acknowledged;
use counts::Counts;
use errors::{AGAIN_WORDS, UNLEASED_WORDS, final_error, reset_too_early, timed_out};
use jobs::Jobs;
use liveness::Liveness;
use outcome::{Next, Situation, judge_answer};
use sharing::{Exchanged, Sharing};

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

/// REPORTED LUNS DATA HAS CHANGED (SPC-4 annex D).
const REPORTED_LUNS_CHANGED: (u8, u8) = (0x3f, 0x0e);

pub(crate) struct Engine {
    options: Arc<InitiatorOptions>,
    shared: Arc<Shared>,
    pub(crate) unit: Unit,
    incoming: VecDeque<Incoming>,
    jobs: Jobs,
    acknowledged: Acknowledged,
    sharing: Sharing,
    under_way: UnderWay,
    liveness: Liveness,
    /// Answers that may not be used yet: see [`UnderWay`]. Their commands count as under way.
    early: Vec<Completed>,
    attention: Attention,
    /// Since when reports of the unit hold up all requests, with nothing carried out.
    held_up_since: Option<Instant>,
    /// Since when there is a session and, of a shared unit, no lease, so that nothing is carried out.
    unleased_since: Option<Instant>,
    failure_log: LogLimit,
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
        let busy_poll = BusyPoll::new(options.busy_poll);
        Self {
            acknowledged: Acknowledged::new(Arc::clone(&options), Arc::clone(&shared)),
            sharing: Sharing::new(Arc::clone(&options), Arc::clone(&shared)),
            liveness: Liveness::new(options.command_timeout, options.keepalive_interval),
            options,
            shared,
            unit,
            incoming: VecDeque::new(),
            jobs: Jobs::default(),
            under_way: UnderWay::default(),
            early: Vec::new(),
            attention: Attention::None,
            held_up_since: None,
            unleased_since: None,
            failure_log: LogLimit::default(),
            has_writes_in_doubt: false,
            was_useful: false,
            counts: Counts::default(),
            alarm: Alarm::default(),
            busy_poll,
        }
    }

    /// Notes that a session has begun.
    pub(crate) fn begin_session(&mut self) {
        self.liveness.begin_session(self.options.clock.now());
        self.sharing.begin_session();
    }

    /// Adopts the unit's new properties. Nothing is under way.
    pub(crate) fn adopt(&mut self, unit: Unit) {
        self.acknowledged.adopt(&unit);
        self.unit = unit;
    }

    /// Serves requests over `link` until something else must be done.
    pub(crate) fn poll(&mut self, link: &mut Link, context: &mut Context<'_>) -> Poll<Stop> {
        loop {
            let mut has_progressed = self.accept(context);
            let now = self.options.clock.now();
            self.jobs.wake_delayed(now);
            self.jobs.wake_unblocked();
            self.fail_overdue(now);
            let exchanged = self.share(link, context, now);
            if let Some(error) = exchanged.fenced {
                return Poll::Ready(Stop::Fenced(error));
            }
            has_progressed |= exchanged.has_progressed;
            has_progressed |= self.fail_unleased(now);
            has_progressed |= self.dispatch(link, now);
            let io = link.poll_io(context);
            has_progressed |= self.collect(link, now);
            match io {
                Ok(has_moved) => has_progressed |= has_moved,
                Err(error) => return Poll::Ready(Stop::Lost(error)),
            }
            if let Some(breach) = self.sharing.breach() {
                return Poll::Ready(Stop::Lost(breach));
            }
            if self.liveness.is_deaf() {
                return Poll::Ready(Stop::Lost(LinkError::Deaf));
            }
            if self.attention > Attention::None && self.under_way.count() == 0 && self.sharing.is_idle() {
                return Poll::Ready(Stop::Attention(std::mem::take(&mut self.attention)));
            }
            if self.jobs.is_empty() && self.incoming.is_empty() && self.shared.is_closing() {
                let is_flushed = self.acknowledged.is_last_flush_over();
                if is_flushed && self.sharing.leave(now) {
                    return Poll::Ready(Stop::Closed);
                }
                if is_flushed {
                    // The logout, or its answer, remains.
                    if has_progressed
                        || self.share(link, context, now).has_progressed
                        || self.wait_for_deadline(context, now)
                    {
                        continue;
                    }
                    return Poll::Pending;
                }
                // The unit's volatile cache is flushed before the session ends.
                self.acknowledged.begin_last_flush();
                self.jobs.add(Box::new(Job::new(Kind::Flush, Reply::Nobody, now)));
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
        let replay_from = self.acknowledged.replay_deadline(now);
        let sharing = self.sharing.next_deadline(self.is_settling());
        let overdue_from = self.next_overdue().into_iter().chain(self.next_unleased()).map(|(_, from)| from).min();
        let may_ask = self.attention == Attention::None && self.sharing.may_issue(now);
        let question = self.liveness.next_deadline(self.under_way.count()).filter(|_| may_ask);
        let ours = self.jobs.next_deadline().into_iter().chain(replay_from).chain(overdue_from);
        let deadlines = ours.chain(sharing).chain(question);
        self.alarm.poll(context, &*self.options.clock, now, deadlines.min())
    }

    /// Takes requests in while there is no session. The task is woken by the next.
    pub(crate) fn accept(&mut self, context: &Context<'_>) -> bool {
        self.shared.receive(context, self.jobs.count(), &mut self.incoming);
        if self.incoming.is_empty() {
            return false;
        }
        let now = self.options.clock.now();
        while let Some(incoming) = self.incoming.pop_front() {
            let job = match incoming {
                Incoming::Request(request, sender, tenure) => {
                    Job::of_request(request, sender, now).map(|job| Box::new(job.under(tenure)))
                }
                Incoming::Raw(raw, sender) => Some(Box::new(Job::new(Kind::Raw(raw), Reply::Raw(sender), now))),
            };
            if let Some(job) = job {
                self.jobs.add(job);
            }
        }
        true
    }

    /// Takes requests in while the unit is asked anew, and ends those that have had their time. The task is woken by
    /// the next.
    pub(crate) fn wait_for_answers(&mut self, context: &mut Context<'_>) {
        self.accept(context);
        loop {
            let now = self.options.clock.now();
            self.fail_overdue(now);
            while let Some((order, _)) = self.next_held_up().filter(|(_, from)| *from <= now) {
                let Some(job) = self.jobs.get(order) else { break };
                let error = timed_out(job, "the unit reports changes and has not said yet what it is now");
                self.fail(order, error);
            }
            let deadlines = self.next_held_up().into_iter().chain(self.next_overdue()).map(|(_, from)| from);
            if !self.alarm.poll(context, &*self.options.clock, now, deadlines.min()) {
                break;
            }
        }
        self.publish_queues();
    }

    /// Sends and receives the messages of a client of a shared LUN.
    fn share(&mut self, link: &mut Link, context: &mut Context<'_>, now: Instant) -> Exchanged {
        let exchanged = self.sharing.exchange(link, context, now, &self.unit, self.is_settling());
        if exchanged.is_new_start {
            self.acknowledged.lose_shared();
        }
        exchanged
    }

    /// Whether the unit is about to be read anew.
    fn is_settling(&self) -> bool {
        self.attention > Attention::None && self.under_way.count() == 0
    }

    /// Starts to write again everything that is retained; nothing else is sent before that is done.
    pub(crate) fn start_replay(&mut self) {
        self.acknowledged.start_replay();
    }

    /// Whether retained writes are still to be written again.
    pub(crate) fn is_replaying(&self) -> bool {
        self.acknowledged.is_replaying()
    }

    /// Whether requests are carried out: nothing is to be written again before, and a shared unit is this path's.
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_replaying() && self.sharing.may_issue(self.options.clock.now())
    }

    /// Hands the requests that are not under way back to their callers, where another path of the same client can take
    /// them now. What may have changed something has ended by then. That is no failure: who asks by several paths asks
    /// by another one, and here again if that is lost as well.
    pub(crate) fn pass_on(&mut self) {
        if self.jobs.is_empty() || !self.sharing.has_other_path() {
            return;
        }
        for order in self.jobs.requests() {
            let Some(job) = self.jobs.remove(order) else { continue };
            let words = format!("the session with {} is lost, and another one goes on", self.options.place());
            self.answer(job, Error::new(ErrorKind::NoAccess, words));
        }
    }

    /// Publishes the counts for [`crate::RemoteLun::status`].
    fn publish(&self, link: &Link) {
        let mut view = self.shared.view();
        view.status.state = if self.is_replaying() { State::Replaying } else { State::Online };
        self.counts.publish_traffic(link, &mut view.status);
        drop(view);
        self.publish_queues();
    }

    /// Publishes the counts that have a meaning without a session.
    pub(crate) fn publish_queues(&self) {
        let sharing = self.sharing.status();
        let retained = self.acknowledged.retained();
        let mut view = self.shared.view();
        let status = &mut view.status;
        self.counts.publish(status);
        status.in_flight = self.under_way.count();
        status.waiting = self.jobs.iter().filter(|job| job.is_idle()).count();
        status.retained_bytes = retained.bytes();
        status.retained_changes = retained.count();
        status.sharing = sharing;
    }

    /// Issues commands. A replay goes first and alone.
    fn dispatch(&mut self, link: &mut Link, now: Instant) -> bool {
        let mut has_progressed = false;
        if self.attention > Attention::None || !self.sharing.may_issue(now) {
            return false;
        }
        if self.liveness.is_question_due(now, self.under_way.count()) {
            let question = self.liveness.ask(now, self.under_way.send(), self.unit.lun);
            self.counts.commands_sent += 1;
            link.session.submit(now, question);
            has_progressed = true;
        }
        while let Some((range, content)) = self.acknowledged.next_replay(now) {
            let kind = match content {
                Content::Bytes(bytes, part) => Kind::Write { range, buffer: Buffer::copy_of(&bytes[part]), fua: false },
                Content::Zeroes { may_discard } => Kind::Zeroes { range, fua: false, may_discard },
                Content::Discarded => Kind::Discard { range },
            };
            self.jobs.add_replay(Box::new(Job::new(kind, Reply::Replay, now)));
        }
        self.flush_for_room(now);
        if self.is_replaying() {
            for order in self.jobs.ready_replays() {
                if self.under_way.count() >= self.options.queue_depth {
                    break;
                }
                self.jobs.take_ready(order);
                self.issue(link, now, order);
                has_progressed = true;
            }
            return has_progressed;
        }
        while self.under_way.count() < self.options.queue_depth
            && let Some(order) = self.sharing.next_ready(&self.jobs, self.under_way.count())
        {
            self.jobs.take_ready(order);
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
        let timeout = self.sharing.command_timeout(&self.unit);
        let retained = self.acknowledged.retained();
        let Some(job) = self.jobs.get_mut(order) else { return };
        job.is_flush_needed = self.unit.is_volatile() || !retained.is_empty();
        let is_another = job.is_mutation() && !job.has_begun() && !matches!(job.reply, Reply::Replay);
        let copy_bytes = if self.options.is_shared { 0 } else { job.copy_bytes(&self.unit) };
        let mut has_room = !(is_another && retained.is_full());
        if has_room && copy_bytes > 0 && job.copy.is_none() {
            job.copy = retained.reserve(copy_bytes);
            has_room = job.copy.is_some();
        }
        // An older copy of these bytes must not be replayed over the result of a raw command.
        if !has_room || (job.repeat().is_some() && retained.overlaps(job.range())) {
            self.jobs.stall(order);
            self.flush_for_room(now);
            return;
        }
        while self.under_way.count() < self.options.queue_depth
            && let Some(command) = job.next_command(&self.unit, order, timeout)
        {
            if matches!(job.kind, Kind::Flush) {
                job.flush_mark = Some(retained.mark());
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
        let Some(job) = self.jobs.get_mut(order) else { return };
        let has_next = job.has_next(&self.unit);
        if !job.is_idle() || has_next {
            if has_next && !job.is_delayed {
                self.jobs.make_ready(order);
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
        if self.acknowledged.begin_flush(self.jobs.has_stalled()) {
            self.jobs.add(Box::new(Job::new(Kind::Flush, Reply::Nobody, now)));
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
                LinkEvent::VendorEvent { message, data } => self.sharing.take_message(&message, &data, &self.unit, now),
                LinkEvent::LoggedIn(_) | LinkEvent::Targets(_) | LinkEvent::LoggedOut(_) => {}
            }
        }
        while let Some(completed) = link.session.poll_completed() {
            has_progressed = true;
            match order::number_of(completed.token) {
                Some(number) => self.sharing.take_answer(now, number, &completed.outcome),
                None if self.liveness.note(now, &completed) => self.take_reply(now, &completed.outcome),
                None => self.take(now, completed, link.is_wide()),
            }
        }
        self.take_early(now);
        // What was not sent must not follow the report before the unit is asked what it is.
        if self.attention > Attention::None {
            has_progressed |= link.session.withdraw(|token| order::number_of(token).is_none());
        }
        has_progressed
    }

    /// Takes the end of the question whether commands are answered. The unit may report something with it.
    fn take_reply(&mut self, now: Instant, outcome: &Outcome) {
        if let Some(number) = self.liveness.end(now, outcome) {
            self.under_way.answer(number);
        }
        if let Outcome::Status { sense, .. } = outcome
            && let Ok(sense) = Sense::parse(sense)
        {
            self.note_sense(&sense);
        }
    }

    /// Takes an answer, or keeps it in `early` if it may not be used yet.
    fn take(&mut self, now: Instant, completed: Completed, is_wide: bool) {
        let Self { jobs, under_way, acknowledged, unit, .. } = self;
        let job = jobs.get(Job::order_of(completed.token));
        let Some((job, number)) = job.and_then(|job| Some((job, job.number_of(completed.token)?))) else { return };
        let is_read = matches!(job.kind, Kind::Read { .. } | Kind::Extents { .. });
        let says_of_cache =
            job.depends_on_cache(completed.token) && (!is_read || acknowledged.retained().overlaps(job.range()));
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
                self.acknowledged.rely_on_no_cache(self.under_way.next());
            } else if !self.under_way.has_earlier(number) {
                self.acknowledged.confirm(number);
            }
        }
    }

    /// Takes the early answers that may be used by now.
    fn take_early(&mut self, now: Instant) {
        while let Some(index) = self.early.iter().position(|completed| {
            let job = self.jobs.get(Job::order_of(completed.token));
            job.and_then(|job| job.number_of(completed.token)).is_none_or(|number| !self.under_way.has_earlier(number))
        }) {
            let completed = self.early.swap_remove(index);
            self.take(now, completed, false);
        }
    }

    fn note(&mut self, attention: Attention) {
        let attention = match attention {
            // A shared unit says itself what it may have lost, when this host registers there.
            Attention::Absent if self.options.is_shared => Attention::Renumbered,
            Attention::Absent => Attention::PowerOn,
            other => other,
        };
        if attention == Attention::PowerOn {
            self.acknowledged.lose_exposed();
        }
        self.attention = self.attention.max(attention);
        if self.attention > Attention::None && self.held_up_since.is_none() {
            self.held_up_since = Some(self.options.clock.now());
        }
    }

    fn handle_completed(&mut self, now: Instant, completed: Completed) {
        let order = Job::order_of(completed.token);
        let Some(job) = self.jobs.get_mut(order) else { return };
        let situation = Situation { options: &self.options, unit: &self.unit, attention: self.attention, now };
        let Some(consequences) = judge_answer(job, completed, &situation) else { return };
        consequences.sense.iter().for_each(|sense| self.note_sense(sense));
        self.note(consequences.attention);
        if consequences.is_useful {
            self.was_useful = true;
            self.held_up_since = (self.attention > Attention::None).then_some(now);
        }
        self.counts.commands_retried += u64::from(consequences.is_retried);
        if consequences.is_fenced {
            self.sharing.note_fenced(now);
        }
        if consequences.is_unknown {
            self.sharing.note_unknown(now);
        }
        if let Some(error) = consequences.loss {
            self.acknowledged.report_to_next_flush(error);
        }
        match consequences.next {
            Next::GoOn => self.go_on(order),
            Next::Delayed => {
                self.jobs.delay(now, order);
                self.go_on(order);
            }
            Next::Complete => self.complete(order),
            Next::EndRaw(outcome, buffer) => {
                self.jobs.remove(order).into_iter().for_each(|job| job.finish_raw(&outcome, &buffer));
            }
            Next::EndReset => self.jobs.remove(order).into_iter().for_each(|job| job.finish(Err(reset_too_early()))),
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
        if sense.is_deferred && self.acknowledged.retained().is_empty() {
            self.acknowledged.lose(sense_error(sense, "an earlier write"));
        }
        if (sense.asc, sense.ascq) == REPORTED_LUNS_CHANGED {
            self.shared.note_lun_list_change();
        }
        attention(sense)
    }

    /// Ends a job that was carried out.
    fn complete(&mut self, order: u64) {
        let Some(mut job) = self.jobs.remove(order) else { return };
        if matches!(job.reply, Reply::Replay) {
            self.acknowledged.end_replay(&job, &self.unit);
            self.counts.writes_replayed += 1;
            return;
        }
        if job.is_mutation() {
            self.acknowledged.retain(&mut job, &self.unit);
        }
        if matches!(job.kind, Kind::Flush) {
            let is_ours = matches!(job.reply, Reply::Nobody);
            self.acknowledged.end_flush(job.flush_mark, is_ours);
            self.jobs.end_stall();
            if !is_ours && let Some(error) = self.acknowledged.take_loss() {
                job.finish(Err(error));
                return;
            }
        }
        job.finish(Ok(()));
    }

    /// The oldest request that waits for a replay, and when it has had its time. A replay that was interrupted too long
    /// is given up before that, and the requests go on.
    fn next_overdue(&self) -> Option<(u64, Instant)> {
        let replay_since = self.acknowledged.replay_since()?;
        let (order, since) = self.jobs.oldest_request()?;
        Some((order, since.max(replay_since) + self.options.replacement_timeout + BUSY_WAIT_MAX))
    }

    /// The oldest request that waits for the unit's answers, and when it has had its time.
    fn next_held_up(&self) -> Option<(u64, Instant)> {
        let held_up_since = self.held_up_since?;
        let (order, since) = self.jobs.oldest_request()?;
        Some((order, since.max(held_up_since) + self.options.replacement_timeout))
    }

    /// The oldest request that waits for the lease of a shared unit, and when it has had its time.
    fn next_unleased(&self) -> Option<(u64, Instant)> {
        let unleased_since = self.unleased_since?;
        let (order, since) = self.jobs.oldest_idle()?;
        Some((order, since.max(unleased_since) + self.options.replacement_timeout + BUSY_WAIT_MAX))
    }

    /// Ends the requests that have had their time while the target does not renew the lease of a shared unit. Returns
    /// whether there were any.
    fn fail_unleased(&mut self, now: Instant) -> bool {
        self.unleased_since = match self.sharing.may_issue(now) {
            true => None,
            false => self.unleased_since.or(Some(now)),
        };
        let mut has_any = false;
        while let Some((order, _)) = self.next_unleased().filter(|(_, from)| *from <= now) {
            let Some(job) = self.jobs.get(order) else { break };
            let error = timed_out(job, UNLEASED_WORDS);
            self.fail(order, error);
            has_any = true;
        }
        has_any
    }

    /// Ends the requests that have had their time while what the unit lost is written again: their callers have waited
    /// as long as for a target that is away.
    fn fail_overdue(&mut self, now: Instant) {
        while let Some((order, _)) = self.next_overdue().filter(|(_, from)| *from <= now) {
            let Some(job) = self.jobs.get(order) else { return };
            let error = timed_out(job, "what the unit had lost was still being written again");
            self.fail(order, error);
        }
    }

    /// Ends a job that cannot be carried out.
    fn fail(&mut self, order: u64, error: Error) {
        let Some(job) = self.jobs.remove(order) else { return };
        match &job.reply {
            Reply::Replay if self.falls_back(&error, &job) => self.go_back(order, job),
            Reply::Replay => self.acknowledged.fail_replay(&job, error),
            Reply::Nobody => {
                self.acknowledged.fail_flush(&error);
                self.note_failure(&error);
                // Requests that wait for room must not wait for ever.
                for order in self.jobs.take_stalled() {
                    self.fail(order, error.clone());
                }
            }
            Reply::Request(_) if self.falls_back(&error, &job) => self.go_back(order, job),
            Reply::Request(_) | Reply::Raw(_) => {
                self.jobs.end_stall();
                self.note_failure(&error);
                self.answer(job, error);
            }
        }
    }

    /// Answers a request with `error`. A loss is told in place of what went wrong with a flush: who hears that nothing
    /// was done asks again, here or on another path, and hears nothing of it.
    fn answer(&mut self, job: Box<Job>, error: Error) {
        let loss = if matches!(job.kind, Kind::Flush) { self.acknowledged.take_loss() } else { None };
        job.finish(Err(loss.unwrap_or(error)));
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

    /// Whether the unit has reported something about which it is still to be asked.
    pub(crate) fn has_attention(&self) -> bool {
        self.attention > Attention::None
    }

    /// When the oldest request arrived.
    pub(crate) fn waits_since(&self) -> Option<Instant> {
        self.jobs.waits_since()
    }

    /// Restarts a job.
    fn go_back(&mut self, order: u64, mut job: Box<Job>) {
        job.start_over();
        self.jobs.put_back(order, job);
        self.jobs.make_ready(order);
    }

    /// Restarts jobs when the unit may have lost its cache and the session goes on; nothing is under way.
    pub(crate) fn begin_again(&mut self) {
        let restarted = loss::begin_again(&mut self.jobs, self.options.is_shared, self.options.clock.now());
        (0..restarted.replays_count).for_each(|_| self.acknowledged.interrupt_replay());
        for order in restarted.exhausted {
            let Some(job) = self.jobs.get(order) else { continue };
            let error = timed_out(job, AGAIN_WORDS);
            self.fail(order, error);
        }
    }

    /// Takes back what was under way: the session is lost, and the next one issues it again.
    pub(crate) fn take_back(&mut self, link: Link, loss: &LinkError) {
        self.sharing.end_session();
        // Tasks of an older session ended when the lost session began.
        self.has_writes_in_doubt = loss::has_writes_in_doubt(&self.jobs);
        for sense in &link.senses {
            self.learn(sense);
        }
        self.counts.end_session(&link);
        let early = self.early.drain(..).map(|completed| (completed.token, completed.buffer));
        for (token, mut buffer) in early.chain(link.into_unfinished()) {
            let job = self.jobs.get_mut(Job::order_of(token));
            if job.is_some_and(|job| job.take_step(token, &mut buffer).is_some()) {
                self.counts.commands_retried += 1;
            }
        }
        self.under_way.clear();
        self.liveness.end_session();
        self.attention = Attention::None;
        self.acknowledged.end_session();
        loss::take_back(&mut self.jobs, &self.options, loss);
    }

    /// Whether writes that are to be issued again may still be under way in the session that was lost.
    pub(crate) fn has_writes_in_doubt(&self) -> bool {
        self.has_writes_in_doubt
    }

    /// Answers every request with `error`, or with an unknown outcome where `error` would deny that
    /// a mutation was carried out.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.has_writes_in_doubt = false;
        for job in self.jobs.drain() {
            let error = final_error(&job, error);
            job.finish(Err(error));
        }
        self.incoming.drain(..).for_each(|incoming| incoming.refuse(error.clone()));
    }

    /// The error of acknowledged data that may be lost and that no client's flush has reported;
    /// `None` without such data.
    pub(crate) fn possible_loss(&mut self) -> Option<Error> {
        self.acknowledged.possible_loss()
    }

    /// Whether a mutation must wait until its range is reclaimed, or fails because that is lost. It
    /// fails as well where this host is not to change anything any more, since others did.
    fn holds_back(&mut self, now: Instant, order: u64) -> bool {
        let Some(job) = self.jobs.get_mut(order) else { return false };
        if let Some(refusal) = self.shared.change_refusal().filter(|_| job.changes_for_a_caller()) {
            job.give_up(refusal.clone());
            self.go_on(order);
            return true;
        }
        match self.sharing.obstacle(job) {
            Some(Standing::Lost) => {
                let words = format!("{} is not done: the range may be another host's by now", job.words());
                job.give_up(Error::new(ErrorKind::Gone, words));
                self.go_on(order);
                true
            }
            Some(_) => {
                self.jobs.delay(now, order);
                true
            }
            None => false,
        }
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
