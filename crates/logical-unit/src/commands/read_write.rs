//! READ and WRITE in all their lengths (SBC-3 5.9 to 5.12, 5.32 to 5.35).
//!
//! A read holds its range shared, a write exclusively, so that overlapping commands run in order of
//! arrival. Where range and buffer are free the command is one device request and no allocation;
//! else it waits as a task, with its place in the queue of the range taken at once.
//!
//! If the initiator announced less data-out than the CDB asks for, the transport brings that much,
//! and reports the residual. What came is written, to the byte; blocks without data stay as they
//! are.
//!
//! A device that answers at once copies on the submitting thread. So a long read goes piece by
//! piece, and other tasks run between two pieces; a slower device gets larger requests. A long
//! write goes piece by piece as well, after one of them was copied at once; its pieces are copies
//! of parts of its data. On a slower device a write is one request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::range_lock::RangeGuard;
use block::{Buffer, BufferPool, ByteRange, Geometry, Request, Response, Submitter};
use scsi::Sense;
use scsi::cdb::{Blocks, Transfer};

use super::task::{Task, give_way, nothing, refuse};
use crate::command::Outcome;
use crate::execution::{Execution, Finish};
use crate::failure::{self, DeviceAccess, Failure};
use crate::limits::{PIECE_BYTES, WHOLE_TRANSFER_BYTES_MAX};
use crate::sharing::Direction;
use crate::unit::LogicalUnit;

pub(super) fn read(task: Task<'_>, transfer: Transfer) -> Execution {
    let geometry = task.unit.geometry();
    let range = match task.unit.transfer_range_of(&geometry, transfer.blocks) {
        Ok(range) if range.is_empty() => return nothing(),
        Ok(range) => range,
        Err(sense) => return refuse(sense),
    };
    let lba = transfer.blocks.lba;
    if range.length > u64::from(task.command.data_in_bytes_max) {
        return read_in_part(&task, range, &geometry, lba);
    }
    if range.length > WHOLE_TRANSFER_BYTES_MAX {
        return read_later(&task, range, lba);
    }
    let Some(buffer) = task.unit.options.read_buffers.try_acquire(range.length as usize) else {
        return read_later(&task, range, lba);
    };
    let Some(guard) = task.unit.access.try_read(range) else {
        drop(buffer);
        return read_later(&task, range, lba);
    };
    let mut completion = task.unit.device().submit(Request::read(range.offset, buffer).by(task.nexus.submitter()));
    match completion.try_take() {
        Some(response) => Execution::ready(finish_read(response, lba)),
        None => {
            let ticket = task.unit.enter(task.nexus, &task.command);
            Execution::device(completion, guard, (finish_read, lba), ticket, task.unit.workers())
        }
    }
}

fn read_later(task: &Task<'_>, range: ByteRange, lba: u64) -> Execution {
    let (unit, submitter) = (Arc::clone(task.unit), task.nexus.submitter());
    task.run_beside(range, Direction::Read, async move {
        Outcome::from(read_into((&unit, submitter), &unit.options.read_buffers, range, lba).await)
    })
}

/// A read of which the initiator wants only the beginning: no more is read, so that few bytes do
/// not hold a large buffer. The rest only counts for the residual.
fn read_in_part(task: &Task<'_>, range: ByteRange, geometry: &Geometry, lba: u64) -> Execution {
    let wanted = u64::from(task.command.data_in_bytes_max);
    let length = wanted.next_multiple_of(u64::from(geometry.logical_block_bytes)).min(range.length);
    let part = ByteRange { length, ..range };
    let data_in_bytes_cut = range.length - length;
    let (unit, submitter) = (Arc::clone(task.unit), task.nexus.submitter());
    task.run_beside(part, Direction::Read, async move {
        let read = read_into((&unit, submitter), &unit.options.read_buffers, part, lba).await;
        Outcome { data_in_bytes_cut, ..Outcome::from(read) }
    })
}

/// The unit and who it reads or writes for.
pub(super) type For<'a> = (&'a LogicalUnit, Submitter);

/// Reads a range that the caller holds, for use by the command itself: the buffer goes to no
/// initiator. `lba` is its first block, for sense data.
pub(super) async fn read_range(whose: For<'_>, range: ByteRange, lba: u64) -> Result<Buffer, Failure> {
    read_into(whose, &whose.0.options.work_buffers, range, lba).await
}

async fn read_into(whose: For<'_>, pool: &BufferPool, range: ByteRange, lba: u64) -> Result<Buffer, Failure> {
    if range.is_empty() {
        return Ok(Buffer::empty());
    }
    if range.length <= WHOLE_TRANSFER_BYTES_MAX {
        let buffer = pool.acquire(range.length as usize).await;
        return read_to(whose, buffer, range.offset, lba).await;
    }
    let buffer = pool.acquire_unfilled(range.length as usize).await;
    let read = read_pieces(whose, buffer, range).await;
    read.map_err(|error| failure::of_block_error(&error, DeviceAccess::Reading, Some(lba)))
}

/// Fills a buffer with one request, from blocks that the caller holds.
pub(super) async fn read_to(
    (unit, submitter): For<'_>,
    buffer: Buffer,
    offset: u64,
    lba: u64,
) -> Result<Buffer, Failure> {
    let response = unit.device().submit(Request::read(offset, buffer).by(submitter)).await;
    response.into_buffer().map_err(|error| failure::of_block_error(&error, DeviceAccess::Reading, Some(lba)))
}

/// Fills a buffer with a range piece by piece.
async fn read_pieces((unit, submitter): For<'_>, mut buffer: Buffer, range: ByteRange) -> Result<Buffer, block::Error> {
    let mut piece_max = PIECE_BYTES;
    let mut done = 0;
    while done < range.length {
        let length = piece_max.min(range.length - done);
        buffer.set_window(done as usize, length as usize);
        let mut completion = unit.device().submit(Request::read(range.offset + done, buffer).by(submitter));
        let response = match completion.try_take() {
            Some(response) => {
                piece_max = PIECE_BYTES;
                give_way().await;
                response
            }
            None => {
                piece_max = WHOLE_TRANSFER_BYTES_MAX;
                completion.await
            }
        };
        buffer = response.into_buffer()?;
        done += length;
    }
    buffer.set_window(0, range.length as usize);
    Ok(buffer)
}

/// Writes to a range that the caller holds.
pub(super) async fn write_range(
    (unit, submitter): For<'_>,
    offset: u64,
    mut buffer: Buffer,
    is_fua: bool,
    lba: u64,
) -> Result<(), Failure> {
    let is_fua = is_fua || unit.mode.is_write_through();
    let failed = |error| failure::of_block_error(&error, DeviceAccess::Writing, Some(lba));
    let is_long = buffer.len() as u64 > WHOLE_TRANSFER_BYTES_MAX;
    let mut done = 0;
    while done < buffer.len() {
        let is_piece = is_long && unit.writes_on_the_spot.load(Ordering::Relaxed);
        let length = if is_piece { (PIECE_BYTES as usize).min(buffer.len() - done) } else { buffer.len() - done };
        let is_whole = length == buffer.len();
        let part = if is_whole { std::mem::take(&mut buffer) } else { Buffer::copy_of(&buffer[done..done + length]) };
        let request = Request::write(offset + done as u64, part, is_fua).by(submitter);
        let mut completion = unit.device().submit(request);
        let on_the_spot = completion.try_take();
        if is_long {
            unit.writes_on_the_spot.store(on_the_spot.is_some(), Ordering::Relaxed);
        }
        let response = match on_the_spot {
            Some(response) => response,
            None => completion.await,
        };
        response.result.map_err(failed)?;
        done += length;
        if is_piece {
            give_way().await;
        }
    }
    Ok(())
}

fn finish_read(response: Response, lba: u64) -> Outcome {
    let of_error = |error| failure::of_block_error(&error, DeviceAccess::Reading, Some(lba));
    Outcome::from(response.into_buffer().map_err(of_error))
}

fn finish_write(response: Response, lba: u64) -> Outcome {
    let of_error = |error| failure::of_block_error(&error, DeviceAccess::Writing, Some(lba));
    Outcome::from(response.result.map(|()| Buffer::empty()).map_err(of_error))
}

pub(super) fn write(mut task: Task<'_>, transfer: Transfer) -> Execution {
    let (range, buffer) = match write_parts(&mut task, transfer.blocks) {
        Ok((range, _)) if range.is_empty() => return nothing(),
        Ok(parts) => parts,
        Err(failure) => return refuse(failure),
    };
    let (lba, is_fua) = (transfer.blocks.lba, transfer.is_fua || task.admission.writes_through);
    if (buffer.len() as u64) < range.length {
        return write_later(&task, range, buffer, is_fua, lba);
    }
    let Some(guard) = task.unit.access.try_change(range) else {
        return write_later(&task, range, buffer, is_fua, lba);
    };
    if let Err(sense) = task.admission.check_sanitize(task.unit) {
        return refuse(sense);
    }
    if range.length > WHOLE_TRANSFER_BYTES_MAX || !task.unit.is_change_recorded(task.admission.held, range) {
        return write_recorded(&task, guard, range, buffer, is_fua, lba);
    }
    // Read while the range is held: the command that switches the cache off holds all ranges.
    let is_fua = is_fua || task.unit.mode.is_write_through();
    let request = Request::write(range.offset, buffer, is_fua).by(task.nexus.submitter());
    let mut completion = task.unit.device().submit(request);
    match completion.try_take() {
        Some(response) => Execution::ready(finish_write(response, lba)),
        None => {
            let ticket = task.unit.enter(task.nexus, &task.command);
            let finish: Finish = finish_write;
            Execution::device(completion, guard, (finish, lba), ticket, task.unit.workers())
        }
    }
}

/// Writes in several steps: long data, or a change that must be recorded first, which takes a
/// durable write.
fn write_recorded(
    task: &Task<'_>,
    guard: RangeGuard,
    range: ByteRange,
    buffer: Buffer,
    is_fua: bool,
    lba: u64,
) -> Execution {
    let (unit, held, submitter) = (Arc::clone(task.unit), task.admission.held, task.nexus.submitter());
    task.run(async move {
        let _guard = guard;
        unit.record_change(held, range).await?;
        write_range((&unit, submitter), range.offset, buffer, is_fua, lba).await.map(|()| Buffer::empty())
    })
}

fn write_later(task: &Task<'_>, range: ByteRange, buffer: Buffer, is_fua: bool, lba: u64) -> Execution {
    let (unit, held, submitter) = (Arc::clone(task.unit), task.admission.held, task.nexus.submitter());
    task.run_alone(range, |_| async move {
        unit.record_change(held, range).await?;
        let buffer = fill_last_block((&unit, submitter), range.offset, buffer, lba).await?;
        write_range((&unit, submitter), range.offset, buffer, is_fua, lba).await.map(|()| Buffer::empty())
    })
}

/// A write's data, filled up to whole blocks with what the medium holds. The caller holds the
/// range.
pub(super) async fn fill_last_block(
    whose: For<'_>,
    offset: u64,
    mut came: Buffer,
    lba: u64,
) -> Result<Buffer, Failure> {
    let block_bytes = whose.0.geometry().logical_block_bytes as usize;
    let partial_bytes = came.len() % block_bytes;
    if partial_bytes == 0 {
        return Ok(came);
    }
    let whole_bytes = came.len() - partial_bytes;
    let last_lba = lba + (whole_bytes / block_bytes) as u64;
    let last = ByteRange { offset: offset + whole_bytes as u64, length: block_bytes as u64 };
    let behind = read_range(whose, last, last_lba).await?;
    let (came_bytes, filled_bytes) = (came.len(), whole_bytes + block_bytes);
    // Buffers are whole pages, so nearly every one has room for the block. A new one is outside the
    // pool of reads: a command that held one of its buffers and waited for another might wait for
    // ever.
    if came.room() < filled_bytes {
        let mut other = Buffer::zeroed(filled_bytes);
        other[..came_bytes].copy_from_slice(&came);
        came = other;
    }
    came.extend_to(filled_bytes);
    came[came_bytes..].copy_from_slice(&behind[partial_bytes..]);
    Ok(came)
}

/// Checks what every command that writes blocks checks first: range and write protection. The
/// data-out may be shorter than the range.
pub(super) fn write_parts(task: &mut Task<'_>, blocks: Blocks) -> Result<(ByteRange, Buffer), Failure> {
    let geometry = task.unit.geometry();
    let range = task.unit.transfer_range_of(&geometry, blocks)?;
    task.unit.check_writable(&geometry)?;
    Ok((range, task.take_data_out_up_to(range.length)))
}

/// Finds the first byte that differs, for the INFORMATION field of a miscompare; `before` bytes
/// were equal before these.
pub(super) fn compare(expected: &[u8], found: &[u8], before: u64) -> Result<(), Sense> {
    if expected == found {
        return Ok(());
    }
    let differs = expected.iter().zip(found).position(|(expected, found)| expected != found);
    let at = differs.unwrap_or(expected.len().min(found.len()));
    Err(Sense::MISCOMPARE_DURING_VERIFY.with_information(before + at as u64))
}
