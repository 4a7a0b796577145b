//! From bytes to commands: one small parser per row of the table.

use super::layout::{Raw, u16_in, u32_in, u64_in};
use super::{
    Blocks, CacheRange, Cdb, CdbForm, LogSense, ModeSelect, ModeSense, ReadDefectData, Sanitize, StartStopUnit,
    Transfer, Verification, WriteAtomic, WriteSame,
};

fn is_set(raw: &Raw, byte: usize, mask: u8) -> bool {
    raw[byte] & mask != 0
}

pub(super) fn test_unit_ready(_: &Raw) -> Cdb {
    Cdb::TestUnitReady
}

pub(super) fn request_sense(raw: &Raw) -> Cdb {
    Cdb::RequestSense { is_descriptor: is_set(raw, 1, 0x01), allocation_length: raw[4] }
}

pub(super) fn inquiry(raw: &Raw) -> Cdb {
    Cdb::Inquiry { is_vpd: is_set(raw, 1, 0x01), page: raw[2], allocation_length: u16_in(raw, 3) }
}

pub(super) fn report_luns(raw: &Raw) -> Cdb {
    Cdb::ReportLuns { select_report: raw[2], allocation_length: u32_in(raw, 6) }
}

pub(super) fn read_capacity_10(_: &Raw) -> Cdb {
    Cdb::ReadCapacity10
}

pub(super) fn read_capacity_16(raw: &Raw) -> Cdb {
    Cdb::ReadCapacity16 { allocation_length: u32_in(raw, 10) }
}

pub(super) fn get_lba_status(raw: &Raw) -> Cdb {
    Cdb::GetLbaStatus { lba: u64_in(raw, 2), allocation_length: u32_in(raw, 10) }
}

fn transfer(form: CdbForm, raw: &Raw) -> Transfer {
    let has_flags = form != CdbForm::Six;
    Transfer {
        blocks: Blocks::parse(form, raw),
        is_dpo: has_flags && is_set(raw, 1, 0x10),
        is_fua: has_flags && is_set(raw, 1, 0x08),
    }
}

pub(super) fn read_6(raw: &Raw) -> Cdb {
    Cdb::Read(transfer(CdbForm::Six, raw))
}

pub(super) fn read_10(raw: &Raw) -> Cdb {
    Cdb::Read(transfer(CdbForm::Ten, raw))
}

pub(super) fn read_12(raw: &Raw) -> Cdb {
    Cdb::Read(transfer(CdbForm::Twelve, raw))
}

pub(super) fn read_16(raw: &Raw) -> Cdb {
    Cdb::Read(transfer(CdbForm::Sixteen, raw))
}

pub(super) fn write_6(raw: &Raw) -> Cdb {
    Cdb::Write(transfer(CdbForm::Six, raw))
}

pub(super) fn write_10(raw: &Raw) -> Cdb {
    Cdb::Write(transfer(CdbForm::Ten, raw))
}

pub(super) fn write_12(raw: &Raw) -> Cdb {
    Cdb::Write(transfer(CdbForm::Twelve, raw))
}

pub(super) fn write_16(raw: &Raw) -> Cdb {
    Cdb::Write(transfer(CdbForm::Sixteen, raw))
}

fn verification(form: CdbForm, raw: &Raw) -> Verification {
    Verification { blocks: Blocks::parse(form, raw), is_dpo: is_set(raw, 1, 0x10), byte_check: raw[1] >> 1 & 0x03 }
}

pub(super) fn verify_10(raw: &Raw) -> Cdb {
    Cdb::Verify(verification(CdbForm::Ten, raw))
}

pub(super) fn verify_12(raw: &Raw) -> Cdb {
    Cdb::Verify(verification(CdbForm::Twelve, raw))
}

pub(super) fn verify_16(raw: &Raw) -> Cdb {
    Cdb::Verify(verification(CdbForm::Sixteen, raw))
}

pub(super) fn write_and_verify_10(raw: &Raw) -> Cdb {
    Cdb::WriteAndVerify(verification(CdbForm::Ten, raw))
}

pub(super) fn write_and_verify_12(raw: &Raw) -> Cdb {
    Cdb::WriteAndVerify(verification(CdbForm::Twelve, raw))
}

pub(super) fn write_and_verify_16(raw: &Raw) -> Cdb {
    Cdb::WriteAndVerify(verification(CdbForm::Sixteen, raw))
}

fn write_same(form: CdbForm, raw: &Raw) -> Cdb {
    Cdb::WriteSame(WriteSame {
        blocks: Blocks::parse(form, raw),
        is_anchor: is_set(raw, 1, 0x10),
        is_unmap: is_set(raw, 1, 0x08),
        has_no_data_out: is_set(raw, 1, 0x01),
    })
}

pub(super) fn write_same_10(raw: &Raw) -> Cdb {
    write_same(CdbForm::Ten, raw)
}

pub(super) fn write_same_16(raw: &Raw) -> Cdb {
    write_same(CdbForm::Sixteen, raw)
}

pub(super) fn compare_and_write(raw: &Raw) -> Cdb {
    Cdb::CompareAndWrite {
        lba: u64_in(raw, 2),
        block_count: raw[13],
        is_dpo: is_set(raw, 1, 0x10),
        is_fua: is_set(raw, 1, 0x08),
    }
}

pub(super) fn or_write(raw: &Raw) -> Cdb {
    Cdb::OrWrite(transfer(CdbForm::Sixteen, raw))
}

pub(super) fn write_atomic(raw: &Raw) -> Cdb {
    Cdb::WriteAtomic(WriteAtomic {
        lba: u64_in(raw, 2),
        block_count: u16_in(raw, 12),
        boundary: u16_in(raw, 10),
        is_dpo: is_set(raw, 1, 0x10),
        is_fua: is_set(raw, 1, 0x08),
    })
}

pub(super) fn sanitize(raw: &Raw) -> Cdb {
    Cdb::Sanitize(Sanitize {
        service_action: raw[1] & 0x1f,
        is_immediate: is_set(raw, 1, 0x80),
        is_unrestricted_exit: is_set(raw, 1, 0x20),
        parameter_list_length: u16_in(raw, 7),
    })
}

pub(super) fn read_defect_data_10(raw: &Raw) -> Cdb {
    Cdb::ReadDefectData(ReadDefectData {
        form: CdbForm::Ten,
        is_primary: is_set(raw, 2, 0x10),
        is_grown: is_set(raw, 2, 0x08),
        format: raw[2] & 0x07,
        first_index: 0,
        allocation_length: u32::from(u16_in(raw, 7)),
    })
}

pub(super) fn read_defect_data_12(raw: &Raw) -> Cdb {
    Cdb::ReadDefectData(ReadDefectData {
        form: CdbForm::Twelve,
        is_primary: is_set(raw, 1, 0x10),
        is_grown: is_set(raw, 1, 0x08),
        format: raw[1] & 0x07,
        first_index: u32_in(raw, 2),
        allocation_length: u32_in(raw, 6),
    })
}

pub(super) fn log_sense(raw: &Raw) -> Cdb {
    Cdb::LogSense(LogSense {
        is_save: is_set(raw, 1, 0x01),
        page_control: raw[2] >> 6,
        page: raw[2] & 0x3f,
        subpage: raw[3],
        first_parameter: u16_in(raw, 5),
        allocation_length: u16_in(raw, 7),
    })
}

pub(super) fn extended_copy(raw: &Raw) -> Cdb {
    Cdb::ExtendedCopy { parameter_list_length: u32_in(raw, 10) }
}

pub(super) fn receive_copy_results(raw: &Raw) -> Cdb {
    Cdb::ReceiveCopyResults {
        service_action: raw[1] & 0x1f,
        list_identifier: raw[2],
        allocation_length: u32_in(raw, 10),
    }
}

pub(super) fn report_target_port_groups(raw: &Raw) -> Cdb {
    Cdb::ReportTargetPortGroups { is_extended: is_set(raw, 1, 0x20), allocation_length: u32_in(raw, 6) }
}

pub(super) fn change_mark_in(raw: &Raw) -> Cdb {
    Cdb::ChangeMarkIn {
        service_action: raw[1] & 0x1f,
        slot: u16_in(raw, 2),
        first_range: u32_in(raw, 4),
        allocation_length: u32_in(raw, 7) & 0xff_ffff,
    }
}

pub(super) fn change_mark_out(raw: &Raw) -> Cdb {
    Cdb::ChangeMarkOut { service_action: raw[1] & 0x1f, parameter_list_length: u32_in(raw, 7) & 0xff_ffff }
}

pub(super) fn sharing_in(raw: &Raw) -> Cdb {
    Cdb::SharingIn { service_action: raw[1] & 0x1f, first: u64_in(raw, 2), allocation_length: u32_in(raw, 10) }
}

pub(super) fn sharing_out(raw: &Raw) -> Cdb {
    Cdb::SharingOut { service_action: raw[1] & 0x1f, client: u64_in(raw, 2), parameter_list_length: u32_in(raw, 10) }
}

pub(super) fn unmap(raw: &Raw) -> Cdb {
    Cdb::Unmap { is_anchor: is_set(raw, 1, 0x01), parameter_list_length: u16_in(raw, 7) }
}

fn cache_range(form: CdbForm, raw: &Raw) -> CacheRange {
    CacheRange { blocks: Blocks::parse(form, raw), is_immediate: is_set(raw, 1, 0x02) }
}

pub(super) fn synchronize_cache_10(raw: &Raw) -> Cdb {
    Cdb::SynchronizeCache(cache_range(CdbForm::Ten, raw))
}

pub(super) fn synchronize_cache_16(raw: &Raw) -> Cdb {
    Cdb::SynchronizeCache(cache_range(CdbForm::Sixteen, raw))
}

pub(super) fn prefetch_10(raw: &Raw) -> Cdb {
    Cdb::Prefetch(cache_range(CdbForm::Ten, raw))
}

pub(super) fn prefetch_16(raw: &Raw) -> Cdb {
    Cdb::Prefetch(cache_range(CdbForm::Sixteen, raw))
}

fn mode_sense(form: CdbForm, allocation_length: u16, raw: &Raw) -> Cdb {
    Cdb::ModeSense(ModeSense {
        form,
        is_long_lba_accepted: is_set(raw, 1, 0x10),
        is_block_descriptor_disabled: is_set(raw, 1, 0x08),
        page_control: raw[2] >> 6,
        page: raw[2] & 0x3f,
        subpage: raw[3],
        allocation_length,
    })
}

pub(super) fn mode_sense_6(raw: &Raw) -> Cdb {
    mode_sense(CdbForm::Six, u16::from(raw[4]), raw)
}

pub(super) fn mode_sense_10(raw: &Raw) -> Cdb {
    mode_sense(CdbForm::Ten, u16_in(raw, 7), raw)
}

fn mode_select(form: CdbForm, parameter_list_length: u16, raw: &Raw) -> Cdb {
    Cdb::ModeSelect(ModeSelect {
        form,
        is_page_format: is_set(raw, 1, 0x10),
        is_save: is_set(raw, 1, 0x01),
        parameter_list_length,
    })
}

pub(super) fn mode_select_6(raw: &Raw) -> Cdb {
    mode_select(CdbForm::Six, u16::from(raw[4]), raw)
}

pub(super) fn mode_select_10(raw: &Raw) -> Cdb {
    mode_select(CdbForm::Ten, u16_in(raw, 7), raw)
}

pub(super) fn start_stop_unit(raw: &Raw) -> Cdb {
    Cdb::StartStopUnit(StartStopUnit {
        is_immediate: is_set(raw, 1, 0x01),
        power_condition: raw[4] >> 4,
        is_no_flush: is_set(raw, 4, 0x04),
        is_load_eject: is_set(raw, 4, 0x02),
        is_start: is_set(raw, 4, 0x01),
    })
}

pub(super) fn prevent_allow_medium_removal(raw: &Raw) -> Cdb {
    Cdb::PreventAllowMediumRemoval { prevent: raw[4] }
}

pub(super) fn reserve_6(_: &Raw) -> Cdb {
    Cdb::Reserve6
}

pub(super) fn release_6(_: &Raw) -> Cdb {
    Cdb::Release6
}

pub(super) fn persistent_reserve_in(raw: &Raw) -> Cdb {
    Cdb::PersistentReserveIn { service_action: raw[1] & 0x1f, allocation_length: u16_in(raw, 7) }
}

pub(super) fn persistent_reserve_out(raw: &Raw) -> Cdb {
    Cdb::PersistentReserveOut {
        service_action: raw[1] & 0x1f,
        scope: raw[2] >> 4,
        kind: raw[2] & 0x0f,
        parameter_list_length: u32_in(raw, 5),
    }
}

pub(super) fn report_supported_operation_codes(raw: &Raw) -> Cdb {
    Cdb::ReportSupportedOperationCodes {
        has_timeouts: is_set(raw, 2, 0x80),
        reporting_options: raw[2] & 0x07,
        operation_code: raw[3],
        service_action: u16_in(raw, 4),
        allocation_length: u32_in(raw, 6),
    }
}

pub(super) fn report_supported_task_management_functions(raw: &Raw) -> Cdb {
    Cdb::ReportSupportedTaskManagementFunctions { is_extended: is_set(raw, 2, 0x80), allocation_length: u32_in(raw, 6) }
}
