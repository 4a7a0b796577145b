//! Ready To Transfer, R2T (RFC 7143 11.8).

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, InitiatorTaskTag, Opcode, RawBhs, TargetTransferTag, raw_of, write_raw};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReadyToTransferRaw {
    opcode: u8,                        //  0  31h
    flags: u8,                         //  1  80h
    reserved_2: [u8; 2],               //  2
    lengths: [u8; 4],                  //  4
    lun: U64,                          //  8
    initiator_task_tag: U32,           // 16
    target_transfer_tag: U32,          // 20
    stat_sn: U32,                      // 24
    exp_cmd_sn: U32,                   // 28
    max_cmd_sn: U32,                   // 32
    r2t_sn: U32,                       // 36
    buffer_offset: U32,                // 40
    desired_data_transfer_length: U32, // 44
}
const _: () = assert!(size_of::<ReadyToTransferRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(ReadyToTransferRaw, desired_data_transfer_length) == 44);

/// Requests a piece of the data that a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToTransfer {
    /// LUN field of the command.
    pub lun: u64,
    /// Names the task.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Names this transfer.
    pub target_transfer_tag: TargetTransferTag,
    /// StatSN, not advanced by this PDU.
    pub stat_sn: Serial32,
    /// ExpCmdSN.
    pub exp_cmd_sn: Serial32,
    /// MaxCmdSN.
    pub max_cmd_sn: Serial32,
    /// Place of this R2T in the task, from zero.
    pub r2t_sn: Serial32,
    /// First requested byte, in the whole transfer.
    pub buffer_offset: u32,
    /// Requested bytes; not zero.
    pub desired_data_transfer_length: u32,
}

impl Header for ReadyToTransfer {
    const OPCODE: Opcode = Opcode::ReadyToTransfer;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &ReadyToTransferRaw = raw_of(raw);
        if raw.desired_data_transfer_length.get() == 0 {
            return Err(Self::invalid("Desired Data Transfer Length"));
        }
        Ok(Self {
            lun: raw.lun.get(),
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            target_transfer_tag: TargetTransferTag::new(raw.target_transfer_tag.get())
                .ok_or(Self::invalid("Target Transfer Tag"))?,
            stat_sn: Serial32(raw.stat_sn.get()),
            exp_cmd_sn: Serial32(raw.exp_cmd_sn.get()),
            max_cmd_sn: Serial32(raw.max_cmd_sn.get()),
            r2t_sn: Serial32(raw.r2t_sn.get()),
            buffer_offset: raw.buffer_offset.get(),
            desired_data_transfer_length: raw.desired_data_transfer_length.get(),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let bytes = ReadyToTransferRaw {
            opcode: Self::OPCODE.code(),
            flags: FINAL,
            reserved_2: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: self.initiator_task_tag.get().into(),
            target_transfer_tag: self.target_transfer_tag.get().into(),
            stat_sn: self.stat_sn.0.into(),
            exp_cmd_sn: self.exp_cmd_sn.0.into(),
            max_cmd_sn: self.max_cmd_sn.0.into(),
            r2t_sn: self.r2t_sn.0.into(),
            buffer_offset: self.buffer_offset.into(),
            desired_data_transfer_length: self.desired_data_transfer_length.into(),
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
        let r2t = ReadyToTransfer {
            lun: 0x0001_0000_0000_0000,
            initiator_task_tag: InitiatorTaskTag::new(0x10).unwrap(),
            target_transfer_tag: TargetTransferTag::new(0x20).unwrap(),
            stat_sn: Serial32(3),
            exp_cmd_sn: Serial32(4),
            max_cmd_sn: Serial32(5),
            r2t_sn: Serial32(6),
            buffer_offset: 0x1_0000,
            desired_data_transfer_length: 0x4_0000,
        };
        check_golden(
            r2t,
            "31800000 00000000 0001000000000000 00000010 00000020 00000003 00000004 00000005 00000006 00010000 00040000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<ReadyToTransfer>();
    }
}
