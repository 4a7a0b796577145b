//! A logout under way.

use base::clock::Instant;

use super::event::{LinkId, TaskId};
use crate::pdu::InitiatorTaskTag;

/// A logout that was granted.
pub(super) struct GrantedLogout {
    /// The connection for the response.
    pub(super) at: LinkId,
    pub(super) initiator_task_tag: InitiatorTaskTag,
    /// Connections it ends, live or lost.
    pub(super) covered: Vec<LinkId>,
    pub(super) ends_session: bool,
    pub(super) is_for_recovery: bool,
    /// Tasks with the driver.
    pub(super) waits_for: Vec<TaskId>,
    pub(super) deadline: Instant,
}
