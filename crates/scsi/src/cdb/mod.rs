//! Command descriptor blocks, typed.
//!
//! [`Cdb::parse`] finds the row of the [`table`] for the operation code and service action, checks length and reserved
//! bits against the row's usage map, and hands the bytes to the row's parser. [`Cdb::emit`] is its inverse:
//! `parse(emit(x)) == x`.
//!
//! Fields that every command has are not repeated in every variant: the control byte must be zero (NACA is not
//! supported), GROUP NUMBER is accepted and has no effect, and protection information is not supported, so RDPROTECT,
//! WRPROTECT and VRPROTECT must be zero.

mod bytes;
mod class;
mod data_in;
mod decode;
mod emit;
mod exemption;
mod fua;
mod layout;
mod parse;
pub mod table;

pub use bytes::CdbBytes;
pub use class::{Change, Class, DataOut, ReservedAccess, Traffic};
pub use exemption::Exemption;
pub use layout::{Blocks, CdbForm};

use crate::sense::Sense;

/// A READ or WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which blocks.
    pub blocks: Blocks,
    /// Disable page out: a hint.
    pub is_dpo: bool,
    /// Force unit access.
    pub is_fua: bool,
}

/// A VERIFY or WRITE AND VERIFY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verification {
    /// Which blocks.
    pub blocks: Blocks,
    /// Disable page out: a hint.
    pub is_dpo: bool,
    /// BYTCHK (SBC-3 table 111): 0 checks the medium, 1 compares with the data-out, 3 compares each block with the one
    /// block of data-out.
    pub byte_check: u8,
}

/// A WRITE SAME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteSame {
    /// Which blocks.
    pub blocks: Blocks,
    /// ANCHOR.
    pub is_anchor: bool,
    /// UNMAP: the device may unmap where that gives the same reads.
    pub is_unmap: bool,
    /// NDOB: no data-out, the block is zeroes. WRITE SAME(16) only.
    pub has_no_data_out: bool,
}

/// A SYNCHRONIZE CACHE or PRE-FETCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheRange {
    /// Which blocks; a count of zero means to the end of the device.
    pub blocks: Blocks,
    /// Answer before it is done.
    pub is_immediate: bool,
}

/// A MODE SENSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSense {
    /// Six or ten bytes.
    pub form: CdbForm,
    /// LLBAA: a long LBA block descriptor may be returned. MODE SENSE(10) only.
    pub is_long_lba_accepted: bool,
    /// DBD: no block descriptors.
    pub is_block_descriptor_disabled: bool,
    /// PC: 0 current, 1 changeable, 2 default, 3 saved.
    pub page_control: u8,
    /// Page code.
    pub page: u8,
    /// Subpage code.
    pub subpage: u8,
    /// Bytes of room at the initiator.
    pub allocation_length: u16,
}

/// A MODE SELECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSelect {
    /// Six or ten bytes.
    pub form: CdbForm,
    /// PF: the list has mode pages as the standard lays them out.
    pub is_page_format: bool,
    /// SP: keep them over power loss.
    pub is_save: bool,
    /// Bytes of data-out.
    pub parameter_list_length: u16,
}

/// A START STOP UNIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartStopUnit {
    /// Answer before it is done.
    pub is_immediate: bool,
    /// POWER CONDITION; zero for start, stop, load and eject.
    pub power_condition: u8,
    /// Do not flush first.
    pub is_no_flush: bool,
    /// LOEJ: load or eject rather than start or stop.
    pub is_load_eject: bool,
    /// START.
    pub is_start: bool,
}

/// A SANITIZE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sanitize {
    /// 1 overwrite, 2 block erase, 1Fh exit failure mode.
    pub service_action: u8,
    /// Answer before it is done.
    pub is_immediate: bool,
    /// AUSE: after a failure, EXIT FAILURE MODE is allowed.
    pub is_unrestricted_exit: bool,
    /// Bytes of data-out.
    pub parameter_list_length: u16,
}

/// A READ DEFECT DATA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDefectData {
    /// Ten or twelve bytes.
    pub form: CdbForm,
    /// REQ_PLIST: the primary list is asked for.
    pub is_primary: bool,
    /// REQ_GLIST: the grown list is asked for.
    pub is_grown: bool,
    /// DEFECT LIST FORMAT.
    pub format: u8,
    /// First address descriptor; twelve bytes only.
    pub first_index: u32,
    /// Bytes of room at the initiator.
    pub allocation_length: u32,
}

/// A LOG SENSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSense {
    /// SP: parameters are to be saved.
    pub is_save: bool,
    /// PC: 1 for cumulative values.
    pub page_control: u8,
    /// Page code.
    pub page: u8,
    /// Subpage code.
    pub subpage: u8,
    /// First parameter code.
    pub first_parameter: u16,
    /// Bytes of room at the initiator.
    pub allocation_length: u16,
}

/// A WRITE ATOMIC(16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteAtomic {
    /// First logical block.
    pub lba: u64,
    /// Count of blocks.
    pub block_count: u16,
    /// ATOMIC BOUNDARY: blocks after which the write may be cut into several atomic ones; zero for nowhere.
    pub boundary: u16,
    /// Disable page out: a hint.
    pub is_dpo: bool,
    /// Force unit access.
    pub is_fua: bool,
}

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the standard's own names; fields of more than one command are documented in their structs"
)]
pub enum Cdb {
    TestUnitReady,
    /// `is_descriptor` is DESC: the initiator wants descriptor format.
    RequestSense {
        is_descriptor: bool,
        allocation_length: u8,
    },
    /// `is_vpd` is EVPD; without it, a `page` other than zero is an invalid field.
    Inquiry {
        is_vpd: bool,
        page: u8,
        allocation_length: u16,
    },
    ReportLuns {
        select_report: u8,
        allocation_length: u32,
    },
    ReadCapacity10,
    ReadCapacity16 {
        allocation_length: u32,
    },
    GetLbaStatus {
        lba: u64,
        allocation_length: u32,
    },
    Read(Transfer),
    Write(Transfer),
    Verify(Verification),
    WriteAndVerify(Verification),
    WriteSame(WriteSame),
    /// `block_count` blocks are compared with the first half of the data-out, then overwritten with its second half.
    CompareAndWrite {
        lba: u64,
        block_count: u8,
        is_dpo: bool,
        is_fua: bool,
    },
    /// The blocks become the bitwise OR of what they were and the data-out. Sixteen bytes only.
    OrWrite(Transfer),
    WriteAtomic(WriteAtomic),
    Unmap {
        is_anchor: bool,
        parameter_list_length: u16,
    },
    SynchronizeCache(CacheRange),
    Prefetch(CacheRange),
    ModeSense(ModeSense),
    ModeSelect(ModeSelect),
    StartStopUnit(StartStopUnit),
    PreventAllowMediumRemoval {
        prevent: u8,
    },
    Sanitize(Sanitize),
    ReadDefectData(ReadDefectData),
    LogSense(LogSense),
    /// LID1: the list identifier has one byte.
    ExtendedCopy {
        parameter_list_length: u32,
    },
    ReceiveCopyResults {
        service_action: u8,
        list_identifier: u8,
        allocation_length: u32,
    },
    /// `is_extended` asks for the extended header.
    ReportTargetPortGroups {
        is_extended: bool,
        allocation_length: u32,
    },
    Reserve6,
    Release6,
    PersistentReserveIn {
        service_action: u8,
        allocation_length: u16,
    },
    PersistentReserveOut {
        service_action: u8,
        scope: u8,
        kind: u8,
        parameter_list_length: u32,
    },
    ReportSupportedOperationCodes {
        /// RCTD: with a timeouts descriptor.
        has_timeouts: bool,
        reporting_options: u8,
        operation_code: u8,
        service_action: u16,
        allocation_length: u32,
    },
    /// Forebay's own: what others have changed. 24 bits of allocation length.
    ChangeMarkIn {
        service_action: u8,
        slot: u16,
        first_range: u32,
        allocation_length: u32,
    },
    /// Forebay's own. 24 bits of parameter list length.
    ChangeMarkOut {
        service_action: u8,
        parameter_list_length: u32,
    },
    /// Forebay's own: the clients that share the unit and their locks, from the line `first` on.
    SharingIn {
        service_action: u8,
        first: u64,
        allocation_length: u32,
    },
    /// Forebay's own: a request of a client of a shared unit.
    SharingOut {
        service_action: u8,
        client: u64,
        parameter_list_length: u32,
    },
    /// `is_extended` is REPD: with the extended parameter data.
    ReportSupportedTaskManagementFunctions {
        is_extended: bool,
        allocation_length: u32,
    },
}

/// The reasons why bytes are not one of our commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CdbError {
    /// The operation code is of no command here.
    #[error("operation code {0:02x}h is not supported")]
    UnknownOperationCode(u8),
    /// The command is known, this service action of it is not.
    #[error("service action {service_action:02x}h of operation code {operation_code:02x}h is not supported")]
    UnknownServiceAction {
        /// Byte 0.
        operation_code: u8,
        /// Byte 1, bits 0 to 4.
        service_action: u8,
    },
    /// Fewer bytes than the operation code asks for.
    #[error("the CDB ends early")]
    TooShort,
    /// A bit is set that is reserved or not supported.
    #[error("byte {byte}, bit {bit} of the CDB is reserved or not supported")]
    ReservedBit {
        /// The byte.
        byte: u16,
        /// The bit, 7 the most significant.
        bit: u8,
    },
}

impl CdbError {
    /// The answer of a device server (SPC-4 4.3.1 and annex E).
    pub const fn sense(self) -> Sense {
        match self {
            Self::UnknownOperationCode(_) => Sense::INVALID_OPERATION_CODE.at_byte(0),
            Self::UnknownServiceAction { .. } => Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4),
            Self::TooShort => Sense::INVALID_FIELD_IN_CDB,
            Self::ReservedBit { byte, bit } => Sense::INVALID_FIELD_IN_CDB.at_bit(byte, bit),
        }
    }
}

#[cfg(test)]
mod tests;
