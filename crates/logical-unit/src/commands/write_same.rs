//! WRITE SAME (SBC-3 5.39, 5.40).
//!
//! Zeroes go to the device as one `write_zeroes`, which may free space when UNMAP is set. Any other
//! block is written piece by piece, each piece with its own range held exclusively: a command that
//! reads or writes a few of these blocks waits for one piece, not for the whole. Two WRITE SAMEs of
//! one range run one after the other. With UNMAP set the medium reads afterwards exactly as if it
//! were clear, so a block that is not zero is simply written.

use std::sync::Arc;

use block::pieces::Pieces;
use block::{Buffer, ByteRange, Geometry, Request};
use scsi::Sense;
use scsi::cdb::WriteSame;

use super::read_write::write_range;
use super::task::{Task, between_pieces, refuse};
use crate::admission::Admission;
use crate::execution::Execution;
use crate::failure::{self, DeviceAccess, Failure};
use crate::limits::{PIECE_BYTES, WRITE_SAME_BLOCKS_MAX, WRITE_SAME_PIECE_BYTES};
use crate::nexus::NexusId;
use crate::sharing::Direction;
use crate::task_set::Ticket;
use crate::unit::{LogicalUnit, range_in};

pub(super) fn write_same(mut task: Task<'_>, same: WriteSame) -> Execution {
    let (range, block) = match parts(&mut task, &same) {
        Ok(parts) => parts,
        Err(failure) => return refuse(failure),
    };
    if block.iter().all(|&byte| byte == 0) {
        zero(&task, range, &same)
    } else {
        let turn = task.unit.access.repeat(range);
        let repetition = Repetition::of(&task, range, block, same.blocks.lba);
        task.run_long(|ticket| async move {
            let _turn = turn.await;
            repetition.run(&ticket).await.map(|()| Buffer::empty())
        })
    }
}

/// The range and the block; `None` (NDOB) means zeroes.
fn parts(task: &mut Task<'_>, same: &WriteSame) -> Result<(ByteRange, Buffer), Failure> {
    let geometry = task.unit.geometry();
    task.unit.check_medium()?;
    task.unit.check_writable(&geometry)?;
    check_flags(task.unit, &geometry, same)?;
    let count = u64::from(same.blocks.count);
    let range = range_in(&geometry, same.blocks.lba, count)?;
    // WSNZ is set: zero blocks would mean all blocks to the end, without limit.
    if count == 0 || count > WRITE_SAME_BLOCKS_MAX {
        return Err(Sense::INVALID_FIELD_IN_CDB.into());
    }
    let expected = if same.has_no_data_out { 0 } else { geometry.logical_block_bytes as usize };
    if task.command.data_out.len() != expected {
        return Err(Sense::INVALID_FIELD_IN_CDB.into());
    }
    Ok((range, task.take_data_out(expected as u64)?))
}

/// ANCHOR is not supported; UNMAP requires thin provisioning.
fn check_flags(unit: &LogicalUnit, geometry: &Geometry, same: &WriteSame) -> Result<(), Sense> {
    if same.is_anchor {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 4));
    }
    if same.is_unmap && !unit.is_thin(geometry) {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_bit(1, 3));
    }
    Ok(())
}

fn zero(task: &Task<'_>, range: ByteRange, same: &WriteSame) -> Execution {
    let (unit, admission, submitter) = (Arc::clone(task.unit), task.admission, task.nexus.submitter());
    let (may_discard, lba) = (same.is_unmap, same.blocks.lba);
    task.run_alone(range, |_| async move {
        unit.record_change(admission.held, range).await?;
        let is_fua = admission.writes_through || unit.mode.is_write_through();
        let request = Request::write_zeroes(range.offset, range.length, is_fua, may_discard).by(submitter);
        let response = unit.device().submit(request).await;
        let failed = |error| failure::of_block_error(&error, DeviceAccess::Writing, Some(lba));
        response.result.map(|()| Buffer::empty()).map_err(failed)
    })
}

/// One block that is written repeatedly.
struct Repetition {
    unit: Arc<LogicalUnit>,
    nexus: NexusId,
    admission: Admission,
    range: ByteRange,
    block: Buffer,
    /// The LBA of the first block.
    lba: u64,
}

impl Repetition {
    fn of(task: &Task<'_>, range: ByteRange, block: Buffer, lba: u64) -> Self {
        let (unit, nexus) = (Arc::clone(task.unit), task.nexus.clone());
        Self { unit, nexus, admission: task.admission, range, block, lba }
    }

    async fn run(&self, ticket: &Ticket) -> Result<(), Failure> {
        let block_bytes = self.block.len() as u64;
        let piece_max = WRITE_SAME_PIECE_BYTES.min(self.unit.geometry().transfer_bytes_max as usize);
        let mut pieces = Pieces::new(block_bytes, PIECE_BYTES, piece_max as u64);
        let mut done = 0;
        while done < self.range.length {
            let length = pieces.next(self.range.length - done);
            let piece = ByteRange { offset: self.range.offset + done, length };
            self.write(piece, self.lba + done / block_bytes, &mut pieces, ticket).await?;
            done += length;
            between_pieces(ticket).await?;
        }
        Ok(())
    }

    async fn write(&self, piece: ByteRange, lba: u64, pieces: &mut Pieces, ticket: &Ticket) -> Result<(), Failure> {
        let (unit, admission) = (&self.unit, &self.admission);
        let _entry = unit.access.enter(&self.nexus, piece, Direction::Change).take(Some(ticket)).await?;
        admission.check(unit, ticket)?;
        unit.record_change(admission.held, piece).await?;
        // Not before it holds the range: the holder of the range may wait for a buffer.
        let mut buffer = unit.options.work_buffers.acquire(piece.length as usize).await;
        buffer.chunks_exact_mut(self.block.len()).for_each(|place| place.copy_from_slice(&self.block));
        let whose = (&**unit, self.nexus.submitter());
        pieces.wait_for(write_range(whose, piece.offset, buffer, admission.writes_through, lba)).await
    }
}
