//! The redo area: two halves of the file system's reserved file, each with room for one record.

use block::SharedDevice;
use ext2::{BlockNumber, Error, transfer};

use crate::record::{Record, content_blocks_max};

/// The redo area of one file system: the blocks of its two halves, and their access.
pub struct Area {
    device: SharedDevice,
    block_bytes: usize,
    halves: [Vec<BlockNumber>; 2],
}

impl Area {
    /// The area in these blocks.
    pub fn new(device: SharedDevice, block_bytes: usize, mut blocks: Vec<BlockNumber>) -> Self {
        let second = blocks.split_off(blocks.len() / 2);
        Self { device, block_bytes, halves: [blocks, second] }
    }

    /// Most blocks of a transaction that fits into a half.
    pub fn content_blocks_max(&self) -> usize {
        content_blocks_max(self.halves[0].len(), self.block_bytes)
    }

    /// Writes a record over the last but one, so that a crash meanwhile leaves the last one whole.
    pub async fn write(&self, record: &Record) -> Result<(), Error> {
        let blocks = record.emit(self.block_bytes);
        let half = &self.halves[(record.sequence % 2) as usize];
        assert!(blocks.len() <= half.len(), "a record of {} blocks in a half of {}", blocks.len(), half.len());
        transfer::write_all(&self.device, self.block_bytes, half.iter().copied().zip(blocks)).await
    }

    /// The last record, if it is whole and empty: then all blocks are in their places. Cheaper than
    /// [`records`](Self::records).
    pub async fn last_if_empty(&self) -> Result<Option<Record>, Error> {
        let (mut empty, mut last) = (None, None);
        for half in &self.halves {
            let Some(first) = half.first() else { continue };
            let head = transfer::read_run(&self.device, self.block_bytes, *first, 1).await?;
            last = last.max(Record::sequence_of(&head));
            empty = empty.or(Record::parse(&head, self.block_bytes).filter(|record| Some(record.sequence) >= last));
        }
        Ok(empty.filter(|record| Some(record.sequence) >= last))
    }

    /// Number of the last record, whole or not.
    pub async fn last_sequence(&self) -> Result<Option<u64>, Error> {
        let mut last = None;
        for first in self.halves.iter().filter_map(|half| half.first()) {
            let head = transfer::read_run(&self.device, self.block_bytes, *first, 1).await?;
            last = last.max(Record::sequence_of(&head));
        }
        Ok(last)
    }

    /// The whole records of both halves, the older one first.
    pub async fn records(&self) -> Result<Vec<Record>, Error> {
        let mut records = Vec::new();
        for half in &self.halves {
            let Some(first) = half.first() else { continue };
            let head = transfer::read_run(&self.device, self.block_bytes, *first, 1).await?;
            let Some(count) = Record::blocks_of(&head, half.len()) else { continue };
            let mut bytes = Vec::with_capacity(count * self.block_bytes);
            for run in half[..count].chunk_by(|before, next| before.0.checked_add(1) == Some(next.0)) {
                for part in run.chunks(ext2::limits::TRANSFER_BYTES_MAX / self.block_bytes) {
                    bytes.extend_from_slice(
                        &transfer::read_run(&self.device, self.block_bytes, part[0], part.len()).await?,
                    );
                }
            }
            records.extend(Record::parse(&bytes, self.block_bytes));
        }
        records.sort_by_key(|record| record.sequence);
        Ok(records)
    }
}
