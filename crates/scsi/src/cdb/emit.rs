//! From commands to bytes.

use super::bytes::CdbBytes;
use super::layout::Raw;
use super::{
    CacheRange, Cdb, CdbForm, LogSense, ModeSelect, ModeSense, ReadDefectData, Sanitize, StartStopUnit, Transfer,
    Verification, WriteAtomic, WriteSame, table,
};
use crate::limits::CDB_BYTES_INLINE;

impl Cdb {
    /// The operation code, and the service action where the code has them.
    pub const fn code(&self) -> (u8, Option<u8>) {
        match self {
            Self::TestUnitReady => (0x00, None),
            Self::RequestSense { .. } => (0x03, None),
            Self::Inquiry { .. } => (0x12, None),
            Self::ReportLuns { .. } => (0xa0, None),
            Self::ReadCapacity10 => (0x25, None),
            Self::ReadCapacity16 { .. } => (0x9e, Some(0x10)),
            Self::GetLbaStatus { .. } => (0x9e, Some(0x12)),
            Self::Read(transfer) => (of_form(transfer.blocks.form, [0x08, 0x28, 0xa8, 0x88]), None),
            Self::Write(transfer) => (of_form(transfer.blocks.form, [0x0a, 0x2a, 0xaa, 0x8a]), None),
            Self::Verify(verification) => (of_form(verification.blocks.form, [0x2f, 0x2f, 0xaf, 0x8f]), None),
            Self::WriteAndVerify(verification) => (of_form(verification.blocks.form, [0x2e, 0x2e, 0xae, 0x8e]), None),
            Self::WriteSame(same) => (of_form(same.blocks.form, [0x41, 0x41, 0x93, 0x93]), None),
            Self::CompareAndWrite { .. } => (0x89, None),
            Self::OrWrite(_) => (0x8b, None),
            Self::WriteAtomic(_) => (0x9c, None),
            Self::Unmap { .. } => (0x42, None),
            Self::Sanitize(sanitize) => (0x48, Some(sanitize.service_action)),
            Self::ReadDefectData(defects) => (of_form(defects.form, [0x37, 0x37, 0xb7, 0xb7]), None),
            Self::LogSense(_) => (0x4d, None),
            Self::ExtendedCopy { .. } => (0x83, Some(0x00)),
            Self::ReceiveCopyResults { service_action, .. } => (0x84, Some(*service_action)),
            Self::ReportTargetPortGroups { .. } => (0xa3, Some(0x0a)),
            Self::SynchronizeCache(range) => (of_form(range.blocks.form, [0x35, 0x35, 0x91, 0x91]), None),
            Self::Prefetch(range) => (of_form(range.blocks.form, [0x34, 0x34, 0x90, 0x90]), None),
            Self::ModeSense(sense) => (of_form(sense.form, [0x1a, 0x5a, 0x5a, 0x5a]), None),
            Self::ModeSelect(select) => (of_form(select.form, [0x15, 0x55, 0x55, 0x55]), None),
            Self::StartStopUnit(_) => (0x1b, None),
            Self::PreventAllowMediumRemoval { .. } => (0x1e, None),
            Self::Reserve6 => (0x16, None),
            Self::Release6 => (0x17, None),
            Self::PersistentReserveIn { service_action, .. } => (0x5e, Some(*service_action)),
            Self::PersistentReserveOut { service_action, .. } => (0x5f, Some(*service_action)),
            Self::ReportSupportedOperationCodes { .. } => (0xa3, Some(0x0c)),
            Self::ReportSupportedTaskManagementFunctions { .. } => (0xa3, Some(0x0d)),
            Self::ChangeMarkIn { service_action, .. } => (0xc1, Some(*service_action)),
            Self::ChangeMarkOut { service_action, .. } => (0xc2, Some(*service_action)),
            Self::SharingIn { service_action, .. } => (0xc3, Some(*service_action)),
            Self::SharingOut { service_action, .. } => (0xc4, Some(*service_action)),
        }
    }

    /// The bytes of this command, as long as its operation code says.
    ///
    /// # Panics
    /// When a field's value does not fit its place in the form chosen, or a command does not exist in that form: our
    /// own mistake.
    pub fn emit(&self) -> CdbBytes {
        let raw = self.emit_padded();
        let row = table::find(raw[0], raw[1] & 0x1f).expect("every command has a row");
        CdbBytes::inline(raw, row.cdb_bytes)
    }

    /// The bytes of this command, and zeroes up to the 16 bytes of a CDB field.
    ///
    /// # Panics
    /// As [`emit`](Self::emit).
    pub fn emit_padded(&self) -> [u8; CDB_BYTES_INLINE] {
        let mut raw: Raw = [0; 16];
        let (operation_code, service_action) = self.code();
        raw[0] = operation_code;
        raw[1] = service_action.unwrap_or(0);
        self.emit_fields(&mut raw);
        raw
    }

    fn emit_fields(&self, raw: &mut Raw) {
        match *self {
            Self::TestUnitReady | Self::ReadCapacity10 | Self::Reserve6 | Self::Release6 => {}
            Self::RequestSense { is_descriptor, allocation_length } => {
                raw[1] = flag(is_descriptor, 0x01);
                raw[4] = allocation_length;
            }
            Self::Inquiry { is_vpd, page, allocation_length } => {
                raw[1] = flag(is_vpd, 0x01);
                raw[2] = page;
                put_u16(raw, 3, allocation_length);
            }
            Self::ReportLuns { select_report, allocation_length } => {
                raw[2] = select_report;
                put_u32(raw, 6, allocation_length);
            }
            Self::ReadCapacity16 { allocation_length } => put_u32(raw, 10, allocation_length),
            Self::GetLbaStatus { lba, allocation_length } => {
                raw[2..10].copy_from_slice(&lba.to_be_bytes());
                put_u32(raw, 10, allocation_length);
            }
            Self::Read(transfer) | Self::Write(transfer) => emit_transfer(transfer, raw),
            Self::Verify(verification) | Self::WriteAndVerify(verification) => emit_verification(verification, raw),
            Self::WriteSame(same) => emit_write_same(same, raw),
            Self::CompareAndWrite { lba, block_count, is_dpo, is_fua } => {
                raw[1] = flag(is_dpo, 0x10) | flag(is_fua, 0x08);
                raw[2..10].copy_from_slice(&lba.to_be_bytes());
                raw[13] = block_count;
            }
            Self::OrWrite(transfer) => {
                assert!(transfer.blocks.form == CdbForm::Sixteen, "ORWRITE has sixteen bytes");
                emit_transfer(transfer, raw);
            }
            Self::WriteAtomic(write) => emit_write_atomic(write, raw),
            Self::Sanitize(sanitize) => emit_sanitize(sanitize, raw),
            Self::ReadDefectData(defects) => emit_read_defect_data(defects, raw),
            Self::LogSense(sense) => emit_log_sense(sense, raw),
            Self::ExtendedCopy { parameter_list_length } => put_u32(raw, 10, parameter_list_length),
            Self::ReceiveCopyResults { list_identifier, allocation_length, .. } => {
                raw[2] = list_identifier;
                put_u32(raw, 10, allocation_length);
            }
            Self::ReportTargetPortGroups { is_extended, allocation_length } => {
                raw[1] |= flag(is_extended, 0x20);
                put_u32(raw, 6, allocation_length);
            }
            Self::Unmap { is_anchor, parameter_list_length } => {
                raw[1] = flag(is_anchor, 0x01);
                put_u16(raw, 7, parameter_list_length);
            }
            Self::SynchronizeCache(range) | Self::Prefetch(range) => emit_cache_range(range, raw),
            Self::ModeSense(sense) => emit_mode_sense(sense, raw),
            Self::ModeSelect(select) => emit_mode_select(select, raw),
            Self::StartStopUnit(start_stop) => emit_start_stop(start_stop, raw),
            Self::PreventAllowMediumRemoval { prevent } => raw[4] = prevent & 0x03,
            Self::PersistentReserveIn { allocation_length, .. } => put_u16(raw, 7, allocation_length),
            Self::PersistentReserveOut { scope, kind, parameter_list_length, .. } => {
                raw[2] = scope << 4 | kind & 0x0f;
                put_u32(raw, 5, parameter_list_length);
            }
            Self::ChangeMarkIn { slot, first_range, allocation_length, .. } => {
                put_u16(raw, 2, slot);
                put_u32(raw, 4, first_range);
                put_u24(raw, 8, allocation_length);
            }
            Self::ChangeMarkOut { parameter_list_length, .. } => put_u24(raw, 8, parameter_list_length),
            Self::SharingIn { first: number, allocation_length: length, .. }
            | Self::SharingOut { client: number, parameter_list_length: length, .. } => {
                put_u64(raw, 2, number);
                put_u32(raw, 10, length);
            }
            Self::ReportSupportedOperationCodes {
                has_timeouts,
                reporting_options,
                operation_code,
                service_action,
                allocation_length,
            } => {
                raw[2] = flag(has_timeouts, 0x80) | reporting_options & 0x07;
                raw[3] = operation_code;
                put_u16(raw, 4, service_action);
                put_u32(raw, 6, allocation_length);
            }
            Self::ReportSupportedTaskManagementFunctions { is_extended, allocation_length } => {
                raw[2] = flag(is_extended, 0x80);
                put_u32(raw, 6, allocation_length);
            }
        }
    }
}

/// The operation code for a form. Commands without a six- or twelve-byte form list a neighbour's, and `Blocks::emit`
/// does not fit it.
const fn of_form(form: CdbForm, [six, ten, twelve, sixteen]: [u8; 4]) -> u8 {
    match form {
        CdbForm::Six => six,
        CdbForm::Ten => ten,
        CdbForm::Twelve => twelve,
        CdbForm::Sixteen => sixteen,
    }
}

fn flag(is_set: bool, mask: u8) -> u8 {
    if is_set { mask } else { 0 }
}

fn put_u16(raw: &mut Raw, at: usize, value: u16) {
    raw[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn put_u24(raw: &mut Raw, at: usize, value: u32) {
    assert!(value < 1 << 24, "a length of 24 bits");
    raw[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}

fn put_u64(raw: &mut Raw, at: usize, value: u64) {
    raw[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

fn put_u32(raw: &mut Raw, at: usize, value: u32) {
    raw[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn emit_transfer(transfer: Transfer, raw: &mut Raw) {
    transfer.blocks.emit(raw);
    if transfer.blocks.form != CdbForm::Six {
        raw[1] = flag(transfer.is_dpo, 0x10) | flag(transfer.is_fua, 0x08);
    } else {
        assert!(!transfer.is_dpo && !transfer.is_fua, "six bytes have no place for DPO and FUA");
    }
}

fn emit_verification(verification: Verification, raw: &mut Raw) {
    assert!(verification.blocks.form != CdbForm::Six, "there is no VERIFY(6)");
    assert!(verification.byte_check <= 3, "BYTCHK has two bits");
    verification.blocks.emit(raw);
    raw[1] = flag(verification.is_dpo, 0x10) | verification.byte_check << 1;
}

fn emit_write_same(same: WriteSame, raw: &mut Raw) {
    let form = same.blocks.form;
    assert!(matches!(form, CdbForm::Ten | CdbForm::Sixteen), "WRITE SAME has ten or sixteen bytes");
    assert!(!same.has_no_data_out || form == CdbForm::Sixteen, "NDOB is WRITE SAME(16)'s");
    same.blocks.emit(raw);
    raw[1] = flag(same.is_anchor, 0x10) | flag(same.is_unmap, 0x08) | flag(same.has_no_data_out, 0x01);
}

fn emit_write_atomic(write: WriteAtomic, raw: &mut Raw) {
    raw[1] = flag(write.is_dpo, 0x10) | flag(write.is_fua, 0x08);
    raw[2..10].copy_from_slice(&write.lba.to_be_bytes());
    put_u16(raw, 10, write.boundary);
    put_u16(raw, 12, write.block_count);
}

fn emit_sanitize(sanitize: Sanitize, raw: &mut Raw) {
    raw[1] |= flag(sanitize.is_immediate, 0x80) | flag(sanitize.is_unrestricted_exit, 0x20);
    put_u16(raw, 7, sanitize.parameter_list_length);
}

fn emit_read_defect_data(defects: ReadDefectData, raw: &mut Raw) {
    let flags = flag(defects.is_primary, 0x10) | flag(defects.is_grown, 0x08) | defects.format & 0x07;
    match defects.form {
        CdbForm::Ten => {
            assert!(defects.first_index == 0, "ten bytes have no place for a first index");
            raw[2] = flags;
            put_u16(raw, 7, u16::try_from(defects.allocation_length).expect("a length in ten bytes has sixteen bits"));
        }
        CdbForm::Twelve => {
            raw[1] = flags;
            put_u32(raw, 2, defects.first_index);
            put_u32(raw, 6, defects.allocation_length);
        }
        CdbForm::Six | CdbForm::Sixteen => panic!("READ DEFECT DATA has ten or twelve bytes"),
    }
}

fn emit_log_sense(sense: LogSense, raw: &mut Raw) {
    raw[1] = flag(sense.is_save, 0x01);
    raw[2] = sense.page_control << 6 | sense.page & 0x3f;
    raw[3] = sense.subpage;
    put_u16(raw, 5, sense.first_parameter);
    put_u16(raw, 7, sense.allocation_length);
}

fn emit_cache_range(range: CacheRange, raw: &mut Raw) {
    assert!(matches!(range.blocks.form, CdbForm::Ten | CdbForm::Sixteen), "these have ten or sixteen bytes");
    range.blocks.emit(raw);
    raw[1] = flag(range.is_immediate, 0x02);
}

fn emit_mode_sense(sense: ModeSense, raw: &mut Raw) {
    raw[1] = flag(sense.is_block_descriptor_disabled, 0x08) | flag(sense.is_long_lba_accepted, 0x10);
    raw[2] = sense.page_control << 6 | sense.page & 0x3f;
    raw[3] = sense.subpage;
    emit_mode_length(sense.form, sense.allocation_length, raw);
}

fn emit_mode_select(select: ModeSelect, raw: &mut Raw) {
    raw[1] = flag(select.is_page_format, 0x10) | flag(select.is_save, 0x01);
    emit_mode_length(select.form, select.parameter_list_length, raw);
}

fn emit_mode_length(form: CdbForm, length: u16, raw: &mut Raw) {
    match form {
        CdbForm::Six => raw[4] = u8::try_from(length).expect("a length in six bytes has eight bits"),
        CdbForm::Ten => put_u16(raw, 7, length),
        CdbForm::Twelve | CdbForm::Sixteen => panic!("mode commands have six or ten bytes"),
    }
}

fn emit_start_stop(start_stop: StartStopUnit, raw: &mut Raw) {
    raw[1] = flag(start_stop.is_immediate, 0x01);
    raw[4] = start_stop.power_condition << 4
        | flag(start_stop.is_no_flush, 0x04)
        | flag(start_stop.is_load_eject, 0x02)
        | flag(start_stop.is_start, 0x01);
}
