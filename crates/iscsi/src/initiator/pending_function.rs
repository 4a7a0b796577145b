//! A task management request that waits for its answer.

use base::clock::Instant;
use base::serial::Serial32;

use crate::pdu::InitiatorTaskTag;

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingFunction {
    pub(super) tag: InitiatorTaskTag,
    pub(super) lun: u64,
    /// Its own number: it covers tasks with lower ones.
    pub(super) cmd_sn: Serial32,
    pub(super) purpose: Purpose,
    pub(super) deadline: Instant,
}

impl PendingFunction {
    /// The one task that it is for.
    pub(super) fn task(&self) -> Option<InitiatorTaskTag> {
        match self.purpose {
            Purpose::Abort(task, _) | Purpose::Reassign(task, ..) => Some(task),
            Purpose::Reset => None,
        }
    }
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Ends this task; with its CmdSN.
    Abort(InitiatorTaskTag, Serial32),
    /// Continues this task here; with its CmdSN, and ExpDataSN.
    Reassign(InitiatorTaskTag, Serial32, Serial32),
    /// Ends all tasks of the logical unit that were sent before it.
    Reset,
}
