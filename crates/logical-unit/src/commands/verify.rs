//! VERIFY and WRITE AND VERIFY (SBC-3 5.29 to 5.31, 5.36 to 5.38).
//!
//! | BYTCHK | VERIFY | WRITE AND VERIFY |
//! |---|---|---|
//! | 0 | the medium can be read | written, then read |
//! | 1 | the medium equals the data-out | written, read, compared |
//! | 2 | invalid | invalid |
//! | 3 | every block equals the one block of data-out | invalid |

use std::sync::Arc;

use block::pieces::Pieces;
use block::{Buffer, ByteRange};
use scsi::Sense;
use scsi::cdb::Verification;

use super::read_write::{For, compare, fill_last_block, read_range, write_parts, write_range};
use super::task::{Task, give_way, nothing, refuse};
use crate::command::Outcome;
use crate::execution::Execution;
use crate::failure::Failure;
use crate::limits::{PIECE_BYTES, WHOLE_TRANSFER_BYTES_MAX};
use crate::sharing::Direction;

/// BYTCHK stands in bits 2 and 1 of byte 1.
const BYTE_CHECK_INVALID: Sense = Sense::INVALID_FIELD_IN_CDB.at_bit(1, 2);

pub(super) fn verify(mut task: Task<'_>, verification: Verification) -> Execution {
    let geometry = task.unit.geometry();
    let range = match task.unit.transfer_range_of(&geometry, verification.blocks) {
        _ if verification.byte_check == 2 => return refuse(BYTE_CHECK_INVALID),
        Ok(range) if range.is_empty() => return nothing(),
        Ok(range) => range,
        Err(sense) => return refuse(sense),
    };
    let expected_bytes = match verification.byte_check {
        0 => 0,
        1 => range.length,
        _ => u64::from(geometry.logical_block_bytes),
    };
    let expected = match task.take_data_out(expected_bytes) {
        Ok(expected) => expected,
        Err(failure) => return refuse(failure),
    };
    let (unit, submitter) = (Arc::clone(task.unit), task.nexus.submitter());
    task.run_beside(range, Direction::Look, async move {
        let check = check((&unit, submitter), range, verification, &expected).await;
        Outcome::from(check.map(|()| Buffer::empty()))
    })
}

/// Compares the medium with the expected content, piece by piece: on a device that answers at once,
/// other tasks run between two pieces. The caller holds the range.
async fn check(whose: For<'_>, range: ByteRange, verification: Verification, expected: &[u8]) -> Result<(), Failure> {
    let block_bytes = u64::from(whose.0.geometry().logical_block_bytes);
    let mut pieces = Pieces::new(block_bytes, PIECE_BYTES, WHOLE_TRANSFER_BYTES_MAX);
    let mut done = 0;
    while done < range.length {
        let piece = ByteRange { offset: range.offset + done, length: pieces.next(range.length - done) };
        let lba = verification.blocks.lba + done / block_bytes;
        let found = pieces.wait_for(read_range(whose, piece, lba)).await?;
        match verification.byte_check {
            0 => {}
            1 => compare(&expected[done as usize..][..found.len()], &found, done)?,
            _ => compare_each(expected, &found)?,
        }
        done += piece.length;
        if done < range.length {
            give_way().await;
        }
    }
    Ok(())
}

/// Compares every block of `found` with the one `expected`.
fn compare_each(expected: &[u8], found: &[u8]) -> Result<(), Sense> {
    found.chunks(expected.len()).try_for_each(|block| compare(expected, block, 0))
}

pub(super) fn write_and_verify(mut task: Task<'_>, verification: Verification) -> Execution {
    if verification.byte_check > 1 {
        return refuse(BYTE_CHECK_INVALID);
    }
    let (range, buffer) = match write_parts(&mut task, verification.blocks) {
        Ok((range, _)) if range.is_empty() => return nothing(),
        Ok(parts) => parts,
        Err(failure) => return refuse(failure),
    };
    let (unit, held, submitter) = (Arc::clone(task.unit), task.admission.held, task.nexus.submitter());
    let lba = verification.blocks.lba;
    task.run_alone(range, |_| async move {
        unit.record_change(held, range).await?;
        let buffer = fill_last_block((&unit, submitter), range.offset, buffer, lba).await?;
        let written = ByteRange { length: buffer.len() as u64, ..range };
        let expected = match verification.byte_check {
            0 => Buffer::empty(),
            // Outside the pool of reads: a command that held one of its buffers and waited for
            // another might wait for ever.
            _ => Buffer::copy_of(&buffer),
        };
        // The medium is verified, so the data has to be there first.
        write_range((&unit, submitter), range.offset, buffer, true, lba).await?;
        let found = read_range((&unit, submitter), written, lba).await?;
        if verification.byte_check == 1 {
            compare(&expected, &found, 0)?;
        }
        Ok(Buffer::empty())
    })
}
