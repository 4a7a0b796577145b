//! One command of a job: its purpose, and how often it failed.

use block::ByteRange;

/// The purpose of one command of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The whole request: a flush, a raw command.
    Whole,
    /// These bytes of the request.
    Part(ByteRange),
    /// Makes durable what the parts wrote.
    Synchronize,
}

/// A command of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(super) purpose: Purpose,
    /// Attempts that failed.
    pub(super) attempts: u32,
    /// Its number among all commands, once it is sent.
    pub(super) number: u64,
}

impl Step {
    /// A step that was never tried.
    pub(super) fn new(purpose: Purpose) -> Self {
        Self { purpose, attempts: 0, number: 0 }
    }

    /// Whether it makes durable what other commands wrote.
    pub(crate) fn is_synchronize(self) -> bool {
        self.purpose == Purpose::Synchronize
    }

    /// Attempts that failed.
    pub(crate) fn attempts(self) -> u32 {
        self.attempts
    }

    /// The same step with this count of failed attempts.
    pub(crate) fn after(self, attempts: u32) -> Self {
        Self { attempts, ..self }
    }
}
