//! SCSI Task Management Function Response (RFC 7143 11.6, RFC 7144 4).

use base::serial::Serial32;
use scsi::TaskManagementOutcome;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, InitiatorTaskTag, Opcode, RawBhs, raw_of, write_raw};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TaskManagementResponseRaw {
    opcode: u8,               //  0  22h
    flags: u8,                //  1  80h
    response: u8,             //  2
    reserved_3: u8,           //  3
    lengths: [u8; 4],         //  4
    reserved_8: [u8; 8],      //  8
    initiator_task_tag: U32,  // 16
    additional_response: U32, // 20  three bytes and a reserved one, RFC 7144 4.2
    stat_sn: U32,             // 24
    exp_cmd_sn: U32,          // 28
    max_cmd_sn: U32,          // 32
    reserved_36: [u8; 12],    // 36
}
const _: () = assert!(size_of::<TaskManagementResponseRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(TaskManagementResponseRaw, max_cmd_sn) == 32);

/// Answers a task management request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagementResponse {
    /// The outcome.
    pub outcome: TaskManagementOutcome,
    /// Copy of the request's tag.
    pub initiator_task_tag: InitiatorTaskTag,
    /// StatSN.
    pub stat_sn: Serial32,
    /// ExpCmdSN.
    pub exp_cmd_sn: Serial32,
    /// MaxCmdSN.
    pub max_cmd_sn: Serial32,
}

impl Header for TaskManagementResponse {
    const OPCODE: Opcode = Opcode::TaskManagementResponse;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &TaskManagementResponseRaw = raw_of(raw);
        Ok(Self {
            outcome: TaskManagementOutcome::from_code(raw.response).ok_or(Self::invalid("Response"))?,
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            stat_sn: Serial32(raw.stat_sn.get()),
            exp_cmd_sn: Serial32(raw.exp_cmd_sn.get()),
            max_cmd_sn: Serial32(raw.max_cmd_sn.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let bytes = TaskManagementResponseRaw {
            opcode: Self::OPCODE.code(),
            flags: FINAL,
            response: self.outcome.code(),
            reserved_3: 0,
            lengths: [0; 4],
            reserved_8: [0; 8],
            initiator_task_tag: self.initiator_task_tag.get().into(),
            additional_response: 0.into(),
            stat_sn: self.stat_sn.0.into(),
            exp_cmd_sn: self.exp_cmd_sn.0.into(),
            max_cmd_sn: self.max_cmd_sn.0.into(),
            reserved_36: [0; 12],
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
        let response = TaskManagementResponse {
            outcome: TaskManagementOutcome::FunctionRejected,
            initiator_task_tag: InitiatorTaskTag::new(0x11).unwrap(),
            stat_sn: Serial32(5),
            exp_cmd_sn: Serial32(6),
            max_cmd_sn: Serial32(69),
        };
        check_golden(
            response,
            "2280ff00 00000000 0000000000000000 00000011 00000000 00000005 00000006 00000045 000000000000000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<TaskManagementResponse>();
    }
}
