//! Task attributes and task management functions, with the codes iSCSI gives them.

use std::fmt;

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

/// The functions of the task manager (SAM-5 7). Codes: RFC 7143 11.5.1, RFC 7144 4.1.
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
    /// Whether a task of this I_T nexus is under way.
    QueryTask = 9,
    /// Whether any task of this I_T nexus is.
    QueryTaskSet = 10,
    /// As if this I_T nexus were lost.
    NexusReset = 11,
    /// Whether a unit attention waits for this I_T nexus.
    QueryAsynchronousEvent = 12,
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
            9 => Self::QueryTask,
            10 => Self::QueryTaskSet,
            11 => Self::NexusReset,
            12 => Self::QueryAsynchronousEvent,
            _ => return None,
        })
    }
}

impl fmt::Display for TaskManagementFunction {
    /// The standard's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AbortTask => "ABORT TASK",
            Self::AbortTaskSet => "ABORT TASK SET",
            Self::ClearAca => "CLEAR ACA",
            Self::ClearTaskSet => "CLEAR TASK SET",
            Self::LogicalUnitReset => "LOGICAL UNIT RESET",
            Self::TargetWarmReset => "TARGET WARM RESET",
            Self::TargetColdReset => "TARGET COLD RESET",
            Self::TaskReassign => "TASK REASSIGN",
            Self::QueryTask => "QUERY TASK",
            Self::QueryTaskSet => "QUERY TASK SET",
            Self::NexusReset => "I_T NEXUS RESET",
            Self::QueryAsynchronousEvent => "QUERY ASYNCHRONOUS EVENT",
        })
    }
}

/// How a task management function ended (SAM-5 7). Codes: RFC 7143 11.6.1, RFC 7144 4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaskManagementOutcome {
    /// Done; the tasks that it ended do not touch the medium any more. Of a query: no.
    FunctionComplete = 0,
    /// ABORT TASK: no such task is under way. It has ended, or never came.
    TaskDoesNotExist = 1,
    /// There is no unit at this LUN.
    LunDoesNotExist = 2,
    /// TASK REASSIGN of a task whose connection is still there.
    TaskStillAllegiant = 3,
    /// TASK REASSIGN is not supported.
    ReassignmentNotSupported = 4,
    /// This function is not supported.
    FunctionNotSupported = 5,
    /// The initiator must not do this.
    AuthorizationFailed = 6,
    /// Of a query: yes.
    FunctionSucceeded = 7,
    /// It came without the LUN or the task tag that it needs.
    FunctionRejected = 255,
}

impl TaskManagementOutcome {
    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The outcome with this code, or `None` for a reserved one.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::FunctionComplete,
            1 => Self::TaskDoesNotExist,
            2 => Self::LunDoesNotExist,
            3 => Self::TaskStillAllegiant,
            4 => Self::ReassignmentNotSupported,
            5 => Self::FunctionNotSupported,
            6 => Self::AuthorizationFailed,
            7 => Self::FunctionSucceeded,
            255 => Self::FunctionRejected,
            _ => return None,
        })
    }
}

impl fmt::Display for TaskManagementOutcome {
    /// The standard's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FunctionComplete => "Function complete",
            Self::TaskDoesNotExist => "Task does not exist",
            Self::LunDoesNotExist => "LUN does not exist",
            Self::TaskStillAllegiant => "Task still allegiant",
            Self::ReassignmentNotSupported => "Task allegiance reassignment not supported",
            Self::FunctionNotSupported => "Task management function not supported",
            Self::AuthorizationFailed => "Function authorization failed",
            Self::FunctionSucceeded => "Function succeeded",
            Self::FunctionRejected => "Function rejected",
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
            assert_eq!(function, (1..=12).contains(&code).then_some(code));
            let outcome = TaskManagementOutcome::from_code(code).map(TaskManagementOutcome::code);
            assert_eq!(outcome, matches!(code, 0..=7 | 255).then_some(code));
        }
    }
}
