//! Lines that begin where the blocks of the origin's user begin, as a file system's.
//!
//! A file system on a partition that does not begin at a multiple of 4 KiB reads and writes blocks that lie across two
//! lines each. So lines can begin at another place:
//!
//! ```text
//!   origin          0     A            A + 4096      A + 8192
//!   lines     |..........|             |             |             the first line has only its end
//!             └ padding ─┘
//! ```
//! Inside the cache the origin is one that begins `padding` bytes earlier ([`Padded`]); no request
//! reaches the padding. `dispatch` moves the ranges of requests by `padding` as they come in, and
//! those of answers and events as they are passed on.

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Completion, Copies, Device, Error, ErrorKind, EventReceiver, Geometry, Identity, Request, SharedDevice};

use crate::limits::SECTOR_BYTES;
use crate::line_size::LineSize;

/// Where lines begin on the origin, modulo their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alignment {
    /// Where the first partition begins, if the origin has an MBR; else where the origin says that its physical blocks
    /// begin.
    #[default]
    Found,
    /// At this byte, a multiple of the origin's logical block.
    At(u64),
}

impl Alignment {
    /// The alignment of an existing cache whose lines of `line_size` begin at `at`. For lines of
    /// another size this is a guess: `at` is below `line_size`, so it may be less than where those
    /// should begin.
    pub async fn made_with(at: u64, line_size: LineSize, origin: &SharedDevice) -> Self {
        match Self::Found.resolve(line_size, origin).await {
            Ok(found) if found == at => Self::Found,
            _ => Self::At(at),
        }
    }

    /// The first byte of a line on `origin`, below the size of a line.
    ///
    /// # Errors
    /// `InvalidRange` for one that is not a multiple of the logical block.
    pub(crate) async fn resolve(self, line_size: LineSize, origin: &SharedDevice) -> Result<u64, Error> {
        let block_bytes = u64::from(origin.geometry().logical_block_bytes);
        let at = match self {
            Self::At(at) => at,
            Self::Found => match first_partition(origin).await {
                Some(at) => at,
                None => u64::from(origin.geometry().hints.physical_alignment_bytes),
            },
        };
        match (self, at.is_multiple_of(block_bytes)) {
            (_, true) => Ok(at % line_size.bytes()),
            (Self::Found, false) => Ok(0),
            (Self::At(_), false) => {
                let context = format!("lines cannot begin at {at}: blocks of this disk have {block_bytes} bytes");
                Err(Error::new(ErrorKind::InvalidRange, context))
            }
        }
    }
}

/// Where the first partition of an MBR begins; `None` without one, where it cannot be read, and on
/// a disk with a GPT (its partitions are aligned by every tool).
async fn first_partition(origin: &SharedDevice) -> Option<u64> {
    let geometry = origin.geometry();
    if u64::from(geometry.logical_block_bytes) != SECTOR_BYTES || geometry.size_bytes < SECTOR_BYTES {
        return None;
    }
    let sector = origin.read(0, Buffer::zeroed(SECTOR_BYTES as usize)).await.ok()?;
    partition_start(&sector)
}

/// The start in bytes of the first partition of an MBR sector. The four entries of 16 bytes begin
/// at byte 446: type at 4, first sector at 8.
fn partition_start(sector: &[u8]) -> Option<u64> {
    const GPT: u8 = 0xee;
    if sector.get(510..512)? != [0x55, 0xaa] {
        return None;
    }
    let entry = sector.get(446..462)?;
    let kind = *entry.get(4)?;
    let first = u32::from_le_bytes(entry.get(8..12)?.try_into().ok()?);
    (kind != 0 && kind != GPT && first != 0).then_some(u64::from(first) * SECTOR_BYTES)
}

/// Bytes between the beginning of the first line and that of the origin, where lines begin at `alignment`.
pub(crate) fn padding_of(line_size: LineSize, alignment: u64) -> u64 {
    (line_size.bytes() - alignment % line_size.bytes()) % line_size.bytes()
}

/// A device with some bytes of padding before the first byte of `inner`; no request reaches them.
pub(crate) struct Padded {
    inner: SharedDevice,
    padding: u64,
}

impl Padded {
    /// `inner` itself where there is no padding.
    pub(crate) fn over(inner: SharedDevice, padding: u64) -> SharedDevice {
        if padding == 0 { inner } else { std::sync::Arc::new(Self { inner, padding }) }
    }
}

impl Device for Padded {
    fn geometry(&self) -> Geometry {
        let inner = self.inner.geometry();
        Geometry { size_bytes: inner.size_bytes.saturating_add(self.padding), ..inner }
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, mut request: Request) -> Completion {
        if matches!(request.operation, block::Operation::Flush) {
            return self.inner.submit(request);
        }
        match request.offset.checked_sub(self.padding) {
            Some(offset) => {
                request.offset = offset;
                self.inner.submit(request)
            }
            None => Completion::ready(request.fail(ErrorKind::InvalidRange)),
        }
    }

    /// Events are passed on as they are: the receiver moves their ranges.
    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }

    /// Passed on as it is, likewise.
    fn copies(&self) -> Option<Copies> {
        self.inner.copies()
    }
}

/// `range` of the origin, in the cache's own offsets.
pub(crate) fn inside(range: ByteRange, padding: u64) -> ByteRange {
    let offset = range.offset.saturating_add(padding);
    // A range up to the end of everything ends at the largest offset.
    ByteRange { offset, length: range.length.min(u64::MAX - offset) }
}

/// `range` in the cache's own offsets, as a range of the origin.
pub(crate) fn outside(range: ByteRange, padding: u64) -> ByteRange {
    ByteRange { offset: range.offset.saturating_sub(padding), ..range }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_without_end_has_none_in_a_cache_with_padding() {
        let endless = ByteRange { offset: 4096, length: u64::MAX - 4096 };
        assert_eq!(inside(endless, 512), ByteRange { offset: 4608, length: u64::MAX - 4608 });
    }

    #[test]
    fn the_first_partition_says_where_lines_begin() {
        let mut sector = [0; 512];
        assert_eq!(partition_start(&sector), None);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(partition_start(&sector), None, "no partition");
        (sector[450], sector[454]) = (0x83, 63);
        assert_eq!(partition_start(&sector), Some(63 * 512));
        sector[450] = 0xee;
        assert_eq!(partition_start(&sector), None, "a GPT");
        assert_eq!(partition_start(&sector[..100]), None);
    }

    #[test]
    fn padding_and_alignment_make_a_line() {
        for line_size in [4096, 65536].map(|bytes| LineSize::new(bytes).unwrap()) {
            for alignment in (0..line_size.bytes()).step_by(512) {
                assert_eq!((padding_of(line_size, alignment) + alignment) % line_size.bytes(), 0);
                assert!(padding_of(line_size, alignment) < line_size.bytes());
            }
        }
    }
}
