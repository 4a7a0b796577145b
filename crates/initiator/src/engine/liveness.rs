//! Whether the target still answers commands in this session, and the unit is still there.
//!
//! A unit that was taken away or replaced says so only in answer to a command, and pings are none. An attachment whose
//! cache answers everything would go on for ever with what is no longer so. So a unit that has answered no command for
//! as long as a silent target is pinged is asked by a TEST UNIT READY (SPC-4 6.47).
//!
//! A command that does not end in its time may be slow; or the session is of no use any more: a target that has lost a
//! command of it, or its count of commands, answers pings and aborts, and no command, for ever. So the same question
//! follows, in the order of the commands, which a unit answers whatever its medium does. Where that does not end in its
//! time either, and no other command has been answered since it was sent, a new session may be better.
//!
//! Immediate commands say nothing: a target carries them out whatever commands it lacks (RFC 7143 4.2.2.1).

use std::time::Duration;

use base::clock::Instant;
use iscsi::initiator::{Command, Completed, Data, Outcome};
use iscsi::pdu::TaskAttribute;
use scsi::Cdb;

/// The token of the question; those of jobs do not get that far.
const TOKEN: u64 = u64::MAX >> 1;

/// Watches for a target that answers no commands.
pub(super) struct Liveness {
    command_timeout: Duration,
    /// Time without an answer after which the unit is asked; zero for never.
    interval: Duration,
    /// When a command was answered last, or the session began.
    answered_at: Option<Instant>,
    /// Whether a command did not end in its time since one was answered.
    is_in_doubt: bool,
    asked: Option<Question>,
    is_deaf: bool,
}

/// A question under way.
struct Question {
    since: Instant,
    /// Its number among all commands.
    number: u64,
    /// Whether another command was answered since.
    has_other_answer: bool,
}

impl Liveness {
    /// Nothing is known yet. `command_timeout` is the time for an answer; after `interval` without one the unit is
    /// asked, unless that is zero.
    pub(super) fn new(command_timeout: Duration, interval: Duration) -> Self {
        Self { command_timeout, interval, answered_at: None, is_in_doubt: false, asked: None, is_deaf: false }
    }

    /// Notes that a session has begun, in which the unit has just answered.
    pub(super) fn begin_session(&mut self, now: Instant) {
        *self = Self { answered_at: Some(now), ..Self::new(self.command_timeout, self.interval) };
    }

    /// Forgets what it knows: the session is lost.
    pub(super) fn end_session(&mut self) {
        *self = Self::new(self.command_timeout, self.interval);
    }

    /// When the unit is to be asked, if nothing is under way until then: what is will be answered itself, or be in
    /// doubt.
    pub(super) fn next_deadline(&self, under_way: usize) -> Option<Instant> {
        let is_idle = self.asked.is_none() && under_way == 0 && !self.interval.is_zero();
        let answered_at = self.answered_at.filter(|_| is_idle)?;
        Some(answered_at + self.interval)
    }

    /// Whether the target is to be asked now.
    pub(super) fn is_question_due(&self, now: Instant, under_way: usize) -> bool {
        self.asked.is_none() && (self.is_in_doubt || self.next_deadline(under_way).is_some_and(|from| from <= now))
    }

    /// The command that asks the target; it is sent now, as number `number`.
    pub(super) fn ask(&mut self, now: Instant, number: u64, lun: u64) -> Command {
        self.is_in_doubt = false;
        self.asked = Some(Question { since: now, number, has_other_answer: false });
        Command {
            token: TOKEN,
            lun,
            cdb: Cdb::TestUnitReady.emit_padded(),
            attribute: TaskAttribute::Simple,
            data: Data::None,
            timeout: self.command_timeout,
        }
    }

    /// Notes how a command ended. Returns whether it is the question.
    pub(super) fn note(&mut self, now: Instant, completed: &Completed) -> bool {
        if completed.token == TOKEN {
            return true;
        }
        match completed.outcome {
            Outcome::Status { .. } => {
                self.answered_at = Some(now);
                self.is_in_doubt = false;
                self.asked.iter_mut().for_each(|question| question.has_other_answer = true);
            }
            Outcome::Aborted | Outcome::NotSent => self.is_in_doubt = true,
            Outcome::Failed(_) => {}
        }
        false
    }

    /// Notes how the question ended. Returns its number.
    pub(super) fn end(&mut self, now: Instant, outcome: &Outcome) -> Option<u64> {
        let question = self.asked.take()?;
        self.answered_at = Some(now);
        // A reset of the unit ends it, too.
        let is_overdue = now.since(question.since) >= self.command_timeout;
        let is_unanswered = matches!(outcome, Outcome::Aborted | Outcome::NotSent);
        self.is_deaf = is_unanswered && is_overdue && !question.has_other_answer;
        self.is_in_doubt &= is_unanswered;
        Some(question.number)
    }

    /// Whether the target answers no commands.
    pub(super) fn is_deaf(&self) -> bool {
        self.is_deaf
    }
}

#[cfg(test)]
mod tests {
    use block::Buffer;
    use iscsi::pdu::Residual;

    use super::*;

    const TIME: Duration = Duration::from_secs(3);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanoseconds((1000 + seconds) * 1_000_000_000)
    }

    fn ended(outcome: Outcome) -> Completed {
        Completed { token: 8, buffer: Buffer::empty(), outcome }
    }

    fn busy() -> Outcome {
        Outcome::Status { status: 8, sense: Vec::new(), residual: Residual::None, received_bytes: 0 }
    }

    /// A target that is asked because a command did not end in its time.
    fn asked() -> Liveness {
        let mut liveness = Liveness::new(TIME, Duration::ZERO);
        assert!(!liveness.is_question_due(at(1), 1));
        assert!(!liveness.note(at(1), &ended(Outcome::Aborted)));
        assert!(liveness.is_question_due(at(1), 1));
        let question = liveness.ask(at(0), 5, 0);
        assert!(!liveness.is_question_due(at(1), 1), "one at a time");
        assert_eq!((question.timeout, question.token >> 63), (TIME, 0), "it is no order of a shared LUN");
        liveness
    }

    #[test]
    fn a_target_is_deaf_when_its_time_is_over_and_no_sooner() {
        for outcome in [Outcome::Aborted, Outcome::NotSent] {
            let mut liveness = asked();
            liveness.note(at(1), &ended(Outcome::Aborted));
            assert_eq!(liveness.end(at(3), &outcome), Some(5));
            assert!(liveness.is_deaf());
            liveness.end_session();
            assert!(!liveness.is_deaf());
        }
        let mut liveness = asked();
        liveness.note(at(1), &ended(Outcome::Aborted));
        liveness.end(at(2), &Outcome::Aborted);
        assert!(!liveness.is_deaf(), "a reset of the unit ended it");
        assert!(liveness.is_question_due(at(1), 1), "and others, which are in doubt still");
    }

    #[test]
    fn any_answer_is_one_but_for_that_of_another_layer() {
        let mut liveness = asked();
        liveness.note(at(1), &ended(busy()));
        liveness.end(at(3), &Outcome::Aborted);
        assert!(!liveness.is_deaf() && !liveness.is_question_due(at(1), 1), "another was answered");
        let mut liveness = asked();
        liveness.end(at(3), &busy());
        assert!(!liveness.is_deaf());
        let mut liveness = asked();
        liveness.note(at(1), &ended(Outcome::Failed("rejected".to_owned())));
        liveness.end(at(3), &Outcome::Aborted);
        assert!(liveness.is_deaf(), "it rejects one and leaves the others");
    }

    #[test]
    fn a_unit_that_has_answered_nothing_for_a_time_is_asked() {
        let mut liveness = Liveness::new(TIME, Duration::from_secs(5));
        assert!(!liveness.is_question_due(at(100), 0), "there is no session");
        liveness.begin_session(at(0));
        assert_eq!(liveness.next_deadline(0), Some(at(5)), "also where nothing is ever asked of it");
        liveness.note(at(2), &ended(busy()));
        assert_eq!(liveness.next_deadline(0), Some(at(7)));
        assert!(!liveness.is_question_due(at(6), 0) && liveness.is_question_due(at(7), 0));
        assert_eq!(liveness.next_deadline(1), None, "what is under way tells");
        liveness.ask(at(7), 5, 0);
        assert!(!liveness.is_question_due(at(20), 0), "one at a time");
        liveness.end(at(8), &busy());
        assert_eq!((liveness.next_deadline(0), liveness.is_deaf()), (Some(at(13)), false));
        liveness.end_session();
        assert_eq!(liveness.next_deadline(0), None);
    }
}
