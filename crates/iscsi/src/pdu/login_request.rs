//! Login Request (RFC 7143 11.12). Always immediate.

use base::serial::Serial32;
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CONTINUE, FINAL, Header, HeaderError, IMMEDIATE, InitiatorTaskTag, Opcode, RawBhs, raw_of, write_raw};

/// The header's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LoginRequestRaw {
    opcode: u8,              //  0  43h
    flags: u8,               //  1  T C . . CSG NSG
    version_max: u8,         //  2
    version_min: u8,         //  3
    lengths: [u8; 4],        //  4
    isid: [u8; 6],           //  8
    tsih: U16,               // 14
    initiator_task_tag: U32, // 16
    cid: U16,                // 20
    reserved_22: [u8; 2],    // 22
    cmd_sn: U32,             // 24
    exp_stat_sn: U32,        // 28
    reserved_32: [u8; 16],   // 32
}
const _: () = assert!(size_of::<LoginRequestRaw>() == super::BHS_BYTES);
const _: () = assert!(std::mem::offset_of!(LoginRequestRaw, exp_stat_sn) == 28);

code_enum! {
    /// A stage of the login phase (RFC 7143 11.12.3). Code 2 is reserved.
    pub enum LoginStage {
        SecurityNegotiation = 0, "SecurityNegotiation";
        OperationalNegotiation = 1, "LoginOperationalNegotiation";
        FullFeaturePhase = 3, "FullFeaturePhase";
    }
}

impl LoginStage {
    /// CSG and NSG of a login PDU's byte 1. NSG has a meaning only with the T bit.
    pub(super) fn pair_from_flags(flags: u8) -> Option<(Self, Option<Self>)> {
        let current = Self::from_code(flags >> 2 & 3)?;
        let next = if flags & FINAL != 0 { Some(Self::from_code(flags & 3)?) } else { None };
        Some((current, next))
    }

    /// T bit, CSG and NSG for a login PDU's byte 1.
    pub(super) fn pair_to_flags(current: Self, transit_to: Option<Self>) -> u8 {
        current.code() << 2 | transit_to.map_or(0, |next| FINAL | next.code())
    }
}

/// Initiator session ID: the initiator port's part of a session's name (RFC 7143 11.12.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Isid(pub [u8; 6]);

impl Isid {
    /// An ISID of the "random" format (10b): 24 bits to be chosen at random and a qualifier.
    pub fn random_format(random: u32, qualifier: u16) -> Self {
        let [_, high, middle, low] = random.to_be_bytes();
        let [qualifier_high, qualifier_low] = qualifier.to_be_bytes();
        Self([0x80, high, middle, low, qualifier_high, qualifier_low])
    }

    /// The ISID `count` further: the qualifier, which ends every format, is counted up.
    #[must_use]
    pub fn further(self, count: u16) -> Self {
        let Self([a, b, c, d, high, low]) = self;
        let [high, low] = u16::from_be_bytes([high, low]).wrapping_add(count).to_be_bytes();
        Self([a, b, c, d, high, low])
    }
}

/// The error of a text that is no ISID: twelve hexadecimal digits, of which the first two bits are
/// not both set (RFC 7143 11.12.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an ISID is twelve hexadecimal digits, like 80123456789a, of which the first is not above b")]
pub struct NoIsid;

impl std::str::FromStr for Isid {
    type Err = NoIsid;

    fn from_str(text: &str) -> Result<Self, NoIsid> {
        let is_written_out = text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_written_out).ok_or(NoIsid)?;
        let [_, _, bytes @ ..] = number.to_be_bytes();
        // The fourth format is reserved.
        if bytes[0] >> 6 == 0b11 { Err(NoIsid) } else { Ok(Self(bytes)) }
    }
}

impl std::fmt::Display for Isid {
    /// Twelve hexadecimal digits, as in an iSCSI initiator port name.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A step of the login phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// The text goes on in the next request (C bit).
    pub is_continued: bool,
    /// Stage this request belongs to (CSG).
    pub current_stage: LoginStage,
    /// Stage the initiator is ready for (T bit and NSG).
    pub transit_to: Option<LoginStage>,
    /// Version-max.
    pub version_max: u8,
    /// Version-min.
    pub version_min: u8,
    /// Initiator's part of the session's name.
    pub isid: Isid,
    /// Target's part of it: zero asks for a new session.
    pub tsih: u16,
    /// Names the login; the same in every request of it.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Connection ID.
    pub cid: u16,
    /// CmdSN.
    pub cmd_sn: Serial32,
    /// ExpStatSN.
    pub exp_stat_sn: Serial32,
}

impl Header for LoginRequest {
    const OPCODE: Opcode = Opcode::LoginRequest;

    fn parse(raw: &RawBhs) -> Result<Self, HeaderError> {
        let raw: &LoginRequestRaw = raw_of(raw);
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
            version_min: raw.version_min,
            isid: Isid(raw.isid),
            tsih: raw.tsih.get(),
            initiator_task_tag: InitiatorTaskTag::new(raw.initiator_task_tag.get())
                .ok_or(Self::invalid("Initiator Task Tag"))?,
            cid: raw.cid.get(),
            cmd_sn: Serial32(raw.cmd_sn.get()),
            exp_stat_sn: Serial32(raw.exp_stat_sn.get()),
        })
    }

    fn emit(&self, raw: &mut RawBhs) {
        let bytes = LoginRequestRaw {
            opcode: IMMEDIATE | Self::OPCODE.code(),
            flags: LoginStage::pair_to_flags(self.current_stage, self.transit_to)
                | if self.is_continued { CONTINUE } else { 0 },
            version_max: self.version_max,
            version_min: self.version_min,
            lengths: [0; 4],
            isid: self.isid.0,
            tsih: self.tsih.into(),
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
        let request = LoginRequest {
            is_continued: false,
            current_stage: LoginStage::OperationalNegotiation,
            transit_to: Some(LoginStage::FullFeaturePhase),
            version_max: 0,
            version_min: 0,
            isid: Isid::random_format(0x12_3456, 1),
            tsih: 0x0a0b,
            initiator_task_tag: InitiatorTaskTag::new(1).unwrap(),
            cid: 2,
            cmd_sn: Serial32(3),
            exp_stat_sn: Serial32(4),
        };
        check_golden(
            request,
            "43870000 00000000 8012345600010a0b 00000001 00020000 00000003 00000004 00000000000000000000000000000000",
        );
    }

    #[test]
    fn round_trips() {
        check_round_trips::<LoginRequest>();
    }

    #[test]
    fn a_transit_with_text_to_come_is_refused() {
        let mut raw = [0; 48];
        raw[..2].copy_from_slice(&[0x43, 0xc7]);
        assert_eq!(LoginRequest::parse(&raw), Err(LoginRequest::invalid("T and C bits")));
    }

    #[test]
    fn the_random_isid_format_says_so() {
        assert_eq!(Isid::random_format(0x12_3456, 0x789a).to_string(), "80123456789a");
    }

    #[test]
    fn an_isid_is_read_as_it_is_written() {
        assert_eq!("80123456789A".parse(), Ok(Isid::random_format(0x12_3456, 0x789a)));
        assert_eq!("00023d0000ff".parse::<Isid>().map(|isid| isid.further(2).to_string()), Ok("00023d000101".into()));
        assert_eq!(
            Isid([0x80, 1, 2, 3, 0xff, 0xff]).further(1),
            Isid([0x80, 1, 2, 3, 0, 0]),
            "nothing but the qualifier"
        );
        for wrong in ["", "80123456789", "80123456789a0", "c0123456789a", "+8123456789a", "80123456789g"] {
            assert_eq!(wrong.parse::<Isid>(), Err(NoIsid), "{wrong}");
        }
    }
}
