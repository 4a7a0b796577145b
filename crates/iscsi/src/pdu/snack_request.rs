//! SNACK Request (RFC 7143 11.16).

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    FINAL, Header, HeaderError, InitiatorTaskTag, Opcode, RESERVED_TAG, RawBhs, TargetTransferTag, raw_of, write_raw,
};

const TYPE_MASK: u8 = 0x0f;

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SnackRequestRaw {
    opcode: u8,              //  0  10h
    kind: u8,                //  1  1 . . . type
    reserved_2: [u8; 2],     //  2
    lengths: [u8; 4],        //  4
    lun: U64,                //  8
    initiator_task_tag: U32, // 16  or FFFFFFFFh
    tag: U32,                // 20  Target Transfer Tag, SNACK Tag or FFFFFFFFh
    reserved_24: [u8; 4],    // 24
    exp_stat_sn: U32,        // 28
    reserved_32: [u8; 8],    // 32
    beg_run: U32,            // 40
    run_length: U32,         // 44
}
const _: () = assert!(size_of::<SnackRequestRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(SnackRequestRaw, run_length) == 44);

/// The request (RFC 7143 11.16.1). A length of zero means everything from the first on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnackType {
    /// 0: requests Data-In or R2T PDUs of a task again.
    DataOrR2t {
        /// The task.
        initiator_task_tag: InitiatorTaskTag,
        /// First DataSN or R2TSN.
        begin: Serial32,
        /// Count of PDUs.
        run_length: u32,
    },
    /// 1: requests responses again.
    Status {
        /// First StatSN.
        begin: Serial32,
        /// Count of PDUs.
        run_length: u32,
    },
    /// 2: acknowledges Data-In PDUs.
    DataAck {
        /// Copied from the Data-In PDU.
        target_transfer_tag: TargetTransferTag,
        /// Next DataSN expected.
        begin: Serial32,
    },
    /// 3: requests all unacknowledged data of a task again, with another segmentation.
    ResegmentedData {
        /// The task.
        initiator_task_tag: InitiatorTaskTag,
        /// Neither zero nor FFFFFFFFh; comes back in the SCSI Response.
        snack_tag: u32,
    },
}

/// Requests PDUs again, or acknowledges them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnackRequest {
    /// The request.
    pub kind: SnackType,
    /// LUN field.
    pub lun: u64,
    /// ExpStatSN.
    pub exp_stat_sn: Serial32,
}

impl Header for SnackRequest {
    const OPCODE: Opcode = Opcode::SnackRequest;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &SnackRequestRaw = raw_of(raw);
        let task = InitiatorTaskTag::new(raw.initiator_task_tag.get()).ok_or(Self::invalid("Initiator Task Tag"));
        let begin = Serial32(raw.beg_run.get());
        let run_length = raw.run_length.get();
        let kind = match raw.kind & TYPE_MASK {
            0 => SnackType::DataOrR2t { initiator_task_tag: task?, begin, run_length },
            1 => SnackType::Status { begin, run_length },
            2 => SnackType::DataAck {
                target_transfer_tag: TargetTransferTag::new(raw.tag.get())
                    .ok_or(Self::invalid("Target Transfer Tag"))?,
                begin,
            },
            3 if raw.tag.get() == 0 || raw.tag.get() == RESERVED_TAG => return Err(Self::invalid("SNACK Tag")),
            3 => SnackType::ResegmentedData { initiator_task_tag: task?, snack_tag: raw.tag.get() },
            _ => return Err(Self::invalid("Type")),
        };
        Ok(Self { kind, lun: raw.lun.get(), exp_stat_sn: Serial32(raw.exp_stat_sn.get()) })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let (kind, task, tag, begin, run_length) = match self.kind {
            SnackType::DataOrR2t { initiator_task_tag, begin, run_length } => {
                (0, initiator_task_tag.get(), RESERVED_TAG, begin, run_length)
            }
            SnackType::Status { begin, run_length } => (1, RESERVED_TAG, RESERVED_TAG, begin, run_length),
            SnackType::DataAck { target_transfer_tag, begin } => (2, RESERVED_TAG, target_transfer_tag.get(), begin, 0),
            SnackType::ResegmentedData { initiator_task_tag, snack_tag } => {
                (3, initiator_task_tag.get(), snack_tag, Serial32(0), 0)
            }
        };
        let bytes = SnackRequestRaw {
            opcode: Self::OPCODE.code(),
            kind: FINAL | kind,
            reserved_2: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: task.into(),
            tag: tag.into(),
            reserved_24: [0; 4],
            exp_stat_sn: self.exp_stat_sn.0.into(),
            reserved_32: [0; 8],
            beg_run: begin.0.into(),
            run_length: run_length.into(),
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
        let kind = SnackType::Status { begin: Serial32(6), run_length: 2 };
        check_golden(
            SnackRequest { kind, lun: 0, exp_stat_sn: Serial32(5) },
            "10810000 00000000 0000000000000000 ffffffff ffffffff 00000000 00000005 0000000000000000 00000006 00000002",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<SnackRequest>();
    }
}
