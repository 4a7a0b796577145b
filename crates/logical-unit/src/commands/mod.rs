//! One file per family of commands, and the table that sends each command to its family.

mod cache;
mod capacity;
mod change_mark;
mod compare_and_write;
mod extended_copy;
pub(crate) mod inquiry;
mod log;
mod medium;
mod mode;
mod or_write;
mod read_write;
mod report;
mod reserve;
mod sanitize;
mod sharing;
mod task;
mod unmap;
mod verify;
mod write_atomic;
mod write_same;

use std::sync::Arc;

use block::Buffer;
use scsi::Cdb;

use crate::admission::Admission;
use crate::command::{Command, Outcome};
use crate::execution::Execution;
use crate::failure::Failure;
use crate::nexus::NexusId;
use crate::unit::LogicalUnit;
use task::Task;

/// Starts a command that has been admitted.
pub(crate) fn start(
    unit: &Arc<LogicalUnit>,
    nexus: &NexusId,
    cdb: Cdb,
    command: Command,
    admission: Admission,
) -> Execution {
    let task = Task { unit, nexus, command, admission };
    match cdb {
        Cdb::Read(transfer) => read_write::read(task, transfer),
        Cdb::Write(transfer) => read_write::write(task, transfer),
        Cdb::Verify(verification) => verify::verify(task, verification),
        Cdb::WriteAndVerify(verification) => verify::write_and_verify(task, verification),
        Cdb::WriteSame(same) => write_same::write_same(task, same),
        Cdb::CompareAndWrite { lba, block_count, is_fua, .. } => {
            compare_and_write::compare_and_write(task, lba, block_count, is_fua)
        }
        Cdb::OrWrite(transfer) => or_write::or_write(task, transfer),
        Cdb::WriteAtomic(write) => write_atomic::write_atomic(task, write),
        Cdb::Sanitize(sanitize) => sanitize::sanitize(task, sanitize),
        Cdb::ExtendedCopy { parameter_list_length } => extended_copy::extended_copy(task, parameter_list_length),
        Cdb::Unmap { is_anchor, parameter_list_length } => unmap::unmap(task, is_anchor, parameter_list_length),
        Cdb::SynchronizeCache(range) => cache::synchronize(task, range),
        Cdb::Prefetch(range) => cache::prefetch(task, range),
        Cdb::ModeSelect(select) => mode::select(task, select),
        Cdb::StartStopUnit(start_stop) => medium::start_stop(task, start_stop),
        Cdb::GetLbaStatus { lba, allocation_length } => capacity::lba_status(task, lba, allocation_length),
        Cdb::ChangeMarkOut { service_action, parameter_list_length } => {
            change_mark::change(task, service_action, parameter_list_length)
        }
        Cdb::SharingOut { service_action, client, parameter_list_length } => {
            sharing::order(task, (service_action, client), parameter_list_length)
        }
        Cdb::PersistentReserveOut { service_action, scope, kind, parameter_list_length } => {
            reserve::persistent_out(task, (service_action, scope, kind), parameter_list_length)
        }
        cdb => Execution::ready(Outcome::from(control(&task, cdb))),
    }
}

/// Whether a command waits for nothing: not for older tasks, room in the task set, or a sanitize.
/// Other hosts may wait for what a client of a shared unit sends.
pub(crate) fn waits_for_nothing(cdb: &Cdb) -> bool {
    cdb.is_of_sharing()
}

/// Commands that need no device; they complete before this returns.
fn control(task: &Task<'_>, cdb: Cdb) -> Result<Buffer, Failure> {
    let Task { unit, nexus, .. } = task;
    match cdb {
        Cdb::TestUnitReady => medium::test_unit_ready(unit),
        Cdb::RequestSense { is_descriptor, allocation_length } => {
            inquiry::request_sense(unit, nexus, is_descriptor, allocation_length)
        }
        Cdb::Inquiry { is_vpd, page, allocation_length } => {
            inquiry::inquiry(unit, nexus, is_vpd, page, allocation_length)
        }
        Cdb::LogSense(sense) => log::sense(sense),
        Cdb::ReadDefectData(asked) => capacity::read_defect_data(unit, &asked),
        Cdb::ReceiveCopyResults { service_action, list_identifier, allocation_length } => {
            extended_copy::results(unit, nexus, (service_action, list_identifier), allocation_length)
        }
        Cdb::ReportTargetPortGroups { is_extended, allocation_length } => {
            Ok(report::target_port_groups(nexus, is_extended, allocation_length))
        }
        Cdb::ReadCapacity10 => capacity::read_capacity_10(unit),
        Cdb::ReadCapacity16 { allocation_length } => capacity::read_capacity_16(unit, allocation_length),
        Cdb::ModeSense(sense) => mode::sense(unit, nexus, sense),
        Cdb::PreventAllowMediumRemoval { prevent } => medium::prevent_allow(unit, nexus, prevent),
        Cdb::Reserve6 => reserve::reserve_6(unit, nexus),
        Cdb::Release6 => reserve::release_6(unit, nexus),
        Cdb::PersistentReserveIn { service_action, allocation_length } => {
            reserve::persistent_in(unit, service_action, allocation_length)
        }
        Cdb::ReportSupportedOperationCodes {
            has_timeouts,
            reporting_options,
            operation_code,
            service_action,
            allocation_length,
        } => {
            let asked = report::Asked { reporting_options, operation_code, service_action };
            report::operation_codes(unit, asked, has_timeouts, allocation_length)
        }
        Cdb::ReportSupportedTaskManagementFunctions { is_extended, allocation_length } => {
            report::task_management_functions(is_extended, allocation_length)
        }
        Cdb::ChangeMarkIn { service_action, slot, first_range, allocation_length } => {
            change_mark::report(unit, nexus, (service_action, slot, first_range), allocation_length)
        }
        Cdb::SharingIn { service_action, first, allocation_length } => {
            sharing::report(unit, service_action, first, allocation_length)
        }
        // The LUN map answers REPORT LUNS; the others are no control commands.
        Cdb::ReportLuns { .. }
        | Cdb::Read(_)
        | Cdb::Write(_)
        | Cdb::Verify(_)
        | Cdb::WriteAndVerify(_)
        | Cdb::WriteSame(_)
        | Cdb::CompareAndWrite { .. }
        | Cdb::OrWrite(_)
        | Cdb::WriteAtomic(_)
        | Cdb::Sanitize(_)
        | Cdb::ExtendedCopy { .. }
        | Cdb::Unmap { .. }
        | Cdb::SynchronizeCache(_)
        | Cdb::Prefetch(_)
        | Cdb::ChangeMarkOut { .. }
        | Cdb::SharingOut { .. }
        | Cdb::PersistentReserveOut { .. }
        | Cdb::ModeSelect(_)
        | Cdb::StartStopUnit(_)
        | Cdb::GetLbaStatus { .. } => Err(scsi::Sense::INVALID_OPERATION_CODE.into()),
    }
}
