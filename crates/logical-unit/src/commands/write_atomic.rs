//! WRITE ATOMIC(16) (SBC-4 5.48): a write that is stored whole or not at all.
//!
//! Towards other commands every write is atomic, since it holds its range exclusively. At a loss of
//! power it is what the device promises
//! ([`LogicalUnitOptions::atomic_bytes_max`](crate::LogicalUnitOptions)); without a promise the
//! command is not supported, as VPD B0h reports. Alignment and granularity are the transfer
//! granularity. ATOMIC BOUNDARY is not supported.

use std::sync::Arc;

use block::{Buffer, Geometry};
use scsi::Sense;
use scsi::cdb::{Blocks, WriteAtomic};

use super::read_write::{write_parts, write_range};
use super::task::{Task, nothing, refuse};
use crate::execution::Execution;
use crate::failure::Failure;
use crate::unit::LogicalUnit;

/// The limits of an atomic write, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicLimits {
    /// Most blocks; zero where there are no atomic writes.
    pub(crate) blocks_max: u32,
    /// LBA and count must be multiples of this many blocks.
    pub(crate) granularity_blocks: u32,
}

impl LogicalUnit {
    pub(crate) fn atomic_limits(&self, geometry: &Geometry) -> AtomicLimits {
        let block_bytes = geometry.logical_block_bytes;
        let granularity_blocks = (geometry.physical_block_bytes / block_bytes).max(1);
        // The count has 16 bits in the CDB.
        let blocks_max = (self.options.atomic_bytes_max / block_bytes)
            .min(self.transfer_blocks_max(geometry))
            .min(u32::from(u16::MAX));
        match blocks_max - blocks_max % granularity_blocks {
            0 => AtomicLimits { blocks_max: 0, granularity_blocks: 0 },
            blocks_max => AtomicLimits { blocks_max, granularity_blocks },
        }
    }
}

pub(super) fn write_atomic(mut task: Task<'_>, write: WriteAtomic) -> Execution {
    let blocks = Blocks::sixteen(write.lba, u32::from(write.block_count));
    let (range, buffer) = match parts(&mut task, blocks, write.boundary) {
        Ok((range, _)) if range.is_empty() => return nothing(),
        Ok(parts) => parts,
        Err(failure) => return refuse(failure),
    };
    let (unit, held, submitter) = (Arc::clone(task.unit), task.admission.held, task.nexus.submitter());
    let is_fua = write.is_fua || task.admission.writes_through;
    task.run_alone(range, |_| async move {
        unit.record_change(held, range).await?;
        write_range((&unit, submitter), range.offset, buffer, is_fua, write.lba).await.map(|()| Buffer::empty())
    })
}

/// Data-out that is too short is refused: part of an atomic write may not be written.
fn parts(task: &mut Task<'_>, blocks: Blocks, boundary: u16) -> Result<(block::ByteRange, Buffer), Failure> {
    let geometry = task.unit.geometry();
    let limits = task.unit.atomic_limits(&geometry);
    if limits.blocks_max == 0 {
        return Err(Sense::INVALID_OPERATION_CODE.at_byte(0).into());
    }
    let (range, buffer) = write_parts(task, blocks)?;
    let granularity = limits.granularity_blocks;
    let is_aligned = blocks.lba.is_multiple_of(u64::from(granularity)) && blocks.count.is_multiple_of(granularity);
    if boundary != 0 || !is_aligned || blocks.count > limits.blocks_max {
        return Err(Sense::INVALID_FIELD_IN_CDB.into());
    }
    if buffer.len() as u64 != range.length {
        return Err(Sense::INVALID_FIELD_IN_INFORMATION_UNIT.into());
    }
    Ok((range, buffer))
}
