//! Writes, writes of zeroes and discards.
//!
//! | durability | a write is acknowledged when | large ones, zeroes, discards |
//! |---|---|---|
//! | `log` | its record is durable, and all records before | the same |
//! | `nvram` | it is in slots, flushed by the processor | go to the log past the slots, once these hold nothing of the range |
//! | `unsafe-volatile` | it is in slots of RAM; with force unit access, when all slots are in the log | as for `nvram` |
//!
//! When the log device has failed, writes go to the origin with force unit access, and the map
//! forgets the range.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Error, Response};

use crate::core::{Core, State};
use crate::entrance::Entrance;
use crate::entry::{Content, extents_of_slot};
use crate::limits::{EXTENTS_OF_A_CHANGE, UNIT_BYTES, ZERO_SECTORS_MAX};
use crate::map::Piece;
use crate::numbers::Sector;
use crate::place::{Place, PlaceView, Zeroed};
use crate::sectors::{range_of, sectors_of};
use crate::stage::{Stage, stage_tag};

pub(crate) async fn write(
    core: Arc<Core>,
    range: ByteRange,
    buffer: Buffer,
    fua: bool,
    entrance: Entrance,
) -> Response {
    let _guard = entrance.pass(&core, range.length).await;
    if range.is_empty() {
        return Response::done(buffer);
    }
    let buffer = Arc::new(buffer);
    let is_staged = core.fits_stage(&core.state(), range.length);
    let result = match is_staged {
        true => core.write_slots(range, &buffer, fua).await,
        false => core.write_record(range, &buffer).await,
    };
    // After a failure of the log the origin may still take it.
    let result = match result {
        Err(_) if core.has_failed() => core.write_through(range, &buffer).await,
        result => result,
    };
    Response { result, buffer: Arc::into_inner(buffer).unwrap_or_default(), extents: Vec::new() }
}

pub(crate) async fn write_zeroes(core: Arc<Core>, range: ByteRange, zeroed: Zeroed, entrance: Entrance) -> Response {
    let _guard = entrance.pass(&core, 0).await;
    if range.is_empty() {
        return Response::done(Buffer::empty());
    }
    let result = match core.append_zeroes(range, zeroed).await {
        Err(_) if core.has_failed() => core.zero_through(range, zeroed).await,
        result => result,
    };
    Response { result, buffer: Buffer::empty(), extents: Vec::new() }
}

impl Core {
    /// Writes into slots, each piece as soon as a slot is free.
    async fn write_slots(self: &Arc<Self>, range: ByteRange, buffer: &Buffer, fua: bool) -> Result<(), Error> {
        let (mut sector, end) = (Sector::at(range.offset), Sector::at(range.end()));
        while sector < end {
            let count = self.changed.count();
            let (written, is_due, has_room_for_others) = {
                let state = &mut *self.state();
                if let Some(error) = state.failure.error() {
                    return Err(error.clone());
                }
                let has_room = self.has_room_for_slot(state);
                match has_room {
                    true => state.room.note_found(state.appender.has_queue()),
                    false => self.ask_for_room(state),
                }
                let Some(stage) = &mut state.contents.stage else { break };
                // Level 1 watches the slots from the first one on.
                let (is_first, used_before) = (stage.is_empty(), stage.used_count());
                let mut again = 0;
                let sectors = stage.slot_sectors().min(end - sector);
                let at = (sector.offset() - range.offset) as usize;
                let data = &buffer[at..at + (sectors * UNIT_BYTES) as usize];
                let unit = if has_room { stage.write(sector, data, self.clock.now()) } else { None };
                let written = unit.map(|unit| Piece { sector, sectors, place: Place::slot(unit), tag: stage_tag() });
                if let Some(piece) = written {
                    let before = state.contents.map.dirty_sectors();
                    let superseded = state.contents.index(piece);
                    let used = state.contents.stage.as_ref().map_or(0, Stage::used_count);
                    // The new slot replaces these.
                    state.slot_pace.give_back((used_before + 1 - used) as u64 * self.layout.slot_bytes);
                    self.count_superseded(superseded);
                    again = sectors - (state.contents.map.dirty_sectors() - before);
                    self.counters.absorbed(again - superseded.min(again));
                } else if let Some(error) = state.room.stuck() {
                    return Err(error.clone());
                }
                (written, is_first || self.is_round_due(state), again > 0 && state.line.len() > 0)
            };
            if is_due {
                self.background.notify();
            }
            if has_room_for_others {
                // The slots that it supersedes are free, without any move to the log.
                self.changed.notify();
            }
            match written {
                Some(piece) => sector += piece.sectors,
                None => self.changed.changed_since(count).await,
            }
        }
        // Slots of volatile RAM are not durable; others are.
        if fua { self.flush().await } else { Ok(()) }
    }

    /// Whether a checkpoint has room for the changes of one more slot: a piece of the log there may
    /// be in three parts afterwards. Where the order is kept nothing leaves the log before all
    /// slots of a round are in it, so there must be room for these, too.
    fn has_room_for_slot(&self, state: &State) -> bool {
        let slots = state.contents.stage.as_ref().filter(|_| self.keeps_order());
        let kept = slots.map_or(0, |stage| (stage.used_count() + 1) * extents_of_slot(stage.slot_sectors()));
        state.extents_free(&self.layout) >= kept + EXTENTS_OF_A_CHANGE
    }

    async fn write_record(self: &Arc<Self>, range: ByteRange, buffer: &Arc<Buffer>) -> Result<(), Error> {
        self.empty_slots_of(range).await?;
        let (sector, sectors) = sectors_of(range);
        let entry = (sector, sectors, Content::Bytes { buffer: Arc::clone(buffer), at: 0 });
        self.append(vec![entry]).await.result
    }

    async fn append_zeroes(self: &Arc<Self>, range: ByteRange, zeroed: Zeroed) -> Result<(), Error> {
        self.empty_slots_of(range).await?;
        let (mut sector, sectors) = sectors_of(range);
        let end = sector + sectors;
        let mut entries = Vec::new();
        while sector < end {
            let sectors = (end - sector).min(ZERO_SECTORS_MAX);
            entries.push((sector, sectors, Content::Zeroes(zeroed)));
            sector += sectors;
        }
        self.append(entries).await.result
    }

    /// Moves slots to the log until none has data of the range (where the order is kept: until all
    /// are empty). The caller holds the range exclusively.
    async fn empty_slots_of(self: &Arc<Self>, range: ByteRange) -> Result<(), Error> {
        loop {
            let is_empty = {
                let state = self.state();
                let (sector, sectors) = sectors_of(range);
                match &state.contents.stage {
                    None => true,
                    Some(stage) if self.keeps_order() => stage.is_empty(),
                    Some(_) => !state.contents.map.pieces(sector, sectors).any(|piece| piece.is_in_stage()),
                }
            };
            if is_empty {
                return Ok(());
            }
            self.move_round(1.0).await?;
        }
    }

    /// Writes to the origin, durably. The log's data of the range never comes back: it is removed
    /// from the failure note, or the log is discarded.
    async fn write_through(self: &Arc<Self>, range: ByteRange, buffer: &Buffer) -> Result<(), Error> {
        self.note_failure().await?;
        // No slot is on its way to the log now.
        let _round = self.moving.lock().await;
        let _batch = self.destaging.lock().await;
        self.send_slots_of(range).await?;
        let _below = self.below.exclusive(range).await;
        self.origin.check()?;
        self.origin.device().write(range.offset, Buffer::copy_of(buffer), true).await?;
        let (sector, sectors) = sectors_of(range);
        self.state().contents.forget(sector, sectors);
        self.keep_failure_note().await
    }

    /// Sends what is still needed of the slots that touch a range to the origin, durably, and frees
    /// them. After a crash a slot comes back as a whole, also the part of it that was overwritten past
    /// the log. The caller lets no slot move.
    async fn send_slots_of(&self, range: ByteRange) -> Result<(), Error> {
        loop {
            let found = self.state().contents.piece_in_slot_of(sectors_of(range));
            let Some(piece) = found else { return Ok(()) };
            let bytes = range_of(&piece);
            let _below = self.below.exclusive(bytes).await;
            let mut buffer = Buffer::zeroed(bytes.length as usize);
            {
                let contents = &self.state().contents;
                let PlaceView::Slot(unit) = piece.place.view() else { continue };
                // Its slot may have been freed, and taken for other sectors, while this waited.
                let is_there = contents.map.pieces_at(&piece).any(|there| there.sectors == piece.sectors);
                let Some(stage) = contents.stage.as_ref().filter(|_| is_there) else { continue };
                stage.load(unit, &mut buffer);
            }
            self.origin.check()?;
            self.origin.device().write(bytes.offset, buffer, true).await?;
            self.state().contents.mark_clean(&piece);
        }
    }

    async fn zero_through(self: &Arc<Self>, range: ByteRange, zeroed: Zeroed) -> Result<(), Error> {
        self.note_failure().await?;
        let _round = self.moving.lock().await;
        let _batch = self.destaging.lock().await;
        self.send_slots_of(range).await?;
        let _below = self.below.exclusive(range).await;
        self.origin.check()?;
        let losses = self.losses_until_now();
        self.origin.zero(range, zeroed).await?;
        self.flush_origin_since(losses).await?;
        let (sector, sectors) = sectors_of(range);
        self.state().contents.forget(sector, sectors);
        self.keep_failure_note().await
    }
}
