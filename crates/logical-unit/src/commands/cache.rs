//! SYNCHRONIZE CACHE and PRE-FETCH (SBC-3 5.7, 5.8, 5.21, 5.22).

use block::{Buffer, Request};
use scsi::cdb::CacheRange;

use super::task::{Task, nothing, refuse};
use crate::execution::Execution;
use crate::failure::Failure;
use crate::unit::LogicalUnit;

/// Flushes everything, whatever range was asked for: a flush has no range. With IMMED the answer does not wait for it.
pub(super) fn synchronize(task: Task<'_>, range: CacheRange) -> Execution {
    let geometry = task.unit.geometry();
    if let Err(sense) = task.unit.range_of(&geometry, range.blocks) {
        return refuse(sense);
    }
    if range.is_immediate {
        // Dropping it detaches: the flush goes on.
        drop(task.unit.device().submit(Request::flush()));
        return nothing();
    }
    let flush = task.unit.flush(task.nexus);
    task.run(async move { flush.await.map(|()| Buffer::empty()) })
}

/// Checks the range and reads nothing ahead. GOOD says that not all of it is in the cache; CONDITION MET would say that
/// it is.
pub(super) fn prefetch(unit: &LogicalUnit, range: CacheRange) -> Result<Buffer, Failure> {
    unit.range_of(&unit.geometry(), range.blocks)?;
    Ok(Buffer::empty())
}
