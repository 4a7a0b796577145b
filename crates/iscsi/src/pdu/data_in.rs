//! SCSI Data-In (RFC 7143 11.7).

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    FINAL, Header, HeaderError, InitiatorTaskTag, Opcode, RawBhs, Residual, TargetTransferTag, raw_of, write_raw,
};

const ACKNOWLEDGE: u8 = 0x40;
const OVERFLOW: u8 = 0x04;
const UNDERFLOW: u8 = 0x02;
const STATUS: u8 = 0x01;

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DataInRaw {
    opcode: u8,               //  0  25h
    flags: u8,                //  1  F A 0 0 0 O U S
    reserved_2: u8,           //  2
    status: u8,               //  3  with S
    lengths: [u8; 4],         //  4
    lun: U64,                 //  8
    initiator_task_tag: U32,  // 16
    target_transfer_tag: U32, // 20  or FFFFFFFFh
    stat_sn: U32,             // 24  with S
    exp_cmd_sn: U32,          // 28
    max_cmd_sn: U32,          // 32
    data_sn: U32,             // 36
    buffer_offset: U32,       // 40
    residual_count: U32,      // 44  with S
}
const _: () = assert!(size_of::<DataInRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(DataInRaw, residual_count) == 44);

/// The end of a task, sent with its last data (S bit).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataInStatus {
    /// SCSI status code, one without sense data.
    pub status: u8,
    /// StatSN.
    pub stat_sn: Serial32,
    /// Residual.
    pub residual: Residual,
}

/// A piece of the data that a command reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// Last of a sequence (F bit).
    pub is_final: bool,
    /// Whether the initiator is asked to acknowledge the data so far (A bit).
    pub wants_acknowledgement: bool,
    /// The command's status, on its last PDU if at all; only with `is_final`.
    pub status: Option<DataInStatus>,
    /// LUN field, with the A bit.
    pub lun: u64,
    /// Names the task.
    pub initiator_task_tag: InitiatorTaskTag,
    /// With the A bit, names the data to acknowledge.
    pub target_transfer_tag: Option<TargetTransferTag>,
    /// ExpCmdSN.
    pub exp_cmd_sn: Serial32,
    /// MaxCmdSN.
    pub max_cmd_sn: Serial32,
    /// Place of this PDU in the task, from zero.
    pub data_sn: Serial32,
    /// Offset of these bytes in the whole transfer.
    pub buffer_offset: u32,
}

impl Header for DataIn {
    const OPCODE: Opcode = Opcode::DataIn;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &DataInRaw = raw_of(raw);
        let has = |bit: u8| raw.flags & bit != 0;
        let status = if has(STATUS) {
            let residual = Residual::from_wire(has(OVERFLOW), has(UNDERFLOW), raw.residual_count.get());
            Some(DataInStatus {
                status: raw.status,
                stat_sn: Serial32(raw.stat_sn.get()),
                residual: residual.ok_or(Self::invalid("O and U bits"))?,
            })
        } else {
            None
        };
        if status.is_some() && !has(FINAL) {
            return Err(Self::invalid("S bit without the F bit"));
        }
        Ok(Self {
            is_final: has(FINAL),
            wants_acknowledgement: has(ACKNOWLEDGE),
            status,
            lun: raw.lun.get(),
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            target_transfer_tag: TargetTransferTag::new(raw.target_transfer_tag.get()),
            exp_cmd_sn: Serial32(raw.exp_cmd_sn.get()),
            max_cmd_sn: Serial32(raw.max_cmd_sn.get()),
            data_sn: Serial32(raw.data_sn.get()),
            buffer_offset: raw.buffer_offset.get(),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let (residual_flags, residual_count) =
            self.status.map_or((0, 0), |status| status.residual.to_wire(OVERFLOW, UNDERFLOW));
        let bytes = DataInRaw {
            opcode: Self::OPCODE.code(),
            flags: flag(self.is_final, FINAL)
                | flag(self.wants_acknowledgement, ACKNOWLEDGE)
                | flag(self.status.is_some(), STATUS)
                | residual_flags,
            reserved_2: 0,
            status: self.status.map_or(0, |status| status.status),
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: self.initiator_task_tag.get().into(),
            target_transfer_tag: TargetTransferTag::to_wire(self.target_transfer_tag).into(),
            stat_sn: self.status.map_or(0, |status| status.stat_sn.0).into(),
            exp_cmd_sn: self.exp_cmd_sn.0.into(),
            max_cmd_sn: self.max_cmd_sn.0.into(),
            data_sn: self.data_sn.0.into(),
            buffer_offset: self.buffer_offset.into(),
            residual_count: residual_count.into(),
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
        let data = DataIn {
            is_final: true,
            wants_acknowledgement: false,
            status: Some(DataInStatus { status: 0, stat_sn: Serial32(3), residual: Residual::Overflow(0x40) }),
            lun: 0,
            initiator_task_tag: InitiatorTaskTag::new(0x10).unwrap(),
            target_transfer_tag: None,
            exp_cmd_sn: Serial32(4),
            max_cmd_sn: Serial32(5),
            data_sn: Serial32(6),
            buffer_offset: 0x2000,
        };
        check_golden(
            data,
            "25850000 00000000 0000000000000000 00000010 ffffffff 00000003 00000004 00000005 00000006 00002000 00000040",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<DataIn>();
    }

    #[test]
    fn status_needs_the_final_bit() {
        let mut raw = [0; 48];
        raw[..2].copy_from_slice(&[0x25, 0x01]);
        assert_eq!(DataIn::parse(&raw), Err(DataIn::invalid("S bit without the F bit")));
    }
}
