//! The bytes of a checkpoint, piece by piece: neither writing nor reading needs a second copy of
//! them all.
//!
//! The checksum is at the front and covers what follows. So writing goes over all pieces before the
//! first one is sent, and rows that were read count only when [`CheckpointReader::finish`]
//! succeeds.

use base::buffer::Buffer;
use base::checksum::Crc32c;
use block::device::DeviceExt;
use block::{Error, ErrorKind, SharedDevice};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::format::{CHECKPOINT_MAGIC, CheckpointRaw, ExtentRaw, SegmentRaw};
use crate::limits::{CHECKPOINT_IO_BYTES, UNIT_BYTES};

/// A checkpoint that is being built.
#[derive(Default)]
pub(crate) struct CheckpointBytes {
    /// All but the last are full.
    pieces: Vec<Buffer>,
    length: usize,
}

impl CheckpointBytes {
    /// An empty one, with room for the head, which [`CheckpointBytes::seal`] fills in.
    pub(crate) fn new() -> Self {
        let mut bytes = Self::default();
        bytes.push(&CheckpointRaw::new_zeroed());
        bytes
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, row: &(impl IntoBytes + Immutable)) {
        let mut rest = row.as_bytes();
        while !rest.is_empty() {
            let at = self.length % CHECKPOINT_IO_BYTES;
            if at == 0 {
                self.pieces.push(Buffer::zeroed(CHECKPOINT_IO_BYTES));
            }
            let piece = self.pieces.last_mut().expect("there is one by now");
            let count = rest.len().min(CHECKPOINT_IO_BYTES - at);
            let (now, later) = rest.split_at(count);
            piece[at..at + count].copy_from_slice(now);
            (rest, self.length) = (later, self.length + count);
        }
    }

    /// Bytes so far.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Puts `head` with its checksum in front. Returns the pieces, in whole sectors.
    pub(crate) fn seal(mut self, mut head: CheckpointRaw) -> Vec<Buffer> {
        let last = self.length - (self.pieces.len() - 1) * CHECKPOINT_IO_BYTES;
        let mut checksum = Crc32c::new();
        let count = self.pieces.len();
        for (index, piece) in self.pieces.iter_mut().enumerate() {
            if index == 0 {
                piece[..size_of::<CheckpointRaw>()].copy_from_slice(head.as_bytes());
            }
            let end = if index + 1 == count { last } else { CHECKPOINT_IO_BYTES };
            checksum.update(&piece[if index == 0 { 4 } else { 0 }..end]);
        }
        head.checksum = checksum.finish().into();
        self.pieces[0][..4].copy_from_slice(head.checksum.as_bytes());
        self.pieces[count - 1].set_length(last.next_multiple_of(UNIT_BYTES as usize));
        self.pieces
    }
}

/// A checkpoint that is being read.
pub(crate) struct CheckpointReader<'a> {
    device: &'a SharedDevice,
    /// Offset on the device of what follows `piece`.
    offset: u64,
    /// Bytes of the checkpoint behind `piece`.
    rest: u64,
    piece: Buffer,
    /// Bytes of `piece` that were taken.
    at: usize,
    checksum: Crc32c,
    expected: u32,
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, what)
}

impl<'a> CheckpointReader<'a> {
    /// Opens the checkpoint at `offset`, of at most `bytes_max`.
    ///
    /// # Errors
    /// `Corrupt` unless it is number `sequence` of the log `log_id`, the device's own.
    pub(crate) async fn open(
        device: &'a SharedDevice,
        offset: u64,
        bytes_max: u64,
        log_id: uuid::Uuid,
        sequence: u64,
    ) -> Result<(Self, CheckpointRaw), Error> {
        let first = bytes_max.min(CHECKPOINT_IO_BYTES as u64);
        let mut piece = device.read(offset, Buffer::zeroed(first as usize)).await?;
        let (head, _) =
            CheckpointRaw::read_from_prefix(&piece).map_err(|_| damaged("the log's checkpoint is missing"))?;
        let length = size_of::<CheckpointRaw>() as u64
            + u64::from(head.segment_count.get()) * size_of::<SegmentRaw>() as u64
            + u64::from(head.extent_count.get()) * size_of::<ExtentRaw>() as u64;
        let is_it = head.magic.get() == CHECKPOINT_MAGIC
            && head.log_id == *log_id.as_bytes()
            && head.sequence.get() == sequence
            && length <= bytes_max;
        if !is_it {
            return Err(damaged("the log's checkpoint is damaged"));
        }
        piece.set_length(length.min(first) as usize);
        let mut checksum = Crc32c::new();
        checksum.update(&piece[4..]);
        let (at, rest, expected) = (size_of::<CheckpointRaw>(), length - piece.len() as u64, head.checksum.get());
        Ok((Self { device, offset: offset + first, rest, piece, at, checksum, expected }, head))
    }

    /// The next row.
    ///
    /// # Errors
    /// `Corrupt` behind the last one, the device's own.
    pub(crate) async fn next<T: FromBytes + IntoBytes>(&mut self) -> Result<T, Error> {
        let mut row = T::new_zeroed();
        let mut filled = 0;
        while filled < size_of::<T>() {
            if self.at == self.piece.len() {
                self.refill().await?;
            }
            let count = (size_of::<T>() - filled).min(self.piece.len() - self.at);
            row.as_mut_bytes()[filled..filled + count].copy_from_slice(&self.piece[self.at..self.at + count]);
            (filled, self.at) = (filled + count, self.at + count);
        }
        Ok(row)
    }

    async fn refill(&mut self) -> Result<(), Error> {
        let length = self.rest.min(CHECKPOINT_IO_BYTES as u64);
        if length == 0 {
            return Err(damaged("the log's checkpoint ends before its rows do"));
        }
        let mut piece = std::mem::take(&mut self.piece);
        piece.set_length(length.next_multiple_of(UNIT_BYTES) as usize);
        let mut piece = self.device.read(self.offset, piece).await?;
        piece.set_length(length as usize);
        self.checksum.update(&piece);
        (self.piece, self.at) = (piece, 0);
        (self.offset, self.rest) = (self.offset + length, self.rest - length);
        Ok(())
    }

    /// Checks the checksum, after all rows were taken.
    ///
    /// # Errors
    /// `Corrupt` when the rows are not what was written.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let is_whole = self.rest == 0 && self.at == self.piece.len() && self.checksum.finish() == self.expected;
        if is_whole { Ok(()) } else { Err(damaged("the log's checkpoint is damaged: its checksum is wrong")) }
    }
}
