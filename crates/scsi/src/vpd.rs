//! Vital product data pages (SPC-4 7.8, SBC-3 6.6): 00h, 80h, 83h, 86h, 87h, B0h, B1h, B2h. Page 8Fh is in
//! [`extended_copy`](crate::extended_copy) and page C0h in [`change_mark`](crate::change_mark), which they describe.
//!
//! Every page starts with the peripheral byte, its code, and the length of what follows. [`body`] checks those three on
//! data from a target; the page types parse what it returns and emit whole pages.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Malformed;
use crate::field::{self, u8_at, u16_at};
use crate::inquiry::Peripheral;

/// Page codes.
pub mod page {
    #![expect(missing_docs, reason = "the standard's own names")]
    pub const SUPPORTED_PAGES: u8 = 0x00;
    pub const UNIT_SERIAL_NUMBER: u8 = 0x80;
    pub const DEVICE_IDENTIFICATION: u8 = 0x83;
    pub const EXTENDED_INQUIRY: u8 = 0x86;
    pub const MODE_PAGE_POLICY: u8 = 0x87;
    pub const THIRD_PARTY_COPY: u8 = 0x8f;
    pub const BLOCK_LIMITS: u8 = 0xb0;
    pub const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
    pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;
    /// A vendor's; ours where it carries our signature.
    pub const CHANGE_MARKS: u8 = 0xc0;
    /// As C0h.
    pub const SHARING: u8 = 0xc1;
}

/// Longest body of a page: its length has 16 bits.
const BODY_BYTES_MAX: usize = u16::MAX as usize;

/// A page of a disk around `body`, which is cut at what the length field can say.
pub(crate) fn whole(page: u8, body: &[u8]) -> Vec<u8> {
    let body = body.get(..BODY_BYTES_MAX).unwrap_or(body);
    let mut bytes = Vec::with_capacity(4 + body.len());
    bytes.extend([Peripheral::Disk.code(), page]);
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

/// The body of page `page` in data from a target, cut where the data is.
///
/// # Errors
/// [`Malformed`] when it is another page.
pub fn body(page: u8, bytes: &[u8]) -> Result<&[u8], Malformed> {
    let malformed = Malformed("vital product data");
    let length = usize::from(u16_at(bytes, 2).ok_or(malformed)?);
    if u8_at(bytes, 1) != Some(page) {
        return Err(malformed);
    }
    let body = bytes.get(4..).ok_or(malformed)?;
    Ok(body.get(..length).unwrap_or(body))
}

/// Page 00h: the supported pages, which must ascend (SPC-4 7.8.13).
pub fn emit_supported_pages(pages: &[u8]) -> Vec<u8> {
    whole(page::SUPPORTED_PAGES, pages)
}

/// Page 80h.
pub fn emit_unit_serial_number(serial: &str) -> Vec<u8> {
    let printable = |byte: u8| if (0x20..=0x7e).contains(&byte) { byte } else { b' ' };
    whole(page::UNIT_SERIAL_NUMBER, &serial.bytes().map(printable).collect::<Vec<_>>())
}

/// The serial number in page 80h.
///
/// # Errors
/// [`Malformed`] when it is not that page.
pub fn parse_unit_serial_number(bytes: &[u8]) -> Result<String, Malformed> {
    body(page::UNIT_SERIAL_NUMBER, bytes).map(field::text)
}

/// A name of a logical unit, in page 83h.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Designator {
    /// NAA (type 3h), eight bytes; the first four bits say who assigned it.
    Naa(u64),
    /// NAA IEEE registered extended, sixteen bytes.
    NaaExtended(u128),
    /// T10 vendor identification (type 1h): eight characters of vendor, then text of the vendor's
    /// choice.
    T10Vendor(String),
    /// EUI-64 (type 2h), as it came.
    Eui64(Vec<u8>),
    /// SCSI name string (type 8h).
    Name(String),
}

/// A name of the target port a page is read through, or of the whole target device; in page 83h beside the logical
/// unit's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PortDesignator {
    /// Relative target port identifier (type 4h).
    RelativePort(u16),
    /// Target port group (type 5h).
    Group(u16),
    /// SCSI name string of the port: `NAME,t,0xTAG` (RFC 7143 4.2.7.1).
    PortName(String),
    /// SCSI name string of the target device: its iSCSI name.
    DeviceName(String),
}

impl PortDesignator {
    fn emit(&self, bytes: &mut Vec<u8>) {
        /// PIV with the association in bits 4 and 5; the protocol identifier beside it is iSCSI.
        const OF_PORT: u8 = 0x90;
        const OF_DEVICE: u8 = 0xa0;
        const ISCSI: u8 = 0x50;
        let (code_set, kind, value) = match self {
            Self::RelativePort(number) => (CODE_SET_BINARY, OF_PORT | 4, u32::from(*number).to_be_bytes().to_vec()),
            Self::Group(number) => (CODE_SET_BINARY, OF_PORT | 5, u32::from(*number).to_be_bytes().to_vec()),
            Self::PortName(name) => (CODE_SET_UTF8, OF_PORT | 8, padded(name)),
            Self::DeviceName(name) => (CODE_SET_UTF8, OF_DEVICE | 8, padded(name)),
        };
        let length = u8::try_from(value.len()).unwrap_or(u8::MAX);
        bytes.extend([ISCSI | code_set, kind, 0, length]);
        bytes.extend(value.iter().take(usize::from(length)));
    }
}

/// A SCSI name string: ended by a zero, filled to a multiple of four.
fn padded(name: &str) -> Vec<u8> {
    let mut padded = name.as_bytes().to_vec();
    padded.resize((name.len() + 1).next_multiple_of(4), 0);
    padded
}

const CODE_SET_BINARY: u8 = 1;
const CODE_SET_ASCII: u8 = 2;
const CODE_SET_UTF8: u8 = 3;

impl Designator {
    /// A locally assigned NAA name (SPC-4 7.8.6.6.4): type 3h over 60 bits.
    pub const fn locally_assigned(value: u64) -> Self {
        Self::Naa(0x3 << 60 | value & 0x0fff_ffff_ffff_ffff)
    }

    fn emit(&self, bytes: &mut Vec<u8>) {
        let (code_set, kind, value) = match self {
            Self::Naa(name) => (CODE_SET_BINARY, 3, name.to_be_bytes().to_vec()),
            Self::NaaExtended(name) => (CODE_SET_BINARY, 3, name.to_be_bytes().to_vec()),
            Self::T10Vendor(name) => (CODE_SET_ASCII, 1, name.as_bytes().to_vec()),
            Self::Eui64(name) => (CODE_SET_BINARY, 2, name.clone()),
            Self::Name(name) => (CODE_SET_UTF8, 8, padded(name)),
        };
        let length = u8::try_from(value.len()).unwrap_or(u8::MAX);
        bytes.extend([code_set, kind, 0, length]);
        bytes.extend(value.iter().take(usize::from(length)));
    }

    /// The designator of a type, from its bytes; `None` for one that is not known or malformed.
    pub fn parse(kind: u8, value: &[u8]) -> Option<Self> {
        match (kind, value.len()) {
            (3, 8) => Some(Self::Naa(u64::from_be_bytes(*value.first_chunk()?))),
            (3, 16) => Some(Self::NaaExtended(u128::from_be_bytes(*value.first_chunk()?))),
            (1, 8..) => Some(Self::T10Vendor(field::text(value))),
            (2, 8 | 12 | 16) => Some(Self::Eui64(value.to_vec())),
            (8, 1..) => {
                let end = value.iter().position(|&byte| byte == 0).unwrap_or(value.len());
                String::from_utf8(value.get(..end)?.to_vec()).ok().map(Self::Name)
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for Designator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Naa(name) => write!(f, "naa.{name:016x}"),
            Self::NaaExtended(name) => write!(f, "naa.{name:032x}"),
            Self::T10Vendor(name) => write!(f, "t10.{name}"),
            Self::Eui64(name) => name.iter().try_fold((), |(), byte| write!(f, "{byte:02x}")),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Page 83h: the names of the logical unit, then those of the port and the device.
pub fn emit_device_identification(designators: &[Designator], ports: &[PortDesignator]) -> Vec<u8> {
    let mut bytes = Vec::new();
    designators.iter().for_each(|designator| designator.emit(&mut bytes));
    ports.iter().for_each(|port| port.emit(&mut bytes));
    whole(page::DEVICE_IDENTIFICATION, &bytes)
}

/// The designators of the logical unit in page 83h that are known here; those of ports and of
/// target devices are skipped.
///
/// # Errors
/// [`Malformed`] when it is not that page.
pub fn parse_device_identification(bytes: &[u8]) -> Result<Vec<Designator>, Malformed> {
    let mut rest = body(page::DEVICE_IDENTIFICATION, bytes)?;
    let mut designators = Vec::new();
    while let [_, kind, _, length, ..] = *rest {
        let Some(value) = rest.get(4..4 + usize::from(length)) else { break };
        let is_of_unit = kind >> 4 & 0x03 == 0;
        designators.extend(Designator::parse(kind & 0x0f, value).filter(|_| is_of_unit));
        rest = rest.get(4 + usize::from(length)..).unwrap_or(&[]);
    }
    Ok(designators)
}

/// The target port group of the port that page 83h was read through (type 5h, associated with the
/// port), if the page has one.
///
/// # Errors
/// [`Malformed`] when it is not that page.
pub fn parse_target_port_group(bytes: &[u8]) -> Result<Option<u16>, Malformed> {
    const OF_PORT: u8 = 0x10;
    let mut rest = body(page::DEVICE_IDENTIFICATION, bytes)?;
    while let [_, kind, _, length, ..] = *rest {
        let Some(value) = rest.get(4..4 + usize::from(length)) else { break };
        if kind & 0x3f == OF_PORT | 0x05 {
            return Ok(u16_at(value, 2));
        }
        rest = rest.get(4 + usize::from(length)..).unwrap_or(&[]);
    }
    Ok(None)
}

/// Page 86h: what the device server can do beside the commands themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedInquiry {
    /// V_SUP: there is a volatile cache.
    pub has_volatile_cache: bool,
}

impl ExtendedInquiry {
    /// The whole page. SIMPSUP, ORDSUP and HEADSUP are set, and UASK_SUP is not.
    pub fn emit(&self) -> Vec<u8> {
        let mut body = [0; 0x3c];
        body[1] = 0x07;
        body[2] = u8::from(self.has_volatile_cache);
        whole(page::EXTENDED_INQUIRY, &body)
    }

    /// From a target's page.
    ///
    /// # Errors
    /// [`Malformed`] when it is not that page or is short.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let flags = u8_at(body(page::EXTENDED_INQUIRY, bytes)?, 2).ok_or(Malformed("vital product data"))?;
        Ok(Self { has_volatile_cache: flags & 0x01 != 0 })
    }
}

/// Page 87h: all mode pages and subpages are shared by all I_T nexuses.
pub fn emit_mode_page_policy() -> Vec<u8> {
    whole(page::MODE_PAGE_POLICY, &[0x3f, 0xff, 0x00, 0x00])
}

/// Page B0h without its header.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct BlockLimitsRaw {
    flags: u8,                        //  4  WSNZ in bit 0
    compare_and_write_blocks_max: u8, //  5
    transfer_granularity: U16,        //  6
    transfer_blocks_max: U32,         //  8
    transfer_blocks_optimal: U32,     // 12
    prefetch_blocks_max: U32,         // 16
    unmap_blocks_max: U32,            // 20
    unmap_descriptors_max: U32,       // 24
    unmap_granularity: U32,           // 28
    unmap_alignment: U32,             // 32  UGAVALID in bit 31
    write_same_blocks_max: U64,       // 36
    atomic_blocks_max: U32,           // 44
    atomic_alignment: U32,            // 48
    atomic_granularity: U32,          // 52
    atomic_bounded_blocks_max: U32,   // 56  with an atomic boundary
    atomic_boundary_blocks_max: U32,  // 60
}
const _: () = assert!(size_of::<BlockLimitsRaw>() == 0x3c);
const _: () = assert!(offset_of!(BlockLimitsRaw, unmap_blocks_max) == 16);
const _: () = assert!(offset_of!(BlockLimitsRaw, write_same_blocks_max) == 32);

/// Page B0h: limits of commands, in blocks; zero where none is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the standard's own names")]
pub struct BlockLimits {
    /// WSNZ: a WRITE SAME of zero blocks is refused.
    pub is_write_same_zero_refused: bool,
    pub compare_and_write_blocks_max: u8,
    pub transfer_granularity_blocks: u16,
    pub transfer_blocks_max: u32,
    pub transfer_blocks_optimal: u32,
    pub prefetch_blocks_max: u32,
    pub unmap_blocks_max: u32,
    pub unmap_descriptors_max: u32,
    pub unmap_granularity_blocks: u32,
    /// First block of an unmap granule, where valid.
    pub unmap_alignment_blocks: Option<u32>,
    pub write_same_blocks_max: u64,
    /// Most blocks of a WRITE ATOMIC without boundary; zero where the command is not supported.
    pub atomic_blocks_max: u32,
    pub atomic_alignment_blocks: u32,
    pub atomic_granularity_blocks: u32,
}

impl BlockLimits {
    /// The whole page.
    pub fn emit(&self) -> Vec<u8> {
        let alignment = self.unmap_alignment_blocks.map_or(0, |blocks| 0x8000_0000 | blocks & 0x7fff_ffff);
        let raw = BlockLimitsRaw {
            flags: u8::from(self.is_write_same_zero_refused),
            compare_and_write_blocks_max: self.compare_and_write_blocks_max,
            transfer_granularity: U16::new(self.transfer_granularity_blocks),
            transfer_blocks_max: U32::new(self.transfer_blocks_max),
            transfer_blocks_optimal: U32::new(self.transfer_blocks_optimal),
            prefetch_blocks_max: U32::new(self.prefetch_blocks_max),
            unmap_blocks_max: U32::new(self.unmap_blocks_max),
            unmap_descriptors_max: U32::new(self.unmap_descriptors_max),
            unmap_granularity: U32::new(self.unmap_granularity_blocks),
            unmap_alignment: U32::new(alignment),
            write_same_blocks_max: U64::new(self.write_same_blocks_max),
            atomic_blocks_max: U32::new(self.atomic_blocks_max),
            atomic_alignment: U32::new(self.atomic_alignment_blocks),
            atomic_granularity: U32::new(self.atomic_granularity_blocks),
            // ATOMIC BOUNDARY is not supported.
            atomic_bounded_blocks_max: U32::ZERO,
            atomic_boundary_blocks_max: U32::ZERO,
        };
        whole(page::BLOCK_LIMITS, raw.as_bytes())
    }

    /// From a target's page; a short page (SBC-2) leaves the rest zero.
    ///
    /// # Errors
    /// [`Malformed`] when it is not that page.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut whole = [0; size_of::<BlockLimitsRaw>()];
        for (place, byte) in whole.iter_mut().zip(body(page::BLOCK_LIMITS, bytes)?) {
            *place = *byte;
        }
        let raw: BlockLimitsRaw = zerocopy::transmute!(whole);
        let alignment = raw.unmap_alignment.get();
        Ok(Self {
            is_write_same_zero_refused: raw.flags & 0x01 != 0,
            compare_and_write_blocks_max: raw.compare_and_write_blocks_max,
            transfer_granularity_blocks: raw.transfer_granularity.get(),
            transfer_blocks_max: raw.transfer_blocks_max.get(),
            transfer_blocks_optimal: raw.transfer_blocks_optimal.get(),
            prefetch_blocks_max: raw.prefetch_blocks_max.get(),
            unmap_blocks_max: raw.unmap_blocks_max.get(),
            unmap_descriptors_max: raw.unmap_descriptors_max.get(),
            unmap_granularity_blocks: raw.unmap_granularity.get(),
            unmap_alignment_blocks: (alignment & 0x8000_0000 != 0).then_some(alignment & 0x7fff_ffff),
            write_same_blocks_max: raw.write_same_blocks_max.get(),
            atomic_blocks_max: raw.atomic_blocks_max.get(),
            atomic_alignment_blocks: raw.atomic_alignment.get(),
            atomic_granularity_blocks: raw.atomic_granularity.get(),
        })
    }
}

/// Page B1h: characteristics of the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockDeviceCharacteristics {
    /// Revolutions per minute; 1 for a medium that does not turn, 0 when not reported.
    pub rotation_rate: u16,
    /// WABEREQ 01b: after SANITIZE BLOCK ERASE reads succeed; otherwise not reported, as without
    /// that command.
    pub reads_after_block_erase: bool,
}

impl BlockDeviceCharacteristics {
    /// The whole page.
    pub fn emit(&self) -> Vec<u8> {
        let mut body = [0; 0x3c];
        body[..2].copy_from_slice(&self.rotation_rate.to_be_bytes());
        body[3] = if self.reads_after_block_erase { 0x40 } else { 0 };
        whole(page::BLOCK_DEVICE_CHARACTERISTICS, &body)
    }

    /// From a target's page.
    ///
    /// # Errors
    /// [`Malformed`] when it is not that page or ends before its first field.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let body = body(page::BLOCK_DEVICE_CHARACTERISTICS, bytes)?;
        let rotation_rate = u16_at(body, 0).ok_or(Malformed("vital product data"))?;
        let reads_after_block_erase = u8_at(body, 3).is_some_and(|flags| flags >> 6 == 1);
        Ok(Self { rotation_rate, reads_after_block_erase })
    }
}

/// Page B2h: the commands that unmap, and the reads afterwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogicalBlockProvisioning {
    /// LBPU: UNMAP.
    pub has_unmap: bool,
    /// LBPWS: WRITE SAME(16) with UNMAP.
    pub has_write_same_16: bool,
    /// LBPWS10: WRITE SAME(10) with UNMAP.
    pub has_write_same_10: bool,
    /// LBPRZ: unmapped blocks read as zeroes.
    pub unmapped_reads_zeroes: bool,
    /// Provisioning type 2: thin; otherwise not reported.
    pub is_thin: bool,
}

impl LogicalBlockProvisioning {
    /// The whole page.
    pub fn emit(&self) -> Vec<u8> {
        let flag = |is_set: bool, mask: u8| if is_set { mask } else { 0 };
        let flags = flag(self.has_unmap, 0x80)
            | flag(self.has_write_same_16, 0x40)
            | flag(self.has_write_same_10, 0x20)
            | flag(self.unmapped_reads_zeroes, 0x04);
        whole(page::LOGICAL_BLOCK_PROVISIONING, &[0, flags, flag(self.is_thin, 2), 0])
    }

    /// From a target's page.
    ///
    /// # Errors
    /// [`Malformed`] when it is not that page or is short.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let body = body(page::LOGICAL_BLOCK_PROVISIONING, bytes)?;
        let [_, flags, kind, ..] = *body else { return Err(Malformed("vital product data")) };
        Ok(Self {
            has_unmap: flags & 0x80 != 0,
            has_write_same_16: flags & 0x40 != 0,
            has_write_same_10: flags & 0x20 != 0,
            unmapped_reads_zeroes: flags & 0x04 != 0,
            is_thin: kind & 0x07 == 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_names() {
        assert_eq!(emit_supported_pages(&[0x00, 0x80, 0x83]), [0, 0, 0, 3, 0x00, 0x80, 0x83]);
        assert_eq!(emit_unit_serial_number("ab1"), [0, 0x80, 0, 3, b'a', b'b', b'1']);
        let names = [Designator::locally_assigned(0xabc), Designator::T10Vendor("FOREBAY x".into())];
        let mut expected = vec![0, 0x83, 0, 25, 1, 3, 0, 8, 0x30, 0, 0, 0, 0, 0, 0x0a, 0xbc, 2, 1, 0, 9];
        expected.extend(b"FOREBAY x");
        assert_eq!(emit_device_identification(&names, &[]), expected);
        assert_eq!(parse_device_identification(&expected), Ok(names.to_vec()));
        assert_eq!(parse_unit_serial_number(&[0, 0x80, 0, 4, b' ', b'a', b'b', b' ']), Ok("ab".into()));
        assert_eq!(names[0].to_string(), "naa.3000000000000abc");
    }

    #[test]
    fn every_kind_of_designator_is_read_back() {
        let names = vec![
            Designator::NaaExtended(6 << 124 | 1),
            Designator::Eui64(vec![1; 8]),
            Designator::Name("iqn.2024-01.io.example:disk".into()),
        ];
        let ports = [PortDesignator::RelativePort(1), PortDesignator::PortName("iqn.a,t,0x0001".into())];
        let bytes = emit_device_identification(&names, &ports);
        assert_eq!(parse_device_identification(&bytes), Ok(names));
        for cut in 0..bytes.len() {
            let _ = parse_device_identification(&bytes[..cut]);
        }
    }

    #[test]
    fn golden_ports() {
        let ports = [
            PortDesignator::RelativePort(1),
            PortDesignator::Group(2),
            PortDesignator::PortName("a,t,0x2".into()),
            PortDesignator::DeviceName("a".into()),
        ];
        let mut expected = vec![0, 0x83, 0, 36, 0x51, 0x94, 0, 4, 0, 0, 0, 1, 0x51, 0x95, 0, 4, 0, 0, 0, 2];
        expected.extend([0x53, 0x98, 0, 8]);
        expected.extend(b"a,t,0x2\0");
        expected.extend([0x53, 0xa8, 0, 4, b'a', 0, 0, 0]);
        assert_eq!(emit_device_identification(&[], &ports), expected);
        assert_eq!(parse_device_identification(&expected), Ok(vec![]), "they name no logical unit");
    }

    #[test]
    fn golden_extended_inquiry_and_policy() {
        let page = ExtendedInquiry { has_volatile_cache: true };
        assert_eq!((&page.emit()[..7], page.emit().len()), (&[0, 0x86, 0, 0x3c, 0, 0x07, 0x01][..], 64));
        assert_eq!(ExtendedInquiry::parse(&page.emit()), Ok(page));
        assert_eq!(emit_mode_page_policy(), [0, 0x87, 0, 4, 0x3f, 0xff, 0, 0]);
    }

    #[test]
    fn golden_block_limits() {
        let limits = BlockLimits {
            is_write_same_zero_refused: true,
            compare_and_write_blocks_max: 255,
            transfer_granularity_blocks: 8,
            transfer_blocks_max: 0x8000,
            transfer_blocks_optimal: 0x100,
            prefetch_blocks_max: 0,
            unmap_blocks_max: 0x10_0000,
            unmap_descriptors_max: 0x100,
            unmap_granularity_blocks: 8,
            unmap_alignment_blocks: Some(0),
            write_same_blocks_max: 0x10_0000,
            atomic_blocks_max: 0x100,
            atomic_alignment_blocks: 8,
            atomic_granularity_blocks: 8,
        };
        let bytes = limits.emit();
        let expected = [
            0, 0xb0, 0, 0x3c, 1, 255, 0, 8, 0, 0, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 1, 0, 0, 0, 0,
            8, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0,
        ];
        assert_eq!(bytes[..44], expected);
        assert_eq!(bytes[44..], [0, 0, 1, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(BlockLimits::parse(&bytes), Ok(limits));
        let short =
            BlockLimits::parse(&[0, 0xb0, 0, 8, 0, 0, 0, 8, 0, 0, 0x80, 0]).map(|short| short.transfer_blocks_max);
        assert_eq!(short, Ok(0x8000));
        assert!(BlockLimits::parse(&[0, 0xb1, 0, 0]).is_err());
    }

    #[test]
    fn golden_characteristics_and_provisioning() {
        let characteristics = BlockDeviceCharacteristics { rotation_rate: 1, reads_after_block_erase: true };
        let bytes = characteristics.emit();
        assert_eq!((&bytes[..6], bytes.len()), (&[0, 0xb1, 0, 0x3c, 0, 1][..], 64));
        assert_eq!(bytes[7], 0x40);
        assert_eq!(BlockDeviceCharacteristics::parse(&bytes), Ok(characteristics));
        let provisioning = LogicalBlockProvisioning {
            has_unmap: true,
            has_write_same_16: true,
            has_write_same_10: true,
            unmapped_reads_zeroes: true,
            is_thin: true,
        };
        assert_eq!(provisioning.emit(), [0, 0xb2, 0, 4, 0, 0xe4, 2, 0]);
        assert_eq!(LogicalBlockProvisioning::parse(&provisioning.emit()), Ok(provisioning));
    }
}
