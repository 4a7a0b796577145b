//! RESERVE(6), RELEASE(6), PERSISTENT RESERVE IN and OUT: from CDB and parameter list to [`Reservations`] and back.

use std::sync::Arc;

use block::Buffer;
use scsi::persistent_reservation::{MoveParameters, OutParameters, ReservationType, action_in, action_out};
use scsi::{Sense, persistent_reservation as data};

use super::task::{Task, refuse};
use crate::data_in::cut;
use crate::execution::Execution;
use crate::failure::Failure;
use crate::identity;
use crate::nexus::NexusId;
use crate::reservation::{Effect, Request};
use crate::unit::LogicalUnit;

pub(super) fn reserve_6(unit: &LogicalUnit, nexus: &NexusId) -> Result<Buffer, Failure> {
    unit.reservations.reserve_6(nexus).map(|()| Buffer::empty())
}

/// A release by a nexus that is not the holder is no error and has no effect (SPC-2 7.16).
pub(super) fn release_6(unit: &LogicalUnit, nexus: &NexusId) -> Result<Buffer, Failure> {
    unit.reservations.release_of(nexus);
    Ok(Buffer::empty())
}

pub(super) fn persistent_in(unit: &LogicalUnit, service_action: u8, allocation_length: u16) -> Result<Buffer, Failure> {
    let view = unit.reservations.view();
    let bytes = match service_action {
        action_in::READ_KEYS => data::emit_keys(view.generation, &view.keys()),
        action_in::READ_RESERVATION => data::emit_reservation(view.generation, view.reservation()),
        action_in::REPORT_CAPABILITIES => {
            data::emit_capabilities(unit.reservations.can_persist(), view.is_persistent).to_vec()
        }
        action_in::READ_FULL_STATUS => data::emit_full_status(view.generation, &view.full_status()),
        _ => return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into()),
    };
    Ok(cut(&bytes, u32::from(allocation_length)))
}

/// Checks the list (SPC-4 6.16.3), makes the request, and establishes the unit attentions that
/// follow for other nexuses.
pub(super) fn persistent_out(task: Task<'_>, action: (u8, u8, u8), parameter_list_length: u32) -> Execution {
    let request = match request_of(&task, action, parameter_list_length) {
        Ok(request) => request,
        Err(failure) => return refuse(failure),
    };
    let (unit, nexus, own_tag) = (Arc::clone(task.unit), task.nexus.clone(), task.command.task_tag);
    task.run(async move {
        let effects = unit.reservations.request(&nexus, request).await?;
        apply(&unit, (&nexus, own_tag), &effects);
        Ok(Buffer::empty())
    })
}

fn request_of(
    task: &Task<'_>,
    (service_action, scope, kind): (u8, u8, u8),
    parameter_list_length: u32,
) -> Result<Request, Failure> {
    let list = task.command.data_out.get(..parameter_list_length as usize);
    let list = list.ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    if service_action == action_out::REGISTER_AND_MOVE {
        move_request(task, list)
    } else {
        basic_request(task, (service_action, scope, kind), list)
    }
}

fn basic_request(
    task: &Task<'_>,
    (service_action, scope, kind): (u8, u8, u8),
    list: &[u8],
) -> Result<Request, Failure> {
    let parameters = OutParameters::parse(list).map_err(|_| Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    if list.len() != OutParameters::BYTES && !parameters.has_initiator_ports {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    }
    let is_registering = matches!(service_action, action_out::REGISTER | action_out::REGISTER_AND_IGNORE);
    let invalid = Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(20);
    let is_naming = parameters.has_initiator_ports;
    // A port of one group does not know the ports of others: ALL_TG_PT is not supported (ATP_C is
    // clear).
    if parameters.is_for_all_target_ports || (is_naming && service_action != action_out::REGISTER) {
        return Err(invalid.into());
    }
    // APTPL is for registering, and ignored elsewhere (SPC-4 6.16.3).
    let is_persistent = parameters.is_persistent && is_registering;
    if is_persistent && !task.unit.reservations.can_persist() {
        return Err(invalid.into());
    }
    let others = || -> Result<Vec<NexusId>, Sense> {
        if !is_naming {
            return Ok(Vec::new());
        }
        let ports =
            data::parse_initiator_ports(list).map_err(|_| Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(24))?;
        Ok(ports.iter().map(|port| task.nexus.with_initiator_port(port)).collect())
    };
    let kind = || {
        // Scope 0, the logical unit, is the only one left (SPC-4 6.15.3.3).
        let kind = ReservationType::from_code(kind).filter(|_| scope == 0);
        kind.ok_or(Sense::INVALID_FIELD_IN_CDB.at_byte(2))
    };
    let OutParameters { key, action_key, .. } = parameters;
    let register = |key, others| Request::Register { key, new: action_key, is_persistent, others };
    Ok(match service_action {
        action_out::REGISTER => register(Some(key), others()?),
        action_out::REGISTER_AND_IGNORE => register(None, Vec::new()),
        action_out::RESERVE => Request::Reserve { key, kind: kind()? },
        action_out::RELEASE => Request::Release { key, kind: kind()? },
        action_out::CLEAR => Request::Clear { key },
        action_out::PREEMPT => Request::Preempt { key, victim: action_key, kind: kind()?, is_aborting: false },
        action_out::PREEMPT_AND_ABORT => Request::Preempt { key, victim: action_key, kind: kind()?, is_aborting: true },
        _ => return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into()),
    })
}

fn move_request(task: &Task<'_>, list: &[u8]) -> Result<Request, Failure> {
    let parameters = MoveParameters::parse(list).map_err(|_| Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    if parameters.target_port != identity::RELATIVE_PORT {
        return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(18).into());
    }
    if parameters.is_persistent && !task.unit.reservations.can_persist() {
        return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(17).into());
    }
    Ok(Request::Move {
        key: parameters.key,
        new: parameters.action_key,
        to: task.nexus.with_initiator_port(&parameters.initiator_port),
        is_unregistering: parameters.is_unregistering,
        is_persistent: parameters.is_persistent,
    })
}

fn apply(unit: &LogicalUnit, (by, own_tag): (&NexusId, u64), effects: &[Effect]) {
    for effect in effects {
        match effect {
            Effect::Tell(nexus, sense) => unit.attentions.establish_for(nexus, *sense),
            Effect::AbortTasksOf(victim) => {
                let is_victims = |nexus: &NexusId, tag| nexus == victim && !(nexus == by && tag == own_tag);
                unit.tasks.abort(by, is_victims);
            }
        }
    }
}
