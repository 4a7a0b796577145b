//! SCSI Data-Out (RFC 7143 11.7).

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, InitiatorTaskTag, Opcode, RawBhs, TargetTransferTag, raw_of, write_raw};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DataOutRaw {
    opcode: u8,               //  0  05h
    flags: u8,                //  1  F
    reserved_2: [u8; 2],      //  2
    lengths: [u8; 4],         //  4
    lun: U64,                 //  8
    initiator_task_tag: U32,  // 16
    target_transfer_tag: U32, // 20  or FFFFFFFFh
    reserved_24: [u8; 4],     // 24
    exp_stat_sn: U32,         // 28
    reserved_32: [u8; 4],     // 32
    data_sn: U32,             // 36
    buffer_offset: U32,       // 40
    reserved_44: [u8; 4],     // 44
}
const _: () = assert!(size_of::<DataOutRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(DataOutRaw, buffer_offset) == 40);

/// A piece of the data that a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOut {
    /// Last of the unsolicited data, or of the data of one R2T (F bit).
    pub is_final: bool,
    /// LUN field, copied from the R2T.
    pub lun: u64,
    /// Names the task.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Copied from the R2T; `None` for unsolicited data.
    pub target_transfer_tag: Option<TargetTransferTag>,
    /// ExpStatSN.
    pub exp_stat_sn: Serial32,
    /// Place of this PDU in its sequence, from zero.
    pub data_sn: Serial32,
    /// Offset of these bytes in the whole transfer.
    pub buffer_offset: u32,
}

impl Header for DataOut {
    const OPCODE: Opcode = Opcode::DataOut;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &DataOutRaw = raw_of(raw);
        Ok(Self {
            is_final: raw.flags & FINAL != 0,
            lun: raw.lun.get(),
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            target_transfer_tag: TargetTransferTag::new(raw.target_transfer_tag.get()),
            exp_stat_sn: Serial32(raw.exp_stat_sn.get()),
            data_sn: Serial32(raw.data_sn.get()),
            buffer_offset: raw.buffer_offset.get(),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let bytes = DataOutRaw {
            opcode: Self::OPCODE.code(),
            flags: if self.is_final { FINAL } else { 0 },
            reserved_2: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: self.initiator_task_tag.get().into(),
            target_transfer_tag: TargetTransferTag::to_wire(self.target_transfer_tag).into(),
            reserved_24: [0; 4],
            exp_stat_sn: self.exp_stat_sn.0.into(),
            reserved_32: [0; 4],
            data_sn: self.data_sn.0.into(),
            buffer_offset: self.buffer_offset.into(),
            reserved_44: [0; 4],
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
        let data = DataOut {
            is_final: true,
            lun: 0x0001_0000_0000_0000,
            initiator_task_tag: InitiatorTaskTag::new(0x10).unwrap(),
            target_transfer_tag: TargetTransferTag::new(0x20),
            exp_stat_sn: Serial32(3),
            data_sn: Serial32(4),
            buffer_offset: 0x1_0000,
        };
        check_golden(
            data,
            "05800000 00000000 0001000000000000 00000010 00000020 00000000 00000003 00000000 00000004 00010000 00000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<DataOut>();
    }
}
