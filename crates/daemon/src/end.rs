//! How a process ended, and whether another start may end otherwise.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use stack::Failure;

use crate::end_note::EndNote;

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// In order and with success: somebody detached it, or ended it by a signal.
    Detached,
    /// With this exit code.
    Failed {
        /// The code.
        code: u8,
        /// The error, in words.
        why: String,
    },
    /// Not by itself: a signal that cannot be handled, or a defect.
    Killed {
        /// In words.
        why: String,
    },
}

impl End {
    /// The end of a child with this status, which may have left a note.
    pub fn of_status(status: ExitStatus, note: Option<EndNote>) -> Self {
        match (status.code().and_then(|code| u8::try_from(code).ok()), note) {
            (Some(0), _) => Self::Detached,
            (Some(code), Some(note)) if note.code == code => Self::Failed { code, why: note.why },
            (Some(code), _) => Self::Failed { code, why: meaning(code) },
            (None, _) => match status.signal() {
                Some(signal) => Self::Killed { why: format!("signal {signal} ended its process") },
                None => Self::Killed { why: "its process ended in an unknown way".to_owned() },
            },
        }
    }

    /// The end of a process that is no child. `has_tidied` says whether it removed its control
    /// socket, as a process does that is not killed.
    pub fn of_stranger(note: Option<EndNote>, has_tidied: bool) -> Self {
        match note {
            Some(EndNote { code: 0, .. }) => Self::Detached,
            Some(EndNote { code, why, .. }) => Self::Failed { code, why },
            None if has_tidied => Self::Detached,
            None => Self::Killed { why: "its process was killed".to_owned() },
        }
    }

    /// Whether the same start may end otherwise the next time, without a change by a person.
    pub fn may_pass(&self) -> bool {
        let Self::Failed { code, .. } = self else { return true };
        match failure(*code) {
            // Credentials that were refused are not tried again and again: targets lock accounts.
            Some(
                Failure::Usage
                | Failure::AccessDenied
                | Failure::Mismatch
                | Failure::WouldLoseData
                | Failure::VerificationFailed,
            ) => false,
            Some(Failure::Other | Failure::Unreachable | Failure::NotFound | Failure::InUse | Failure::NoSpace)
            | None => true,
        }
    }

    /// The exit code, where there is one.
    pub fn code(&self) -> Option<u8> {
        match self {
            Self::Detached => Some(0),
            Self::Failed { code, .. } => Some(*code),
            Self::Killed { .. } => None,
        }
    }

    /// Why it did not go on, in words; `None` where somebody wanted that.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Detached => None,
            Self::Failed { why, .. } | Self::Killed { why } => Some(why),
        }
    }
}

/// The kind of failure with this exit code.
pub fn failure(code: u8) -> Option<Failure> {
    Failure::ALL.into_iter().find(|failure| failure.exit_code() == code)
}

fn meaning(code: u8) -> String {
    match failure(code) {
        Some(failure) => format!("exit code {code}: {}", failure.meaning()),
        None => format!("exit code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wait statuses as wait(2) has them: the code in the second byte, a signal in the first.
    #[test]
    fn what_a_person_has_to_change_is_told_from_what_may_pass() {
        let end = |status: i32| End::of_status(ExitStatus::from_raw(status), None);
        assert_eq!(end(0), End::Detached);
        for (code, may_pass) in
            [(1, true), (2, false), (3, true), (4, false), (5, true), (6, true), (7, false), (8, true), (9, false)]
        {
            let end = end(code << 8);
            assert_eq!((end.may_pass(), end.code().map(i32::from)), (may_pass, Some(code)), "{end:?}");
        }
        assert!(end(9).may_pass());
        assert_eq!(end(9).why(), Some("signal 9 ended its process"));
        assert_eq!(end(9 << 8).why(), Some("exit code 9: refused, because data would be lost"));
    }

    #[test]
    fn a_process_of_others_is_known_by_what_it_leaves() {
        let note = |code| Some(EndNote::new(7, code, "the target is away"));
        assert_eq!(End::of_stranger(note(0), false), End::Detached);
        let away = End::Failed { code: 3, why: "the target is away".to_owned() };
        assert_eq!(End::of_stranger(note(3), true), away);
        assert_eq!(End::of_stranger(None, true), End::Detached);
        assert_eq!(End::of_stranger(None, false).code(), None);
    }
}
