//! A task management request that is under way.

use base::clock::Instant;
use base::serial::Serial32;

use super::event::{LinkId, TaskId, TaskManagementId};
use crate::pdu::{InitiatorTaskTag, TaskManagementFunction, TaskManagementOutcome};

/// A task management request that waits: for commands before it, for the data of the tasks it covers, for the driver,
/// for the end of those tasks, for acknowledgements.
pub(super) struct PendingManagement {
    pub(super) id: TaskManagementId,
    /// The connection for the response.
    pub(super) link: LinkId,
    pub(super) initiator_task_tag: InitiatorTaskTag,
    pub(super) function: TaskManagementFunction,
    pub(super) lun: u64,
    /// The one task of ABORT TASK.
    pub(super) task: Option<TaskId>,
    /// Its own number: earlier commands must have come (RFC 7143 4.2.3.3 b).
    pub(super) cmd_sn: Serial32,
    /// The tasks that it covers, which are suspended, until it is carried out or refused.
    pub(super) covered: Vec<TaskId>,
    /// Those of them whose data still comes; the driver gets the function when none is left (RFC 7143
    /// 4.2.3.3 a), or at the deadline.
    pub(super) awaits_data: Vec<TaskId>,
    /// For that, and later for the acknowledgements in `fences`.
    pub(super) deadline: Instant,
    pub(super) is_begun: bool,
    /// Aborted tasks with the driver whose completion must be seen first.
    pub(super) waits_for: Vec<TaskId>,
    /// The answer if it succeeds, once it is carried out: the one task of ABORT TASK may have been answered before
    /// that.
    pub(super) carried_out: Option<TaskManagementOutcome>,
    /// The driver's outcome.
    pub(super) outcome: Option<TaskManagementOutcome>,
    /// Responses of other connections that must be acknowledged first (RFC 7143 4.2.2.3.2), set
    /// when all else is done; then its own response, while its fence is up.
    pub(super) fences: Option<Vec<(LinkId, Serial32)>>,
    /// Whether its response was sent.
    pub(super) is_answered: bool,
}
