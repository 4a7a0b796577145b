//! The writes to the origin by which a batch of lines is cleaned.
//!
//! - Adjacent dirty sectors are joined, also those of different lines, up to [`CLEAN_WRITE_BYTES_MAX`]: one write of
//!   the LUN where the application made one.
//! - A write that fails because of the medium, of the origin or of the cache device, is repeated
//!   line by line. So a bad sector costs only the line that it is in. Other errors do not belong to
//!   a place, and are not tried anew.

use std::collections::BTreeSet;
use std::ops::Range;
use std::slice;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Error, ErrorKind};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use crate::core::Core;
use crate::limits::CLEAN_WRITE_BYTES_MAX;
use crate::line_checksum::LineChecksum;
use crate::numbers::{BlockNumber, FrameNumber};
use crate::sectors::Sectors;

/// A line that is being cleaned: what of it is sent, and from where.
pub(crate) struct Pick {
    pub(crate) block: BlockNumber,
    pub(crate) frame: FrameNumber,
    pub(crate) mask: Sectors,
    pub(crate) checksum: LineChecksum,
}

/// The outcome for the lines of a batch.
pub(crate) struct Sent {
    /// Lines that the origin took.
    pub(crate) blocks: Vec<BlockNumber>,
    /// Lines of which it refused a part.
    pub(crate) refused_blocks: Vec<BlockNumber>,
    /// The first error of these; `None` when it took all lines.
    pub(crate) refusal: Option<Error>,
}

/// One write to the origin.
struct OriginWrite {
    range: ByteRange,
    /// (offset on the cache device, bytes), in order.
    pieces: Vec<(u64, u64)>,
    /// Indices of the lines in the batch that have a part in it.
    lines: Range<usize>,
}

impl Core {
    /// Most bytes of a write.
    fn origin_write_bytes_max(&self) -> u64 {
        CLEAN_WRITE_BYTES_MAX.min(u64::from(self.origin.geometry().transfer_bytes_max))
    }

    /// Lines that one write can carry.
    pub(crate) fn run_lines_max(&self) -> u64 {
        (self.origin_write_bytes_max() / self.line_size().bytes()).max(1)
    }

    /// Sends lines, in ascending order, with up to `in_flight` writes at a time.
    pub(crate) async fn send_picks(&self, picks: &[Pick], in_flight: usize) -> Sent {
        let writes = stream::iter(self.origin_writes(picks)).map(|write| self.send_or_divide(picks, write));
        let refusals: Vec<Vec<(BlockNumber, Error)>> = writes.buffer_unordered(in_flight).collect().await;
        let refused: BTreeSet<BlockNumber> = refusals.iter().flatten().map(|(block, _)| *block).collect();
        let blocks = picks.iter().map(|pick| pick.block).filter(|block| !refused.contains(block)).collect();
        let refusal = refusals.into_iter().flatten().next().map(|(_, error)| error);
        Sent { blocks, refused_blocks: refused.into_iter().collect(), refusal }
    }

    /// The writes for these lines, adjacent sectors joined.
    fn origin_writes(&self, picks: &[Pick]) -> Vec<OriginWrite> {
        let length_max = self.origin_write_bytes_max();
        let mut writes: Vec<OriginWrite> = Vec::new();
        for (index, pick) in picks.iter().enumerate() {
            for run in pick.mask.runs() {
                let offset = self.line_size().line_range(pick.block).offset + run.offset();
                let from = self.layout.frame_offset(pick.frame) + run.offset();
                match writes.last_mut() {
                    Some(last) if last.range.end() == offset && last.range.length + run.length() <= length_max => {
                        last.range.length += run.length();
                        last.lines.end = index + 1;
                        match last.pieces.last_mut() {
                            Some((start, length)) if *start + *length == from => *length += run.length(),
                            _ => last.pieces.push((from, run.length())),
                        }
                    }
                    _ => writes.push(OriginWrite {
                        range: ByteRange { offset, length: run.length() },
                        pieces: vec![(from, run.length())],
                        lines: index..index + 1,
                    }),
                }
            }
        }
        writes
    }

    /// Sends a write; after an error of a medium, line by line. Returns the lines that were
    /// refused.
    async fn send_or_divide(&self, picks: &[Pick], write: OriginWrite) -> Vec<(BlockNumber, Error)> {
        let Err(error) = self.send(&write).await else { return Vec::new() };
        let lines = &picks[write.lines];
        if error.kind() != ErrorKind::Media || lines.len() == 1 {
            return lines.iter().map(|pick| (pick.block, error.clone())).collect();
        }
        let mut refusals = Vec::new();
        for pick in lines {
            for part in self.origin_writes(slice::from_ref(pick)) {
                if let Err(error) = self.send(&part).await {
                    refusals.push((pick.block, error));
                }
            }
        }
        refusals
    }

    /// Reads the data of a write from the cache device and sends it to the origin.
    async fn send(&self, write: &OriginWrite) -> Result<(), Error> {
        let buffer = self.read_pieces(write).await?;
        self.origin.write(write.range, buffer, false).await.result
    }

    async fn read_pieces(&self, write: &OriginWrite) -> Result<Buffer, Error> {
        let cannot_read = |error| {
            let context = format!("{} are dirty in the cache and its device cannot return them", write.range);
            Error::with_source(ErrorKind::Media, context, error)
        };
        if let [(offset, length)] = write.pieces[..] {
            return self.cache_device.read(offset, Buffer::zeroed(length as usize)).await.map_err(cannot_read);
        }
        let mut buffer = Buffer::zeroed(write.range.length as usize);
        let reads = write
            .pieces
            .iter()
            .map(|&(offset, length)| self.cache_device.read(offset, Buffer::zeroed(length as usize)));
        let mut at = 0;
        for read in join_all(reads).await {
            let read = read.map_err(cannot_read)?;
            buffer[at..at + read.len()].copy_from_slice(&read);
            at += read.len();
        }
        Ok(buffer)
    }
}
