//! NOP-Out (RFC 7143 11.18): a ping, the answer to one, or only an ExpStatSN.

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    FINAL, Header, HeaderError, IMMEDIATE, InitiatorTaskTag, Opcode, RawBhs, TargetTransferTag, raw_of, write_raw,
};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NopOutRaw {
    opcode: u8,               //  0  I bit and 00h
    flags: u8,                //  1  80h
    reserved_2: [u8; 2],      //  2
    lengths: [u8; 4],         //  4
    lun: U64,                 //  8
    initiator_task_tag: U32,  // 16  or FFFFFFFFh
    target_transfer_tag: U32, // 20  or FFFFFFFFh
    cmd_sn: U32,              // 24
    exp_stat_sn: U32,         // 28
    reserved_32: [u8; 16],    // 32
}
const _: () = assert!(size_of::<NopOutRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(NopOutRaw, exp_stat_sn) == 28);

/// A ping or its answer from the initiator. Its data segment is ping data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopOut {
    /// Delivered out of the command order (I bit). Always set without an initiator task tag.
    pub is_immediate: bool,
    /// LUN field, copied from the NOP-In that this one answers.
    pub lun: u64,
    /// `Some` asks for an answer.
    pub initiator_task_tag: Option<InitiatorTaskTag>,
    /// `Some` answers a NOP-In.
    pub target_transfer_tag: Option<TargetTransferTag>,
    /// CmdSN.
    pub cmd_sn: Serial32,
    /// ExpStatSN.
    pub exp_stat_sn: Serial32,
}

impl Header for NopOut {
    const OPCODE: Opcode = Opcode::NopOut;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &NopOutRaw = raw_of(raw);
        let is_immediate = raw.opcode & IMMEDIATE != 0;
        let initiator_task_tag = InitiatorTaskTag::new(raw.initiator_task_tag.get());
        // RFC 7143 11.18.1.
        if initiator_task_tag.is_none() && !is_immediate {
            return Err(Self::invalid("I bit"));
        }
        Ok(Self {
            is_immediate,
            lun: raw.lun.get(),
            initiator_task_tag,
            target_transfer_tag: TargetTransferTag::new(raw.target_transfer_tag.get()),
            cmd_sn: Serial32(raw.cmd_sn.get()),
            exp_stat_sn: Serial32(raw.exp_stat_sn.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let bytes = NopOutRaw {
            opcode: Self::OPCODE.code() | if self.is_immediate { IMMEDIATE } else { 0 },
            flags: FINAL,
            reserved_2: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: InitiatorTaskTag::to_wire(self.initiator_task_tag).into(),
            target_transfer_tag: TargetTransferTag::to_wire(self.target_transfer_tag).into(),
            cmd_sn: self.cmd_sn.0.into(),
            exp_stat_sn: self.exp_stat_sn.0.into(),
            reserved_32: [0; 16],
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
        let ping = NopOut {
            is_immediate: true,
            lun: 0,
            initiator_task_tag: InitiatorTaskTag::new(7),
            target_transfer_tag: None,
            cmd_sn: Serial32(4),
            exp_stat_sn: Serial32(5),
        };
        check_golden(
            ping,
            "40800000 00000000 0000000000000000 00000007 ffffffff 00000004 00000005 00000000000000000000000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<NopOut>();
    }

    #[test]
    fn without_a_task_tag_it_must_be_immediate() {
        let mut raw = [0xff; 48];
        raw[0] = 0;
        assert_eq!(NopOut::parse(&raw), Err(NopOut::invalid("I bit")));
    }
}
