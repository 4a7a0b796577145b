//! What becomes of jobs after a loss: of the session, of the unit's cache, or of the LUN for good.

use block::{Error, ErrorKind};

use super::{AGAIN_WORDS, Engine, final_error, in_doubt, reset_too_early};
use crate::error::LinkError;
use crate::job::{Job, Repeat, Reply};
use crate::limits::ATTEMPTS_MAX;
use crate::link::Link;
use crate::verdict::Attention;
use iscsi::initiator::ConnectionError;

impl Engine {
    /// Restarts jobs when the unit may have lost its cache and the session goes on; nothing is
    /// under way. A job of several commands starts over: those that were carried out are not
    /// retained before the request is complete, and a replay could write over them. A job that had
    /// begun waits a little first, and is given up after too many restarts.
    pub(crate) fn begin_again(&mut self) {
        let now = self.options.clock.now();
        let (mut begun, mut exhausted) = (Vec::new(), Vec::new());
        for (order, mut job) in std::mem::take(&mut self.jobs) {
            match &job.reply {
                // The replay that follows covers it.
                Reply::Replay => {
                    self.replay.give_up_one();
                    self.ready.remove(&order);
                    continue;
                }
                Reply::Raw(_) if job.is_synchronizing() => {
                    self.ready.remove(&order);
                    job.finish(Err(reset_too_early()));
                    continue;
                }
                _ => {}
            }
            if self.options.is_shared && job.is_mutation() && job.has_done_any() {
                self.ready.remove(&order);
                let error = in_doubt(&job, "the unit was reset");
                job.finish(Err(error));
                continue;
            }
            if job.has_begun() {
                begun.push(order);
                if job.is_mutation() {
                    job.start_over();
                    job.restarts += 1;
                }
                if job.restarts >= ATTEMPTS_MAX {
                    exhausted.push(order);
                }
            }
            self.jobs.insert(order, job);
        }
        begun.into_iter().for_each(|order| self.delay(now, order));
        for order in exhausted {
            let Some(job) = self.jobs.get(&order) else { continue };
            let words = format!("{} failed: {AGAIN_WORDS}", job.words());
            let error = final_error(job, &Error::new(ErrorKind::TimedOut, words));
            self.fail(order, error);
        }
    }

    /// Takes back what was under way: the session is lost, and the next one issues it again.
    pub(crate) fn take_back(&mut self, link: Link, loss: &LinkError) {
        let now = self.options.clock.now();
        if let Some(mut member) = self.shared.member() {
            member.end_session();
        }
        // Tasks of an older session ended when the lost session began.
        self.has_writes_in_doubt = self.jobs.values().any(|job| job.may_change() && !job.is_idle());
        for sense in &link.heard {
            self.learn(sense);
        }
        let (pdus_sent, pdus_received) = link.pdu_counts();
        self.counts.pdus_sent += pdus_sent;
        self.counts.pdus_received += pdus_received;
        self.counts.bytes_sent += link.counters.bytes_sent;
        self.counts.bytes_received += link.counters.bytes_received;
        self.counts.connections_recovered += link.recovered_count();
        let early = self.early.drain(..).map(|completed| (completed.token, completed.buffer));
        for (token, mut buffer) in early.chain(link.into_unfinished()) {
            let job = self.jobs.get_mut(&Job::order_of(token));
            if job.is_some_and(|job| job.take_step(token, &mut buffer).is_some()) {
                self.counts.commands_retried += 1;
            }
        }
        self.under_way.clear();
        self.replay.clear();
        self.is_flush_under_way = false;
        self.attention = Attention::None;
        self.lose_exposed();
        self.delayed.clear();
        self.stalled.clear();
        self.ready.clear();
        // The session ended because of a command: trying it until the replacement timeout would
        // take many times that time.
        let is_stuck = matches!(loss, LinkError::Connection(ConnectionError::Unresponsive));
        let attempts_min = if is_stuck { 1 } else { 2 };
        let jobs = std::mem::take(&mut self.jobs);
        for (order, mut job) in jobs {
            match &job.reply {
                Reply::Replay | Reply::Nobody => continue,
                Reply::Raw(_) if job.was_sent && job.repeat() != Some(Repeat::Always) => {
                    let words = "the session was lost before the command was answered";
                    job.finish(Err(Error::new(ErrorKind::OutcomeUnknown, words)));
                    continue;
                }
                Reply::Request(_) if self.options.is_shared && job.was_sent && job.is_mutation() => {
                    let error = in_doubt(&job, "the session was lost");
                    job.finish(Err(error));
                    continue;
                }
                Reply::Raw(_) | Reply::Request(_) => {}
            }
            job.start_over();
            job.attempts += u32::from(job.was_sent);
            if job.attempts >= attempts_min && now.since(job.since) >= self.options.replacement_timeout {
                // This command may be what ends every session.
                let words = format!("{} failed: {loss}", job.words());
                let error = final_error(&job, &Error::new(ErrorKind::TimedOut, words));
                job.finish(Err(error));
                continue;
            }
            if !self.blocked.contains_key(&order) {
                self.ready.insert(order);
            }
            self.jobs.insert(order, job);
        }
    }

    /// Whether writes that are to be issued again may still be under way in the session that was lost.
    pub(crate) fn has_writes_in_doubt(&self) -> bool {
        self.has_writes_in_doubt
    }

    /// Answers every request with `error`, or with an unknown outcome where `error` would deny that
    /// a mutation was carried out.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.ready.clear();
        self.delayed.clear();
        self.stalled.clear();
        self.blocked.clear();
        self.has_writes_in_doubt = false;
        for job in std::mem::take(&mut self.jobs).into_values() {
            let error = final_error(&job, error);
            job.finish(Err(error));
        }
        self.incoming.drain(..).for_each(|incoming| incoming.refuse(error.clone()));
    }

    /// The error of acknowledged data that may be lost and that no client's flush has reported;
    /// `None` without such data.
    pub(crate) fn possible_loss(&mut self) -> Option<Error> {
        self.unreported_loss.take().or_else(|| {
            let words = format!("what {} acknowledged last was not flushed", self.options.place());
            (!self.retained.is_empty()).then(|| Error::new(ErrorKind::OutcomeUnknown, words))
        })
    }
}
