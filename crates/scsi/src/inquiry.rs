//! Standard INQUIRY data (SPC-4 6.6.2), 96 bytes: with version descriptors.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Malformed;
use crate::field;

/// The bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw {
    peripheral: u8,          //  0  qualifier (3 bits), device type (5 bits)
    removable: u8,           //  1  RMB in bit 7
    version: u8,             //  2
    format: u8,              //  3  HISUP in bit 4, response data format in bits 0..4
    additional_length: u8,   //  4  bytes after this one
    protection: u8,          //  5  TPGS, 3PC, PROTECT
    services: u8,            //  6  MULTIP
    queueing: u8,            //  7  CMDQUE in bit 1
    vendor: [u8; 8],         //  8
    product: [u8; 16],       // 16
    revision: [u8; 4],       // 32
    reserved: [u8; 22],      // 36
    descriptors: [U16; 8],   // 58
    reserved_tail: [u8; 22], // 74
}
const _: () = assert!(size_of::<Raw>() == StandardInquiry::BYTES);
const _: () = assert!(offset_of!(Raw, vendor) == 8);
const _: () = assert!(offset_of!(Raw, revision) == 32);
const _: () = assert!(offset_of!(Raw, descriptors) == 58);

/// The kind of device at a LUN, byte 0 of INQUIRY data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peripheral {
    /// A direct access block device (qualifier 0, type 00h).
    Disk,
    /// Nothing can be there (qualifier 3, type 1Fh): byte 0 is 7Fh.
    Absent,
    /// Another value of byte 0.
    Other(u8),
}

impl Peripheral {
    /// Byte 0 of INQUIRY data and VPD pages.
    pub const fn code(self) -> u8 {
        match self {
            Self::Disk => 0x00,
            Self::Absent => 0x7f,
            Self::Other(code) => code,
        }
    }

    /// From byte 0.
    pub const fn from_code(code: u8) -> Self {
        match code {
            0x00 => Self::Disk,
            0x7f => Self::Absent,
            code => Self::Other(code),
        }
    }
}

/// Standard INQUIRY data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandardInquiry {
    /// The kind of device.
    pub peripheral: Peripheral,
    /// RMB: the medium can be taken out.
    pub is_removable: bool,
    /// Version claimed: 6 is SPC-4.
    pub version: u8,
    /// T10 vendor identification, at most 8 characters.
    pub vendor: String,
    /// Product identification, at most 16 characters.
    pub product: String,
    /// Product revision level, at most 4 characters.
    pub revision: String,
    /// MULTIP: more than one target port.
    pub is_multi_port: bool,
    /// TPGS 01b: target port groups are reported, and change only by themselves.
    pub has_target_port_groups: bool,
    /// 3PC: EXTENDED COPY is supported.
    pub has_third_party_copy: bool,
    /// Standards claimed.
    pub version_descriptors: [u16; 8],
}

/// SAM-5, iSCSI, SPC-4 and SBC-3, no revision claimed (SPC-4 annex E.9).
pub const VERSION_DESCRIPTORS: [u16; 8] = [0x00a0, 0x0960, 0x0460, 0x04c0, 0, 0, 0, 0];

impl StandardInquiry {
    /// Bytes emitted.
    pub const BYTES: usize = 96;

    /// The bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let raw = Raw {
            peripheral: self.peripheral.code(),
            removable: if self.is_removable { 0x80 } else { 0 },
            version: self.version,
            format: 0x12,
            additional_length: (Self::BYTES - 5) as u8,
            protection: if self.has_third_party_copy { 0x08 } else { 0 }
                | if self.has_target_port_groups { 0x10 } else { 0 },
            services: if self.is_multi_port { 0x10 } else { 0 },
            queueing: 0x02,
            vendor: field::ascii(&self.vendor),
            product: field::ascii(&self.product),
            revision: field::ascii(&self.revision),
            reserved: [0; 22],
            descriptors: self.version_descriptors.map(U16::new),
            reserved_tail: [0; 22],
        };
        zerocopy::transmute!(raw)
    }

    /// Data from a target; at least its first 36 bytes.
    ///
    /// # Errors
    /// [`Malformed`] when there are fewer.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < 36 {
            return Err(Malformed("INQUIRY data"));
        }
        let mut whole = [0; Self::BYTES];
        let count = bytes.len().min(Self::BYTES);
        whole[..count].copy_from_slice(&bytes[..count]);
        let raw: Raw = zerocopy::transmute!(whole);
        Ok(Self {
            peripheral: Peripheral::from_code(raw.peripheral),
            is_removable: raw.removable & 0x80 != 0,
            version: raw.version,
            vendor: field::text(&raw.vendor),
            product: field::text(&raw.product),
            revision: field::text(&raw.revision),
            is_multi_port: raw.services & 0x10 != 0,
            has_target_port_groups: raw.protection & 0x30 != 0,
            has_third_party_copy: raw.protection & 0x08 != 0,
            version_descriptors: raw.descriptors.map(U16::get),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> StandardInquiry {
        StandardInquiry {
            peripheral: Peripheral::Disk,
            is_removable: true,
            version: 6,
            vendor: "FOREBAY".into(),
            product: "RAM".into(),
            revision: "0001".into(),
            is_multi_port: false,
            has_target_port_groups: true,
            has_third_party_copy: true,
            version_descriptors: VERSION_DESCRIPTORS,
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = sample().emit();
        assert_eq!(bytes[..8], [0, 0x80, 6, 0x12, 91, 0x18, 0, 2]);
        assert_eq!(&bytes[8..36], b"FOREBAY RAM             0001");
        assert_eq!(bytes[36..58], [0; 22]);
        assert_eq!(bytes[58..66], [0x00, 0xa0, 0x09, 0x60, 0x04, 0x60, 0x04, 0xc0]);
        assert_eq!(bytes[66..], [0; 30]);
    }

    #[test]
    fn it_is_read_back() {
        assert_eq!(StandardInquiry::parse(&sample().emit()), Ok(sample()));
        assert!(StandardInquiry::parse(&sample().emit()[..35]).is_err());
        let short = StandardInquiry::parse(&sample().emit()[..36]).expect("36 bytes are enough");
        assert_eq!((short.vendor.as_str(), short.version_descriptors), ("FOREBAY", [0; 8]));
    }

    #[test]
    fn names_of_foreign_bytes_are_printable() {
        let mut bytes = sample().emit();
        bytes[8..16].copy_from_slice(&[0xff, 0, b'A', 7, 0x80, b'B', 0, 0]);
        assert_eq!(StandardInquiry::parse(&bytes).map(|data| data.vendor), Ok("A  B".into()));
    }
}
