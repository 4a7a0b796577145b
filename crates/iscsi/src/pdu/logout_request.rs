//! Logout Request (RFC 7143 11.14).

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, IMMEDIATE, InitiatorTaskTag, Opcode, RawBhs, raw_of, write_raw};

const REASON_MASK: u8 = 0x7f;

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LogoutRequestRaw {
    opcode: u8,              //  0  I bit and 06h
    reason: u8,              //  1  1 and reason
    reserved_2: [u8; 2],     //  2
    lengths: [u8; 4],        //  4
    reserved_8: [u8; 8],     //  8
    initiator_task_tag: U32, // 16
    cid: U16,                // 20
    reserved_22: [u8; 2],    // 22
    cmd_sn: U32,             // 24
    exp_stat_sn: U32,        // 28
    reserved_32: [u8; 16],   // 32
}
const _: () = assert!(size_of::<LogoutRequestRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(LogoutRequestRaw, exp_stat_sn) == 28);

code_enum! {
    /// Why the initiator logs out (RFC 7143 11.14.1).
    pub enum LogoutReason {
        CloseSession = 0, "close the session";
        CloseConnection = 1, "close the connection";
        RemoveForRecovery = 2, "remove the connection for recovery";
    }
}

/// Asks for an orderly end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutRequest {
    /// Delivered out of the command order (I bit).
    pub is_immediate: bool,
    /// What is logged out, and why.
    pub reason: LogoutReason,
    /// Names this request.
    pub initiator_task_tag: InitiatorTaskTag,
    /// The connection to be closed; no meaning for a session logout.
    pub cid: u16,
    /// CmdSN.
    pub cmd_sn: Serial32,
    /// ExpStatSN.
    pub exp_stat_sn: Serial32,
}

impl Header for LogoutRequest {
    const OPCODE: Opcode = Opcode::LogoutRequest;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &LogoutRequestRaw = raw_of(raw);
        Ok(Self {
            is_immediate: raw.opcode & IMMEDIATE != 0,
            reason: LogoutReason::from_code(raw.reason & REASON_MASK).ok_or(Self::invalid("Reason Code"))?,
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            cid: raw.cid.get(),
            cmd_sn: Serial32(raw.cmd_sn.get()),
            exp_stat_sn: Serial32(raw.exp_stat_sn.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let bytes = LogoutRequestRaw {
            opcode: Self::OPCODE.code() | if self.is_immediate { IMMEDIATE } else { 0 },
            reason: FINAL | self.reason.code(),
            reserved_2: [0; 2],
            lengths: [0; 4],
            reserved_8: [0; 8],
            initiator_task_tag: self.initiator_task_tag.get().into(),
            cid: self.cid.into(),
            reserved_22: [0; 2],
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
        let request = LogoutRequest {
            is_immediate: true,
            reason: LogoutReason::CloseConnection,
            initiator_task_tag: InitiatorTaskTag::new(9).unwrap(),
            cid: 3,
            cmd_sn: Serial32(4),
            exp_stat_sn: Serial32(5),
        };
        check_golden(
            request,
            "46810000 00000000 0000000000000000 00000009 00030000 00000004 00000005 00000000000000000000000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<LogoutRequest>();
    }
}
