//! SHARING IN and OUT, forebay's own (`docs/protocol/sharing.md`): from CDB and parameter list to the unit's sharing
//! and back.

use std::sync::Arc;

use block::Buffer;
use scsi::Sense;
use scsi::sharing::parameters::LIST_BYTES_MAX;
use scsi::sharing::report::{HEADER_BYTES, RECORD_BYTES};
use scsi::sharing::{Parameters, action_in};

use super::task::{Task, nothing, refuse};
use crate::data_in::cut;
use crate::execution::Execution;
use crate::failure::Failure;
use crate::sharing::Registering;
use crate::unit::LogicalUnit;

pub(super) fn report(
    unit: &LogicalUnit,
    service_action: u8,
    first: u64,
    allocation_length: u32,
) -> Result<Buffer, Failure> {
    let sharing = unit.access.sharing().ok_or(Sense::INVALID_OPERATION_CODE.at_byte(0))?;
    if service_action != action_in::REPORT {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4).into());
    }
    let room = (allocation_length as usize).saturating_sub(HEADER_BYTES) / RECORD_BYTES;
    Ok(cut(&sharing.report(first, room).emit(), allocation_length))
}

pub(super) fn order(mut task: Task<'_>, (service_action, client): (u8, u64), parameter_list_length: u32) -> Execution {
    let parameters = match parse(&mut task, service_action, parameter_list_length) {
        Ok(parameters) => parameters,
        Err(failure) => return refuse(failure),
    };
    let Some(sharing) = task.unit.access.sharing() else { return refuse(Sense::INVALID_OPERATION_CODE.at_byte(0)) };
    let registering = matches!(parameters, Parameters::Register { .. }).then(|| Registering::begin(sharing));
    let has_lease_to_keep = registering.as_ref().is_some_and(Registering::has_lease_to_keep);
    let has_delays_to_keep = sharing.has_delays_to_keep(&parameters);
    if !has_lease_to_keep && !has_delays_to_keep {
        return sharing.order(task.nexus, client, &parameters).map_or_else(refuse, |()| nothing());
    }
    let (sharing, nexus) = (Arc::clone(sharing), task.nexus.clone());
    task.run(async move {
        if let Some(registering) = registering.as_ref().filter(|_| has_lease_to_keep) {
            registering.keep_lease().await?;
        }
        if has_delays_to_keep {
            sharing.keep_delays().await?;
        }
        sharing.order(&nexus, client, &parameters).map(|()| Buffer::empty())
    })
}

fn parse(task: &mut Task<'_>, service_action: u8, parameter_list_length: u32) -> Result<Parameters, Failure> {
    if task.unit.access.sharing().is_none() {
        return Err(Sense::INVALID_OPERATION_CODE.at_byte(0).into());
    }
    if parameter_list_length as usize > LIST_BYTES_MAX {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    }
    let list = task.take_data_out(u64::from(parameter_list_length))?;
    Parameters::parse(service_action, &list)
        .map_err(|wrong| Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(wrong.0).into())
}
