//! REPORT SUPPORTED OPERATION CODES and TASK MANAGEMENT FUNCTIONS (SPC-4 6.35, 6.36), made from the
//! command table.

use block::Buffer;
use scsi::Sense;
use scsi::cdb::table::{ROWS, Row, rows_of};
use scsi::sanitize::action;
use scsi::supported_operations;
use scsi::target_port_groups::{self, AccessState, Group};

use crate::data_in::cut;
use crate::failure::Failure;
use crate::identity;
use crate::nexus::NexusId;
use crate::unit::LogicalUnit;

/// The fields of the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) reporting_options: u8,
    pub(super) operation_code: u8,
    pub(super) service_action: u16,
}

/// Whether this logical unit supports the command of a row: all but UNMAP and SANITIZE BLOCK ERASE
/// without thin provisioning, WRITE ATOMIC without an atomic size of the device, and change mark
/// commands without a store.
fn is_supported(unit: &LogicalUnit, row: &Row) -> bool {
    let geometry = unit.geometry();
    match (row.operation_code, row.service_action) {
        (0x42, _) | (0x48, Some(action::BLOCK_ERASE)) => unit.is_thin(&geometry),
        (0xc1 | 0xc2, _) => unit.change_marks.is_some(),
        (0x9c, _) => unit.atomic_limits(&geometry).blocks_max > 0,
        _ => true,
    }
}

/// One group: the ports of the target port group of this nexus.
pub(super) fn target_port_groups(nexus: &NexusId, is_extended: bool, allocation_length: u32) -> Buffer {
    let access = AccessState::ActiveOptimized;
    let group = Group { number: identity::port_group(nexus), access, ports: vec![identity::RELATIVE_PORT] };
    cut(&target_port_groups::emit(&[group], is_extended), allocation_length)
}

pub(super) fn operation_codes(
    unit: &LogicalUnit,
    asked: Asked,
    has_timeouts: bool,
    allocation_length: u32,
) -> Result<Buffer, Failure> {
    let bytes = if asked.reporting_options == 0 {
        supported_operations::emit_all(ROWS.iter().filter(|row| is_supported(unit, row)), has_timeouts)
    } else {
        let row = one(asked)?.filter(|row| is_supported(unit, row));
        supported_operations::emit_one(row, has_timeouts)
    };
    Ok(cut(&bytes, allocation_length))
}

/// The row asked for. Options 1 and 2 insist on an operation code without and with service actions (SPC-4 table 240);
/// option 3 takes either.
fn one(asked: Asked) -> Result<Option<&'static Row>, Sense> {
    let rows = rows_of(asked.operation_code);
    let has_actions = rows.iter().any(|row| row.service_action.is_some());
    let of_action = || rows.iter().find(|row| row.service_action.map(u16::from) == Some(asked.service_action));
    match asked.reporting_options {
        1 if has_actions => Err(Sense::INVALID_FIELD_IN_CDB.at_bit(2, 2)),
        1 => Ok(rows.first()),
        2 if !rows.is_empty() && !has_actions => Err(Sense::INVALID_FIELD_IN_CDB.at_bit(2, 2)),
        2 => Ok(of_action()),
        3 if has_actions => Ok(of_action()),
        3 => Ok(rows.first().filter(|_| asked.service_action == 0)),
        _ => Err(Sense::INVALID_FIELD_IN_CDB.at_bit(2, 2)),
    }
}

pub(super) fn task_management_functions(is_extended: bool, allocation_length: u32) -> Result<Buffer, Failure> {
    // SPC-4 6.36: the allocation length shall be at least four.
    if allocation_length < 4 {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_byte(6).into());
    }
    Ok(cut(&supported_operations::emit_task_management(is_extended), allocation_length))
}
