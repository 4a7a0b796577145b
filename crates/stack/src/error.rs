//! Errors for users: what happened, to what, and what to do; plus the exit code that scripts match.

use std::fmt;

use block::ErrorKind;

/// The documented exit codes of the `forebay` command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// A failure without a code of its own.
    Other,
    /// The command line or a configuration file is wrong.
    Usage,
    /// The portal, target or device cannot be reached, or went away.
    Unreachable,
    /// Credentials were refused, or access is not allowed.
    AccessDenied,
    /// The target, the LUN, the file or the name does not exist.
    NotFound,
    /// Another process is using it.
    InUse,
    /// The content is not the expected one: another LUN's cache, another version, damage.
    Mismatch,
    /// No room is left.
    NoSpace,
    /// Refused, because data would be lost.
    WouldLoseData,
    /// Data read is not the data written.
    VerificationFailed,
}

impl Failure {
    /// All of them, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::Other,
        Self::Usage,
        Self::Unreachable,
        Self::AccessDenied,
        Self::NotFound,
        Self::InUse,
        Self::Mismatch,
        Self::NoSpace,
        Self::WouldLoseData,
        Self::VerificationFailed,
    ];

    fn row(self) -> (u8, &'static str) {
        match self {
            Self::Other => (1, "failed in a way that has no code of its own"),
            Self::Usage => (2, "the command line or a configuration file is wrong"),
            Self::Unreachable => (3, "the portal, target or device cannot be reached, or went away"),
            Self::AccessDenied => (4, "credentials were refused, or access is not allowed"),
            Self::NotFound => (5, "the target, LUN, file or name does not exist"),
            Self::InUse => (6, "somebody else is using it"),
            Self::Mismatch => (7, "another LUN's cache, another version, or damage"),
            Self::NoSpace => (8, "no room is left"),
            Self::WouldLoseData => (9, "refused, because data would be lost"),
            Self::VerificationFailed => (10, "data read is not the data written"),
        }
    }

    /// The exit code. Success is 0.
    pub fn exit_code(self) -> u8 {
        self.row().0
    }

    /// What the exit code means, for people.
    pub fn meaning(self) -> &'static str {
        self.row().1
    }
}

/// An error with a message for users.
#[derive(Clone, Debug)]
pub struct Error {
    failure: Failure,
    message: String,
}

/// The result of most functions here.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with `message`, one line.
    pub fn new(failure: Failure, message: impl Into<String>) -> Self {
        Self { failure, message: message.into() }
    }

    /// The failure kind, which scripts match.
    pub fn failure(&self) -> Failure {
        self.failure
    }

    /// Adds what was being done before the message.
    #[must_use]
    pub fn context(self, context: impl fmt::Display) -> Self {
        Self { message: format!("{context}: {}", self.message), ..self }
    }

    /// Adds further advice after the message.
    #[must_use]
    pub fn advise(self, advice: impl fmt::Display) -> Self {
        Self { message: format!("{}{advice}", self.message), ..self }
    }

    /// An error of the operating system while doing `what`.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Kind;
        let failure = match error.kind() {
            Kind::NotFound => Failure::NotFound,
            Kind::PermissionDenied => Failure::AccessDenied,
            Kind::ConnectionRefused | Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::TimedOut => {
                Failure::Unreachable
            }
            Kind::StorageFull | Kind::QuotaExceeded => Failure::NoSpace,
            Kind::AddrInUse => Failure::InUse,
            Kind::InvalidInput | Kind::InvalidFilename => Failure::Usage,
            _ => Failure::Other,
        };
        Self::new(failure, format!("{what}: {error}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<block::Error> for Error {
    fn from(error: block::Error) -> Self {
        let failure = match error.kind() {
            ErrorKind::NoSpace => Failure::NoSpace,
            // An outcome is unknown because the link or the target went away meanwhile.
            ErrorKind::Gone | ErrorKind::NoAccess | ErrorKind::TimedOut | ErrorKind::OutcomeUnknown => {
                Failure::Unreachable
            }
            ErrorKind::AccessDenied => Failure::AccessDenied,
            ErrorKind::Busy | ErrorKind::ReservationConflict => Failure::InUse,
            ErrorKind::Corrupt => Failure::Mismatch,
            ErrorKind::NotFound => Failure::NotFound,
            ErrorKind::Media | ErrorKind::InvalidRange | ErrorKind::Unsupported | ErrorKind::ReadOnly => Failure::Other,
        };
        let mut message = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            // Some contexts already quote their source.
            if !message.contains(&cause_text) {
                message.push_str(&format!(": {cause_text}"));
            }
            source = cause.source();
        }
        Self::new(failure, message)
    }
}

impl From<ext2::Error> for Error {
    fn from(error: ext2::Error) -> Self {
        use ext2::ErrorKind as Kind;
        let failure = match error.kind() {
            Kind::Device(kind) => return block::Error::new(kind, error.to_string()).into(),
            Kind::NoSpace => Failure::NoSpace,
            Kind::Invalid | Kind::TooLarge => Failure::Usage,
            Kind::Corrupt | Kind::NotClean | Kind::Unsupported => Failure::Mismatch,
            _ => Failure::Other,
        };
        Self::new(failure, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_its_own_code() {
        assert_eq!(Failure::ALL.map(Failure::exit_code).to_vec(), (1..=10).collect::<Vec<u8>>());
    }
}
