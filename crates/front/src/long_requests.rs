//! Requests that are short on the wire and much work for the device: CACHE, and TRIM, WRITE_ZEROES
//! and BLOCK_STATUS of more than a small piece.
//!
//! They are carried out in pieces, except for BLOCK_STATUS: its answer may end early, at a point
//! that the device chooses, so it is one piece. All connections wait in one line for them, each
//! with one place, and one piece is carried out at a time. On a slow device, if other requests come
//! meanwhile, a pause as long as the piece follows: however many connections have long requests,
//! the others get half of the device. If the device answers at once, the thread is the shared
//! resource: the runtime looks at all sockets after each piece.
//!
//! Each piece takes its own turn among changes of the same blocks: another change waits for a
//! piece, not for the whole request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::pieces::Pieces;
use block::range_lock::{Acquire, RangeLock};
use block::{ByteRange, Error, Geometry};
use nbd::Command;
use nbd::server::Reply;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};

use crate::limits::{
    CACHE_PIECE_BYTES, PAUSE_TIME_MAX, SHARE_UNIT_BYTES, STATUS_BYTES, STATUS_REQUESTS_MAX, STEP_BYTES,
    WORK_SHARE_BYTES, ZERO_PIECE_BYTES, ZERO_PIECE_BYTES_ALONE,
};
use crate::partial::{Blocks, around};

/// The line of long requests of a server.
pub(crate) struct LongRequests {
    line: Semaphore,
    /// Count of other requests so far.
    others: AtomicU64,
    /// That count when the last piece began.
    seen: AtomicU64,
}

impl Default for LongRequests {
    fn default() -> Self {
        Self { line: Semaphore::new(1), others: AtomicU64::new(0), seen: AtomicU64::new(0) }
    }
}

/// Whether a command waits in the line.
pub(crate) fn is_long(command: &Command) -> bool {
    match command {
        Command::Cache { .. } => true,
        Command::Trim { length, .. } | Command::WriteZeroes { length, .. } => u64::from(*length) > ZERO_PIECE_BYTES,
        Command::BlockStatus { length, .. } => u64::from(*length) > STATUS_BYTES,
        _ => false,
    }
}

/// One connection's share of work without payload.
#[derive(Clone)]
pub(crate) struct WorkShare(Arc<Semaphore>);

impl Default for WorkShare {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(WORK_SHARE_BYTES.div_ceil(SHARE_UNIT_BYTES) as usize)))
    }
}

impl WorkShare {
    /// The units that a command takes of the share; `None` where it takes none.
    fn units(command: &Command) -> Option<u32> {
        let (length, has_flush) = match command {
            Command::Trim { length, fua, .. } => (u64::from(*length), *fua),
            Command::WriteZeroes { length, .. } => (u64::from(*length), false),
            Command::Cache { .. } => (WORK_SHARE_BYTES, false),
            // Where the device asks a remote target, its request delays those of others.
            Command::BlockStatus { .. } => (WORK_SHARE_BYTES / STATUS_REQUESTS_MAX, false),
            _ => return None,
        };
        let bytes = if has_flush { WORK_SHARE_BYTES } else { length.clamp(1, WORK_SHARE_BYTES) };
        Some(bytes.div_ceil(SHARE_UNIT_BYTES) as u32)
    }

    /// The part of the share for a command, at once or later.
    pub(crate) fn of(&self, command: &Command) -> Part {
        let Some(units) = Self::units(command) else { return Part::Given(None) };
        match Arc::clone(&self.0).try_acquire_many_owned(units) {
            Ok(permit) => Part::Given(Some(permit)),
            Err(_) => Part::Awaited(Arc::clone(&self.0), units),
        }
    }
}

/// A part of a share.
pub(crate) enum Part {
    Given(Option<OwnedSemaphorePermit>),
    Awaited(Arc<Semaphore>, u32),
}

impl Part {
    pub(crate) async fn wait(self) -> Option<OwnedSemaphorePermit> {
        match self {
            Self::Given(permit) => permit,
            Self::Awaited(share, units) => {
                Some(share.acquire_many_owned(units).await.expect("nobody closes the semaphore"))
            }
        }
    }
}

impl LongRequests {
    /// Notes that the server ends: requests go on without pauses and turns, and cache requests end
    /// with their present piece.
    pub(crate) fn begin_shutdown(&self) {
        self.line.close();
    }

    /// Counts a request that is not long.
    pub(crate) fn note_other(&self) {
        self.others.fetch_add(1, Ordering::Relaxed);
    }

    /// Carries out a long command.
    pub(crate) async fn carry_out(
        &self,
        blocks: Blocks,
        (turns, geometry): (&RangeLock, &Geometry),
        command: Command,
    ) -> Result<Reply, Error> {
        let block_bytes = u64::from(geometry.logical_block_bytes);
        let granule = geometry.discard_granularity_bytes.map_or(block_bytes, |bytes| block_bytes.max(bytes.into()));
        let (work, offset, length, has_flush) = match command {
            Command::BlockStatus { offset, length, .. } => {
                return self.ask(blocks, ByteRange { offset, length: length.into() }).await;
            }
            Command::Cache { offset, length } => (Work::Warm, offset, length, false),
            Command::Trim { offset, length, fua } => (Work::Discard, offset, length, fua),
            Command::WriteZeroes { offset, length, fua, may_discard, .. } => {
                (Work::Zero { may_discard }, offset, length, fua)
            }
            _ => return Ok(Reply::Done),
        };
        let (granule, small_bytes, large_bytes) = match work {
            Work::Warm => (block_bytes, CACHE_PIECE_BYTES, STEP_BYTES),
            Work::Discard | Work::Zero { .. } => (granule, ZERO_PIECE_BYTES, ZERO_PIECE_BYTES_ALONE),
        };
        let mut pieces = Pieces::new(granule, small_bytes, large_bytes);
        let mut left = ByteRange { offset, length: length.into() };
        while !left.is_empty() {
            let place = self.line.acquire().await.ok();
            if place.is_none() && work == Work::Warm {
                break;
            }
            let others = self.others.load(Ordering::Relaxed);
            let was_shared = self.seen.swap(others, Ordering::Relaxed) != others;
            let most = if was_shared { pieces.next_small(left.length) } else { pieces.next(left.length) };
            let piece = first(left, most, granule);
            let turn = (work != Work::Warm).then(|| turns.exclusive(around(block_bytes, piece)));
            let begun = Instant::now();
            pieces.wait_for(work.carry_out(blocks.clone(), piece, turn)).await?;
            left = ByteRange { offset: piece.end(), length: left.end() - piece.end() };
            let is_shared = was_shared || self.others.load(Ordering::Relaxed) != others;
            self.rest(begun, pieces.was_immediate(), is_shared).await;
        }
        if has_flush {
            blocks.flush().await?;
        }
        Ok(Reply::Done)
    }

    /// The block status of a range, at its turn.
    async fn ask(&self, blocks: Blocks, range: ByteRange) -> Result<Reply, Error> {
        let _place = self.line.acquire().await.ok();
        let others = self.others.load(Ordering::Relaxed);
        let was_shared = self.seen.swap(others, Ordering::Relaxed) != others;
        let begun = Instant::now();
        let mut pieces = Pieces::new(1, 1, 1);
        let allocated = pieces.wait_for(blocks.status(range)).await;
        let is_shared = was_shared || self.others.load(Ordering::Relaxed) != others;
        self.rest(begun, pieces.was_immediate(), is_shared).await;
        Ok(Reply::Status(allocated?))
    }

    /// Pauses for as long as the piece took since `begun`, if there are other requests; yields the
    /// thread if the device answered at once.
    async fn rest(&self, begun: Instant, was_immediate: bool, is_shared: bool) {
        if was_immediate {
            tokio::task::yield_now().await;
        } else if is_shared && !self.line.is_closed() {
            sleep(begun.elapsed().min(PAUSE_TIME_MAX)).await;
        }
    }
}

/// The work on each piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Warm,
    Discard,
    Zero { may_discard: bool },
}

impl Work {
    /// Carries out one piece, at its turn.
    async fn carry_out(self, blocks: Blocks, piece: ByteRange, turn: Option<Acquire>) -> Result<(), Error> {
        let _turn = match turn {
            Some(turn) => Some(turn.await),
            None => None,
        };
        match self {
            Self::Warm => blocks.warm(piece).await,
            Self::Discard => blocks.discard(piece, false).await,
            Self::Zero { may_discard } => blocks.write_zeroes(piece, false, may_discard).await,
        }
    }
}

/// The first at most `most` bytes of a range, up to the end of a granule unless it is the whole
/// range.
fn first(range: ByteRange, most: u64, granule: u64) -> ByteRange {
    if most >= range.length {
        return range;
    }
    let end = (range.offset + most) / granule * granule;
    ByteRange { offset: range.offset, length: end.saturating_sub(range.offset).clamp(1, most) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_asked_for_a_few_times_at_once() {
        let share = WorkShare::default();
        let command = || Command::BlockStatus { offset: 0, length: 1 << 16, only_first: false };
        let parts: Vec<Part> = (0..STATUS_REQUESTS_MAX).map(|_| share.of(&command())).collect();
        assert!(parts.iter().all(|part| matches!(part, Part::Given(Some(_)))));
        assert!(matches!(share.of(&command()), Part::Awaited(..)));
        drop(parts);
        assert!(matches!(share.of(&command()), Part::Given(Some(_))));
    }
}
