//! Asynchronous Message (RFC 7143 11.9).

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, Opcode, RESERVED_TAG, RawBhs, raw_of, write_raw};

/// First of the events whose meaning a vendor defines.
const VENDOR_FIRST: u8 = 248;

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AsyncMessageRaw {
    opcode: u8,              //  0  32h
    flags: u8,               //  1  80h
    reserved_2: [u8; 2],     //  2
    lengths: [u8; 4],        //  4
    lun: U64,                //  8
    initiator_task_tag: U32, // 16  FFFFFFFFh
    reserved_20: [u8; 4],    // 20
    stat_sn: U32,            // 24
    exp_cmd_sn: U32,         // 28
    max_cmd_sn: U32,         // 32
    async_event: u8,         // 36
    async_vcode: u8,         // 37
    parameter1: U16,         // 38
    parameter2: U16,         // 40
    parameter3: U16,         // 42
    reserved_44: [u8; 4],    // 44
}
const _: () = assert!(size_of::<AsyncMessageRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(AsyncMessageRaw, parameter3) == 42);

/// The event (RFC 7143 11.9.1). Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// 0: described by the sense data in the data segment.
    ScsiAsyncEvent,
    /// 1: the initiator must log out within this time.
    LogoutRequest {
        /// Parameter3.
        logout_within_seconds: u16,
    },
    /// 2: the target drops a connection.
    ConnectionDrop {
        /// Parameter1: its CID.
        cid: u16,
        /// Parameter2, Time2Wait.
        wait_seconds: u16,
        /// Parameter3, Time2Retain.
        retain_seconds: u16,
    },
    /// 3: the target drops all connections of the session.
    SessionDrop {
        /// Parameter2, Time2Wait.
        wait_seconds: u16,
        /// Parameter3, Time2Retain.
        retain_seconds: u16,
    },
    /// 4: the initiator must begin a text negotiation within this time.
    NegotiationRequest {
        /// Parameter3.
        negotiate_within_seconds: u16,
    },
    /// 5: all tasks of the logical unit are being terminated (FastAbort).
    TaskTermination,
    /// 248 to 255.
    Vendor {
        /// AsyncEvent.
        event: u8,
        /// AsyncVCode.
        code: u8,
        /// Parameter1 to Parameter3.
        parameters: [u16; 3],
    },
}

/// Reports an event to the initiator, unsolicited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncMessage {
    /// The event.
    pub event: AsyncEvent,
    /// LUN field of the logical unit concerned.
    pub lun: u64,
    /// StatSN.
    pub stat_sn: Serial32,
    /// ExpCmdSN.
    pub exp_cmd_sn: Serial32,
    /// MaxCmdSN.
    pub max_cmd_sn: Serial32,
}

impl AsyncEvent {
    fn from_wire(event: u8, code: u8, parameters: [u16; 3]) -> Option<Self> {
        let [first, second, third] = parameters;
        match event {
            0 => Some(Self::ScsiAsyncEvent),
            1 => Some(Self::LogoutRequest { logout_within_seconds: third }),
            2 => Some(Self::ConnectionDrop { cid: first, wait_seconds: second, retain_seconds: third }),
            3 => Some(Self::SessionDrop { wait_seconds: second, retain_seconds: third }),
            4 => Some(Self::NegotiationRequest { negotiate_within_seconds: third }),
            5 => Some(Self::TaskTermination),
            vendor if vendor >= VENDOR_FIRST => Some(Self::Vendor { event, code, parameters }),
            _ => None,
        }
    }

    fn to_wire(self) -> (u8, u8, [u16; 3]) {
        match self {
            Self::ScsiAsyncEvent => (0, 0, [0; 3]),
            Self::LogoutRequest { logout_within_seconds } => (1, 0, [0, 0, logout_within_seconds]),
            Self::ConnectionDrop { cid, wait_seconds, retain_seconds } => (2, 0, [cid, wait_seconds, retain_seconds]),
            Self::SessionDrop { wait_seconds, retain_seconds } => (3, 0, [0, wait_seconds, retain_seconds]),
            Self::NegotiationRequest { negotiate_within_seconds } => (4, 0, [0, 0, negotiate_within_seconds]),
            Self::TaskTermination => (5, 0, [0; 3]),
            Self::Vendor { event, code, parameters } => (event, code, parameters),
        }
    }
}

impl Header for AsyncMessage {
    const OPCODE: Opcode = Opcode::AsyncMessage;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &AsyncMessageRaw = raw_of(raw);
        let parameters = [raw.parameter1.get(), raw.parameter2.get(), raw.parameter3.get()];
        Ok(Self {
            event: AsyncEvent::from_wire(raw.async_event, raw.async_vcode, parameters)
                .ok_or(Self::invalid("AsyncEvent"))?,
            lun: raw.lun.get(),
            stat_sn: Serial32(raw.stat_sn.get()),
            exp_cmd_sn: Serial32(raw.exp_cmd_sn.get()),
            max_cmd_sn: Serial32(raw.max_cmd_sn.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let (async_event, async_vcode, [parameter1, parameter2, parameter3]) = self.event.to_wire();
        let bytes = AsyncMessageRaw {
            opcode: Self::OPCODE.code(),
            flags: FINAL,
            reserved_2: [0; 2],
            lengths: [0; 4],
            lun: self.lun.into(),
            initiator_task_tag: RESERVED_TAG.into(),
            reserved_20: [0; 4],
            stat_sn: self.stat_sn.0.into(),
            exp_cmd_sn: self.exp_cmd_sn.0.into(),
            max_cmd_sn: self.max_cmd_sn.0.into(),
            async_event,
            async_vcode,
            parameter1: parameter1.into(),
            parameter2: parameter2.into(),
            parameter3: parameter3.into(),
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
        let message = AsyncMessage {
            event: AsyncEvent::ConnectionDrop { cid: 1, wait_seconds: 2, retain_seconds: 3 },
            lun: 0,
            stat_sn: Serial32(4),
            exp_cmd_sn: Serial32(5),
            max_cmd_sn: Serial32(6),
        };
        check_golden(
            message,
            "32800000 00000000 0000000000000000 ffffffff 00000000 00000004 00000005 00000006 0200 0001 0002 0003 \
             00000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<AsyncMessage>();
    }
}
