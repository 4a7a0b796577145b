//! Reject (RFC 7143 11.17). Its data segment is the 48-byte header of the rejected PDU.

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, Opcode, RESERVED_TAG, RawBhs, raw_of, write_raw};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RejectRaw {
    opcode: u8,              //  0  3Fh
    flags: u8,               //  1  80h
    reason: u8,              //  2
    reserved_3: u8,          //  3
    lengths: [u8; 4],        //  4
    reserved_8: [u8; 8],     //  8
    initiator_task_tag: U32, // 16  FFFFFFFFh
    reserved_20: [u8; 4],    // 20
    stat_sn: U32,            // 24
    exp_cmd_sn: U32,         // 28
    max_cmd_sn: U32,         // 32
    data_sn: U32,            // 36
    reserved_40: [u8; 8],    // 40
}
const _: () = assert!(size_of::<RejectRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(RejectRaw, data_sn) == 36);

code_enum! {
    /// Why a PDU is rejected (RFC 7143 11.17.1).
    pub enum RejectReason {
        DataDigestError = 0x02, "Data (payload) digest error";
        SnackReject = 0x03, "SNACK Reject";
        ProtocolError = 0x04, "Protocol Error";
        CommandNotSupported = 0x05, "Command not supported";
        TooManyImmediateCommands = 0x06, "Immediate command reject - too many immediate commands";
        TaskInProgress = 0x07, "Task in progress";
        InvalidDataAck = 0x08, "Invalid data ack";
        InvalidPduField = 0x09, "Invalid PDU field";
        LongOperationReject = 0x0a, "Long op reject - Can't generate Target Transfer Tag - out of resources";
        NegotiationReset = 0x0b, "Negotiation Reset (deprecated)";
        WaitingForLogout = 0x0c, "Waiting for Logout";
    }
}

/// Refuses a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The reason.
    pub reason: RejectReason,
    /// StatSN.
    pub stat_sn: Serial32,
    /// ExpCmdSN.
    pub exp_cmd_sn: Serial32,
    /// MaxCmdSN.
    pub max_cmd_sn: Serial32,
    /// Next DataSN or R2TSN of the task, when a data SNACK is rejected as a protocol error.
    pub data_sn: Serial32,
}

impl Header for Reject {
    const OPCODE: Opcode = Opcode::Reject;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &RejectRaw = raw_of(raw);
        Ok(Self {
            reason: RejectReason::from_code(raw.reason).ok_or(Self::invalid("Reason"))?,
            stat_sn: Serial32(raw.stat_sn.get()),
            exp_cmd_sn: Serial32(raw.exp_cmd_sn.get()),
            max_cmd_sn: Serial32(raw.max_cmd_sn.get()),
            data_sn: Serial32(raw.data_sn.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let bytes = RejectRaw {
            opcode: Self::OPCODE.code(),
            flags: FINAL,
            reason: self.reason.code(),
            reserved_3: 0,
            lengths: [0; 4],
            reserved_8: [0; 8],
            initiator_task_tag: RESERVED_TAG.into(),
            reserved_20: [0; 4],
            stat_sn: self.stat_sn.0.into(),
            exp_cmd_sn: self.exp_cmd_sn.0.into(),
            max_cmd_sn: self.max_cmd_sn.0.into(),
            data_sn: self.data_sn.0.into(),
            reserved_40: [0; 8],
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
        let reject = Reject {
            reason: RejectReason::InvalidPduField,
            stat_sn: Serial32(4),
            exp_cmd_sn: Serial32(5),
            max_cmd_sn: Serial32(6),
            data_sn: Serial32(0),
        };
        check_golden(
            reject,
            "3f800900 00000000 0000000000000000 ffffffff 00000000 00000004 00000005 00000006 00000000 0000000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<Reject>();
    }
}
