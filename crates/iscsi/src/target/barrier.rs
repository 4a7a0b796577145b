//! What holds commands back that are behind a task management function.
//!
//! A function covers tasks with a lower CmdSN than its own (RFC 7143 11.5.1), while the unit ends all tasks that it
//! has. So those behind the function do not get to the unit before it is carried out.

use base::serial::Serial32;

use super::event::TaskManagementId;
use crate::pdu::ScsiCommand;

/// A function for several tasks that is under way, or was carried out before all that it covers had come.
#[derive(Clone, Copy)]
pub(super) struct Barrier {
    pub(super) id: TaskManagementId,
    /// LUN field of its unit; `None` for all units of the target.
    pub(super) lun: Option<u64>,
    /// Its own number, which for an immediate function is also that of the next command.
    pub(super) cmd_sn: Serial32,
    /// Whether the driver has it.
    pub(super) is_begun: bool,
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

    /// Whether a command waits for what the function comes to: it is behind it, or is covered by it and has not begun
    /// before the driver had the function.
    pub(super) fn holds_back(&self, command: &ScsiCommand) -> bool {
        self.is_before(command) || self.is_begun && self.covers(command)
    }

    fn concerns(&self, command: &ScsiCommand) -> bool {
        self.lun.is_none_or(|lun| scsi::lun::is_same(command.lun, lun))
    }
}
