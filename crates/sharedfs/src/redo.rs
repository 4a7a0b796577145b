//! Commits by a redo record: the changed blocks are durable in a record first, and are written to their places later.
//!
//! ```text
//!   commit n    record n ─► half n%2 ┐
//!               n-1 ─► its place     ┴─► flush: n is durable, n-1 is in its place
//!   commit n+1  record n+1 ─► the other half, over n-1, which is not needed any more ...
//! ```
//! So a commit waits for one flush. At any moment of a crash one half has a whole record, and only
//! blocks of that record may be missing in their places, or be there in part: recovery writes them
//! again. Blocks of n-1 that n changes as well need not be written to their places for n-1.

use std::sync::{Mutex, MutexGuard, PoisonError};

use block::SharedDevice;
use block::device::DeviceExt;
use ext2::{Block, BlockNumber, Error, ErrorKind, WallClock, mount_state, transfer};
use uuid::Uuid;

use crate::area::Area;
use crate::author::{Author, Begun};
use crate::commit::{Changes, Commit};
use crate::record::Record;
use crate::replay::{found, take_over};

/// The commits of one mount: writes redo records, and later the blocks to their places.
pub struct Redo {
    device: SharedDevice,
    block_bytes: usize,
    /// `None` in a read-only mount.
    writer: Option<Writer>,
    /// Short sections, never across an await.
    state: Mutex<State>,
}

struct Writer {
    area: Area,
    uuid: Uuid,
    wall_clock: WallClock,
}

struct State {
    /// The last record.
    begun: Begun,
    /// The last one that this host knew before it took over.
    taken_from: Begun,
    /// Blocks that are committed and not written to their places yet.
    pending: Changes,
}

impl State {
    fn of(begun: Begun) -> Self {
        Self { begun, taken_from: begun, pending: Changes::new() }
    }
}

impl Redo {
    /// Goes on after the last record of an area.
    pub(crate) fn new(
        device: SharedDevice,
        block_bytes: usize,
        area: Area,
        begun: Begun,
        wall_clock: WallClock,
    ) -> Self {
        let writer = Writer { area, uuid: begun.author.uuid, wall_clock };
        Self { device, block_bytes, writer: Some(writer), state: Mutex::new(State::of(begun)) }
    }

    /// Commits of a read-only mount: blocks that a crash left out of their places are read from
    /// `pending` in memory.
    pub(crate) fn for_reading(device: SharedDevice, block_bytes: usize, pending: Changes) -> Self {
        Self { device, block_bytes, writer: None, state: Mutex::new(State { pending, ..State::of(Begun::default()) }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write_in_place(&self, blocks: Changes) -> Result<(), Error> {
        transfer::write_all(&self.device, self.block_bytes, blocks).await
    }
}

impl Commit for Redo {
    fn blocks_max(&self) -> usize {
        self.writer.as_ref().map_or(0, |writer| writer.area.content_blocks_max())
    }

    fn is_read_only(&self) -> bool {
        self.writer.is_none()
    }

    async fn commit(&self, changes: &Changes) -> Result<(), Error> {
        let Some(Writer { area, .. }) = &self.writer else { return Err(ErrorKind::ReadOnly.into()) };
        let (author, sequence, overdue) = {
            let state = self.lock();
            let overdue = state.pending.iter().filter(|(number, _)| !changes.contains_key(number));
            (
                state.begun.author,
                state.begun.sequence + 1,
                overdue.map(|(number, block)| (*number, block.clone())).collect(),
            )
        };
        let Author { uuid, stamp } = author;
        let record = Record { uuid, stamp, sequence, makes_area: false, changes: changes.clone() };
        futures_util::try_join!(area.write(&record), self.write_in_place(overdue))?;
        self.device.flush().await?;
        let begun = Begun { author, sequence, is_empty: false };
        *self.lock() = State { pending: record.changes, ..State::of(begun) };
        Ok(())
    }

    fn not_in_place(&self, block: BlockNumber) -> Option<Block> {
        self.lock().pending.get(&block).cloned()
    }

    async fn settle(&self) -> Result<(), Error> {
        if self.is_read_only() {
            return Ok(());
        }
        let pending = self.lock().pending.clone();
        self.write_in_place(pending).await?;
        self.device.flush().await?;
        self.lock().pending.clear();
        Ok(())
    }

    async fn hand_over(&self) -> Result<(), Error> {
        let Some(Writer { area, .. }) = &self.writer else { return Ok(()) };
        let (author, sequence) = {
            let begun = self.lock().begun;
            if begun.is_empty {
                return Ok(());
            }
            (begun.author, begun.sequence + 1)
        };
        self.settle().await?;
        // Durable before another host writes the next record: else a loss of power could leave that
        // one in part, and an older one whose blocks were changed since.
        area.write(&author.empty_record(sequence)).await?;
        self.device.flush().await?;
        *self.lock() = State::of(Begun { author, sequence, is_empty: true });
        Ok(())
    }

    async fn look_over(&self) -> Result<bool, Error> {
        let Some(Writer { area, uuid, .. }) = &self.writer else { return Ok(true) };
        let found = found(&self.device, area, *uuid, self.block_bytes).await?;
        // Nothing is to be handed over by who changes nothing.
        *self.lock() = State::of(Begun { is_empty: true, ..found.begun });
        Ok(found.missing.is_empty())
    }

    async fn is_as_left(&self) -> Result<bool, Error> {
        let Some(Writer { area, uuid, .. }) = &self.writer else { return Ok(true) };
        let Begun { author, sequence, .. } = self.lock().begun;
        let state = mount_state::read(&self.device).await?;
        let is_of_author = (state.uuid, state.block_bytes, state.stamp) == (*uuid, self.block_bytes, author.stamp);
        // The one after it may have been under way.
        let last = area.last_sequence().await?;
        Ok(is_of_author && (last == Some(sequence) || last == Some(sequence + 1)))
    }

    async fn take_over(&self) -> Result<(), Error> {
        let Some(Writer { area, uuid, wall_clock }) = &self.writer else { return Ok(()) };
        let begun = take_over(&self.device, area, *uuid, self.block_bytes, wall_clock()).await?;
        let mut state = self.lock();
        *state = State { taken_from: state.begun, ..State::of(begun) };
        Ok(())
    }

    async fn has_taken_what_was_left(&self) -> Result<bool, Error> {
        let Some(Writer { area, .. }) = &self.writer else { return Ok(true) };
        let Begun { author, sequence, .. } = self.lock().taken_from;
        let left = (author.uuid, author.stamp, sequence);
        // At most one record was written since, and not over that one.
        Ok(area.records().await?.iter().any(|record| (record.uuid, record.stamp, record.sequence) == left))
    }
}
