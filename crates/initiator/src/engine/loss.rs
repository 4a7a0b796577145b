//! What becomes of jobs after a loss: of the session, or of the unit's cache.

use base::clock::Instant;
use block::{Error, ErrorKind};
use iscsi::initiator::ConnectionError;

use super::errors::{in_doubt, reset_too_early, timed_out};
use super::jobs::Jobs;
use crate::error::LinkError;
use crate::job::{Job, Reply};
use crate::limits::ATTEMPTS_MAX;
use crate::options::InitiatorOptions;
use crate::raw_command::Repeat;

/// What is left to do after [`begin_again`].
#[derive(Default)]
pub(super) struct Restarted {
    /// The jobs that were restarted too often.
    pub(super) exhausted: Vec<u64>,
    /// Retained writes that were given up: the replay that follows covers them.
    pub(super) replays_count: usize,
}

/// Restarts jobs when the unit may have lost its cache and the session goes on; nothing is
/// under way. A job of several commands starts over: those that were carried out are not
/// retained before the request is complete, and a replay could write over them. A job that had
/// begun waits a little first, and is given up after too many restarts.
pub(super) fn begin_again(jobs: &mut Jobs, is_shared: bool, now: Instant) -> Restarted {
    let (mut begun, mut restarted) = (Vec::new(), Restarted::default());
    for (order, mut job) in jobs.take_all() {
        match &job.reply {
            Reply::Replay => {
                restarted.replays_count += 1;
                jobs.take_ready(order);
                continue;
            }
            Reply::Raw(_) if job.is_synchronizing() => {
                jobs.take_ready(order);
                job.finish(Err(reset_too_early()));
                continue;
            }
            _ => {}
        }
        if is_shared && job.is_mutation() && job.has_done_any() {
            jobs.take_ready(order);
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
                restarted.exhausted.push(order);
            }
        }
        jobs.put_back(order, job);
    }
    begun.into_iter().for_each(|order| jobs.delay(now, order));
    restarted
}

/// Takes back the jobs that were under way: the session is lost, and the next one issues them again.
pub(super) fn take_back(jobs: &mut Jobs, options: &InitiatorOptions, loss: &LinkError) {
    let now = options.clock.now();
    jobs.end_waits();
    // The session ended because of a command: trying it until the replacement timeout would
    // take many times that time.
    let is_stuck = matches!(loss, LinkError::Connection(ConnectionError::Unresponsive));
    let attempts_min = if is_stuck { 1 } else { 2 };
    for (order, mut job) in jobs.take_all() {
        match &job.reply {
            Reply::Replay | Reply::Nobody => continue,
            Reply::Raw(_) if job.was_sent && job.repeat() != Some(Repeat::Always) => {
                let words = "the session was lost before the command was answered";
                job.finish(Err(Error::new(ErrorKind::OutcomeUnknown, words)));
                continue;
            }
            Reply::Request(_) if options.is_shared && job.was_sent && job.is_mutation() => {
                let error = in_doubt(&job, "the session was lost");
                job.finish(Err(error));
                continue;
            }
            Reply::Raw(_) | Reply::Request(_) => {}
        }
        job.start_over();
        job.attempts += u32::from(job.was_sent);
        if job.attempts >= attempts_min && now.since(job.since) >= options.replacement_timeout {
            // This command may be what ends every session.
            let error = timed_out(&job, &loss.to_string());
            job.finish(Err(error));
            continue;
        }
        if !jobs.is_blocked(order) {
            jobs.make_ready(order);
        }
        jobs.put_back(order, job);
    }
}

/// Whether writes that are to be issued again may still be under way in the session that was lost.
pub(super) fn has_writes_in_doubt(jobs: &Jobs) -> bool {
    jobs.iter().any(|job: &Job| job.may_change() && !job.is_idle())
}
