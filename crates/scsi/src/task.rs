//! Task attributes and task management functions, with the codes iSCSI gives them.

/// The place of a command in the order of its task set (SAM-5 8.9). Codes: RFC 7143 11.3.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaskAttribute {
    /// The initiator named none; treated as simple.
    Untagged = 0,
    /// In any order among other simple tasks.
    #[default]
    Simple = 1,
    /// After all older tasks, before all younger ones.
    Ordered = 2,
    /// Before all tasks that have not started.
    HeadOfQueue = 3,
    /// During an auto contingent allegiance.
    Aca = 4,
}

impl TaskAttribute {
    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The attribute with this code, or `None` for a reserved one.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Untagged,
            1 => Self::Simple,
            2 => Self::Ordered,
            3 => Self::HeadOfQueue,
            4 => Self::Aca,
            _ => return None,
        })
    }
}

/// The functions of the task manager (SAM-5 7). Codes: RFC 7143 11.5.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaskManagementFunction {
    /// Ends one task of this I_T nexus.
    AbortTask = 1,
    /// Ends all tasks of this I_T nexus on the logical unit.
    AbortTaskSet = 2,
    /// Ends the auto contingent allegiance.
    ClearAca = 3,
    /// Ends all tasks of all I_T nexuses on the logical unit.
    ClearTaskSet = 4,
    /// Resets the logical unit.
    LogicalUnitReset = 5,
    /// Resets the target, keeping sessions.
    TargetWarmReset = 6,
    /// Resets the target and closes its sessions.
    TargetColdReset = 7,
    /// Moves a task to another connection; the transport's own affair.
    TaskReassign = 8,
}

impl TaskManagementFunction {
    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The function with this code, or `None` for a reserved one.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::AbortTask,
            2 => Self::AbortTaskSet,
            3 => Self::ClearAca,
            4 => Self::ClearTaskSet,
            5 => Self::LogicalUnitReset,
            6 => Self::TargetWarmReset,
            7 => Self::TargetColdReset,
            8 => Self::TaskReassign,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_rfc_7143() {
        for code in 0..=255 {
            assert_eq!(TaskAttribute::from_code(code).map(TaskAttribute::code), (code <= 4).then_some(code));
            let function = TaskManagementFunction::from_code(code).map(TaskManagementFunction::code);
            assert_eq!(function, (1..=8).contains(&code).then_some(code));
        }
    }
}
