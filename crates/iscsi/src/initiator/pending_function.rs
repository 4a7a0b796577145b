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

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// This task is to end; its CmdSN.
    Abort(InitiatorTaskTag, Serial32),
    /// This task is to go on here: its CmdSN, and ExpDataSN.
    Reassign(InitiatorTaskTag, Serial32, Serial32),
    /// All tasks of the logical unit are to end.
    Reset,
}
