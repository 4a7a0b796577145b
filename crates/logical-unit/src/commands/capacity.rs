//! READ CAPACITY and GET LBA STATUS (SBC-3 5.15, 5.16, 5.5).

use std::sync::Arc;

use block::{Buffer, ByteRange, Extent, ExtentKind, Geometry, Request};
use scsi::Sense;
use scsi::capacity::Capacity;
use scsi::cdb::ReadDefectData;
use scsi::lba_status::{Descriptor, Provisioning};

use super::task::{Task, refuse};
use crate::data_in::cut;
use crate::execution::Execution;
use crate::failure::{self, DeviceAccess, Failure};
use crate::limits::LBA_STATUS_DESCRIPTORS_MAX;
use crate::sharing::Direction;
use crate::unit::{LogicalUnit, range_in};

pub(super) fn read_capacity_10(unit: &LogicalUnit) -> Result<Buffer, Failure> {
    Ok(Buffer::copy_of(&capacity(unit)?.emit_10()))
}

pub(super) fn read_capacity_16(unit: &LogicalUnit, allocation_length: u32) -> Result<Buffer, Failure> {
    Ok(cut(&capacity(unit)?.emit_16(), allocation_length))
}

/// A device without blocks has no last block; SCSI reports that as a medium that is not present.
fn capacity(unit: &LogicalUnit) -> Result<Capacity, Sense> {
    unit.check_medium()?;
    let geometry = unit.geometry();
    let block_count = geometry.size_bytes / u64::from(geometry.logical_block_bytes);
    let is_thin = unit.is_thin(&geometry);
    Ok(Capacity {
        last_lba: block_count.checked_sub(1).ok_or(Sense::MEDIUM_NOT_PRESENT)?,
        block_bytes: geometry.logical_block_bytes,
        physical_block_exponent: physical_exponent(unit, &geometry),
        is_thin,
        unmapped_reads_zeroes: is_thin && geometry.discard_reads_zeroes,
        lowest_aligned_lba: u16::try_from(geometry.hints.physical_alignment_bytes / geometry.logical_block_bytes)
            .unwrap_or(0),
    })
}

/// Logical blocks per physical block, as a power of two; at most 15, as the field is.
fn physical_exponent(unit: &LogicalUnit, geometry: &Geometry) -> u8 {
    let physical_bytes = unit.options.physical_block_bytes.unwrap_or(geometry.logical_block_bytes);
    let ratio = (physical_bytes / geometry.logical_block_bytes).max(1);
    ratio.ilog2().min(15) as u8
}

/// No layer below reports defects: both lists are empty.
pub(super) fn read_defect_data(unit: &LogicalUnit, asked: &ReadDefectData) -> Result<Buffer, Failure> {
    unit.check_medium()?;
    Ok(cut(&scsi::defect_list::emit_empty(asked), asked.allocation_length))
}

pub(super) fn lba_status(task: Task<'_>, lba: u64, allocation_length: u32) -> Execution {
    let geometry = task.unit.geometry();
    let block_count = geometry.size_bytes / u64::from(geometry.logical_block_bytes);
    let range = match task.unit.check_medium().and_then(|()| {
        let count = block_count.checked_sub(lba).filter(|&count| count > 0).ok_or(Sense::LBA_OUT_OF_RANGE)?;
        range_in(&geometry, lba, count)
    }) {
        Ok(range) => range,
        Err(sense) => return refuse(sense),
    };
    let (unit, nexus) = (Arc::clone(task.unit), task.nexus.clone());
    task.run_long(|ticket| async move {
        let mut runs = runs(&unit, range, &geometry).await?;
        if unit.access.sharing().is_some() {
            // Dirty data that a host keeps of these blocks is written to the unit before they are
            // reported. Blocks that are left out now are waited for when they are asked for.
            let end = runs.last().map_or(lba, |last| last.lba + u64::from(last.block_count));
            let told = range_in(&geometry, lba, end - lba)?;
            let _entry = unit.access.enter(&nexus, told, Direction::Look).take(Some(&ticket)).await?;
            runs = self::runs(&unit, told, &geometry).await?;
        }
        Ok(cut(&scsi::lba_status::emit(&runs), allocation_length))
    })
}

/// The extents that the device reports for a range, as many as one answer holds.
async fn runs(unit: &LogicalUnit, range: ByteRange, geometry: &Geometry) -> Result<Vec<Descriptor>, Failure> {
    let lba = range.offset / u64::from(geometry.logical_block_bytes);
    let response = unit.device().submit(Request::extents(range.offset, range.length)).await;
    response.result.map_err(|error| failure::of_block_error(&error, DeviceAccess::Reading, Some(lba)))?;
    Ok(descriptors(&response.extents, geometry))
}

/// Extents as runs of blocks. Extents are whole blocks by contract. A run longer than 32 bits is
/// reported in part, and the initiator asks again from there.
fn descriptors(extents: &[Extent], geometry: &Geometry) -> Vec<Descriptor> {
    let block_bytes = u64::from(geometry.logical_block_bytes);
    let mut runs: Vec<Descriptor> = Vec::new();
    for extent in extents {
        let lba = extent.range.offset / block_bytes;
        let count = extent.range.length / block_bytes;
        let block_count = u32::try_from(count).unwrap_or(u32::MAX);
        let provisioning = match extent.kind {
            ExtentKind::Data => Provisioning::Mapped,
            ExtentKind::Hole => Provisioning::Deallocated,
        };
        runs.push(Descriptor { lba, block_count, provisioning });
        if u64::from(block_count) != count || runs.len() == LBA_STATUS_DESCRIPTORS_MAX {
            break;
        }
    }
    runs
}
