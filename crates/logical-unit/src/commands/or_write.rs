//! ORWRITE(16) (SBC-3 5.6): atomic towards other commands, because it holds its range exclusively
//! from the read to the end of the write.

use std::sync::Arc;

use block::Buffer;
use scsi::cdb::Transfer;

use super::read_write::{read_range, write_parts, write_range};
use super::task::{Task, nothing, refuse};
use crate::execution::Execution;

pub(super) fn or_write(mut task: Task<'_>, transfer: Transfer) -> Execution {
    let (range, data_out) = match write_parts(&mut task, transfer.blocks) {
        Ok((range, _)) if range.is_empty() => return nothing(),
        Ok(parts) => parts,
        Err(failure) => return refuse(failure),
    };
    let (unit, held, submitter) = (Arc::clone(task.unit), task.admission.held, task.nexus.submitter());
    let is_fua = transfer.is_fua || task.admission.writes_through;
    let lba = transfer.blocks.lba;
    task.run_alone(range, |_| async move {
        unit.record_change(held, range).await?;
        let mut blocks = read_range((&unit, submitter), range, lba).await?;
        // Missing data-out counts as zeroes: those bytes stay as they are.
        blocks.iter_mut().zip(data_out.iter()).for_each(|(byte, mask)| *byte |= mask);
        write_range((&unit, submitter), range.offset, blocks, is_fua, lba).await.map(|()| Buffer::empty())
    })
}
