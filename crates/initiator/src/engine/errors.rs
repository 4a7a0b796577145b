//! The errors of requests that may or may not have been carried out.

use block::{Error, ErrorKind};

use crate::job::Job;

/// Why a command that was issued too often is given up.
pub(super) const AGAIN_WORDS: &str =
    "it kept failing with unit attentions or aborted commands, or as where there is no such unit";

/// Why a command is given up to which the target answers again and again that there is no unit at its number.
pub(super) const ABSENT_WORDS: &str = "the target says that there is no such logical unit";

/// Why a command is given up that the target of a shared unit refuses again and again though its session has joined.
pub(super) const UNKNOWN_WORDS: &str = "the target does not know this session as one of a host that shares the unit";

/// Why a request is given up for which the target of a shared unit has granted no lease in time.
pub(super) const UNLEASED_WORDS: &str = "the target answers, and does not renew this host's lease of the shared unit";

/// The error of a raw command that was carried out, but may not be durable.
pub(super) fn reset_too_early() -> Error {
    let words = "the unit was reset before the command was durable; it may or may not last";
    Error::new(ErrorKind::OutcomeUnknown, words)
}

/// What a change ends with that may have been carried out, where other hosts may have written there since.
pub(super) fn in_doubt(job: &Job, why: &str) -> Error {
    let words = format!(
        "{} may or may not have happened: {why}, and what several hosts share is not written again unasked",
        job.words()
    );
    Error::new(ErrorKind::OutcomeUnknown, words)
}

/// The error of a job that has had its time: it failed because of `why`.
pub(super) fn timed_out(job: &Job, why: &str) -> Error {
    final_error(job, &Error::new(ErrorKind::TimedOut, format!("{} failed: {why}", job.words())))
}

/// The error of a job; `OutcomeUnknown` where a mutation may have been carried out, since
/// `TimedOut` would deny that.
pub(super) fn final_error(job: &Job, error: &Error) -> Error {
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
