//! Blocks to and from a device: neighbours in one request, several requests at a time.
//!
//! Each request counts as a step of whoever holds the device alone, and is asked to give it up: one
//! whose work takes long, by many requests, is not taken for one that hangs.

use block::device::DeviceExt;
use block::{Buffer, Copies, SharedDevice};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::blocks::Block;
use crate::error::Error;
use crate::limits::{TRANSFER_BYTES_MAX, WRITES_IN_FLIGHT};
use crate::numbers::BlockNumber;

fn offset(block: BlockNumber, block_bytes: usize) -> u64 {
    u64::from(block.0) * block_bytes as u64
}

/// Blocks from `first` on that one request can read ahead: `count` of them, or less.
pub fn read_ahead_run(
    first: BlockNumber,
    count: u32,
    (block_bytes, block_count): (usize, u64),
) -> impl Iterator<Item = BlockNumber> {
    let count = u64::from(count).min((TRANSFER_BYTES_MAX / block_bytes) as u64);
    let end = (u64::from(first.0) + count).min(block_count);
    (u64::from(first.0)..end).map(|number| BlockNumber(number as u32))
}

/// Reads neighbouring blocks in one request.
pub async fn read_run(
    device: &SharedDevice,
    block_bytes: usize,
    first: BlockNumber,
    count: usize,
) -> Result<Buffer, Error> {
    let bytes = device.read(offset(first, block_bytes), Buffer::zeroed(count * block_bytes)).await?;
    note_progress(device);
    Ok(bytes)
}

fn note_progress(device: &SharedDevice) {
    if let Some(grants) = device.copies().as_ref().and_then(Copies::grants) {
        grants.note_progress();
    }
}

/// Writes blocks. Consecutive ones that are neighbours on the device go together.
pub async fn write_all(
    device: &SharedDevice,
    block_bytes: usize,
    blocks: impl IntoIterator<Item = (BlockNumber, Block)>,
) -> Result<(), Error> {
    let mut runs: Vec<(BlockNumber, Vec<Block>)> = Vec::new();
    for (number, block) in blocks {
        match runs.last_mut() {
            Some((first, blocks))
                if first.0 as usize + blocks.len() == number.0 as usize
                    && (blocks.len() + 1) * block_bytes <= TRANSFER_BYTES_MAX =>
            {
                blocks.push(block);
            }
            _ => runs.push((number, vec![block])),
        }
    }
    let writes = runs.into_iter().map(|(first, blocks)| write_run(device, block_bytes, first, blocks));
    stream::iter(writes).buffer_unordered(WRITES_IN_FLIGHT).try_for_each(|()| async { Ok(()) }).await
}

async fn write_run(
    device: &SharedDevice,
    block_bytes: usize,
    first: BlockNumber,
    blocks: Vec<Block>,
) -> Result<(), Error> {
    let mut buffer = Buffer::zeroed(blocks.len() * block_bytes);
    for (place, block) in buffer.chunks_exact_mut(block_bytes).zip(&blocks) {
        place.copy_from_slice(block);
    }
    device.write(offset(first, block_bytes), buffer, false).await?;
    note_progress(device);
    Ok(())
}
