//! SCSI Task Management Function Request (RFC 7143 11.5, RFC 7144 4).

use base::serial::Serial32;
use scsi::TaskManagementFunction;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, IMMEDIATE, InitiatorTaskTag, Opcode, RawBhs, raw_of, write_raw};

const FUNCTION_MASK: u8 = 0x7f;

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TaskManagementRequestRaw {
    opcode: u8,               //  0  I bit and 02h
    function: u8,             //  1  1 and function
    reserved_2: [u8; 2],      //  2
    lengths: [u8; 4],         //  4
    lun: U64,                 //  8
    initiator_task_tag: U32,  // 16
    referenced_task_tag: U32, // 20  or FFFFFFFFh
    cmd_sn: U32,              // 24
    exp_stat_sn: U32,         // 28
    ref_cmd_sn: U32,          // 32
    exp_data_sn: U32,         // 36
    reserved_40: [u8; 8],     // 40
}
const _: () = assert!(size_of::<TaskManagementRequestRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(TaskManagementRequestRaw, exp_data_sn) == 36);

/// Requests a task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagementRequest {
    /// Delivered out of the command order (I bit).
    pub is_immediate: bool,
    /// The function; `Err` holds an unassigned code, which is answered, not rejected (RFC 7143 11.6.1).
    pub function: Result<TaskManagementFunction, u8>,
    /// LUN field of the logical unit concerned.
    pub lun: u64,
    /// Names this request.
    pub initiator_task_tag: InitiatorTaskTag,
    /// The task concerned, for ABORT TASK, TASK REASSIGN and QUERY TASK.
    pub referenced_task_tag: Option<InitiatorTaskTag>,
    /// CmdSN.
    pub cmd_sn: Serial32,
    /// ExpStatSN.
    pub exp_stat_sn: Serial32,
    /// CmdSN of the task concerned, or of this request when that task was immediate.
    pub ref_cmd_sn: Serial32,
    /// First Data-In PDU not acknowledged, for TASK REASSIGN.
    pub exp_data_sn: Serial32,
}

impl Header for TaskManagementRequest {
    const OPCODE: Opcode = Opcode::TaskManagementRequest;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &TaskManagementRequestRaw = raw_of(raw);
        let function = raw.function & FUNCTION_MASK;
        Ok(Self {
            is_immediate: raw.opcode & IMMEDIATE != 0,
            function: TaskManagementFunction::from_code(function).ok_or(function),
            lun: raw.lun.get(),
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            referenced_task_tag: InitiatorTaskTag::new(raw.referenced_task_tag.get()),
            cmd_sn: Serial32(raw.cmd_sn.get()),
            exp_stat_sn: Serial32(raw.exp_stat_sn.get()),
            ref_cmd_sn: Serial32(raw.ref_cmd_sn.get()),
            exp_data_sn: Serial32(raw.exp_data_sn.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let function = self.function.map_or_else(|code| code & FUNCTION_MASK, TaskManagementFunction::code);
        let bytes = TaskManagementRequestRaw {
            opcode: Self::OPCODE.code() | if self.is_immediate { IMMEDIATE } else { 0 },
            function: FINAL | function,
            reserved_2: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: self.initiator_task_tag.get().into(),
            referenced_task_tag: InitiatorTaskTag::to_wire(self.referenced_task_tag).into(),
            cmd_sn: self.cmd_sn.0.into(),
            exp_stat_sn: self.exp_stat_sn.0.into(),
            ref_cmd_sn: self.ref_cmd_sn.0.into(),
            exp_data_sn: self.exp_data_sn.0.into(),
            reserved_40: [0; 8],
        };
        write_raw(&bytes, raw);
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{check_golden, check_round_trips};
    use super::*;

    #[test]
    fn golden_bytes() {
        let request = TaskManagementRequest {
            is_immediate: true,
            function: Ok(TaskManagementFunction::AbortTask),
            lun: 0x0002_0000_0000_0000,
            initiator_task_tag: InitiatorTaskTag::new(0x11).unwrap(),
            referenced_task_tag: InitiatorTaskTag::new(0x10),
            cmd_sn: Serial32(6),
            exp_stat_sn: Serial32(5),
            ref_cmd_sn: Serial32(4),
            exp_data_sn: Serial32(0),
        };
        check_golden(
            request,
            "42810000 00000000 0002000000000000 00000011 00000010 00000006 00000005 00000004 00000000 0000000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<TaskManagementRequest>();
    }
}
