//! Text Response (RFC 7143 11.11).

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    CONTINUE, FINAL, Header, HeaderError, InitiatorTaskTag, Opcode, RawBhs, TargetTransferTag, raw_of, write_raw,
};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TextResponseRaw {
    opcode: u8,               //  0  24h
    flags: u8,                //  1  F C
    reserved_2: [u8; 2],      //  2
    lengths: [u8; 4],         //  4
    lun: U64,                 //  8
    initiator_task_tag: U32,  // 16
    target_transfer_tag: U32, // 20  or FFFFFFFFh
    stat_sn: U32,             // 24
    exp_cmd_sn: U32,          // 28
    max_cmd_sn: U32,          // 32
    reserved_36: [u8; 12],    // 36
}
const _: () = assert!(size_of::<TextResponseRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(TextResponseRaw, max_cmd_sn) == 32);

/// Answers a Text Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextResponse {
    /// The text goes on in the next response (C bit).
    pub is_continued: bool,
    /// `None` ends the exchange (F bit); else the target has more, and the next request must carry this tag.
    pub target_transfer_tag: Option<TargetTransferTag>,
    /// LUN field that goes with the tag.
    pub lun: u64,
    /// Copy of the request's tag.
    pub initiator_task_tag: InitiatorTaskTag,
    /// StatSN.
    pub stat_sn: Serial32,
    /// ExpCmdSN.
    pub exp_cmd_sn: Serial32,
    /// MaxCmdSN.
    pub max_cmd_sn: Serial32,
}

impl Header for TextResponse {
    const OPCODE: Opcode = Opcode::TextResponse;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &TextResponseRaw = raw_of(raw);
        let (is_final, is_continued) = (raw.flags & FINAL != 0, raw.flags & CONTINUE != 0);
        if is_final && is_continued {
            return Err(Self::invalid("F and C bits"));
        }
        // With the F bit the initiator must ignore the tag (RFC 7143 11.10.4).
        let target_transfer_tag = if is_final { None } else { TargetTransferTag::new(raw.target_transfer_tag.get()) };
        if !is_final && target_transfer_tag.is_none() {
            return Err(Self::invalid("Target Transfer Tag"));
        }
        Ok(Self {
            is_continued,
            target_transfer_tag,
            lun: raw.lun.get(),
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            stat_sn: Serial32(raw.stat_sn.get()),
            exp_cmd_sn: Serial32(raw.exp_cmd_sn.get()),
            max_cmd_sn: Serial32(raw.max_cmd_sn.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let bytes = TextResponseRaw {
            opcode: Self::OPCODE.code(),
            flags: flag(self.target_transfer_tag.is_none(), FINAL) | flag(self.is_continued, CONTINUE),
            reserved_2: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: self.initiator_task_tag.get().into(),
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
        let response = TextResponse {
            is_continued: true,
            target_transfer_tag: TargetTransferTag::new(0x77),
            lun: 0,
            initiator_task_tag: InitiatorTaskTag::new(8).unwrap(),
            stat_sn: Serial32(3),
            exp_cmd_sn: Serial32(4),
            max_cmd_sn: Serial32(5),
        };
        check_golden(
            response,
            "24400000 00000000 0000000000000000 00000008 00000077 00000003 00000004 00000005 000000000000000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<TextResponse>();
    }
}
