//! UNMAP (SBC-3 5.28). The whole list is checked before the first block is unmapped.

use std::sync::Arc;

use block::{Buffer, ByteRange, Request};
use scsi::Sense;

use super::task::{Task, give_way, nothing, refuse};
use crate::execution::Execution;
use crate::failure::{self, DeviceAccess, Failure};
use crate::limits::{UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, UNMAP_PIECE_RANGES};
use crate::sharing::Direction;
use crate::unit::range_in;

pub(super) fn unmap(mut task: Task<'_>, is_anchor: bool, parameter_list_length: u16) -> Execution {
    let ranges = match ranges(&mut task, is_anchor, parameter_list_length) {
        Ok(ranges) if ranges.is_empty() => return nothing(),
        Ok(ranges) => ranges,
        Err(failure) => return refuse(failure),
    };
    let (unit, nexus, admission) = (Arc::clone(task.unit), task.nexus.clone(), task.admission);
    let held = admission.held;
    task.run_long(|ticket| async move {
        // One durable write records all; recording each range below then costs nothing, unless the
        // mark was cleared between.
        unit.record_changes(held, &ranges).await?;
        for (number, range) in ranges.into_iter().enumerate() {
            if number > 0 && number.is_multiple_of(UNMAP_PIECE_RANGES) {
                give_way().await;
            }
            admission.check(&unit, &ticket)?;
            let _entry = unit.access.enter(&nexus, range, Direction::Change).take(Some(&ticket)).await?;
            admission.check(&unit, &ticket)?;
            unit.record_change(held, range).await?;
            let request = Request::discard(range.offset, range.length).by(nexus.submitter());
            let response = unit.device().submit(request).await;
            response.result.map_err(|error| failure::of_block_error(&error, DeviceAccess::Writing, None))?;
        }
        Ok(Buffer::empty())
    })
}

fn ranges(task: &mut Task<'_>, is_anchor: bool, parameter_list_length: u16) -> Result<Vec<ByteRange>, Failure> {
    let geometry = task.unit.geometry();
    if !task.unit.is_thin(&geometry) {
        return Err(Sense::INVALID_OPERATION_CODE.at_byte(0).into());
    }
    task.unit.check_medium()?;
    task.unit.check_writable(&geometry)?;
    if is_anchor {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 0).into());
    }
    if parameter_list_length == 0 {
        return Ok(Vec::new());
    }
    let list = task.take_data_out(u64::from(parameter_list_length))?;
    let descriptors = scsi::unmap::parse(&list).map_err(|_| Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    if descriptors.clone().count() > UNMAP_DESCRIPTORS_MAX as usize {
        return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(2).into());
    }
    let mut block_count = 0;
    let mut ranges = Vec::new();
    for descriptor in descriptors {
        let range = range_in(&geometry, descriptor.lba, u64::from(descriptor.block_count))?;
        block_count += u64::from(descriptor.block_count);
        if block_count > u64::from(UNMAP_BLOCKS_MAX) {
            return Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.into());
        }
        if !range.is_empty() {
            ranges.push(range);
        }
    }
    Ok(ranges)
}
