//! SCSI Response (RFC 7143 11.4). Its data segment, when there is one, is a two-byte SenseLength, sense data and
//! response data.

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FINAL, Header, HeaderError, InitiatorTaskTag, Opcode, RawBhs, Residual, raw_of, write_raw};

const BIDIRECTIONAL_OVERFLOW: u8 = 0x10;
const BIDIRECTIONAL_UNDERFLOW: u8 = 0x08;
const OVERFLOW: u8 = 0x04;
const UNDERFLOW: u8 = 0x02;
const VENDOR_FIRST: u8 = 0x80;

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ScsiResponseRaw {
    opcode: u8,                             //  0  21h
    flags: u8,                              //  1  1 . . o u O U .
    response: u8,                           //  2
    status: u8,                             //  3
    lengths: [u8; 4],                       //  4
    reserved: [u8; 8],                      //  8
    initiator_task_tag: U32,                // 16
    snack_tag: U32,                         // 20
    stat_sn: U32,                           // 24
    exp_cmd_sn: U32,                        // 28
    max_cmd_sn: U32,                        // 32
    exp_data_sn: U32,                       // 36
    bidirectional_read_residual_count: U32, // 40
    residual_count: U32,                    // 44
}
const _: () = assert!(size_of::<ScsiResponseRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(ScsiResponseRaw, residual_count) == 44);

/// iSCSI service response (RFC 7143 11.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceResponse {
    /// Command completed at target, with its status.
    CommandCompleted {
        /// SCSI status code.
        status: u8,
    },
    /// Target failure.
    TargetFailure,
    /// A vendor's code, 80h and above.
    Vendor(u8),
}

/// Ends a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiResponse {
    /// Service response and status.
    pub response: ServiceResponse,
    /// Names the task.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Copy of the last SNACK Tag accepted for the task, else zero.
    pub snack_tag: u32,
    /// StatSN.
    pub stat_sn: Serial32,
    /// ExpCmdSN.
    pub exp_cmd_sn: Serial32,
    /// MaxCmdSN.
    pub max_cmd_sn: Serial32,
    /// Count of Data-In (and R2T, for bidirectional commands) PDUs that the target sent for the task.
    pub exp_data_sn: Serial32,
    /// Residual of the read part of a bidirectional command.
    pub bidirectional_read_residual: Residual,
    /// Residual.
    pub residual: Residual,
}

impl Header for ScsiResponse {
    const OPCODE: Opcode = Opcode::ScsiResponse;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &ScsiResponseRaw = raw_of(raw);
        let has = |bit: u8| raw.flags & bit != 0;
        let response = match raw.response {
            0 => ServiceResponse::CommandCompleted { status: raw.status },
            1 => ServiceResponse::TargetFailure,
            vendor if vendor >= VENDOR_FIRST => ServiceResponse::Vendor(vendor),
            _ => return Err(Self::invalid("Response")),
        };
        let residual = Residual::from_wire(has(OVERFLOW), has(UNDERFLOW), raw.residual_count.get());
        let bidirectional_read_residual = Residual::from_wire(
            has(BIDIRECTIONAL_OVERFLOW),
            has(BIDIRECTIONAL_UNDERFLOW),
            raw.bidirectional_read_residual_count.get(),
        );
        Ok(Self {
            response,
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            snack_tag: raw.snack_tag.get(),
            stat_sn: Serial32(raw.stat_sn.get()),
            exp_cmd_sn: Serial32(raw.exp_cmd_sn.get()),
            max_cmd_sn: Serial32(raw.max_cmd_sn.get()),
            exp_data_sn: Serial32(raw.exp_data_sn.get()),
            bidirectional_read_residual: bidirectional_read_residual.ok_or(Self::invalid("o and u bits"))?,
            residual: residual.ok_or(Self::invalid("O and U bits"))?,
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let (response, status) = match self.response {
            ServiceResponse::CommandCompleted { status } => (0, status),
            ServiceResponse::TargetFailure => (1, 0),
            ServiceResponse::Vendor(code) => (code, 0),
        };
        let (flags, residual_count) = self.residual.to_wire(OVERFLOW, UNDERFLOW);
        let (bidirectional_flags, bidirectional_count) =
            self.bidirectional_read_residual.to_wire(BIDIRECTIONAL_OVERFLOW, BIDIRECTIONAL_UNDERFLOW);
        let bytes = ScsiResponseRaw {
            opcode: Self::OPCODE.code(),
            flags: FINAL | flags | bidirectional_flags,
            response,
            status,
            lengths: [0; 4],
            reserved: [0; 8],
            initiator_task_tag: self.initiator_task_tag.get().into(),
            snack_tag: self.snack_tag.into(),
            stat_sn: self.stat_sn.0.into(),
            exp_cmd_sn: self.exp_cmd_sn.0.into(),
            max_cmd_sn: self.max_cmd_sn.0.into(),
            exp_data_sn: self.exp_data_sn.0.into(),
            bidirectional_read_residual_count: bidirectional_count.into(),
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
        let response = ScsiResponse {
            response: ServiceResponse::CommandCompleted { status: 2 },
            initiator_task_tag: InitiatorTaskTag::new(0x1234_5678).unwrap(),
            snack_tag: 0,
            stat_sn: Serial32(9),
            exp_cmd_sn: Serial32(8),
            max_cmd_sn: Serial32(71),
            exp_data_sn: Serial32(1),
            bidirectional_read_residual: Residual::None,
            residual: Residual::Underflow(0x200),
        };
        check_golden(
            response,
            "21820002 00000000 0000000000000000 12345678 00000000 00000009 00000008 00000047 00000001 00000000 00000200",
        );
    }

    #[test]
    fn overflow_and_underflow_exclude_each_other() {
        let mut raw = [0; 48];
        raw[0] = 0x21;
        raw[1] = 0x86;
        assert_eq!(ScsiResponse::parse(&raw), Err(ScsiResponse::invalid("O and U bits")));
    }

    #[test]
    fn round_trips() {
        check_round_trips::<ScsiResponse>();
    }
}
