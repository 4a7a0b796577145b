//! SCSI Command (RFC 7143 11.3).

use base::serial::Serial32;
use scsi::TaskAttribute;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, IMMEDIATE, InitiatorTaskTag, Opcode, RawBhs, raw_of, write_raw};

const READ: u8 = 0x40;
const WRITE: u8 = 0x20;
const ATTRIBUTE_MASK: u8 = 0x07;

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ScsiCommandRaw {
    opcode: u8,                         //  0  I bit and 01h
    flags: u8,                          //  1  F R W . . ATTR
    reserved: [u8; 2],                  //  2
    lengths: [u8; 4],                   //  4
    lun: U64,                           //  8
    initiator_task_tag: U32,            // 16
    expected_data_transfer_length: U32, // 20
    cmd_sn: U32,                        // 24
    exp_stat_sn: U32,                   // 28
    cdb: [u8; 16],                      // 32
}
const _: () = assert!(size_of::<ScsiCommandRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(ScsiCommandRaw, cdb) == 32);

/// Carries a CDB, and immediate data where that was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiCommand {
    /// Delivered out of the command order (I bit).
    pub is_immediate: bool,
    /// No unsolicited Data-Out PDUs follow (F bit).
    pub is_final: bool,
    /// The command expects to receive data (R bit).
    pub reads: bool,
    /// The command expects to send data (W bit).
    pub writes: bool,
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// LUN field, its eight bytes as one big-endian number.
    pub lun: u64,
    /// Names the task.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Bytes to be written, or for a command that only reads, to be read.
    pub expected_data_transfer_length: u32,
    /// CmdSN.
    pub cmd_sn: Serial32,
    /// ExpStatSN.
    pub exp_stat_sn: Serial32,
    /// The CDB's first 16 bytes, zero after its end.
    pub cdb: [u8; 16],
}

impl Header for ScsiCommand {
    const OPCODE: Opcode = Opcode::ScsiCommand;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &ScsiCommandRaw = raw_of(raw);
        Ok(Self {
            is_immediate: raw.opcode & IMMEDIATE != 0,
            is_final: raw.flags & FINAL != 0,
            reads: raw.flags & READ != 0,
            writes: raw.flags & WRITE != 0,
            attribute: TaskAttribute::from_code(raw.flags & ATTRIBUTE_MASK).ok_or(Self::invalid("ATTR"))?,
            lun: raw.lun.get(),
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            expected_data_transfer_length: raw.expected_data_transfer_length.get(),
            cmd_sn: Serial32(raw.cmd_sn.get()),
            exp_stat_sn: Serial32(raw.exp_stat_sn.get()),
            cdb: raw.cdb,
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let bytes = ScsiCommandRaw {
            opcode: flag(self.is_immediate, IMMEDIATE) | Self::OPCODE.code(),
            flags: flag(self.is_final, FINAL)
                | flag(self.reads, READ)
                | flag(self.writes, WRITE)
                | self.attribute.code(),
            reserved: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: self.initiator_task_tag.get().into(),
            expected_data_transfer_length: self.expected_data_transfer_length.into(),
            cmd_sn: self.cmd_sn.0.into(),
            exp_stat_sn: self.exp_stat_sn.0.into(),
            cdb: self.cdb,
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
        let mut cdb = [0; 16];
        cdb[..10].copy_from_slice(&[0x2a, 0, 0, 0, 0x10, 0, 0, 0, 8, 0]);
        let command = ScsiCommand {
            is_immediate: false,
            is_final: true,
            reads: false,
            writes: true,
            attribute: TaskAttribute::Simple,
            lun: 0x0001_0000_0000_0000,
            initiator_task_tag: InitiatorTaskTag::new(0x1234_5678).unwrap(),
            expected_data_transfer_length: 4096,
            cmd_sn: Serial32(7),
            exp_stat_sn: Serial32(9),
            cdb,
        };
        check_golden(
            command,
            "01a10000 00000000 0001000000000000 12345678 00001000 00000007 00000009
             2a000000100000000800 000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<ScsiCommand>();
    }
}
