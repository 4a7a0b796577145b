//! RESERVE(6), RELEASE(6), PERSISTENT RESERVE IN and OUT: from CDB and parameter list to [`Reservations`] and back.

use block::Buffer;
use scsi::persistent_reservation::{OutParameters, ReservationType, action_in, action_out};
use scsi::{Sense, persistent_reservation as data};

use super::Task;
use crate::failure::Failure;
use crate::lun_map::cut;
use crate::nexus::NexusId;
use crate::reservation::{Effect, Request};
use crate::unit::LogicalUnit;

pub(super) fn reserve_6(unit: &LogicalUnit, nexus: &NexusId) -> Result<Buffer, Failure> {
    unit.reservations.reserve_6(nexus).map(|()| Buffer::empty())
}

/// A release by who does not hold it is no error and has no effect (SPC-2 7.16).
pub(super) fn release_6(unit: &LogicalUnit, nexus: &NexusId) -> Result<Buffer, Failure> {
    unit.reservations.release_of(nexus);
    Ok(Buffer::empty())
}

pub(super) fn persistent_in(unit: &LogicalUnit, service_action: u8, allocation_length: u16) -> Result<Buffer, Failure> {
    let view = unit.reservations.view();
    let bytes = match service_action {
        action_in::READ_KEYS => data::emit_keys(view.generation, &view.keys()),
        action_in::READ_RESERVATION => data::emit_reservation(view.generation, view.reservation()),
        action_in::REPORT_CAPABILITIES => data::emit_capabilities().to_vec(),
        action_in::READ_FULL_STATUS => data::emit_full_status(view.generation, &view.full_status()),
        _ => return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into()),
    };
    Ok(cut(&bytes, u32::from(allocation_length)))
}

/// Checks the list (SPC-4 6.16.3), makes the request, and tells the nexuses that it took something from.
pub(super) fn persistent_out(
    task: &Task<'_>,
    (service_action, scope, kind): (u8, u8, u8),
    parameter_list_length: u32,
) -> Result<Buffer, Failure> {
    if parameter_list_length as usize != OutParameters::BYTES {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    }
    let parameters =
        OutParameters::parse(&task.command.data_out).map_err(|_| Sense::INVALID_FIELD_IN_INFORMATION_UNIT)?;
    if parameters.has_initiator_ports || parameters.is_for_all_target_ports || parameters.is_persistent {
        return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(20).into());
    }
    let kind = || {
        // Scope 0, the logical unit, is the only one left (SPC-4 6.15.3.3).
        let kind = ReservationType::from_code(kind).filter(|_| scope == 0);
        kind.ok_or(Sense::INVALID_FIELD_IN_CDB.at_byte(2))
    };
    let OutParameters { key, action_key, .. } = parameters;
    let request = match service_action {
        action_out::REGISTER => Request::Register { key: Some(key), new: action_key },
        action_out::REGISTER_AND_IGNORE => Request::Register { key: None, new: action_key },
        action_out::RESERVE => Request::Reserve { key, kind: kind()? },
        action_out::RELEASE => Request::Release { key, kind: kind()? },
        action_out::CLEAR => Request::Clear { key },
        action_out::PREEMPT => Request::Preempt { key, victim: action_key, kind: kind()?, is_aborting: false },
        action_out::PREEMPT_AND_ABORT => Request::Preempt { key, victim: action_key, kind: kind()?, is_aborting: true },
        _ => return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into()),
    };
    let effects = task.unit.reservations.request(task.nexus, request)?;
    apply(task, &effects);
    Ok(Buffer::empty())
}

fn apply(task: &Task<'_>, effects: &[Effect]) {
    for effect in effects {
        match effect {
            Effect::Tell(nexus, sense) => task.unit.attentions.establish_for(nexus, *sense),
            Effect::AbortTasksOf(victim) => {
                let own = task.command.task_tag;
                let is_victims = |nexus: &NexusId, tag| nexus == victim && !(nexus == task.nexus && tag == own);
                task.unit.tasks.abort(task.nexus, is_victims);
            }
        }
    }
}
