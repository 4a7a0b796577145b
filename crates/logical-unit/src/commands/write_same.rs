//! WRITE SAME (SBC-3 5.39, 5.40).
//!
//! Zeroes go to the device as one `write_zeroes`, which may give space back when UNMAP is set. Any other block is
//! written piece by piece. With UNMAP set the medium reads afterwards exactly as if it were clear, so a block that is
//! not zero is simply written.

use std::sync::Arc;

use block::pieces::Pieces;
use block::{Buffer, ByteRange, Geometry, Request};
use scsi::Sense;
use scsi::cdb::WriteSame;

use super::read_write::write_range;
use super::task::{Task, between_pieces, refuse};
use crate::execution::Execution;
use crate::failure::{self, DeviceAccess, Failure};
use crate::limits::{PIECE_BYTES, WRITE_SAME_BLOCKS_MAX, WRITE_SAME_PIECE_BYTES};
use crate::task_set::Ticket;
use crate::unit::{LogicalUnit, range_in};

pub(super) fn write_same(mut task: Task<'_>, same: WriteSame) -> Execution {
    let (range, block) = match parts(&mut task, &same) {
        Ok(parts) => parts,
        Err(failure) => return refuse(failure),
    };
    let (unit, held) = (Arc::clone(task.unit), task.admission.held);
    let is_fua = task.admission.writes_through;
    let lba = same.blocks.lba;
    task.run_alone(range, |ticket| async move {
        unit.record_change(held, range).await?;
        if block.iter().all(|&byte| byte == 0) {
            zero(&unit, range, (is_fua, same.is_unmap), lba).await
        } else {
            repeat(&unit, range, (&block, lba), (is_fua, &ticket)).await
        }
        .map(|()| Buffer::empty())
    })
}

/// The range, and the block; none (NDOB) stands for zeroes.
fn parts(task: &mut Task<'_>, same: &WriteSame) -> Result<(ByteRange, Buffer), Failure> {
    let geometry = task.unit.geometry();
    task.unit.check_medium()?;
    task.unit.check_writable(&geometry)?;
    check_flags(task.unit, &geometry, same)?;
    let count = u64::from(same.blocks.count);
    let range = range_in(&geometry, same.blocks.lba, count)?;
    // WSNZ is set: zero blocks would mean all to the end, without bound.
    if count == 0 || count > WRITE_SAME_BLOCKS_MAX {
        return Err(Sense::INVALID_FIELD_IN_CDB.into());
    }
    let expected = if same.has_no_data_out { 0 } else { geometry.logical_block_bytes as usize };
    if task.command.data_out.len() != expected {
        return Err(Sense::INVALID_FIELD_IN_CDB.into());
    }
    Ok((range, task.take_data_out(expected as u64)?))
}

/// ANCHOR is not supported; UNMAP is where thin provisioning is.
fn check_flags(unit: &LogicalUnit, geometry: &Geometry, same: &WriteSame) -> Result<(), Sense> {
    if same.is_anchor {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4));
    }
    if same.is_unmap && !unit.is_thin(geometry) {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 3));
    }
    Ok(())
}

async fn zero(
    unit: &LogicalUnit,
    range: ByteRange,
    (is_fua, may_discard): (bool, bool),
    lba: u64,
) -> Result<(), Failure> {
    let is_fua = is_fua || unit.mode.is_write_through();
    let request = Request::write_zeroes(range.offset, range.length, is_fua, may_discard);
    let response = unit.device().submit(request).await;
    response.result.map_err(|error| failure::of_block_error(&error, DeviceAccess::Writing, Some(lba)))
}

async fn repeat(
    unit: &LogicalUnit,
    range: ByteRange,
    (block, lba): (&[u8], u64),
    (is_fua, ticket): (bool, &Ticket),
) -> Result<(), Failure> {
    let piece_max = WRITE_SAME_PIECE_BYTES.min(unit.geometry().transfer_bytes_max as usize);
    let mut pieces = Pieces::new(block.len() as u64, PIECE_BYTES, piece_max as u64);
    let mut done = 0;
    while done < range.length {
        let length = pieces.next(range.length - done);
        let mut buffer = unit.options.work_buffers.acquire(length as usize).await;
        buffer.chunks_exact_mut(block.len()).for_each(|place| place.copy_from_slice(block));
        let lba = lba + done / block.len() as u64;
        pieces.wait_for(write_range(unit, range.offset + done, buffer, is_fua, lba)).await?;
        done += length;
        between_pieces(ticket).await?;
    }
    Ok(())
}
