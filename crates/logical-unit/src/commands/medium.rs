//! Presence of the medium: TEST UNIT READY, START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL (SPC-4
//! 6.47, SBC-3 5.13, 5.25).
//!
//! Only a removable unit can be ejected and loaded, and not while an I_T nexus prevents it. START
//! and STOP without LOEJ, and power conditions, only flush before a stop: a device in user space
//! has no motor, and stays ready.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{Buffer, Request};
use scsi::Sense;
use scsi::cdb::StartStopUnit;

use super::task::{Task, nothing, refuse};
use crate::execution::Execution;
use crate::failure::Failure;
use crate::nexus::NexusId;
use crate::unit::LogicalUnit;

pub(super) fn test_unit_ready(unit: &LogicalUnit) -> Result<Buffer, Failure> {
    unit.check_medium()?;
    Ok(Buffer::empty())
}

pub(super) fn prevent_allow(unit: &LogicalUnit, nexus: &NexusId, prevent: u8) -> Result<Buffer, Failure> {
    match prevent {
        0 => unit.medium.allow_removal(nexus),
        1 => unit.medium.prevent_removal(nexus),
        // 2 and 3 are obsolete (SBC-3 5.13).
        _ => return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(4, 1).into()),
    }
    Ok(Buffer::empty())
}

pub(super) fn start_stop(task: Task<'_>, start_stop: StartStopUnit) -> Execution {
    if start_stop.power_condition != 0 {
        return nothing();
    }
    if start_stop.is_load_eject {
        return match load_eject(task.unit, task.nexus, start_stop.is_start) {
            Ok(()) => nothing(),
            Err(sense) => refuse(sense),
        };
    }
    if start_stop.is_start || start_stop.is_no_flush || !task.unit.medium.is_loaded() {
        return nothing();
    }
    if start_stop.is_immediate {
        drop(task.unit.device().submit(Request::flush()));
        return nothing();
    }
    task.run_flush()
}

fn load_eject(unit: &Arc<LogicalUnit>, nexus: &NexusId, is_load: bool) -> Result<(), Sense> {
    if !unit.options.is_removable {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(4, 1));
    }
    if unit.medium.is_removal_prevented() {
        return Err(Sense::MEDIUM_REMOVAL_PREVENTED);
    }
    if is_load {
        if unit.medium.is_ejected.swap(false, Ordering::AcqRel) {
            unit.attentions.establish(Sense::MEDIUM_MAY_HAVE_CHANGED, Some(nexus));
        }
        return Ok(());
    }
    unit.medium.is_ejected.store(true, Ordering::Release);
    Ok(())
}
