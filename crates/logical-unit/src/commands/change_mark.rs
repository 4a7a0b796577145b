//! CHANGE MARK IN and OUT, forebay's own (`docs/protocol/change-marks.md`): from CDB and parameter list to the unit's
//! marks and back.

use std::sync::Arc;

use block::Buffer;
use scsi::Sense;
use scsi::change_mark::{
    CHANGES_HEADER_BYTES, DESCRIPTOR_BYTES, Parameters, action_in, action_out, emit_content, emit_marks,
};

use super::task::{Task, refuse};
use crate::data_in::cut;
use crate::execution::Execution;
use crate::failure::Failure;
use crate::limits::CHANGE_RUNS_MAX;
use crate::nexus::NexusId;
use crate::unit::LogicalUnit;

pub(super) fn report(
    unit: &LogicalUnit,
    nexus: &NexusId,
    (service_action, slot, first_range): (u8, u16, u32),
    allocation_length: u32,
) -> Result<Buffer, Failure> {
    let marks = unit.change_marks.as_ref().ok_or(Sense::INVALID_OPERATION_CODE.at_byte(0))?;
    let bytes = match service_action {
        action_in::REPORT_MARKS => emit_marks(&marks.report_marks(nexus)),
        action_in::REPORT_CHANGES => {
            let room = (allocation_length as usize).saturating_sub(CHANGES_HEADER_BYTES) / DESCRIPTOR_BYTES;
            let bounds = (unit.geometry().size_bytes, room.min(CHANGE_RUNS_MAX));
            let changes = marks.report_changes(nexus, slot, first_range, bounds);
            changes.ok_or(Sense::INVALID_FIELD_IN_CDB.at_byte(2))?.emit()
        }
        action_in::REPORT_CONTENT => emit_content(marks.content()),
        _ => return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into()),
    };
    Ok(cut(&bytes, allocation_length))
}

pub(super) fn change(mut task: Task<'_>, service_action: u8, parameter_list_length: u32) -> Execution {
    if task.unit.change_marks.is_none() {
        return refuse(Sense::INVALID_OPERATION_CODE.at_byte(0));
    }
    let list = match task.take_data_out(u64::from(parameter_list_length)) {
        Ok(list) => list,
        Err(failure) => return refuse(failure),
    };
    if list.len() != Parameters::BYTES {
        return refuse(Sense::PARAMETER_LIST_LENGTH_ERROR);
    }
    let Ok(parameters) = Parameters::parse(&list) else { return refuse(Sense::INVALID_FIELD_IN_PARAMETER_LIST) };
    let (unit, nexus, admission) = (Arc::clone(task.unit), task.nexus.clone(), task.admission);
    task.run(async move {
        let marks = unit.change_marks.as_ref().ok_or(Sense::INVALID_OPERATION_CODE.at_byte(0))?;
        match service_action {
            action_out::TAKE => marks.take(&nexus, &parameters, unit.protection.covers(&nexus)).await,
            action_out::CLEAR => unit.clear_mark(&nexus, &parameters, admission).await,
            action_out::FORGET => marks.forget(&nexus, &parameters).await,
            action_out::NAME_CONTENT => unit.name_content(&nexus, admission).await,
            _ => Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into()),
        }
        .map(|()| Buffer::empty())
    })
}
