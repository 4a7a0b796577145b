//! Writes, writes of zeroes and discards.
//!
//! | durability | a write is acknowledged when | large ones, zeroes, discards |
//! |---|---|---|
//! | `log` | its record is durable, and all records before | the same |
//! | `nvram` | it is in slots, flushed by the processor | go to the log past the slots, once these hold nothing of the range |
//! | `unsafe-volatile` | it is in slots of RAM; with force unit access, when all slots are in the log | as for `nvram` |
//!
//! When the log device has failed, writes go [past the log](crate::past_log).

use std::sync::Arc;

use base::buffer::Buffer;
use base::clock::Clock;
use base::range::ByteRange;
use block::{Error, Response};

use crate::append::RecordSender;
use crate::counters::Counters;
use crate::entrance::{Admission, Entrance};
use crate::entry::{Content, extents_of_slot};
use crate::flush::Flusher;
use crate::level1::SlotMover;
use crate::limits::{EXTENTS_OF_A_CHANGE, UNIT_BYTES, ZERO_SECTORS_MAX};
use crate::log_state::{LogState, State};
use crate::map::Piece;
use crate::numbers::Sector;
use crate::past_log::PastLog;
use crate::place::{Place, Zeroed};
use crate::sectors::sectors_of;
use crate::settings::Settings;
use crate::stage::{Stage, stage_tag};

/// Carries out writes, writes of zeroes and discards.
pub(crate) struct Writer {
    pub(crate) log: Arc<LogState>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) records: Arc<RecordSender>,
    pub(crate) mover: Arc<SlotMover>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) past_log: PastLog,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Writer {
    pub(crate) async fn write(
        self: Arc<Self>,
        range: ByteRange,
        buffer: Buffer,
        fua: bool,
        entrance: Entrance,
    ) -> Response {
        let _guard = entrance.pass(&self.admission, range.length).await;
        if range.is_empty() {
            return Response::done(buffer);
        }
        let buffer = Arc::new(buffer);
        let is_staged = self.log.state().fits_stage(&self.settings, range.length);
        let result = match is_staged {
            true => self.write_slots(range, &buffer, fua).await,
            false => self.write_record(range, &buffer).await,
        };
        // After a failure of the log the origin may still take it.
        let result = match result {
            Err(_) if self.log.has_failed() => self.past_log.write(range, &buffer).await,
            result => result,
        };
        Response { result, buffer: Arc::into_inner(buffer).unwrap_or_default(), extents: Vec::new() }
    }

    pub(crate) async fn write_zeroes(
        self: Arc<Self>,
        range: ByteRange,
        zeroed: Zeroed,
        entrance: Entrance,
    ) -> Response {
        let _guard = entrance.pass(&self.admission, 0).await;
        if range.is_empty() {
            return Response::done(Buffer::empty());
        }
        let result = match self.append_zeroes(range, zeroed).await {
            Err(_) if self.log.has_failed() => self.past_log.zero(range, zeroed).await,
            result => result,
        };
        Response { result, buffer: Buffer::empty(), extents: Vec::new() }
    }

    /// Writes into slots, each piece as soon as a slot is free.
    async fn write_slots(&self, range: ByteRange, buffer: &Buffer, fua: bool) -> Result<(), Error> {
        let (mut sector, end) = (Sector::at(range.offset), Sector::at(range.end()));
        while sector < end {
            let count = self.log.changed.count();
            let (written, is_due, has_room_for_others) = {
                let state = &mut *self.log.state();
                if let Some(error) = state.failure.error() {
                    return Err(error.clone());
                }
                let has_room = self.has_room_for_slot(state);
                match has_room {
                    true => state.room.note_found(state.appender.has_queue()),
                    false => self.log.ask_for_room(state),
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
                    state.slot_pace.give_back((used_before + 1 - used) as u64 * self.log.layout.slot_bytes);
                    self.counters.superseded_in(self.settings.order, superseded);
                    again = sectors - (state.contents.map.dirty_sectors() - before);
                    self.counters.absorbed(again - superseded.min(again));
                } else if let Some(error) = state.room.stuck() {
                    return Err(error.clone());
                }
                (written, is_first || self.mover.is_round_due(state), again > 0 && state.line.len() > 0)
            };
            if is_due {
                self.log.background.notify();
            }
            if has_room_for_others {
                // The slots that it supersedes are free, without any move to the log.
                self.log.changed.notify();
            }
            match written {
                Some(piece) => sector += piece.sectors,
                None => self.log.changed.changed_since(count).await,
            }
        }
        // Slots of volatile RAM are not durable; others are.
        if fua { self.flusher.flush().await } else { Ok(()) }
    }

    /// Whether a checkpoint has room for the changes of one more slot: a piece of the log there may
    /// be in three parts afterwards. Where the order is kept nothing leaves the log before all
    /// slots of a round are in it, so there must be room for these, too.
    fn has_room_for_slot(&self, state: &State) -> bool {
        let slots = state.contents.stage.as_ref().filter(|_| self.settings.keeps_order());
        let kept = slots.map_or(0, |stage| (stage.used_count() + 1) * extents_of_slot(stage.slot_sectors()));
        state.extents_free() >= kept + EXTENTS_OF_A_CHANGE
    }

    async fn write_record(&self, range: ByteRange, buffer: &Arc<Buffer>) -> Result<(), Error> {
        self.empty_slots_of(range).await?;
        let (sector, sectors) = sectors_of(range);
        let entry = (sector, sectors, Content::Bytes { buffer: Arc::clone(buffer), at: 0 });
        self.records.append(vec![entry]).await.result
    }

    async fn append_zeroes(&self, range: ByteRange, zeroed: Zeroed) -> Result<(), Error> {
        self.empty_slots_of(range).await?;
        let (mut sector, sectors) = sectors_of(range);
        let end = sector + sectors;
        let mut entries = Vec::new();
        while sector < end {
            let sectors = (end - sector).min(ZERO_SECTORS_MAX);
            entries.push((sector, sectors, Content::Zeroes(zeroed)));
            sector += sectors;
        }
        self.records.append(entries).await.result
    }

    /// Moves slots to the log until none has data of the range (where the order is kept: until all
    /// are empty). The caller holds the range exclusively.
    async fn empty_slots_of(&self, range: ByteRange) -> Result<(), Error> {
        loop {
            let is_empty = {
                let state = self.log.state();
                let (sector, sectors) = sectors_of(range);
                match &state.contents.stage {
                    None => true,
                    Some(stage) if self.settings.keeps_order() => stage.is_empty(),
                    Some(_) => !state.contents.map.pieces(sector, sectors).any(|piece| piece.is_in_stage()),
                }
            };
            if is_empty {
                return Ok(());
            }
            self.mover.move_round(1.0).await?;
        }
    }
}
