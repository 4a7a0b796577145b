//! What holds commands back that are behind a task management function.
//!
//! A function covers tasks with a lower CmdSN than its own (RFC 7143 11.5.1), while the unit ends all tasks that it has.
//! So those behind the function do not get to the unit before it is carried out.

use base::serial::Serial32;

use super::event::TaskManagementId;
use crate::pdu::ScsiCommand;

/// A function for several tasks that is under way.
pub(super) struct Barrier {
    pub(super) id: TaskManagementId,
    /// LUN field of its unit; `None` for all units of the target.
    pub(super) lun: Option<u64>,
    /// Its own number, which for an immediate function is also that of the next command.
    pub(super) cmd_sn: Serial32,
}

impl Barrier {
    /// Whether the function covers a command.
    pub(super) fn covers(&self, command: &ScsiCommand) -> bool {
        self.concerns(command) && command.cmd_sn.is_before(self.cmd_sn)
    }

    /// Whether a command is for the same unit and behind the function.
    pub(super) fn is_before(&self, command: &ScsiCommand) -> bool {
        self.concerns(command) && !command.cmd_sn.is_before(self.cmd_sn)
    }

    fn concerns(&self, command: &ScsiCommand) -> bool {
        self.lun.is_none_or(|lun| command.lun == lun)
    }
}
