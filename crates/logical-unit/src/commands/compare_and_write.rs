//! COMPARE AND WRITE (SBC-3 5.2): atomic, because it holds its range exclusively from the read to
//! the end of the write. Where other paths lead to the blocks without this unit, the layer below
//! does it ([`CompareAndWrite`](crate::CompareAndWrite)).

use std::sync::Arc;

use block::{Buffer, ErrorKind};
use scsi::Sense;
use scsi::cdb::Blocks;

use super::read_write::{compare, read_range, write_range};
use super::task::{Task, nothing, refuse};
use crate::comparison::Comparison;
use crate::execution::Execution;
use crate::failure::{DeviceAccess, Failure, of_block_error};
use crate::limits::COMPARE_AND_WRITE_BLOCKS_MAX;
use crate::unit::LogicalUnit;

pub(super) fn compare_and_write(mut task: Task<'_>, lba: u64, block_count: u8, is_fua: bool) -> Execution {
    let blocks = Blocks::sixteen(lba, u32::from(block_count));
    let (range, data_out) = match parts(&mut task, blocks) {
        Ok((range, _)) if range.is_empty() => return nothing(),
        Ok(parts) => parts,
        Err(failure) => return refuse(failure),
    };
    let (unit, held, submitter) = (Arc::clone(task.unit), task.admission.held, task.nexus.submitter());
    let is_fua = is_fua || task.admission.writes_through;
    task.run_alone(range, |_| async move {
        let data_out = match below(&unit, range.offset, data_out).await? {
            Below::Done => return Ok(Buffer::empty()),
            Below::Not(data_out) => data_out,
        };
        let mut found = read_range((&unit, submitter), range, lba).await?;
        let (expected, new) = data_out.split_at(found.len());
        compare(expected, &found, 0)?;
        found.copy_from_slice(new);
        unit.record_change(held, range).await?;
        write_range((&unit, submitter), range.offset, found, is_fua, lba).await.map(|()| Buffer::empty())
    })
}

/// The result of the layer below.
enum Below {
    Done,
    /// The layer below cannot do it: the unit does it, with this data-out.
    Not(Buffer),
}

/// A unit with change marks is set up without a layer below, whose changes would not be recorded.
async fn below(unit: &LogicalUnit, offset: u64, data_out: Buffer) -> Result<Below, Failure> {
    let Some(who) = &unit.options.compares_below else { return Ok(Below::Not(data_out)) };
    match who.compare_and_write(offset, Buffer::copy_of(&data_out)).await {
        Ok(Comparison::Written) => Ok(Below::Done),
        Ok(Comparison::Different { at }) => {
            let sense = Sense::MISCOMPARE_DURING_VERIFY;
            Err(at.map_or(sense, |at| sense.with_information(at)).into())
        }
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(Below::Not(data_out)),
        Err(error) => Err(of_block_error(&error, DeviceAccess::Writing, None)),
    }
}

/// The range, and data-out of exactly twice its length: more is as wrong as less, since the halves
/// would be misplaced.
fn parts(task: &mut Task<'_>, blocks: Blocks) -> Result<(block::ByteRange, Buffer), Failure> {
    let geometry = task.unit.geometry();
    let range = task.unit.transfer_range_of(&geometry, blocks)?;
    task.unit.check_writable(&geometry)?;
    if blocks.count > COMPARE_AND_WRITE_BLOCKS_MAX {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_byte(13).into());
    }
    if task.command.data_out.len() as u64 != 2 * range.length {
        return Err(Sense::INVALID_FIELD_IN_CDB.at_byte(13).into());
    }
    Ok((range, task.take_data_out(2 * range.length)?))
}
