//! What each outcome of a command means, in one table.

use block::{Error, ErrorKind};
use iscsi::initiator::Outcome;
use iscsi::pdu::Residual;
use scsi::{Sense, SenseKey, Status};

use crate::error::sense_error;
use crate::sharing::order::{is_fenced, is_unknown};

/// What an outcome means.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It was carried out.
    Done,
    /// It was not carried out, for a reason that has passed: it is tried again, after the unit
    /// attention is noted, if that is the reason.
    Again(Option<Sense>),
    /// It was not carried out: the unit is busy or not ready.
    Later,
    /// It was not carried out, because the target port is in a state without access; another port
    /// may be open.
    Elsewhere(Error),
    /// It was not sent.
    Unsent(String),
    /// It did not end in time, or its outcome is unknown. Trying again is right while time allows,
    /// unless it changes what other hosts change, too.
    Unanswered(String),
    /// It was not carried out, because this host is fenced from the shared unit.
    Fenced(Error),
    /// It was not begun: the target of the shared unit does not know this session as the client's any more. It is tried
    /// again when the session has joined.
    Unknown,
    /// It was not carried out: there is no unit at its number (any more).
    Absent(Error),
    /// It cannot be carried out.
    Failed(Error),
}

/// What a unit attention calls for; the most urgent comes last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Attention {
    #[default]
    None,
    /// Another unit may be under the number: ask what is there. What was answered before counts.
    Renumbered,
    /// Size, mode or identity may have changed: read the properties again.
    Changed,
    /// There was no unit at its number: ask what is there now, which may not have what was acknowledged.
    Absent,
    /// The unit was reset, lost power, or could not keep its cached data: read the properties
    /// again, and write again what was not durable.
    PowerOn,
    /// The target wants the session to end: log out and come back.
    Leave,
}

/// What a unit attention calls for (SPC-4 annex E, group by additional sense code).
pub(crate) fn attention(sense: &Sense) -> Attention {
    match (sense.asc, sense.ascq) {
        // A write that was acknowledged did not get from the cache to the medium: as if the cache were lost.
        _ if sense.is_deferred => Attention::PowerOn,
        // I_T nexus loss does not touch the cache, but a target that was restarted may report nothing else.
        (0x29, _) => Attention::PowerOn,
        (0x28, _) => Attention::Changed,
        (0x25, _) => Attention::Absent,
        (0x3f, 0x0e) => Attention::Renumbered,
        // 06h, a change of the access state: the port may report more than before.
        (0x2a, 0x00 | 0x01 | 0x06 | 0x09) => Attention::Changed,
        (0x3f, 0x03 | 0x05) => Attention::Changed,
        _ => Attention::None,
    }
}

const ABORTED_WORDS: &str = "the unit aborted it";

/// Sense data with which a shared unit did not begin a command; its sense key is ABORTED COMMAND.
const NOT_BEGUN: [Sense; 2] = [Sense::SHARING_GRACE, Sense::SHARING_TABLE_FULL];

/// Whether the unit is there and its target port in a state that carries no data (SPC-4 5.15.2): standby or
/// unavailable.
pub(crate) fn is_without_access(sense: &Sense) -> bool {
    sense.key == SenseKey::NotReady && sense.asc == 0x04 && matches!(sense.ascq, 0x0b | 0x0c)
}

/// What the outcome of a command that was to bring `read_bytes` means. `what` names the command in errors; it is called
/// only for those.
pub(crate) fn judge(outcome: &Outcome, read_bytes: usize, what: impl Fn() -> String) -> Verdict {
    let (status, sense, residual, received_bytes) = match outcome {
        Outcome::Status { status, sense, residual, received_bytes } => (*status, sense, *residual, *received_bytes),
        Outcome::Failed(words) => return Verdict::Unanswered(words.clone()),
        Outcome::Aborted => return Verdict::Unanswered("no answer in time; it was aborted".to_owned()),
        Outcome::NotSent => return Verdict::Unsent("the target's command window stayed closed".to_owned()),
    };
    let verdict = judge_status(status, sense, &what);
    // A good status does not count without the bytes.
    if matches!(verdict, Verdict::Done) && (residual != Residual::None || received_bytes < read_bytes) {
        let words = format!("{} moved other than the bytes asked for: {residual:?}", what());
        return Verdict::Failed(Error::new(ErrorKind::Media, words));
    }
    verdict
}

/// What a status with its sense data means.
pub(crate) fn judge_status(status: u8, sense: &[u8], what: &impl Fn() -> String) -> Verdict {
    match Status::from_code(status) {
        Some(Status::Good | Status::ConditionMet) => Verdict::Done,
        Some(Status::Busy | Status::TaskSetFull | Status::AcaActive) => Verdict::Later,
        // It may have been carried out in part.
        Some(Status::TaskAborted) => Verdict::Unanswered(ABORTED_WORDS.to_owned()),
        Some(Status::ReservationConflict) => {
            let words = format!("{} failed: another initiator holds a reservation", what());
            Verdict::Failed(Error::new(ErrorKind::ReservationConflict, words))
        }
        Some(Status::CheckCondition) => match Sense::parse(sense) {
            Ok(sense) => judge_sense(&sense, &what()),
            Err(_) => Verdict::Failed(Error::new(ErrorKind::Media, format!("{} failed without sense data", what()))),
        },
        None => Verdict::Failed(Error::new(ErrorKind::Media, format!("{} failed with status {status:02x}h", what()))),
    }
}

fn judge_sense(sense: &Sense, what: &str) -> Verdict {
    match sense.key {
        // The error is about an earlier write; this command was not carried out (SAM-5 5.13).
        _ if sense.is_deferred => Verdict::Again(Some(*sense)),
        SenseKey::NoSense | SenseKey::RecoveredError | SenseKey::Completed => Verdict::Done,
        SenseKey::UnitAttention => Verdict::Again(Some(*sense)),
        _ if is_fenced(sense) => Verdict::Fenced(Error::new(ErrorKind::Gone, format!("{what} failed: {sense}"))),
        _ if is_unknown(sense) => Verdict::Unknown,
        _ if NOT_BEGUN.iter().any(|condition| sense.is_same_condition(condition)) => Verdict::Again(None),
        SenseKey::AbortedCommand => Verdict::Unanswered(ABORTED_WORDS.to_owned()),
        SenseKey::NotReady if is_without_access(sense) => {
            Verdict::Elsewhere(Error::new(ErrorKind::NoAccess, format!("{what} failed: {sense}")))
        }
        SenseKey::NotReady if sense.asc == 0x04 => Verdict::Later,
        SenseKey::IllegalRequest if sense.asc == 0x25 => Verdict::Absent(sense_error(sense, what)),
        _ => Verdict::Failed(sense_error(sense, what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sense: Sense) -> Verdict {
        let outcome = Outcome::Status {
            status: 0x02,
            sense: sense.emit_fixed().to_vec(),
            residual: Residual::None,
            received_bytes: 0,
        };
        judge(&outcome, 0, || "reading".to_owned())
    }

    #[test]
    fn unit_attentions_call_for_what_they_say() {
        for (sense, expected) in [
            (Sense::POWER_ON_OR_RESET, Attention::PowerOn),
            (Sense::BUS_DEVICE_RESET, Attention::PowerOn),
            (Sense::I_T_NEXUS_LOSS, Attention::PowerOn),
            (Sense::CAPACITY_CHANGED, Attention::Changed),
            (Sense::MODE_PARAMETERS_CHANGED, Attention::Changed),
            (Sense::DEVICE_IDENTIFIER_CHANGED, Attention::Changed),
            (Sense::REPORTED_LUNS_CHANGED, Attention::Renumbered),
            (Sense::RESERVATIONS_RELEASED, Attention::None),
            (Sense::COMMANDS_CLEARED, Attention::None),
        ] {
            assert!(matches!(check(sense), Verdict::Again(Some(found)) if attention(&found) == expected), "{sense}");
        }
    }

    #[test]
    fn errors_have_the_kind_their_callers_act_on() {
        for (sense, kind) in [
            (Sense::UNRECOVERED_READ_ERROR, ErrorKind::Media),
            (Sense::SPACE_ALLOCATION_FAILED, ErrorKind::NoSpace),
            (Sense::WRITE_PROTECTED, ErrorKind::ReadOnly),
            (Sense::LBA_OUT_OF_RANGE, ErrorKind::InvalidRange),
            (Sense::INVALID_OPERATION_CODE, ErrorKind::Unsupported),
        ] {
            assert!(matches!(check(sense), Verdict::Failed(error) if error.kind() == kind), "{sense}");
        }
    }

    #[test]
    fn a_number_without_a_unit_calls_for_questions() {
        let sense = Sense::LOGICAL_UNIT_NOT_SUPPORTED;
        assert!(matches!(check(sense), Verdict::Absent(error) if error.kind() == ErrorKind::Gone));
        assert_eq!(attention(&sense), Attention::Absent);
    }

    #[test]
    fn the_unit_asks_for_patience() {
        for sense in [Sense::BECOMING_READY, Sense::ACCESS_STATE_IN_TRANSITION] {
            assert!(matches!(check(sense), Verdict::Later), "{sense}");
        }
        for sense in [Sense::PORT_IN_STANDBY, Sense::PORT_UNAVAILABLE] {
            assert!(
                matches!(check(sense), Verdict::Elsewhere(error) if error.kind() == ErrorKind::NoAccess),
                "{sense}"
            );
        }
        for status in [0x08, 0x28] {
            let outcome = Outcome::Status { status, sense: vec![], residual: Residual::None, received_bytes: 0 };
            assert!(matches!(judge(&outcome, 0, || "reading".to_owned()), Verdict::Later));
        }
    }

    /// A command reports that an earlier write failed: it is issued again, and so is the write.
    #[test]
    fn a_deferred_error_is_about_an_earlier_write() {
        let sense = Sense { is_deferred: true, ..Sense::WRITE_ERROR };
        assert!(matches!(check(sense), Verdict::Again(Some(found)) if attention(&found) == Attention::PowerOn));
    }

    #[test]
    fn good_with_a_residual_is_not_good() {
        let outcome =
            Outcome::Status { status: 0, sense: vec![], residual: Residual::Underflow(512), received_bytes: 0 };
        assert!(matches!(judge(&outcome, 0, || "reading".to_owned()), Verdict::Failed(_)));
    }
}
