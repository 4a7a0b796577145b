//! SYNCHRONIZE CACHE and PRE-FETCH (SBC-3 5.7, 5.8, 5.21, 5.22).

use block::{Buffer, ByteRange, Request};
use scsi::cdb::CacheRange;

use super::task::{Task, nothing, refuse};
use crate::command::Outcome;
use crate::execution::Execution;
use crate::sharing::Direction;

/// Flushes everything, whatever the range: a flush has no range. With IMMED the answer does not
/// wait for it.
pub(super) fn synchronize(task: Task<'_>, range: CacheRange) -> Execution {
    let geometry = task.unit.geometry();
    if let Err(sense) = task.unit.range_of(&geometry, range.blocks) {
        return refuse(sense);
    }
    if range.is_immediate {
        // Dropping the completion detaches: the flush goes on.
        drop(task.unit.device().submit(Request::flush()));
        return nothing();
    }
    task.run_flush()
}

/// Reads nothing ahead: GOOD reports that not all of it is in the cache; CONDITION MET would claim
/// that it is. For a client of a shared unit it is a read without data: the client's copies of
/// these blocks are registered when this is answered, also with IMMED (`docs/protocol/sharing.md`).
pub(super) fn prefetch(task: Task<'_>, range: CacheRange) -> Execution {
    let geometry = task.unit.geometry();
    let named = match task.unit.range_of(&geometry, range.blocks) {
        Ok(named) => named,
        Err(sense) => return refuse(sense),
    };
    let is_client = task.unit.access.sharing().is_some_and(|sharing| sharing.has_client(task.nexus));
    if !is_client {
        return nothing();
    }
    let is_to_end = range.blocks.count == 0;
    let length = if is_to_end { geometry.size_bytes - named.offset } else { named.length };
    let blocks = ByteRange { length, ..named };
    task.run_beside(blocks, Direction::Read, async { Outcome::good(Buffer::empty()) })
}
