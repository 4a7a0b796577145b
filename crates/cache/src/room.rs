//! Room for a write: the waiting write cleans lines itself, and holds nothing that cleaning needs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use block::{Error, ErrorKind};

use crate::batch::Batch;
use crate::core::Core;
use crate::limits::{CLEAN_ATTEMPTS_MAX, CLEAN_BATCH_BYTES, GRANT_PAUSE_MS};
use crate::numbers::{BlockNumber, SetNumber};
use crate::pace::Force;

/// What a write waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room {
    /// A record about the same line is on its way.
    LineAtRest,
    /// A frame of this set.
    Frame { set: SetNumber },
    /// Less dirty data in all.
    LessDirty,
}

impl Core {
    /// Cleans or waits for what `room` names. Returns when the write should look again.
    pub(crate) async fn make_room(self: &Arc<Self>, room: Room, count: u64) -> Result<(), Error> {
        self.counters.writes_delayed.fetch_add(1, Ordering::Relaxed);
        let (mut refused, mut tried) = (None, BTreeSet::new());
        for _ in 0..CLEAN_ATTEMPTS_MAX {
            let candidates = self.candidates_for(room, &tried);
            tried.extend(candidates.iter().copied());
            let batch = self.pick(&candidates)?;
            if batch.picks.is_empty() {
                return match refused {
                    Some(error) if !batch.has_clean => Err(error),
                    Some(_) => Ok(()),
                    None => self.wait_for_room(room, count, &batch, !candidates.is_empty()).await,
                };
            }
            match self.clean_batch(batch, Force::Full).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Media => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Lines, other than those tried, of which a clean one could be the room that a write waits
    /// for.
    fn candidates_for(&self, room: Room, tried: &BTreeSet<BlockNumber>) -> Vec<BlockNumber> {
        let lines_max = (CLEAN_BATCH_BYTES / self.line_size().bytes()) as usize;
        match room {
            Room::LineAtRest => Vec::new(),
            Room::Frame { set } if tried.is_empty() => {
                self.lines.state().frames.dirty_batch_of(set, lines_max, self.run_lines_max())
            }
            Room::Frame { set } => {
                let state = self.lines.state();
                let blocks = state.frames.dirty_blocks_of(set).filter(|block| !tried.contains(block));
                blocks.take(lines_max).collect()
            }
            Room::LessDirty if tried.is_empty() => self.next_dirty_blocks(lines_max),
            Room::LessDirty => {
                // Bad places lie together: first try lines behind them.
                let mut blocks = self.lines.state().frames.dirty_in(BlockNumber::FIRST..BlockNumber::END);
                blocks.retain(|block| !tried.contains(block));
                let behind = blocks.partition_point(|block| tried.last().is_some_and(|last| block < last));
                blocks.rotate_left(behind);
                blocks.truncate(lines_max);
                blocks
            }
        }
    }

    /// Waits for a change, where nothing can be picked now.
    ///
    /// # Errors
    /// `NoSpace` when no dirty line can ever be cleaned.
    async fn wait_for_room(&self, room: Room, count: u64, batch: &Batch, has_candidates: bool) -> Result<(), Error> {
        if batch.has_clean {
            return Ok(());
        }
        if batch.lacks_right {
            self.clock.sleep(Duration::from_millis(GRANT_PAUSE_MS)).await;
            return Ok(());
        }
        let has_unsendable = {
            let frames = &self.lines.state().frames;
            frames.lost_count() + frames.stranded.len() > 0
        };
        let is_stuck = match room {
            Room::LineAtRest => false,
            Room::Frame { .. } => has_candidates,
            Room::LessDirty => has_unsendable,
        };
        if is_stuck && !batch.has_deferred {
            let context = "the cache is full of dirty lines that it cannot read back, or that lie beyond the end of \
                           its disk; discard them";
            return Err(Error::new(ErrorKind::NoSpace, context));
        }
        self.lines.changed.changed_since(count).await;
        Ok(())
    }
}
