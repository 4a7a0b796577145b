//! What an answer means for its job, and what the engine has to do besides.
//!
//! - An answer that depends on the state of the cache, as that of a flush does, counts only if no loss of the cache was
//!   reported: else its request is sent again, after what was lost.
//! - A change that relies on no cache being on does not count if it is answered after a change of the unit was
//!   reported.
//! - On a shared LUN nothing is written again: what may have been carried out ends with an unknown outcome.

use base::clock::Instant;
use block::{Buffer, Error, ErrorKind};
use iscsi::initiator::{Completed, Outcome};
use scsi::Sense;

use super::errors::{ABSENT_WORDS, AGAIN_WORDS, UNKNOWN_WORDS, in_doubt, timed_out};
use crate::job::{Job, Kind, Reply, Step};
use crate::limits::ATTEMPTS_MAX;
use crate::options::InitiatorOptions;
use crate::raw_command::Repeat;
use crate::unit::Unit;
use crate::verdict::{Attention, Verdict, attention, judge};

/// What is known of the unit when an answer comes.
pub(super) struct Situation<'a> {
    pub(super) options: &'a InitiatorOptions,
    pub(super) unit: &'a Unit,
    /// What its reports call for.
    pub(super) attention: Attention,
    pub(super) now: Instant,
}

/// What the engine does after an answer.
#[derive(Default)]
pub(super) struct Consequences {
    /// A report of the unit.
    pub(super) sense: Option<Sense>,
    /// What else calls for attention.
    pub(super) attention: Attention,
    /// Whether the unit carried out what a caller waited for.
    pub(super) is_useful: bool,
    /// Whether the command counts as issued once more.
    pub(super) is_retried: bool,
    /// Whether this host is fenced from the shared LUN.
    pub(super) is_fenced: bool,
    /// Whether the session has to join its client again.
    pub(super) is_unknown: bool,
    /// What the client's next flush reports: acknowledged changes could not be made durable.
    pub(super) loss: Option<Error>,
    pub(super) next: Next,
}

/// What comes next for the job.
#[derive(Default)]
pub(super) enum Next {
    /// It issues more, waits for its other commands, or ends.
    #[default]
    GoOn,
    /// As [`Next::GoOn`], after a pause: the unit is busy.
    Delayed,
    /// It is carried out.
    Complete,
    /// A raw command ends with this outcome.
    EndRaw(Outcome, Buffer),
    /// A raw command was carried out, and the unit was reset before it was durable.
    EndReset,
}

/// Judges an answer to a command of `job`; `None` where the command is not one of its own.
pub(super) fn judge_answer(job: &mut Job, completed: Completed, situation: &Situation<'_>) -> Option<Consequences> {
    let Completed { token, mut buffer, outcome } = completed;
    let depends_on_cache = job.depends_on_cache(token);
    let step = job.take_step(token, &mut buffer)?;
    if let Some(repeat) = job.repeat() {
        return Some(judge_raw(job, step, repeat, (outcome, buffer), situation));
    }
    let Situation { options, unit, .. } = *situation;
    let is_only_once = options.is_shared && job.is_mutation();
    if situation.attention >= Attention::PowerOn && outcome.is_good() && depends_on_cache {
        // It may have been carried out after the unit lost what is about to be written again.
        let mut consequences = Consequences::default();
        match job.kind {
            Kind::Read { .. } | Kind::Extents { .. } => consequences.repeat(job, step, situation),
            _ if is_only_once => job.give_up(in_doubt(job, "the unit was reset")),
            _ => consequences.start_over(job, situation),
        }
        return Some(consequences);
    }
    if situation.attention >= Attention::Changed && outcome.is_good() && job.relies_on_no_cache(unit) {
        // A cache may have been switched on before it was carried out, and no copy of it would
        // be retained.
        let mut consequences = Consequences::default();
        match is_only_once {
            true => job.give_up(in_doubt(job, "the unit may have had a cache switched on")),
            false => consequences.repeat(job, step, situation),
        }
        return Some(consequences);
    }
    // The unit decides how many extents it reports: fewer than asked for is no failure.
    if job.take_extents(unit, &outcome, &buffer) {
        return Some(Consequences { is_useful: true, next: Next::Complete, ..Consequences::default() });
    }
    let verdict = judge(&outcome, job.read_bytes(step), || job.words());
    let mut consequences = Consequences { attention: called_for(&verdict), ..Consequences::default() };
    match verdict {
        Verdict::Done => {
            consequences.is_useful = job.is_waited_for();
            job.advance(step, &buffer);
        }
        Verdict::Again(sense) => {
            consequences.sense = sense;
            consequences.try_again(job, step, AGAIN_WORDS, situation);
        }
        Verdict::Elsewhere(error) if options.has_other_paths => job.give_up(error),
        Verdict::Later | Verdict::Elsewhere(_) => consequences.wait(job, step, situation),
        Verdict::Unanswered(words) if is_only_once => job.give_up(in_doubt(job, &words)),
        Verdict::Unanswered(words) | Verdict::Unsent(words) => {
            consequences.try_again(job, step, &words, situation);
        }
        Verdict::Fenced(error) => {
            job.give_up(error);
            consequences.is_fenced = true;
        }
        Verdict::Unknown => {
            consequences.is_unknown = true;
            consequences.try_again(job, step, UNKNOWN_WORDS, situation);
        }
        // It is written again with all the others when there is a unit.
        Verdict::Absent(_) if matches!(job.reply, Reply::Replay) => job.reissue(step),
        Verdict::Absent(_) if awaits_unit(job, options) => {
            consequences.try_again(job, step, ABSENT_WORDS, situation);
        }
        Verdict::Absent(error) | Verdict::Failed(error) => {
            job.give_up(error.clone());
            if step.is_synchronize() {
                // It may be about what others wrote.
                consequences.loss = Some(error);
            }
        }
    }
    Some(consequences)
}

/// Judges the answer to a raw command. Its sense data is noted even where its caller decides what comes next.
fn judge_raw(
    job: &mut Job,
    step: Step,
    repeat: Repeat,
    (outcome, buffer): (Outcome, Buffer),
    situation: &Situation<'_>,
) -> Consequences {
    // Its caller judges how much it should bring.
    let verdict = judge(&outcome, 0, || "a SCSI command".to_owned());
    let mut consequences = Consequences { attention: called_for(&verdict), ..Consequences::default() };
    let is_refused = match &verdict {
        Verdict::Again(Some(sense)) => {
            consequences.sense = Some(*sense);
            true
        }
        Verdict::Later => true,
        Verdict::Elsewhere(_) => !situation.options.has_other_paths,
        _ => false,
    };
    let reported = situation.attention.max(consequences.sense.as_ref().map(attention).unwrap_or_default());
    consequences.is_fenced = matches!(verdict, Verdict::Fenced(_));
    consequences.is_unknown = matches!(verdict, Verdict::Unknown);
    consequences.is_useful = matches!(verdict, Verdict::Done) && job.is_waited_for();
    let is_unanswered =
        matches!(verdict, Verdict::Again(_) | Verdict::Unknown | Verdict::Unanswered(_) | Verdict::Unsent(_));
    if (is_refused && repeat != Repeat::Never) || (is_unanswered && repeat == Repeat::Always) {
        match verdict {
            Verdict::Later | Verdict::Elsewhere(_) => consequences.wait(job, step, situation),
            _ => consequences.try_again(job, step, AGAIN_WORDS, situation),
        }
    } else if !job.makes_durable(situation.unit, reported >= Attention::Changed, &outcome) {
        if job.is_mode_select() && outcome.is_good() {
            consequences.attention = Attention::Changed;
        }
        if job.is_synchronizing()
            && let Verdict::Absent(error) | Verdict::Failed(error) = verdict
        {
            consequences.loss = Some(error);
        }
        consequences.next = if reported >= Attention::PowerOn && job.is_synchronizing() {
            Next::EndReset
        } else {
            Next::EndRaw(outcome, buffer)
        };
    }
    consequences
}

/// Whether a job that finds no unit waits for it, as those do that come later. Of several paths another may lead to it
/// now. What changes a shared unit is not made again unasked; and one that comes may have lost what a flush is about.
fn awaits_unit(job: &Job, options: &InitiatorOptions) -> bool {
    let is_question = matches!(job.kind, Kind::Read { .. } | Kind::Extents { .. });
    !options.has_other_paths && (is_question || !options.is_shared)
}

/// What an answer that is no unit attention calls for.
fn called_for(verdict: &Verdict) -> Attention {
    if matches!(verdict, Verdict::Absent(_)) { Attention::Absent } else { Attention::None }
}

impl Consequences {
    /// Issues a job's command once more, unless that was tried often enough and long enough.
    fn try_again(&mut self, job: &mut Job, step: Step, words: &str, situation: &Situation<'_>) {
        let attempts = step.attempts() + 1;
        self.is_retried = true;
        let is_too_late = situation.now.since(job.since) >= situation.options.replacement_timeout;
        if attempts >= ATTEMPTS_MAX || is_too_late {
            job.give_up(timed_out(job, words));
        } else {
            job.reissue(step.after(attempts));
        }
    }

    /// Issues once more what was carried out and does not count, unless that was so too often or for too long.
    fn repeat(&mut self, job: &mut Job, step: Step, situation: &Situation<'_>) {
        let attempts = step.attempts() + 1;
        if is_spent(job, attempts, situation) {
            job.give_up(timed_out(job, AGAIN_WORDS));
        } else {
            job.reissue(step.after(attempts));
            self.is_retried = true;
        }
    }

    /// Restarts a job that was carried out and does not count, unless that was so too often or for too long.
    fn start_over(&mut self, job: &mut Job, situation: &Situation<'_>) {
        job.restarts += 1;
        if is_spent(job, job.restarts, situation) {
            job.give_up(timed_out(job, AGAIN_WORDS));
        } else {
            job.start_over();
            self.is_retried = true;
        }
    }

    /// Delays a job until its command may be issued once more.
    fn wait(&mut self, job: &mut Job, step: Step, situation: &Situation<'_>) {
        let options = situation.options;
        if situation.now.since(job.since) >= options.replacement_timeout {
            let words = format!("{} failed: {} is busy and does not get better", job.words(), options.place());
            job.give_up(Error::new(ErrorKind::Busy, words));
            return;
        }
        job.reissue(step);
        self.is_retried = true;
        self.next = Next::Delayed;
    }
}

/// Whether a job is not to be issued again, of which a command was carried out `attempts` times and did not count. One
/// of a slow unit may have had its time when the unit is reset for the first time.
fn is_spent(job: &Job, attempts: u32, situation: &Situation<'_>) -> bool {
    let is_late = situation.now.since(job.since) >= situation.options.replacement_timeout;
    attempts >= ATTEMPTS_MAX || (attempts > 1 && is_late)
}
