//! Requests that are not whole blocks of the device, and requests of more than it takes at once: several steps each.
//!
//! What is written of a block in part is read, changed and written back. All of it happens in the request's turn: nobody else changes the
//! block meanwhile. Steps go one after the other through buffers of their own.

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::{ByteRange, Error, ErrorKind, Extent, ExtentKind, Geometry, SharedDevice};
use nbd::StatusExtent;
use nbd::server::Reply;

/// A device and what its requests must be.
#[derive(Clone)]
pub(crate) struct Blocks {
    device: SharedDevice,
    block_bytes: u64,
    /// Bytes of one step, a multiple of the block.
    step_bytes: u64,
}

/// Whether a range is whole blocks, which are a power of two: every request asks.
#[inline]
pub(crate) fn is_whole(block_bytes: u64, range: ByteRange) -> bool {
    (range.offset | range.length) & (block_bytes - 1) == 0
}

/// The blocks that a range touches.
#[inline]
pub(crate) fn around(block_bytes: u64, range: ByteRange) -> ByteRange {
    if is_whole(block_bytes, range) {
        return range;
    }
    let offset = range.offset / block_bytes * block_bytes;
    ByteRange { offset, length: range.end().next_multiple_of(block_bytes) - offset }
}

/// Extents in the words of the protocol.
pub(crate) fn to_status(extents: &[Extent]) -> Vec<StatusExtent> {
    let to_extent = |extent: &Extent| {
        let is_hole = extent.kind == ExtentKind::Hole;
        let length_bytes = u32::try_from(extent.range.length).unwrap_or(u32::MAX);
        StatusExtent { length_bytes, is_hole, is_zero: is_hole }
    };
    extents.iter().filter(|extent| !extent.range.is_empty()).map(to_extent).collect()
}

impl Blocks {
    /// `device` in steps of at most `step_bytes_max`.
    ///
    /// # Errors
    /// `Unsupported` for blocks larger than any buffer.
    pub(crate) fn new(device: SharedDevice, geometry: &Geometry, step_bytes_max: u64) -> Result<Self, Error> {
        let block_bytes = u64::from(geometry.logical_block_bytes);
        let most = step_bytes_max.min(geometry.transfer_bytes_max.into());
        let step_bytes = (most / block_bytes * block_bytes).max(block_bytes);
        if step_bytes > base::limits::BUFFER_BYTES_MAX as u64 {
            let words = format!("blocks of {block_bytes} bytes are too large to be read and written in part");
            return Err(Error::new(ErrorKind::Unsupported, words));
        }
        Ok(Self { device, block_bytes, step_bytes })
    }

    /// Fills `buffer` from `offset` on.
    pub(crate) async fn read(self, offset: u64, mut buffer: Buffer) -> Result<Reply, Error> {
        let range = ByteRange { offset, length: buffer.len() as u64 };
        for step in self.steps(range) {
            let bytes = self.read_blocks(step).await?;
            let (from, to, length) = common(step, range);
            buffer[to..to + length].copy_from_slice(&bytes[from..from + length]);
        }
        Ok(Reply::Data(buffer))
    }

    /// Writes `buffer` at `offset`.
    pub(crate) async fn write(self, offset: u64, buffer: Buffer, fua: bool) -> Result<Reply, Error> {
        let range = ByteRange { offset, length: buffer.len() as u64 };
        self.change(range, fua, |into, at| into.copy_from_slice(&buffer[at..at + into.len()])).await?;
        Ok(Reply::Done)
    }

    /// Makes a range zeroes: of the blocks at its ends a part, of those between all.
    pub(crate) async fn write_zeroes(self, range: ByteRange, fua: bool, may_discard: bool) -> Result<Reply, Error> {
        let inside = self.inside(range);
        if inside.is_empty() {
            self.change(range, fua, |into, _| into.fill(0)).await?;
            return Ok(Reply::Done);
        }
        let before = ByteRange { offset: range.offset, length: inside.offset - range.offset };
        let after = ByteRange { offset: inside.end(), length: range.end() - inside.end() };
        for end in [before, after] {
            self.change(end, fua, |into, _| into.fill(0)).await?;
        }
        self.device.write_zeroes(inside.offset, inside.length, fua, may_discard).await?;
        Ok(Reply::Done)
    }

    /// Discards the whole blocks of a range: what is left of the others stays.
    pub(crate) async fn discard(self, range: ByteRange, fua: bool) -> Result<Reply, Error> {
        let inside = self.inside(range);
        if !inside.is_empty() {
            self.device.discard(inside.offset, inside.length).await?;
        }
        if fua {
            self.device.flush().await?;
        }
        Ok(Reply::Done)
    }

    /// Makes durable what was written.
    pub(crate) async fn flush(self) -> Result<Reply, Error> {
        self.device.flush().await?;
        Ok(Reply::Done)
    }

    /// The extents of a range, from its first byte.
    async fn extents(self, range: ByteRange) -> Result<Vec<Extent>, Error> {
        let whole = around(self.block_bytes, range);
        let mut extents = self.device.extents(whole.offset, whole.length).await?;
        for extent in &mut extents {
            let before = range.offset.saturating_sub(extent.range.offset).min(extent.range.length);
            extent.range.offset += before;
            extent.range.length -= before;
        }
        Ok(extents)
    }

    /// What is allocated in a range, from its first byte. Whoever does not know it says that everything is ("base:allocation").
    pub(crate) async fn status(self, range: ByteRange) -> Result<Reply, Error> {
        match self.extents(range).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Reply::Status(Vec::new())),
            extents => Ok(Reply::Status(to_status(&extents?))),
        }
    }

    /// Reads a range and drops what it reads: whatever caches there are below keep it.
    pub(crate) async fn warm(self, range: ByteRange) -> Result<Reply, Error> {
        for step in self.steps(range) {
            self.read_blocks(step).await?;
        }
        Ok(Reply::Done)
    }

    /// Writes a range step by step. `fill` makes the bytes that begin so far inside the range.
    async fn change(&self, range: ByteRange, fua: bool, fill: impl Fn(&mut [u8], usize)) -> Result<(), Error> {
        for step in self.steps(range) {
            let (from, to, length) = common(step, range);
            let is_whole = from == 0 && length as u64 == step.length;
            let mut bytes = if is_whole { Buffer::zeroed(length) } else { self.read_blocks(step).await? };
            fill(&mut bytes[from..from + length], to);
            self.device.write(step.offset, bytes, fua).await?;
        }
        Ok(())
    }

    async fn read_blocks(&self, range: ByteRange) -> Result<Buffer, Error> {
        self.device.read(range.offset, Buffer::zeroed(range.length as usize)).await
    }

    /// The whole blocks of a range; empty where there is none.
    fn inside(&self, range: ByteRange) -> ByteRange {
        let offset = range.offset.next_multiple_of(self.block_bytes);
        let end = range.end() / self.block_bytes * self.block_bytes;
        ByteRange { offset, length: end.saturating_sub(offset) }
    }

    /// The steps of a range: whole blocks each.
    fn steps(&self, range: ByteRange) -> impl Iterator<Item = ByteRange> + use<> {
        let whole = if range.is_empty() { range } else { around(self.block_bytes, range) };
        let most = self.step_bytes;
        let starts = (whole.offset..whole.end()).step_by(most as usize);
        starts.map(move |offset| ByteRange { offset, length: most.min(whole.end() - offset) })
    }
}

/// The bytes that a step and a range have in common: where they begin in each, and how many they are.
fn common(step: ByteRange, range: ByteRange) -> (usize, usize, usize) {
    let (start, end) = (step.offset.max(range.offset), step.end().min(range.end()));
    ((start - step.offset) as usize, (start - range.offset) as usize, (end - start) as usize)
}
