//! Logout Response (RFC 7143 11.15).

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, InitiatorTaskTag, Opcode, RawBhs, raw_of, write_raw};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LogoutResponseRaw {
    opcode: u8,              //  0  26h
    flags: u8,               //  1  80h
    response: u8,            //  2
    reserved_3: u8,          //  3
    lengths: [u8; 4],        //  4
    reserved_8: [u8; 8],     //  8
    initiator_task_tag: U32, // 16
    reserved_20: [u8; 4],    // 20
    stat_sn: U32,            // 24
    exp_cmd_sn: U32,         // 28
    max_cmd_sn: U32,         // 32
    reserved_36: [u8; 4],    // 36
    time2wait: U16,          // 40
    time2retain: U16,        // 42
    reserved_44: [u8; 4],    // 44
}
const _: () = assert!(size_of::<LogoutResponseRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(LogoutResponseRaw, time2retain) == 42);

code_enum! {
    /// The outcome of a logout (RFC 7143 11.15.1).
    pub enum LogoutOutcome {
        Closed = 0, "connection or session closed successfully";
        CidNotFound = 1, "CID not found";
        RecoveryNotSupported = 2, "connection recovery is not supported";
        CleanupFailed = 3, "cleanup failed";
    }
}

/// Answers a Logout Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutResponse {
    /// The outcome.
    pub outcome: LogoutOutcome,
    /// Copy of the request's tag.
    pub initiator_task_tag: InitiatorTaskTag,
    /// StatSN.
    pub stat_sn: Serial32,
    /// ExpCmdSN.
    pub exp_cmd_sn: Serial32,
    /// MaxCmdSN.
    pub max_cmd_sn: Serial32,
    /// Time2Wait in seconds.
    pub wait_seconds: u16,
    /// Time2Retain in seconds.
    pub retain_seconds: u16,
}

impl Header for LogoutResponse {
    const OPCODE: Opcode = Opcode::LogoutResponse;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &LogoutResponseRaw = raw_of(raw);
        Ok(Self {
            outcome: LogoutOutcome::from_code(raw.response).ok_or(Self::invalid("Response"))?,
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            stat_sn: Serial32(raw.stat_sn.get()),
            exp_cmd_sn: Serial32(raw.exp_cmd_sn.get()),
            max_cmd_sn: Serial32(raw.max_cmd_sn.get()),
            wait_seconds: raw.time2wait.get(),
            retain_seconds: raw.time2retain.get(),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let bytes = LogoutResponseRaw {
            opcode: Self::OPCODE.code(),
            flags: FINAL,
            response: self.outcome.code(),
            reserved_3: 0,
            lengths: [0; 4],
            reserved_8: [0; 8],
            initiator_task_tag: self.initiator_task_tag.get().into(),
            reserved_20: [0; 4],
            stat_sn: self.stat_sn.0.into(),
            exp_cmd_sn: self.exp_cmd_sn.0.into(),
            max_cmd_sn: self.max_cmd_sn.0.into(),
            reserved_36: [0; 4],
            time2wait: self.wait_seconds.into(),
            time2retain: self.retain_seconds.into(),
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
        let response = LogoutResponse {
            outcome: LogoutOutcome::CidNotFound,
            initiator_task_tag: InitiatorTaskTag::new(9).unwrap(),
            stat_sn: Serial32(4),
            exp_cmd_sn: Serial32(5),
            max_cmd_sn: Serial32(6),
            wait_seconds: 2,
            retain_seconds: 20,
        };
        check_golden(
            response,
            "26800100 00000000 0000000000000000 00000009 00000000 00000004 00000005 00000006 00000000 0002 0014 \
             00000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<LogoutResponse>();
    }
}
