//! Size, blocks and abilities of a device.

use base::range::ByteRange;

use crate::error::{Error, ErrorKind};
use crate::request::{Operation, Request};

/// Size, blocks and abilities of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes, a multiple of the logical block and of nothing larger.
    pub size_bytes: u64,
    /// Unit of addressing in bytes, a power of two from 512.
    pub logical_block_bytes: u32,
    /// Unit the medium writes without reading first, in bytes.
    pub physical_block_bytes: u32,
    /// Whether completed writes may be lost until a flush (WCE).
    pub is_write_cache_volatile: bool,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Granularity of discards in bytes; `None` where discards are not supported.
    pub discard_granularity_bytes: Option<u32>,
    /// Whether discarded bytes read as zeroes.
    pub discard_reads_zeroes: bool,
    /// Largest read or write it takes at once, in bytes.
    pub transfer_bytes_max: u32,
    /// Preferred sizes and alignments.
    pub hints: Hints,
}

/// Preferences of a device: other requests are carried out just as well, but more slowly. All zero
/// where nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Requests are best multiples of this, in bytes; zero where nothing is known.
    pub io_bytes_min: u32,
    /// Best size of one of many requests in sequence, in bytes; zero where nothing is known.
    pub io_bytes_optimal: u32,
    /// Offset of the first physical block that begins on the device, in bytes: not zero on a misaligned partition.
    pub physical_alignment_bytes: u32,
    /// Offset of the first discard granule that begins on the device, in bytes.
    pub discard_alignment_bytes: u32,
    /// Whether distant places cost more than near ones: the medium turns.
    pub is_rotational: bool,
}

impl Geometry {
    /// A plain device of `size_bytes`: 512-byte blocks, no volatile cache, discards that read as zeroes.
    pub fn plain(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            logical_block_bytes: 512,
            physical_block_bytes: 4096,
            is_write_cache_volatile: false,
            is_read_only: false,
            discard_granularity_bytes: Some(4096),
            discard_reads_zeroes: true,
            transfer_bytes_max: 16 << 20,
            hints: Hints::default(),
        }
    }

    /// Checks a request. Returns its range.
    ///
    /// # Errors
    /// `InvalidRange` outside the device, off its blocks or above its largest transfer; `ReadOnly` for a mutation of a
    /// read-only device; `Unsupported` for a discard where there is none.
    pub fn check(&self, request: &Request) -> Result<ByteRange, Error> {
        let range = request.range().ok_or(ErrorKind::InvalidRange)?;
        let block = u64::from(self.logical_block_bytes);
        if !range.offset.is_multiple_of(block) || !range.length.is_multiple_of(block) {
            return Err(Error::new(ErrorKind::InvalidRange, format!("{range} are not whole blocks of {block} bytes")));
        }
        if range.end() > self.size_bytes {
            let context = format!("{range} reach past the end of the device at {}", self.size_bytes);
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        if self.is_read_only && request.is_mutation() {
            return Err(ErrorKind::ReadOnly.into());
        }
        match &request.operation {
            Operation::Read { buffer } | Operation::Write { buffer, .. }
                if buffer.len() as u64 > u64::from(self.transfer_bytes_max) =>
            {
                let context = format!("{range} are more than {} at once", self.transfer_bytes_max);
                Err(Error::new(ErrorKind::InvalidRange, context))
            }
            Operation::Discard { .. } if self.discard_granularity_bytes.is_none() => Err(ErrorKind::Unsupported.into()),
            _ => Ok(range),
        }
    }
}
