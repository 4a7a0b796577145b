//! Mode parameters (SPC-4 7.5, SBC-3 6.5): a header, at most one block descriptor, pages.
//!
//! ```text
//! header(6)   0 mode data length       1 medium type   2 device-specific   3 block descriptor length
//! header(10)  0 mode data length (2)   2 medium type   3 device-specific   4 LONGLBA   6 block descriptor length (2)
//! ```
//! The device-specific parameter of a disk has WP in bit 7 and DPOFUA in bit 4.

use crate::cdb::CdbForm;
use crate::error::Malformed;
use crate::field::{u8_at, u16_at, u32_at, u64_at};

/// Page codes.
pub mod page {
    #![expect(missing_docs, reason = "the standard's own names")]
    pub const READ_WRITE_ERROR_RECOVERY: u8 = 0x01;
    pub const CACHING: u8 = 0x08;
    pub const CONTROL: u8 = 0x0a;
    pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;
    pub const ALL: u8 = 0x3f;
    pub const ALL_SUBPAGES: u8 = 0xff;
}

/// The fields before the pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// WP.
    pub is_write_protected: bool,
    /// DPOFUA: the DPO and FUA bits are honoured.
    pub has_dpo_fua: bool,
    /// The block descriptor, if there is one.
    pub block_descriptor: Option<BlockDescriptor>,
}

/// Size and block of the whole device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDescriptor {
    /// Count of blocks. The short form says FFFFFFFFh for more than fits.
    pub block_count: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// LONGLBA: in sixteen bytes rather than eight.
    pub is_long: bool,
}

impl BlockDescriptor {
    fn emit(&self) -> Vec<u8> {
        if self.is_long {
            let mut bytes = self.block_count.to_be_bytes().to_vec();
            bytes.extend([0; 4]);
            bytes.extend(self.block_bytes.to_be_bytes());
            return bytes;
        }
        let mut bytes = u32::try_from(self.block_count).unwrap_or(u32::MAX).to_be_bytes().to_vec();
        bytes.extend((self.block_bytes & 0x00ff_ffff).to_be_bytes());
        bytes
    }

    fn parse(bytes: &[u8], is_long: bool) -> Option<Self> {
        if is_long {
            return Some(Self { block_count: u64_at(bytes, 0)?, block_bytes: u32_at(bytes, 12)?, is_long });
        }
        let block_bytes = u32_at(bytes, 4)? & 0x00ff_ffff;
        Some(Self { block_count: u64::from(u32_at(bytes, 0)?), block_bytes, is_long })
    }
}

/// Mode parameter data: header and pages.
///
/// # Panics
/// When the pages do not fit the length field of the form: the device server chose them.
pub fn emit(form: CdbForm, header: &Header, pages: &[u8]) -> Vec<u8> {
    let descriptor = header.block_descriptor.map_or_else(Vec::new, |descriptor| descriptor.emit());
    let is_long = header.block_descriptor.is_some_and(|descriptor| descriptor.is_long);
    let specific = if header.is_write_protected { 0x80 } else { 0 } | if header.has_dpo_fua { 0x10 } else { 0 };
    let body_bytes = descriptor.len() + pages.len();
    let mut bytes = Vec::with_capacity(8 + body_bytes);
    if form == CdbForm::Six {
        let length = u8::try_from(body_bytes + 3).expect("all our pages fit in MODE SENSE(6)");
        bytes.extend([length, 0, specific, descriptor.len() as u8]);
    } else {
        let length = u16::try_from(body_bytes + 6).expect("all our pages fit in MODE SENSE(10)");
        bytes.extend(length.to_be_bytes());
        bytes.extend([0, specific, u8::from(is_long), 0]);
        bytes.extend((descriptor.len() as u16).to_be_bytes());
    }
    bytes.extend(descriptor);
    bytes.extend(pages);
    bytes
}

/// The header and the bytes of the pages in MODE SENSE data. Bytes beyond the length field are left
/// out.
///
/// # Errors
/// [`Malformed`] when the header or the block descriptor is cut short.
pub fn parse(form: CdbForm, bytes: &[u8]) -> Result<(Header, &[u8]), Malformed> {
    let malformed = Malformed("mode parameter data");
    let length = if form == CdbForm::Six {
        1 + usize::from(u8_at(bytes, 0).ok_or(malformed)?)
    } else {
        2 + usize::from(u16_at(bytes, 0).ok_or(malformed)?)
    };
    parse_parts(form, bytes.get(..length).unwrap_or(bytes)).ok_or(malformed)
}

/// The header and the bytes of the pages in a MODE SELECT list, where the length field is reserved (SPC-4 6.13): all of
/// it counts.
///
/// # Errors
/// [`Malformed`] when the header or the block descriptor is cut short.
pub fn parse_list(form: CdbForm, bytes: &[u8]) -> Result<(Header, &[u8]), Malformed> {
    parse_parts(form, bytes).ok_or(Malformed("mode parameter list"))
}

fn parse_parts(form: CdbForm, bytes: &[u8]) -> Option<(Header, &[u8])> {
    let (specific, is_long, descriptor_bytes, header_bytes) = if form == CdbForm::Six {
        (u8_at(bytes, 2)?, false, usize::from(u8_at(bytes, 3)?), 4)
    } else {
        let is_long = u8_at(bytes, 4)? & 0x01 != 0;
        (u8_at(bytes, 3)?, is_long, usize::from(u16_at(bytes, 6)?), 8)
    };
    let body = bytes.get(header_bytes..)?;
    let descriptor = body.get(..descriptor_bytes)?;
    let block_descriptor = match descriptor_bytes {
        0 => None,
        _ => Some(BlockDescriptor::parse(descriptor, is_long)?),
    };
    let header =
        Header { is_write_protected: specific & 0x80 != 0, has_dpo_fua: specific & 0x10 != 0, block_descriptor };
    Some((header, body.get(descriptor_bytes..)?))
}

/// One page among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// Page code.
    pub code: u8,
    /// Subpage code; zero in the short format.
    pub subpage: u8,
    /// The whole page, its own header with it.
    pub bytes: &'a [u8],
}

/// The pages one after the other; `Err` once where one is cut short.
pub fn pages(mut bytes: &[u8]) -> impl Iterator<Item = Result<Page<'_>, Malformed>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let Some((page, rest)) = first_page(bytes) else {
            bytes = &[];
            return Some(Err(Malformed("mode page")));
        };
        bytes = rest;
        Some(Ok(page))
    })
}

fn first_page(bytes: &[u8]) -> Option<(Page<'_>, &[u8])> {
    let first = u8_at(bytes, 0)?;
    let (subpage, length) = if first & 0x40 == 0 {
        (0, 2 + usize::from(u8_at(bytes, 1)?))
    } else {
        (u8_at(bytes, 1)?, 4 + usize::from(u16_at(bytes, 2)?))
    };
    let (page, rest) = bytes.split_at_checked(length)?;
    Some((Page { code: first & 0x3f, subpage, bytes: page }, rest))
}

/// The caching page (SBC-3 6.5.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// WCE: writes may be lost until a SYNCHRONIZE CACHE.
    pub is_write_cache_enabled: bool,
    /// RCD.
    pub is_read_cache_disabled: bool,
}

impl Caching {
    /// Bytes of the page.
    pub const BYTES: usize = 20;

    /// The page.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = page::CACHING;
        bytes[1] = (Self::BYTES - 2) as u8;
        bytes[2] = if self.is_write_cache_enabled { 0x04 } else { 0 } | u8::from(self.is_read_cache_disabled);
        bytes
    }

    /// From the page's bytes.
    ///
    /// # Errors
    /// [`Malformed`] when the flags are not there.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let flags = u8_at(bytes, 2).ok_or(Malformed("caching mode page"))?;
        Ok(Self { is_write_cache_enabled: flags & 0x04 != 0, is_read_cache_disabled: flags & 0x01 != 0 })
    }
}

/// The control page (SPC-4 7.5.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// D_SENSE: sense data comes in descriptor format.
    pub has_descriptor_sense: bool,
    /// QUEUE ALGORITHM MODIFIER 1: simple tasks may be reordered without restriction.
    pub is_reordering_unrestricted: bool,
    /// SWP: software write protect.
    pub is_write_protected: bool,
    /// TAS: tasks aborted by another I_T nexus end with TASK ABORTED.
    pub has_task_aborted_status: bool,
}

impl Control {
    /// Bytes of the page.
    pub const BYTES: usize = 12;

    /// The page. The busy timeout is not defined (FFFFh).
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = page::CONTROL;
        bytes[1] = (Self::BYTES - 2) as u8;
        bytes[2] = if self.has_descriptor_sense { 0x04 } else { 0 };
        bytes[3] = if self.is_reordering_unrestricted { 0x10 } else { 0 };
        bytes[4] = if self.is_write_protected { 0x08 } else { 0 };
        bytes[5] = if self.has_task_aborted_status { 0x40 } else { 0 };
        bytes[8..10].fill(0xff);
        bytes
    }

    /// From the page's bytes.
    ///
    /// # Errors
    /// [`Malformed`] when the flags are not there.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let [_, _, sense, queue, protect, abort, ..] = *bytes else { return Err(Malformed("control mode page")) };
        Ok(Self {
            has_descriptor_sense: sense & 0x04 != 0,
            is_reordering_unrestricted: queue >> 4 == 1,
            is_write_protected: protect & 0x08 != 0,
            has_task_aborted_status: abort & 0x40 != 0,
        })
    }
}

/// The read-write error recovery page (SBC-3 6.5.8): reassignment is left to the medium below, nothing is retried here.
pub const READ_WRITE_ERROR_RECOVERY: [u8; 12] = [page::READ_WRITE_ERROR_RECOVERY, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The informational exceptions control page (SBC-3 6.5.6): DEXCPT, nothing is reported.
pub const INFORMATIONAL_EXCEPTIONS: [u8; 12] = [page::INFORMATIONAL_EXCEPTIONS, 10, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CACHING: Caching = Caching { is_write_cache_enabled: true, is_read_cache_disabled: false };
    const CONTROL: Control = Control {
        has_descriptor_sense: false,
        is_reordering_unrestricted: true,
        is_write_protected: true,
        has_task_aborted_status: true,
    };

    #[test]
    fn golden_pages() {
        let mut expected = [0; 20];
        expected[..3].copy_from_slice(&[0x08, 0x12, 0x04]);
        assert_eq!(CACHING.emit(), expected);
        assert_eq!(CONTROL.emit(), [0x0a, 0x0a, 0, 0x10, 0x08, 0x40, 0, 0, 0xff, 0xff, 0, 0]);
        assert_eq!(Caching::parse(&CACHING.emit()), Ok(CACHING));
        assert_eq!(Control::parse(&CONTROL.emit()), Ok(CONTROL));
    }

    #[test]
    fn golden_data_of_both_forms() {
        let descriptor = BlockDescriptor { block_count: 1 << 32, block_bytes: 512, is_long: false };
        let header = Header { is_write_protected: true, has_dpo_fua: true, block_descriptor: Some(descriptor) };
        let six = emit(CdbForm::Six, &header, &[0x0a, 0]);
        assert_eq!(six, [13, 0, 0x90, 8, 0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0, 0x0a, 0]);
        let long = Header { block_descriptor: Some(BlockDescriptor { is_long: true, ..descriptor }), ..header };
        let ten = emit(CdbForm::Ten, &long, &[0x0a, 0]);
        let expected = [0, 24, 0, 0x90, 1, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0x0a, 0];
        assert_eq!(ten, expected);
        assert_eq!(parse(CdbForm::Ten, &ten), Ok((long, &[0x0a, 0][..])));
        let short = BlockDescriptor { block_count: u64::from(u32::MAX), ..descriptor };
        assert_eq!(parse(CdbForm::Six, &six), Ok((Header { block_descriptor: Some(short), ..header }, &[0x0a, 0][..])));
    }

    #[test]
    fn pages_are_taken_apart_and_a_cut_one_is_an_error() {
        let mut bytes = CACHING.emit().to_vec();
        bytes.extend([0x4a, 0x01, 0, 2, 7, 7]);
        bytes.extend([0x0a, 0x0a, 0]);
        let codes: Vec<_> =
            pages(&bytes).map(|page| page.map(|page| (page.code, page.subpage, page.bytes.len()))).collect();
        assert_eq!(codes, [Ok((0x08, 0, 20)), Ok((0x0a, 1, 6)), Err(Malformed("mode page"))]);
    }

    proptest! {
        #[test]
        fn foreign_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            for form in [CdbForm::Six, CdbForm::Ten] {
                if let Ok((_, rest)) = parse(form, &bytes) {
                    let _ = pages(rest).count();
                }
            }
        }
    }
}
