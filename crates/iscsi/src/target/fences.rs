//! What holds responses back behind that of a task management function (RFC 7143 4.2.2.3.3 c and d): on several
//! connections the initiator could have them before it.
//!
//! ```text
//! carried out ─► others have acknowledged what they were sent ─► response ─► it is acknowledged
//!                └──────────────────── the fence is up ─────────────────────────────────────┘
//! ```

use super::event::TaskManagementId;

/// The fence of one function.
struct Fence {
    function: TaskManagementId,
    /// LUN field of its unit; `None` for all units of the target.
    lun: Option<u64>,
}

/// The fences that are up. The answers that wait for them are with their tasks.
#[derive(Default)]
pub(super) struct Fences(Vec<Fence>);

impl Fences {
    /// Holds back what answers these units from now on.
    pub(super) fn raise(&mut self, function: TaskManagementId, lun: Option<u64>) {
        self.0.push(Fence { function, lun });
    }

    /// Whether the fence of this function is up.
    pub(super) fn has(&self, function: TaskManagementId) -> bool {
        self.0.iter().any(|fence| fence.function == function)
    }

    /// Whether answers of this unit, or of any where it is `None`, are held back.
    pub(super) fn hold_back(&self, lun: Option<u64>) -> bool {
        let concerns = |fence: &Fence| match (fence.lun, lun) {
            (Some(own), Some(other)) => scsi::lun::is_same(own, other),
            _ => true,
        };
        self.0.iter().any(concerns)
    }

    /// Takes a fence down.
    pub(super) fn clear(&mut self, function: TaskManagementId) {
        self.0.retain(|fence| fence.function != function);
    }

    /// Whether none is up, and so no answer waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
