//! READ CAPACITY data (SBC-3 5.15.2 and 5.16.2).

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::Malformed;
use crate::field::{u32_at, u64_at};

/// READ CAPACITY(16) data.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Raw16 {
    last_lba: U64,      //  0
    block_bytes: U32,   //  8
    protection: u8,     // 12  P_TYPE, PROT_EN
    exponents: u8,      // 13  logical blocks per physical block exponent in bits 0..4
    alignment: U16,     // 14  LBPME in bit 15, LBPRZ in bit 14, lowest aligned LBA below
    reserved: [u8; 16], // 16
}
const _: () = assert!(size_of::<Raw16>() == Capacity::BYTES_16);
const _: () = assert!(offset_of!(Raw16, block_bytes) == 8);
const _: () = assert!(offset_of!(Raw16, alignment) == 14);

/// How large a logical unit is and how it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// LBA of the last logical block.
    pub last_lba: u64,
    /// Bytes of a logical block.
    pub block_bytes: u32,
    /// Logical blocks per physical block, as a power of two.
    pub physical_block_exponent: u8,
    /// LBPME: unmapping is managed.
    pub is_thin: bool,
    /// LBPRZ: unmapped blocks read as zeroes.
    pub unmapped_reads_zeroes: bool,
    /// LBA of the first block that begins a physical block; at most 3FFFh.
    pub lowest_aligned_lba: u16,
}

impl Capacity {
    /// Bytes of READ CAPACITY(10) data.
    pub const BYTES_10: usize = 8;
    /// Bytes of READ CAPACITY(16) data.
    pub const BYTES_16: usize = 32;

    /// READ CAPACITY(10) data: FFFFFFFFh where the last LBA does not fit, which sends the initiator to the sixteen-byte
    /// command.
    pub fn emit_10(&self) -> [u8; Self::BYTES_10] {
        let last_lba = u32::try_from(self.last_lba).unwrap_or(u32::MAX);
        zerocopy::transmute!([U32::new(last_lba), U32::new(self.block_bytes)])
    }

    /// READ CAPACITY(16) data.
    pub fn emit_16(&self) -> [u8; Self::BYTES_16] {
        let thin = if self.is_thin { 0x8000 } else { 0 };
        let zeroes = if self.unmapped_reads_zeroes { 0x4000 } else { 0 };
        let raw = Raw16 {
            last_lba: U64::new(self.last_lba),
            block_bytes: U32::new(self.block_bytes),
            protection: 0,
            exponents: self.physical_block_exponent & 0x0f,
            alignment: U16::new(thin | zeroes | self.lowest_aligned_lba & 0x3fff),
            reserved: [0; 16],
        };
        zerocopy::transmute!(raw)
    }

    /// READ CAPACITY(10) data, or `None` inside when it says to ask with the sixteen-byte command.
    ///
    /// # Errors
    /// [`Malformed`] when it is short or the block size is no power of two.
    pub fn parse_10(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let malformed = Malformed("READ CAPACITY(10) data");
        let last_lba = u32_at(bytes, 0).ok_or(malformed)?;
        let block_bytes = u32_at(bytes, 4).filter(|bytes| bytes.is_power_of_two()).ok_or(malformed)?;
        let capacity = Self {
            last_lba: u64::from(last_lba),
            block_bytes,
            physical_block_exponent: 0,
            is_thin: false,
            unmapped_reads_zeroes: false,
            lowest_aligned_lba: 0,
        };
        Ok((last_lba != u32::MAX).then_some(capacity))
    }

    /// READ CAPACITY(16) data.
    ///
    /// # Errors
    /// [`Malformed`] when it is short, the block size is no power of two, or the size does not fit in 64 bits of bytes.
    pub fn parse_16(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed("READ CAPACITY(16) data");
        let last_lba = u64_at(bytes, 0).ok_or(malformed)?;
        let block_bytes = u32_at(bytes, 8).filter(|bytes| bytes.is_power_of_two()).ok_or(malformed)?;
        let tail = u32_at(bytes, 12).ok_or(malformed)?;
        let block_count = last_lba.checked_add(1).ok_or(malformed)?;
        block_count.checked_mul(u64::from(block_bytes)).ok_or(malformed)?;
        Ok(Self {
            last_lba,
            block_bytes,
            physical_block_exponent: (tail >> 16 & 0x0f) as u8,
            is_thin: tail & 0x8000 != 0,
            unmapped_reads_zeroes: tail & 0x4000 != 0,
            lowest_aligned_lba: (tail & 0x3fff) as u16,
        })
    }

    /// Bytes in all. Never overflows for what was parsed.
    pub fn size_bytes(&self) -> u64 {
        (self.last_lba + 1) * u64::from(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Capacity = Capacity {
        last_lba: 0x1_0000_0001,
        block_bytes: 512,
        physical_block_exponent: 3,
        is_thin: true,
        unmapped_reads_zeroes: true,
        lowest_aligned_lba: 0x102,
    };

    #[test]
    fn golden_bytes() {
        assert_eq!(SAMPLE.emit_10(), [0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0]);
        let expected = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0xc1, 2];
        assert_eq!(SAMPLE.emit_16()[..16], expected);
        assert_eq!(SAMPLE.emit_16()[16..], [0; 16]);
    }

    #[test]
    fn it_is_read_back() {
        assert_eq!(Capacity::parse_16(&SAMPLE.emit_16()), Ok(SAMPLE));
        assert_eq!(Capacity::parse_10(&SAMPLE.emit_10()), Ok(None));
        let plain = Capacity {
            last_lba: 2047,
            physical_block_exponent: 0,
            is_thin: false,
            unmapped_reads_zeroes: false,
            lowest_aligned_lba: 0,
            ..SAMPLE
        };
        assert_eq!(Capacity::parse_10(&plain.emit_10()), Ok(Some(plain)));
        assert_eq!(plain.size_bytes(), 1 << 20);
    }

    #[test]
    fn lies_are_refused() {
        let mut bytes = SAMPLE.emit_16();
        assert!(Capacity::parse_16(&bytes[..15]).is_err());
        bytes[..8].fill(0xff);
        assert!(Capacity::parse_16(&bytes).is_err());
        assert!(Capacity::parse_10(&[0, 0, 0, 1, 0, 0, 2, 1]).is_err());
        assert!(Capacity::parse_10(&[0, 0, 0, 1, 0, 0, 0, 0]).is_err());
    }
}
