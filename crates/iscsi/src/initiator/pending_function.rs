//! A task management request that waits for its answer.

use base::clock::Instant;
use base::serial::Serial32;

use crate::pdu::InitiatorTaskTag;

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingFunction {
    pub(super) tag: InitiatorTaskTag,
    pub(super) lun: u64,
    pub(super) purpose: Purpose,
    pub(super) deadline: Instant,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Ends this task; with its CmdSN.
    Abort(InitiatorTaskTag, Serial32),
    /// Continues this task here; with its CmdSN, and ExpDataSN.
    Reassign(InitiatorTaskTag, Serial32, Serial32),
    /// Ends all tasks of the logical unit.
    Reset,
}
