//! NOP-In (RFC 7143 11.19): the answer to a ping, a ping, or only current numbers.

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, InitiatorTaskTag, Opcode, RawBhs, TargetTransferTag, raw_of, write_raw};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NopInRaw {
    opcode: u8,               //  0  20h
    flags: u8,                //  1  80h
    reserved_2: [u8; 2],      //  2
    lengths: [u8; 4],         //  4
    lun: U64,                 //  8
    initiator_task_tag: U32,  // 16  or FFFFFFFFh
    target_transfer_tag: U32, // 20  or FFFFFFFFh
    stat_sn: U32,             // 24
    exp_cmd_sn: U32,          // 28
    max_cmd_sn: U32,          // 32
    reserved_36: [u8; 12],    // 36
}
const _: () = assert!(size_of::<NopInRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(NopInRaw, max_cmd_sn) == 32);

/// A ping or its answer from the target. Its data segment is the returned ping data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopIn {
    /// LUN field, with the target transfer tag.
    pub lun: u64,
    /// `Some` answers a NOP-Out.
    pub initiator_task_tag: Option<InitiatorTaskTag>,
    /// `Some` asks for an answer.
    pub target_transfer_tag: Option<TargetTransferTag>,
    /// StatSN, advanced only by an answer.
    pub stat_sn: Serial32,
    /// ExpCmdSN.
    pub exp_cmd_sn: Serial32,
    /// MaxCmdSN.
    pub max_cmd_sn: Serial32,
}

impl Header for NopIn {
    const OPCODE: Opcode = Opcode::NopIn;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &NopInRaw = raw_of(raw);
        Ok(Self {
            lun: raw.lun.get(),
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get()),
            target_transfer_tag: TargetTransferTag::new(raw.target_transfer_tag.get()),
            stat_sn: Serial32(raw.stat_sn.get()),
            exp_cmd_sn: Serial32(raw.exp_cmd_sn.get()),
            max_cmd_sn: Serial32(raw.max_cmd_sn.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let bytes = NopInRaw {
            opcode: Self::OPCODE.code(),
            flags: FINAL,
            reserved_2: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: InitiatorTaskTag::to_wire(self.initiator_task_tag).into(),
            target_transfer_tag: TargetTransferTag::to_wire(self.target_transfer_tag).into(),
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
        let ping = NopIn {
            lun: 0,
            initiator_task_tag: None,
            target_transfer_tag: TargetTransferTag::new(7),
            stat_sn: Serial32(4),
            exp_cmd_sn: Serial32(5),
            max_cmd_sn: Serial32(6),
        };
        check_golden(
            ping,
            "20800000 00000000 0000000000000000 ffffffff 00000007 00000004 00000005 00000006 000000000000000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<NopIn>();
    }
}
