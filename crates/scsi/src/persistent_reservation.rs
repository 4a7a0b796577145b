//! Parameter data of PERSISTENT RESERVE IN and OUT (SPC-4 6.15 and 6.16).

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Malformed;
use crate::field::{u8_at, u16_at, u32_at, u64_at};

/// Service actions of PERSISTENT RESERVE IN.
pub mod action_in {
    #![expect(missing_docs, reason = "the standard's own names")]
    pub const READ_KEYS: u8 = 0;
    pub const READ_RESERVATION: u8 = 1;
    pub const REPORT_CAPABILITIES: u8 = 2;
    pub const READ_FULL_STATUS: u8 = 3;
}

/// Service actions of PERSISTENT RESERVE OUT.
pub mod action_out {
    #![expect(missing_docs, reason = "the standard's own names")]
    pub const REGISTER: u8 = 0;
    pub const RESERVE: u8 = 1;
    pub const RELEASE: u8 = 2;
    pub const CLEAR: u8 = 3;
    pub const PREEMPT: u8 = 4;
    pub const PREEMPT_AND_ABORT: u8 = 5;
    pub const REGISTER_AND_IGNORE: u8 = 6;
    pub const REGISTER_AND_MOVE: u8 = 7;
}

/// The rights that a reservation leaves to its holder and to others (SPC-4 table 36).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReservationType {
    /// Others may read.
    WriteExclusive = 1,
    /// Others may neither read nor write.
    ExclusiveAccess = 3,
    /// Others that are not registered may read.
    WriteExclusiveRegistrantsOnly = 5,
    /// Others that are not registered may neither read nor write.
    ExclusiveAccessRegistrantsOnly = 6,
    /// As registrants only, and every registrant holds it.
    WriteExclusiveAllRegistrants = 7,
    /// As registrants only, and every registrant holds it.
    ExclusiveAccessAllRegistrants = 8,
}

impl ReservationType {
    /// The type with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::WriteExclusive,
            3 => Self::ExclusiveAccess,
            5 => Self::WriteExclusiveRegistrantsOnly,
            6 => Self::ExclusiveAccessRegistrantsOnly,
            7 => Self::WriteExclusiveAllRegistrants,
            8 => Self::ExclusiveAccessAllRegistrants,
            _ => return None,
        })
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether every registrant holds it.
    pub const fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Whether registrants may do what the holder may.
    pub const fn is_for_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Whether others may read.
    pub const fn allows_reads(self) -> bool {
        matches!(self, Self::WriteExclusive | Self::WriteExclusiveRegistrantsOnly | Self::WriteExclusiveAllRegistrants)
    }
}

/// The basic parameter list of PERSISTENT RESERVE OUT (SPC-4 6.16.3).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct OutRaw {
    key: U64,               //  0
    action_key: U64,        //  8
    obsolete: [u8; 4],      // 16
    flags: u8,              // 20  SPEC_I_PT, ALL_TG_PT, APTPL
    reserved: u8,           // 21
    obsolete_tail: [u8; 2], // 22
}
const _: () = assert!(size_of::<OutRaw>() == OutParameters::BYTES);
const _: () = assert!(offset_of!(OutRaw, flags) == 20);

/// The parameters of PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutParameters {
    /// RESERVATION KEY: the key of the sender's registration.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: the new key, or the one to preempt.
    pub action_key: u64,
    /// SPEC_I_PT: a list of initiator ports follows.
    pub has_initiator_ports: bool,
    /// ALL_TG_PT.
    pub is_for_all_target_ports: bool,
    /// APTPL: registrations outlive power loss.
    pub is_persistent: bool,
}

impl OutParameters {
    /// Bytes of the list.
    pub const BYTES: usize = 24;

    /// The list.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let flag = |is_set: bool, mask: u8| if is_set { mask } else { 0 };
        let raw = OutRaw {
            key: U64::new(self.key),
            action_key: U64::new(self.action_key),
            obsolete: [0; 4],
            flags: flag(self.has_initiator_ports, 0x08)
                | flag(self.is_for_all_target_ports, 0x04)
                | flag(self.is_persistent, 0x01),
            reserved: 0,
            obsolete_tail: [0; 2],
        };
        zerocopy::transmute!(raw)
    }

    /// From a list.
    ///
    /// # Errors
    /// [`Malformed`] when it is shorter than [`BYTES`](Self::BYTES).
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let bytes: [u8; Self::BYTES] =
            *bytes.first_chunk().ok_or(Malformed("PERSISTENT RESERVE OUT parameter list"))?;
        let raw: OutRaw = zerocopy::transmute!(bytes);
        Ok(Self {
            key: raw.key.get(),
            action_key: raw.action_key.get(),
            has_initiator_ports: raw.flags & 0x08 != 0,
            is_for_all_target_ports: raw.flags & 0x04 != 0,
            is_persistent: raw.flags & 0x01 != 0,
        })
    }
}

/// READ KEYS data.
pub fn emit_keys(generation: u32, keys: &[u64]) -> Vec<u8> {
    let mut bytes = generation.to_be_bytes().to_vec();
    bytes.extend(((keys.len() * 8) as u32).to_be_bytes());
    bytes.extend(keys.iter().flat_map(|key| key.to_be_bytes()));
    bytes
}

/// The generation and the keys in READ KEYS data; keys cut off at the end of `bytes` are left out.
///
/// # Errors
/// [`Malformed`] without a header.
pub fn parse_keys(bytes: &[u8]) -> Result<(u32, Vec<u64>), Malformed> {
    let malformed = Malformed("READ KEYS data");
    let generation = u32_at(bytes, 0).ok_or(malformed)?;
    let length = u32_at(bytes, 4).ok_or(malformed)? as usize;
    let list = bytes.get(8..).ok_or(malformed)?;
    let list = list.get(..length).unwrap_or(list);
    Ok((generation, list.as_chunks::<8>().0.iter().map(|key| u64::from_be_bytes(*key)).collect()))
}

/// A reservation, as in READ RESERVATION data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationData {
    /// The holder's key; zero where all registrants hold it.
    pub key: u64,
    /// Its type.
    pub kind: ReservationType,
}

/// READ RESERVATION data.
pub fn emit_reservation(generation: u32, reservation: Option<ReservationData>) -> Vec<u8> {
    let mut bytes = generation.to_be_bytes().to_vec();
    let Some(reservation) = reservation else {
        bytes.extend([0; 4]);
        return bytes;
    };
    bytes.extend(16u32.to_be_bytes());
    bytes.extend(reservation.key.to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0, reservation.kind.code(), 0, 0]);
    bytes
}

/// The generation and the reservation in READ RESERVATION data.
///
/// # Errors
/// [`Malformed`] when it is cut short or of an unknown type.
pub fn parse_reservation(bytes: &[u8]) -> Result<(u32, Option<ReservationData>), Malformed> {
    let malformed = Malformed("READ RESERVATION data");
    let generation = u32_at(bytes, 0).ok_or(malformed)?;
    if u32_at(bytes, 4).ok_or(malformed)? == 0 {
        return Ok((generation, None));
    }
    let key = u64_at(bytes, 8).ok_or(malformed)?;
    let code = u8_at(bytes, 21).ok_or(malformed)? & 0x0f;
    let kind = ReservationType::from_code(code).ok_or(malformed)?;
    Ok((generation, Some(ReservationData { key, kind })))
}

/// REPORT CAPABILITIES data (SPC-4 6.15.4): all six types; REGISTER may name other initiator ports (SIP_C), not all
/// target ports; and RESERVE(6) follows SPC-2 alone (CRH clear). `can_persist` is PTPL_C, `is_persistent` is PTPL_A:
/// reservations can outlive, and do outlive, power loss.
pub fn emit_capabilities(can_persist: bool, is_persistent: bool) -> [u8; 8] {
    [0, 8, 0x08 | u8::from(can_persist), 0x80 | u8::from(is_persistent), 0xea, 0x01, 0, 0]
}

/// The target of a moved registration, in REGISTER AND MOVE (SPC-4 6.16.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveParameters {
    /// RESERVATION KEY: the key of the sender's registration.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: the key of the new registration.
    pub action_key: u64,
    /// UNREG: the old registration ends.
    pub is_unregistering: bool,
    /// APTPL.
    pub is_persistent: bool,
    /// Relative target port identifier.
    pub target_port: u16,
    /// iSCSI initiator port name: `NAME,i,0xISID`.
    pub initiator_port: String,
}

impl MoveParameters {
    /// The list.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = self.key.to_be_bytes().to_vec();
        bytes.extend(self.action_key.to_be_bytes());
        bytes.extend([0, u8::from(self.is_unregistering) << 1 | u8::from(self.is_persistent)]);
        bytes.extend(self.target_port.to_be_bytes());
        let transport_id = emit_transport_id(&self.initiator_port);
        bytes.extend((transport_id.len() as u32).to_be_bytes());
        bytes.extend(transport_id);
        bytes
    }

    /// From a list.
    ///
    /// # Errors
    /// [`Malformed`] when it is cut short, or its TransportID is none of an iSCSI initiator port.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed("REGISTER AND MOVE parameter list");
        let flags = u8_at(bytes, 17).ok_or(malformed)?;
        let transport_id = bytes.get(24..).ok_or(malformed)?;
        let length = u32_at(bytes, 20).ok_or(malformed)? as usize;
        let mut ports = parse_transport_ids(transport_id.get(..length).ok_or(malformed)?)?;
        match (ports.pop(), ports.is_empty()) {
            (Some(initiator_port), true) => Ok(Self {
                key: u64_at(bytes, 0).ok_or(malformed)?,
                action_key: u64_at(bytes, 8).ok_or(malformed)?,
                is_unregistering: flags & 0x02 != 0,
                is_persistent: flags & 0x01 != 0,
                target_port: u16_at(bytes, 18).ok_or(malformed)?,
                initiator_port,
            }),
            _ => Err(malformed),
        }
    }
}

/// The list of initiator ports that follows the basic parameters with SPEC_I_PT (SPC-4 6.16.3).
///
/// # Errors
/// [`Malformed`] when it is cut short, or a TransportID is none of an iSCSI initiator port.
pub fn parse_initiator_ports(bytes: &[u8]) -> Result<Vec<String>, Malformed> {
    let malformed = Malformed("TransportID list");
    let list = bytes.get(OutParameters::BYTES + 4..).ok_or(malformed)?;
    let length = u32_at(bytes, OutParameters::BYTES).ok_or(malformed)? as usize;
    parse_transport_ids(list.get(..length).ok_or(malformed)?)
}

/// An iSCSI TransportID of format 01b, an initiator port (SPC-4 7.6.4.6).
fn emit_transport_id(port: &str) -> Vec<u8> {
    let name_bytes = (port.len() + 1).next_multiple_of(4).max(20);
    let mut bytes = vec![0x45, 0];
    bytes.extend((name_bytes as u16).to_be_bytes());
    bytes.extend(port.as_bytes());
    bytes.resize(4 + name_bytes, 0);
    bytes
}

fn parse_transport_ids(mut bytes: &[u8]) -> Result<Vec<String>, Malformed> {
    let malformed = Malformed("TransportID");
    let mut ports = Vec::new();
    while !bytes.is_empty() {
        let length = usize::from(u16_at(bytes, 2).ok_or(malformed)?);
        if u8_at(bytes, 0) != Some(0x45) {
            return Err(malformed);
        }
        let name = bytes.get(4..4 + length).ok_or(malformed)?;
        let end = name.iter().position(|&byte| byte == 0).ok_or(malformed)?;
        let name = name.get(..end).and_then(|name| std::str::from_utf8(name).ok()).ok_or(malformed)?;
        ports.push(name.to_owned());
        bytes = bytes.get(4 + length..).ok_or(malformed)?;
    }
    Ok(ports)
}

/// One registration, as in READ FULL STATUS data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullStatus {
    /// Its key.
    pub key: u64,
    /// The type of the reservation it holds; `None` if it holds none.
    pub held: Option<ReservationType>,
    /// Relative target port identifier.
    pub target_port: u16,
    /// iSCSI initiator port name: `NAME,i,0xISID`.
    pub initiator_port: String,
}

/// READ FULL STATUS data with iSCSI TransportIDs of format 01b (SPC-4 7.6.4.6).
pub fn emit_full_status(generation: u32, registrations: &[FullStatus]) -> Vec<u8> {
    let mut list = Vec::new();
    for registration in registrations {
        let transport_id = emit_transport_id(&registration.initiator_port);
        list.extend(registration.key.to_be_bytes());
        let kind = registration.held.map_or(0, ReservationType::code);
        list.extend([0, 0, 0, 0, u8::from(registration.held.is_some()), kind, 0, 0, 0, 0]);
        list.extend(registration.target_port.to_be_bytes());
        list.extend((transport_id.len() as u32).to_be_bytes());
        list.extend(transport_id);
    }
    let mut bytes = generation.to_be_bytes().to_vec();
    bytes.extend((list.len() as u32).to_be_bytes());
    bytes.extend(list);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_out_parameters() {
        let parameters =
            OutParameters { key: 0x0102, action_key: 0xff << 56, is_persistent: true, ..OutParameters::default() };
        let expected = [0, 0, 0, 0, 0, 0, 1, 2, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        assert_eq!(parameters.emit(), expected);
        assert_eq!(OutParameters::parse(&expected), Ok(parameters));
        assert!(OutParameters::parse(&expected[..23]).is_err());
    }

    #[test]
    fn golden_keys_and_reservation() {
        let keys = emit_keys(3, &[7, 8]);
        assert_eq!(keys, [0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8]);
        assert_eq!(parse_keys(&keys), Ok((3, vec![7, 8])));
        assert_eq!(parse_keys(&keys[..20]), Ok((3, vec![7])));
        let reservation = ReservationData { key: 9, kind: ReservationType::WriteExclusiveRegistrantsOnly };
        let bytes = emit_reservation(4, Some(reservation));
        assert_eq!(bytes, [0, 0, 0, 4, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 5, 0, 0]);
        assert_eq!(parse_reservation(&bytes), Ok((4, Some(reservation))));
        assert_eq!(emit_reservation(4, None), [0, 0, 0, 4, 0, 0, 0, 0]);
        assert_eq!(parse_reservation(&[0, 0, 0, 4, 0, 0, 0, 0]), Ok((4, None)));
    }

    #[test]
    fn golden_move() {
        let parameters = MoveParameters {
            key: 1,
            action_key: 2,
            is_unregistering: true,
            is_persistent: false,
            target_port: 1,
            initiator_port: "iqn.a,i,0x1".into(),
        };
        let bytes = parameters.emit();
        assert_eq!(bytes[15..28], [2, 0, 2, 0, 1, 0, 0, 0, 24, 0x45, 0, 0, 20]);
        assert_eq!(MoveParameters::parse(&bytes), Ok(parameters));
        for cut in 0..bytes.len() {
            assert!(MoveParameters::parse(&bytes[..cut]).is_err());
        }
        let mut listed = OutParameters { has_initiator_ports: true, ..OutParameters::default() }.emit().to_vec();
        listed.extend(48u32.to_be_bytes());
        listed.extend([emit_transport_id("a,i,0x1"), emit_transport_id("b,i,0x2")].concat());
        assert_eq!(parse_initiator_ports(&listed), Ok(vec!["a,i,0x1".into(), "b,i,0x2".into()]));
        assert!(parse_initiator_ports(&listed[..listed.len() - 1]).is_err());
        assert_eq!(emit_capabilities(true, false), [0, 8, 0x09, 0x80, 0xea, 0x01, 0, 0]);
    }

    #[test]
    fn golden_full_status() {
        let registration = FullStatus {
            key: 5,
            held: Some(ReservationType::ExclusiveAccess),
            target_port: 1,
            initiator_port: "iqn.a,i,0x1".into(),
        };
        let bytes = emit_full_status(1, &[registration]);
        assert_eq!(bytes[..8], [0, 0, 0, 1, 0, 0, 0, 48]);
        assert_eq!(bytes[8..32], [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 1, 0, 0, 0, 24]);
        assert_eq!(bytes[32..36], [0x45, 0, 0, 20]);
        assert_eq!(&bytes[36..], b"iqn.a,i,0x1\0\0\0\0\0\0\0\0\0");
    }
}
