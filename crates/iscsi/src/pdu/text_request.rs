//! Text Request (RFC 7143 11.10).

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    CONTINUE, FINAL, Header, HeaderError, IMMEDIATE, InitiatorTaskTag, Opcode, RawBhs, TargetTransferTag, raw_of,
    write_raw,
};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TextRequestRaw {
    opcode: u8,               //  0  I bit and 04h
    flags: u8,                //  1  F C
    reserved_2: [u8; 2],      //  2
    lengths: [u8; 4],         //  4
    lun: U64,                 //  8
    initiator_task_tag: U32,  // 16
    target_transfer_tag: U32, // 20  or FFFFFFFFh
    cmd_sn: U32,              // 24
    exp_stat_sn: U32,         // 28
    reserved_32: [u8; 16],    // 32
}
const _: () = assert!(size_of::<TextRequestRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(TextRequestRaw, exp_stat_sn) == 28);

/// Text parameters outside the login phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRequest {
    /// Delivered out of the command order (I bit).
    pub is_immediate: bool,
    /// Last or only request of the exchange (F bit).
    pub is_final: bool,
    /// The text goes on in the next request (C bit).
    pub is_continued: bool,
    /// LUN field, copied from the response that this one continues.
    pub lun: u64,
    /// Names the exchange.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Copied from the response that this one continues; `None` begins anew.
    pub target_transfer_tag: Option<TargetTransferTag>,
    /// CmdSN.
    pub cmd_sn: Serial32,
    /// ExpStatSN.
    pub exp_stat_sn: Serial32,
}

impl Header for TextRequest {
    const OPCODE: Opcode = Opcode::TextRequest;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &TextRequestRaw = raw_of(raw);
        let (is_final, is_continued) = (raw.flags & FINAL != 0, raw.flags & CONTINUE != 0);
        if is_final && is_continued {
            return Err(Self::invalid("F and C bits"));
        }
        Ok(Self {
            is_immediate: raw.opcode & IMMEDIATE != 0,
            is_final,
            is_continued,
            lun: raw.lun.get(),
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            target_transfer_tag: TargetTransferTag::new(raw.target_transfer_tag.get()),
            cmd_sn: Serial32(raw.cmd_sn.get()),
            exp_stat_sn: Serial32(raw.exp_stat_sn.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let bytes = TextRequestRaw {
            opcode: Self::OPCODE.code() | flag(self.is_immediate, IMMEDIATE),
            flags: flag(self.is_final, FINAL) | flag(self.is_continued, CONTINUE),
            reserved_2: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: self.initiator_task_tag.get().into(),
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
        let request = TextRequest {
            is_immediate: false,
            is_final: true,
            is_continued: false,
            lun: 0,
            initiator_task_tag: InitiatorTaskTag::new(8).unwrap(),
            target_transfer_tag: None,
            cmd_sn: Serial32(2),
            exp_stat_sn: Serial32(3),
        };
        check_golden(
            request,
            "04800000 00000000 0000000000000000 00000008 ffffffff 00000002 00000003 00000000000000000000000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<TextRequest>();
    }

    #[test]
    fn a_final_request_with_text_to_come_is_refused() {
        let mut raw = [0; 48];
        raw[..2].copy_from_slice(&[0x04, 0xc0]);
        assert_eq!(TextRequest::parse(&raw), Err(TextRequest::invalid("F and C bits")));
    }
}
