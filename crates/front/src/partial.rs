//! Requests of partial blocks, and requests of more than the device takes at once or than other
//! connections should wait for: several steps each.
//!
//! A partly written block is read, changed and written back. All of it happens in the request's
//! turn: no other request changes the block meanwhile. Steps go one after the other through buffers
//! of their own; only reads of whole blocks use the request's buffer.

use std::future::Future;

use base::buffer::Buffer;
use base::limits::BUFFER_ALIGNMENT;
use block::device::DeviceExt;
use block::{ByteRange, Error, ErrorKind, Extent, ExtentKind, Geometry, SharedDevice};
use nbd::StatusExtent;

use crate::admission::{DeviceTurns, Place};
use crate::limits::PIECE_BYTES_MIN;

/// A device, and the limits of its requests.
#[derive(Clone)]
pub(crate) struct Blocks {
    device: SharedDevice,
    block_bytes: u64,
    /// Most bytes of one step, a multiple of the block, and of the page unless it is less.
    step_bytes: u64,
    /// The turns of each step with other connections, which also limit its length.
    turns: Option<DeviceTurns>,
}

/// Whether a range is whole blocks, whose size is a power of two; called for every request.
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

/// Extents in the terms of the protocol.
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
    pub(crate) fn new(
        device: SharedDevice,
        geometry: &Geometry,
        step_bytes_max: u64,
        turns: Option<DeviceTurns>,
    ) -> Result<Self, Error> {
        let block_bytes = u64::from(geometry.logical_block_bytes);
        let most = step_bytes_max.min(geometry.transfer_bytes_max.into());
        let step_bytes = whole_steps(block_bytes, most);
        if step_bytes > base::limits::BUFFER_BYTES_MAX as u64 {
            let words = format!("blocks of {block_bytes} bytes are too large to be read and written in part");
            return Err(Error::new(ErrorKind::Unsupported, words));
        }
        Ok(Self { device, block_bytes, step_bytes, turns })
    }

    /// Fills `buffer` from `offset` on.
    pub(crate) async fn read(self, offset: u64, mut buffer: Buffer) -> Result<Buffer, Error> {
        let range = ByteRange { offset, length: buffer.len() as u64 };
        if is_whole(self.block_bytes, range) && self.step_bytes >= BUFFER_ALIGNMENT as u64 {
            return self.read_in_place(range, buffer).await;
        }
        let mut left = self.blocks_of(range);
        while let Some((step, place)) = self.next_step(&mut left).await {
            let bytes = in_place(place, self.read_blocks(step)).await?;
            let (from, to, length) = common(step, range);
            buffer[to..to + length].copy_from_slice(&bytes[from..from + length]);
        }
        Ok(buffer)
    }

    /// Reads whole blocks into `buffer`, each step into a part of its window.
    async fn read_in_place(self, range: ByteRange, mut buffer: Buffer) -> Result<Buffer, Error> {
        let (start, mut left) = (buffer.start(), range);
        while let Some((step, place)) = self.next_step(&mut left).await {
            buffer.set_window(start + (step.offset - range.offset) as usize, step.length as usize);
            buffer = in_place(place, self.device.read(step.offset, buffer)).await?;
        }
        buffer.set_window(start, range.length as usize);
        Ok(buffer)
    }

    /// Writes `buffer` at `offset`. Several steps become durable together, after the last one.
    pub(crate) async fn write(self, offset: u64, buffer: Buffer, fua: bool) -> Result<(), Error> {
        let range = ByteRange { offset, length: buffer.len() as u64 };
        let step_min = if self.turns.is_some() { self.step_bytes.min(PIECE_BYTES_MIN) } else { self.step_bytes };
        let has_flush = fua && range.length > step_min;
        self.change(range, fua && !has_flush, |into, at| into.copy_from_slice(&buffer[at..at + into.len()])).await?;
        if has_flush { self.flush().await } else { Ok(()) }
    }

    /// Zeroes a range: part of the blocks at its ends, all of those between.
    pub(crate) async fn write_zeroes(self, range: ByteRange, fua: bool, may_discard: bool) -> Result<(), Error> {
        let inside = self.inside(range);
        if inside.is_empty() {
            self.change(range, fua, |into, _| into.fill(0)).await?;
            return Ok(());
        }
        let before = ByteRange { offset: range.offset, length: inside.offset - range.offset };
        let after = ByteRange { offset: inside.end(), length: range.end() - inside.end() };
        for end in [before, after] {
            self.change(end, fua, |into, _| into.fill(0)).await?;
        }
        self.device.write_zeroes(inside.offset, inside.length, fua, may_discard).await?;
        Ok(())
    }

    /// Discards the whole blocks of a range; the others are not changed.
    pub(crate) async fn discard(self, range: ByteRange, fua: bool) -> Result<(), Error> {
        let inside = self.inside(range);
        if !inside.is_empty() {
            self.device.discard(inside.offset, inside.length).await?;
        }
        if fua {
            self.device.flush().await?;
        }
        Ok(())
    }

    /// Makes durable what was written.
    pub(crate) async fn flush(self) -> Result<(), Error> {
        self.device.flush().await
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

    /// The block status of a range, from its first byte. A device without extents reports all as
    /// allocated ("base:allocation").
    pub(crate) async fn status(self, range: ByteRange) -> Result<Vec<StatusExtent>, Error> {
        match self.extents(range).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Vec::new()),
            extents => Ok(to_status(&extents?)),
        }
    }

    /// Reads a range and drops the data: the caches below keep it.
    pub(crate) async fn warm(self, range: ByteRange) -> Result<(), Error> {
        let mut left = self.blocks_of(range);
        while let Some((step, place)) = self.next_step(&mut left).await {
            in_place(place, self.read_blocks(step)).await?;
        }
        Ok(())
    }

    /// Writes a range step by step. `fill` makes the bytes at an offset within the range.
    async fn change(&self, range: ByteRange, fua: bool, fill: impl Fn(&mut [u8], usize)) -> Result<(), Error> {
        let mut left = self.blocks_of(range);
        while let Some((step, place)) = self.next_step(&mut left).await {
            let (from, to, length) = common(step, range);
            let is_whole = from == 0 && length as u64 == step.length;
            let write = async {
                let mut bytes = if is_whole { Buffer::zeroed(length) } else { self.read_blocks(step).await? };
                fill(&mut bytes[from..from + length], to);
                self.device.write(step.offset, bytes, fua).await
            };
            in_place(place, write).await?;
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

    /// The blocks that a range touches, from which its steps are cut.
    fn blocks_of(&self, range: ByteRange) -> ByteRange {
        if range.is_empty() { range } else { around(self.block_bytes, range) }
    }

    /// The next step of what is left: whole blocks, as many as its turn allows, and its place in
    /// the device.
    async fn next_step(&self, left: &mut ByteRange) -> Option<(ByteRange, Option<Place>)> {
        let most = self.step_bytes.min(left.length);
        let place = match &self.turns {
            Some(turns) if most > 0 => Some(turns.enter(most).await),
            _ => None,
        };
        let most = place.as_ref().map_or(self.step_bytes, |place| place.bytes);
        let step = ByteRange { offset: left.offset, length: whole_steps(self.block_bytes, most).min(left.length) };
        *left = ByteRange { offset: step.end(), length: left.length - step.length };
        (!step.is_empty()).then_some((step, place))
    }
}

/// Carries out the work of a step in its place, where it has one.
async fn in_place<F: Future>(place: Option<Place>, work: F) -> F::Output {
    match place {
        Some(place) => place.carry_out(work).await,
        None => work.await,
    }
}

/// The most whole blocks and whole pages in `most` bytes; whole blocks where no whole page fits,
/// and one at least.
fn whole_steps(block_bytes: u64, most: u64) -> u64 {
    let unit = block_bytes.max(BUFFER_ALIGNMENT as u64);
    if most >= unit { most / unit * unit } else { (most / block_bytes * block_bytes).max(block_bytes) }
}

/// The common bytes of a step and a range: their offset in each, and their count.
fn common(step: ByteRange, range: ByteRange) -> (usize, usize, usize) {
    let (start, end) = (step.offset.max(range.offset), step.end().min(range.end()));
    ((start - step.offset) as usize, (start - range.offset) as usize, (end - start) as usize)
}
