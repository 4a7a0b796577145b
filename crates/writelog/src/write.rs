//! Writes, writes of zeroes and discards.
//!
//! | durability | a write is acknowledged when | large ones, zeroes, discards |
//! |---|---|---|
//! | `log` | its record is durable, and all records before | the same |
//! | `nvram` | it is in slots, flushed by the processor | go to the log past the slots, once these hold nothing of the range |
//! | `unsafe-volatile` | it is in slots of RAM; with force unit access, when all slots are in the log | as for `nvram` |
//!
//! When the log device has failed, writes go to the origin with force unit access, and what the log knew of the range is forgotten.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Instant;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::range_lock::Acquire;
use block::{Error, Response};

use crate::append::{Content, stage_tag};
use crate::core::{Core, State, sectors_of};
use crate::limits::{PAUSE_EXPONENT, QUEUE_BYTES_MAX, UNIT_BYTES, ZERO_SECTORS_MAX};
use crate::map::Piece;
use crate::options::Level2;

pub(crate) async fn write(core: Arc<Core>, range: ByteRange, buffer: Buffer, fua: bool, place: Acquire) -> Response {
    let came_at = core.clock.now();
    let _guard = place.await;
    if range.is_empty() {
        return Response::done(buffer);
    }
    core.admit(came_at).await;
    let buffer = Arc::new(buffer);
    let result = match core.fits_stage(range.length) {
        true => core.write_slots(range, &buffer, fua).await,
        false => core.write_record(range, &buffer).await,
    };
    // Whatever went wrong in the log, the origin may still take it.
    let result = match result {
        Err(_) if core.has_failed() => core.write_through(range, &buffer).await,
        result => result,
    };
    Response { result, buffer: Arc::into_inner(buffer).unwrap_or_default(), extents: Vec::new() }
}

pub(crate) async fn write_zeroes(core: Arc<Core>, range: ByteRange, may_discard: bool, place: Acquire) -> Response {
    let came_at = core.clock.now();
    let _guard = place.await;
    if range.is_empty() {
        return Response::done(Buffer::empty());
    }
    core.admit(came_at).await;
    let result = match core.append_zeroes(range, may_discard).await {
        Err(_) if core.has_failed() => core.zero_through(range, may_discard).await,
        result => result,
    };
    Response { result, buffer: Buffer::empty(), extents: Vec::new() }
}

impl Core {
    pub(crate) fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }

    /// Lets a change in when there is a place for it to wait in, and slows it down while the log is nearly full: what it
    /// has waited already, behind others that pause, counts.
    async fn admit(&self, came_at: Instant) {
        let pause = loop {
            let count = self.changed.count();
            let pause = {
                let state = self.state();
                let is_queue_full = state.appender.queue_bytes() > QUEUE_BYTES_MAX;
                if state.failure.is_some() || (!state.is_gated && !is_queue_full) {
                    Some(self.pause(&state))
                } else {
                    None
                }
            };
            match pause {
                Some(pause) => break pause,
                None => self.changed.changed_since(count).await,
            }
        };
        if !pause.is_zero() {
            self.counters.writes_slowed.fetch_add(1, Ordering::Relaxed);
            self.background.notify();
            self.clock.sleep_until(came_at + pause).await;
        }
    }

    /// How long a write pauses: from nothing while there is room, in the log and in the slots, slowly and then steeply up to the longest when there
    /// is none. Each write pays a little long before one would have to wait for a whole batch.
    fn pause(&self, state: &State) -> Duration {
        let Level2 { share_slow, pause_max, .. } = self.options.level2;
        let over = |used: f64, slow: f64| ((used - slow) / (1.0 - slow)).clamp(0.0, 1.0);
        let log = over(state.share_used(&self.layout), share_slow);
        let slots = state.stage.as_ref().map_or(0.0, |stage| {
            // A round begins at `share_start`; half of what is left then is for what comes while it runs.
            over(stage.share_used(), f64::midpoint(self.options.level1.share_start, 1.0))
        });
        pause_max.mul_f64(log.max(slots).powi(PAUSE_EXPONENT))
    }

    /// Whether a write of this length goes to slots. Where the order is kept all do, a piece at a time; else large ones go to the log at once.
    fn fits_stage(&self, length: u64) -> bool {
        if !self.is_staged() {
            return false;
        }
        let state = self.state();
        let Some(stage) = &state.stage else { return false };
        let stage_bytes = stage.slot_count() as u64 * stage.slot_sectors() * UNIT_BYTES;
        state.failure.is_none() && (self.keeps_order() || length <= stage_bytes / 8)
    }

    /// Into slots, each piece as soon as one is free.
    async fn write_slots(self: &Arc<Self>, range: ByteRange, buffer: &Buffer, fua: bool) -> Result<(), Error> {
        let (mut sector, end) = (range.offset / UNIT_BYTES, range.end() / UNIT_BYTES);
        while sector < end {
            let count = self.changed.count();
            let (written, is_due) = {
                let state = &mut *self.state();
                if let Some(error) = &state.failure {
                    return Err(error.clone());
                }
                let Some(stage) = &mut state.stage else { break };
                let sectors = stage.slot_sectors().min(end - sector);
                let at = (sector * UNIT_BYTES - range.offset) as usize;
                let data = &buffer[at..at + (sectors * UNIT_BYTES) as usize];
                let written = stage.write(sector, data, self.clock.now()).map(|place| Piece {
                    sector,
                    sectors,
                    place,
                    tag: stage_tag(),
                });
                if let Some(piece) = written {
                    let before = state.map.dirty_sectors();
                    let superseded = state.index(&self.layout, piece);
                    self.counters.superseded(superseded);
                    let again = sectors - (state.map.dirty_sectors() - before);
                    self.counters.absorbed(again - superseded.min(again));
                } else if let Some(error) = &state.stuck {
                    return Err(error.clone());
                }
                (written, self.is_round_due(state))
            };
            if is_due {
                self.background.notify();
            }
            match written {
                Some(piece) => sector += piece.sectors,
                None => self.changed.changed_since(count).await,
            }
        }
        // Slots of volatile RAM are not durable; others are.
        if fua { self.flush().await } else { Ok(()) }
    }

    async fn write_record(self: &Arc<Self>, range: ByteRange, buffer: &Arc<Buffer>) -> Result<(), Error> {
        self.empty_slots_of(range).await?;
        let (sector, sectors) = sectors_of(range);
        let entry = (sector, sectors, Content::Bytes { buffer: Arc::clone(buffer), at: 0 });
        self.append(vec![entry]).await.result
    }

    async fn append_zeroes(self: &Arc<Self>, range: ByteRange, may_discard: bool) -> Result<(), Error> {
        self.empty_slots_of(range).await?;
        let (mut sector, sectors) = sectors_of(range);
        let end = sector + sectors;
        let mut entries = Vec::new();
        while sector < end {
            let sectors = (end - sector).min(ZERO_SECTORS_MAX);
            entries.push((sector, sectors, if may_discard { Content::Discarded } else { Content::Zeroes }));
            sector += sectors;
        }
        self.append(entries).await.result
    }

    /// Moves slots to the log until none holds anything of the range (where the order is kept: until none holds anything). The caller
    /// has the range for itself.
    async fn empty_slots_of(self: &Arc<Self>, range: ByteRange) -> Result<(), Error> {
        loop {
            let is_empty = {
                let state = self.state();
                let (sector, sectors) = sectors_of(range);
                match &state.stage {
                    None => true,
                    Some(stage) if self.keeps_order() => stage.is_empty(),
                    Some(_) => !state.map.pieces(sector, sectors).any(|piece| piece.is_in_stage()),
                }
            };
            if is_empty {
                return Ok(());
            }
            self.move_round(1.0).await?;
        }
    }

    /// To the origin, durably. The log's state on disk says that it failed, so what it holds of the range never comes back.
    async fn write_through(self: &Arc<Self>, range: ByteRange, buffer: &Buffer) -> Result<(), Error> {
        self.note_failure().await?;
        let _batch = self.destaging.lock().await;
        let _below = self.below.exclusive(range).await;
        self.check_origin()?;
        self.origin.write(range.offset, Buffer::copy_of(buffer), true).await?;
        let (sector, sectors) = sectors_of(range);
        self.state().forget(&self.layout, sector, sectors);
        Ok(())
    }

    async fn zero_through(self: &Arc<Self>, range: ByteRange, may_discard: bool) -> Result<(), Error> {
        self.note_failure().await?;
        let _batch = self.destaging.lock().await;
        let _below = self.below.exclusive(range).await;
        self.check_origin()?;
        self.zero_origin(range, may_discard).await?;
        self.origin.flush().await?;
        let (sector, sectors) = sectors_of(range);
        self.state().forget(&self.layout, sector, sectors);
        Ok(())
    }
}
