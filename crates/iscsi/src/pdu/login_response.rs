//! Login Response (RFC 7143 11.13).

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CONTINUE, Header, HeaderError, InitiatorTaskTag, Isid, LoginStage, Opcode, RawBhs, raw_of, write_raw};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LoginResponseRaw {
    opcode: u8,              //  0  23h
    flags: u8,               //  1  T C . . CSG NSG
    version_max: u8,         //  2
    version_active: u8,      //  3
    lengths: [u8; 4],        //  4
    isid: [u8; 6],           //  8
    tsih: U16,               // 14
    initiator_task_tag: U32, // 16
    reserved_20: [u8; 4],    // 20
    stat_sn: U32,            // 24
    exp_cmd_sn: U32,         // 28
    max_cmd_sn: U32,         // 32
    status: U16,             // 36  Status-Class and Status-Detail
    reserved_38: [u8; 10],   // 38
}
const _: () = assert!(size_of::<LoginResponseRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(LoginResponseRaw, status) == 36);

/// Status-Class (high byte) and Status-Detail (low byte) of a login (RFC 7143 11.13.5). A peer may
/// use details that this standard does not define; the class then decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoginStatus(pub u16);

macro_rules! login_statuses {
    ($($constant:ident = $code:literal, $text:literal;)+) => {
        impl LoginStatus {
            $(#[doc = $text] pub const $constant: Self = Self($code);)+

            /// The standard's name, or that of the class for details that the standard does not
            /// define.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($code => $text,)+
                    _ => match self.class() {
                        0 => "Success",
                        1 => "Redirection",
                        2 => "Initiator error",
                        3 => "Target error",
                        _ => "Reserved",
                    },
                }
            }
        }
    };
}

login_statuses! {
    SUCCESS = 0x0000, "Success";
    TARGET_MOVED_TEMPORARILY = 0x0101, "Target moved temporarily";
    TARGET_MOVED_PERMANENTLY = 0x0102, "Target moved permanently";
    INITIATOR_ERROR = 0x0200, "Initiator error";
    AUTHENTICATION_FAILURE = 0x0201, "Authentication failure";
    AUTHORIZATION_FAILURE = 0x0202, "Authorization failure";
    NOT_FOUND = 0x0203, "Not found";
    TARGET_REMOVED = 0x0204, "Target removed";
    UNSUPPORTED_VERSION = 0x0205, "Unsupported version";
    TOO_MANY_CONNECTIONS = 0x0206, "Too many connections";
    MISSING_PARAMETER = 0x0207, "Missing parameter";
    CANNOT_INCLUDE_IN_SESSION = 0x0208, "Can't include in session";
    SESSION_TYPE_NOT_SUPPORTED = 0x0209, "Session type not supported";
    SESSION_DOES_NOT_EXIST = 0x020a, "Session does not exist";
    INVALID_DURING_LOGIN = 0x020b, "Invalid during login";
    TARGET_ERROR = 0x0300, "Target error";
    SERVICE_UNAVAILABLE = 0x0301, "Service unavailable";
    OUT_OF_RESOURCES = 0x0302, "Out of resources";
}

impl LoginStatus {
    /// Status-Class.
    pub const fn class(self) -> u8 {
        (self.0 >> 8) as u8
    }

    /// Status-Detail.
    pub const fn detail(self) -> u8 {
        self.0 as u8
    }

    /// Whether the login goes on.
    pub const fn is_success(self) -> bool {
        self.class() == 0
    }

    /// Whether the target redirects to another address.
    pub const fn is_redirection(self) -> bool {
        self.class() == 1
    }
}

impl std::fmt::Display for LoginStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({:04x}h)", self.name(), self.0)
    }
}

/// Answers a Login Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginResponse {
    /// The text goes on in the next response (C bit).
    pub is_continued: bool,
    /// Stage this response belongs to (CSG).
    pub current_stage: LoginStage,
    /// The stage that both enter with this response (T bit and NSG).
    pub transit_to: Option<LoginStage>,
    /// Version-max.
    pub version_max: u8,
    /// Version-active.
    pub version_active: u8,
    /// Copy of the request's ISID.
    pub isid: Isid,
    /// The session's handle, in the final response of a new session; else as in the request.
    pub tsih: u16,
    /// Copy of the request's tag.
    pub initiator_task_tag: InitiatorTaskTag,
    /// StatSN.
    pub stat_sn: Serial32,
    /// ExpCmdSN.
    pub exp_cmd_sn: Serial32,
    /// MaxCmdSN.
    pub max_cmd_sn: Serial32,
    /// The status of the login.
    pub status: LoginStatus,
}

impl Header for LoginResponse {
    const OPCODE: Opcode = Opcode::LoginResponse;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &LoginResponseRaw = raw_of(raw);
        let (current_stage, transit_to) = LoginStage::pair_from_flags(raw.flags).ok_or(Self::invalid("CSG or NSG"))?;
        let is_continued = raw.flags & CONTINUE != 0;
        if is_continued && transit_to.is_some() {
            return Err(Self::invalid("T and C bits"));
        }
        Ok(Self {
            is_continued,
            current_stage,
            transit_to,
            version_max: raw.version_max,
            version_active: raw.version_active,
            isid: Isid(raw.isid),
            tsih: raw.tsih.get(),
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            stat_sn: Serial32(raw.stat_sn.get()),
            exp_cmd_sn: Serial32(raw.exp_cmd_sn.get()),
            max_cmd_sn: Serial32(raw.max_cmd_sn.get()),
            status: LoginStatus(raw.status.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let bytes = LoginResponseRaw {
            opcode: Self::OPCODE.code(),
            flags: LoginStage::pair_to_flags(self.current_stage, self.transit_to)
                | if self.is_continued { CONTINUE } else { 0 },
            version_max: self.version_max,
            version_active: self.version_active,
            lengths: [0; 4],
            isid: self.isid.0,
            tsih: self.tsih.into(),
            initiator_task_tag: self.initiator_task_tag.get().into(),
            reserved_20: [0; 4],
            stat_sn: self.stat_sn.0.into(),
            exp_cmd_sn: self.exp_cmd_sn.0.into(),
            max_cmd_sn: self.max_cmd_sn.0.into(),
            status: self.status.0.into(),
            reserved_38: [0; 10],
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
        let response = LoginResponse {
            is_continued: false,
            current_stage: LoginStage::SecurityNegotiation,
            transit_to: Some(LoginStage::OperationalNegotiation),
            version_max: 0,
            version_active: 0,
            isid: Isid([0x80, 1, 2, 3, 4, 5]),
            tsih: 0x0a0b,
            initiator_task_tag: InitiatorTaskTag::new(1).unwrap(),
            stat_sn: Serial32(5),
            exp_cmd_sn: Serial32(6),
            max_cmd_sn: Serial32(7),
            status: LoginStatus::NOT_FOUND,
        };
        check_golden(
            response,
            "23810000 00000000 8001020304050a0b 00000001 00000000 00000005 00000006 00000007 0203 00000000000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<LoginResponse>();
    }

    #[test]
    fn a_foreign_detail_has_its_class() {
        assert_eq!(LoginStatus::NOT_FOUND.to_string(), "Not found (0203h)");
        assert_eq!(LoginStatus(0x0277).to_string(), "Initiator error (0277h)");
    }
}
