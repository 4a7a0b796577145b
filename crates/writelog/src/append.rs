//! Records on their way to the log device: group commit.
//!
//! What arrives is queued; a record takes as much of the queue as fits and is submitted with force unit access, once all others had their turn:
//! whoever is ready to write when the first one queues, or was just answered and writes again, has queued by then. While the record is on its
//! way the next gathers. A second one goes beside it only when a good deal has gathered. No timer. A device may write while it is asked to, and
//! keep its thread; so after each record the others get their turn first.
//!
//! - Records are applied to the map, and their writers answered, in the order of their sequences: a record counts only when all before it are
//!   durable, as replay will see it.
//! - A segment is opened only when another is at hand to be named as the next one, so that replay finds its way.
//! - When the device refuses a record, nothing may follow it: the log has failed, and who waits is told.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use base::buffer::Buffer;
use block::{Completion, Device, Error, Request, Response};
use store::LogPosition;
use store::limits::RECORD_BYTES_MAX;
use store::record::{Claims, RECORD_HEADER_BYTES, seal};
use zerocopy::IntoBytes;

use crate::appender::{Content, InFlight, OpenSegment, Outgoing, Owner, Placed, Queued, Ticket, take_queued};
use crate::core::{Core, State};
use crate::format::{EntryRaw, FLAG_EPOCH_END, HeadRaw, prefix_bytes};
use crate::layout::LogPlace;
use crate::limits::UNIT_BYTES;
use crate::map::{Piece, place_of_zeroes};
use crate::stage::Stage;

impl Core {
    /// Queues runs of sectors for the next records. The completion says when all are durable in the log, or that it failed.
    pub(crate) fn append(self: &Arc<Self>, entries: Vec<(u64, u64, Content)>) -> Completion {
        let (completion, sender) = Completion::slot();
        if entries.is_empty() {
            return Completion::ready(Response::done(Buffer::empty()));
        }
        let owner = Mutex::new(Owner { sender: Some(sender), error: None });
        let ticket = Arc::new(Ticket { rest: AtomicU32::new(entries.len() as u32), owner });
        {
            let state = &mut *self.state();
            if let Some(error) = &state.failure {
                let error = error.clone();
                for (_, _, content) in entries {
                    if let (Content::Slot(slot), Some(stage)) = (content, &mut state.stage) {
                        stage.cancel_move(slot);
                    }
                }
                return Completion::ready(Response::failed(error, Buffer::empty()));
            }
            for (sector, sectors, content) in entries {
                if matches!(content, Content::Bytes { .. } | Content::Slot(_)) {
                    state.appender.queue_bytes += sectors * UNIT_BYTES;
                }
                state.appender.queue.push_back(Queued { sector, sectors, content, ticket: Arc::clone(&ticket) });
            }
        }
        self.start_records();
        completion
    }

    /// Lets the workers send as many records as may be on their way, when it is their turn.
    pub(crate) fn start_records(self: &Arc<Self>) {
        {
            let appender = &mut self.state().appender;
            if appender.is_turn_near || !appender.may_start() {
                return;
            }
            appender.is_turn_near = true;
        }
        let core = Arc::clone(self);
        self.workers.spawn(async move {
            core.workers.others_first().await;
            core.send_records();
        });
    }

    fn send_records(self: &Arc<Self>) {
        self.state().appender.is_turn_near = false;
        loop {
            let record = self.next_record(&mut self.state());
            let Some(record) = record else { return };
            let mut written = self.log_device.submit(Request::write(record.offset, record.buffer, true));
            if let Some(response) = written.try_take() {
                return self.finish_record(record.sequence, response);
            }
            let core = Arc::clone(self);
            self.workers.spawn(async move { core.finish_record(record.sequence, written.await) });
        }
    }

    fn next_record(&self, state: &mut State) -> Option<Outgoing> {
        if state.failure.is_some() || !state.appender.may_start() {
            return None;
        }
        let extents_max = state.extents_free(&self.layout);
        if state.appender.queue.front().is_none_or(|front| front.extents() > extents_max) {
            return self.want_room(state);
        }
        loop {
            if state.appender.open.is_none() && !self.open_segment(state) {
                return self.want_room(state);
            }
            let limit = {
                let open = state.appender.open.as_ref().expect("it was opened above");
                (self.layout.segment_bytes - open.offset).min(RECORD_BYTES_MAX as u64)
            };
            let taken = take_queued(&mut state.appender, limit, extents_max);
            if !taken.is_empty() {
                state.wants_room = false;
                return Some(self.assemble(state, taken));
            }
            let open = state.appender.open.take().expect("it was opened above");
            assert!(open.offset > 0, "an empty segment holds any entry");
            state.segments.close(open.segment);
            state.appender.next_segment = open.next_segment;
        }
    }

    /// Records wait for room, and level 2 cannot make any: who waits is told why.
    pub(crate) fn give_up_queue(&self, error: &Error) {
        let mut finished = Vec::new();
        {
            let state = &mut *self.state();
            if !state.wants_room {
                return;
            }
            state.stuck = Some(error.clone());
            state.wants_room = false;
            abandon_queue(state, &mut finished);
        }
        finished.iter().for_each(|ticket| ticket.finish(Err(error.clone())));
        self.changed.notify();
    }

    fn want_room(&self, state: &mut State) -> Option<Outgoing> {
        self.ask_for_room(state);
        None
    }

    /// Somebody waits until the origin has taken some of what the log holds.
    pub(crate) fn ask_for_room(&self, state: &mut State) {
        state.was_full = true;
        if !std::mem::replace(&mut state.wants_room, true) {
            self.background.notify();
        }
    }

    fn open_segment(&self, state: &mut State) -> bool {
        let Some(next_segment) = state.segments.take_next() else { return false };
        let segment = state.appender.next_segment;
        // Slots leave in their order, so what comes after the oldest is newer.
        let now = self.clock.now();
        let oldest_at = state.stage.as_ref().and_then(Stage::oldest_at).map_or(now, |at| at.min(now));
        state.segments.open(segment, oldest_at);
        state.sums.begin(segment);
        state.records.forget(self.layout.place(segment, 0), self.layout.segment_bytes / UNIT_BYTES);
        state.appender.open = Some(OpenSegment { segment, offset: 0, next_segment });
        true
    }

    fn assemble(&self, state: &mut State, taken: Vec<Queued>) -> Outgoing {
        let State { appender, stage, segments, sums, applied, .. } = state;
        let open = appender.open.as_mut().expect("a record has a segment");
        let prefix = prefix_bytes(taken.len());
        let extents = taken.iter().map(Queued::extents).sum();
        let data_bytes: u64 = taken.iter().map(Queued::data_bytes).sum();
        let mut buffer = self.used_buffer(prefix + data_bytes as usize);
        buffer[..prefix].fill(0);
        let (sequence, offset) = (appender.sequence_next, open.offset);
        let is_slot_queued = appender.queue.iter().any(|queued| matches!(queued.content, Content::Slot(_)));
        let is_epoch_end = stage.as_ref().is_none_or(|stage| stage.is_at_cut() && !is_slot_queued);
        let head = HeadRaw {
            segment: open.segment.into(),
            next_segment: open.next_segment.into(),
            time_ns: self.clock.now().as_nanoseconds().into(),
            entry_count: (taken.len() as u16).into(),
            in_flight: (appender.in_flight.len() as u16).into(),
            flags: if is_epoch_end { FLAG_EPOCH_END.into() } else { 0.into() },
            reserved: 0.into(),
        };
        let entries_at = RECORD_HEADER_BYTES + size_of::<HeadRaw>();
        buffer[RECORD_HEADER_BYTES..entries_at].copy_from_slice(head.as_bytes());
        let tag = Self::tag_for(segments, open.segment);
        let mut at = prefix;
        let mut placed = Vec::with_capacity(taken.len());
        for (index, queued) in taken.into_iter().enumerate() {
            let entry_at = entries_at + index * size_of::<EntryRaw>();
            buffer[entry_at..entry_at + size_of::<EntryRaw>()].copy_from_slice(queued.entry().as_bytes());
            let length = queued.data_bytes() as usize;
            let target = &mut buffer[at..at + length];
            let mut slot = None;
            let place = match &queued.content {
                Content::Bytes { buffer, at } => {
                    target.copy_from_slice(&buffer[*at..*at + length]);
                    None
                }
                Content::Slot(number) => {
                    slot = Some(*number);
                    if let Some(stage) = stage.as_ref() {
                        stage.load(stage.place(*number), target);
                    }
                    None
                }
                Content::Zeroes(zeroed) => Some(place_of_zeroes(sequence, *zeroed)),
            };
            let is_data = place.is_none();
            let place = place.unwrap_or_else(|| self.layout.place(open.segment, offset + at as u64));
            if is_data && sums.is_kept() {
                sums.add(open.segment, self.layout.place(open.segment, 0), place, target);
            }
            let piece = Piece { sector: queued.sector, sectors: queued.sectors, place, tag };
            placed.push(Placed { piece, slot, ticket: queued.ticket });
            at += length;
        }
        let position = LogPosition { offset, epoch: self.epoch, sequence, link: appender.link };
        let payload_bytes = buffer.len() - RECORD_HEADER_BYTES;
        let settled = applied.position.sequence.saturating_sub(1);
        let claims = Claims { settled, in_flight: appender.in_flight.len() as u64 };
        let checksum = seal(&mut buffer, self.uuid, position, claims, payload_bytes);
        open.offset += buffer.len() as u64;
        appender.sequence_next += 1;
        appender.link = checksum;
        segments.add_record(open.segment, sequence);
        let end = LogPlace {
            segment: open.segment,
            next_segment: open.next_segment,
            position: LogPosition { offset: open.offset, epoch: self.epoch, sequence: sequence + 1, link: checksum },
        };
        let place = self.layout.place(open.segment, offset);
        let bytes = buffer.len() as u64;
        appender.in_flight.push_back(InFlight {
            sequence,
            is_epoch_end,
            extents,
            end,
            place,
            bytes,
            placed,
            done: None,
        });
        self.counters.record(bytes, data_bytes);
        Outgoing { sequence, offset: self.layout.offset_of(place), buffer }
    }

    fn finish_record(self: &Arc<Self>, sequence: u64, response: Response) {
        if let Err(error) = &response.result {
            return self.give_up_log(error);
        }
        let mut finished = Vec::new();
        {
            let state = &mut *self.state();
            if let Some(record) = state.appender.in_flight.iter_mut().find(|record| record.sequence == sequence) {
                record.done = Some(response.buffer);
            }
            while state.appender.in_flight.front().is_some_and(|record| record.done.is_some()) {
                let record = state.appender.in_flight.pop_front().expect("it was there a line ago");
                self.apply(state, record, &mut finished);
            }
        }
        finished.iter().for_each(|ticket| ticket.finish(Ok(())));
        // After those who were answered, who may write again at once.
        self.start_records();
        self.changed.notify();
        self.background.notify();
    }

    /// The log device refused a record or a checkpoint: nothing may follow it, and who waits for a record is told. What is on its way counts no
    /// more, even if it arrives: its writers go to the origin, and others after them.
    pub(crate) fn give_up_log(self: &Arc<Self>, error: &Error) {
        let mut finished = Vec::new();
        {
            let state = &mut *self.state();
            self.fail(state, error);
            abandon(state, &mut finished);
        }
        finished.iter().for_each(|ticket| ticket.finish(Err(error.clone())));
        self.changed.notify();
        self.background.notify();
    }

    /// Takes a durable record into the map.
    fn apply(&self, state: &mut State, record: InFlight, finished: &mut Vec<Arc<Ticket>>) {
        for placed in record.placed {
            match placed.slot {
                Some(slot) => self.apply_moved(state, slot, &placed.piece),
                None => {
                    if placed.piece.is_zero() {
                        state.zeroes_since.get_or_insert(self.clock.now());
                    }
                    let superseded = state.index(&self.layout, placed.piece);
                    self.count_superseded(superseded);
                }
            }
            finished.push(placed.ticket);
        }
        state.applied = record.end;
        state.may_have_epoch |= record.is_epoch_end;
        state.tail_bytes += record.bytes;
        if let Some(buffer) = record.done {
            state.records.insert(record.place, buffer);
        }
    }

    /// What is still in the slot is in the log now. What a newer slot has is the newest in the log all the same.
    fn apply_moved(&self, state: &mut State, slot: u32, piece: &Piece) {
        let State { map, shadow, segments, stage, .. } = state;
        let Some(stage) = stage else { return };
        let from = Piece { place: stage.place(slot), ..*piece };
        let found: Vec<Piece> = map.pieces(piece.sector, piece.sectors).filter(Piece::is_in_stage).collect();
        for found in found {
            let moved = piece.clip(found.sector, found.end());
            let is_newest = found.place == from.clip(found.sector, found.end()).place;
            if !is_newest && !shadow.is_kept() {
                continue;
            }
            segments.add_dirty(self.layout.segment_of(moved.place), moved.sectors);
            let superseded = |old: Piece| {
                if old.is_in_segment() {
                    segments.remove_dirty(self.layout.segment_of(old.place), old.sectors);
                }
            };
            if is_newest {
                map.insert(moved, |_| {});
                shadow.remove(moved.sector, moved.sectors, superseded);
            } else {
                shadow.insert(moved, superseded);
            }
        }
        stage.finish_move(slot);
    }
}

/// Gives up all that is on its way or waits: the log failed.
fn abandon(state: &mut State, finished: &mut Vec<Arc<Ticket>>) {
    let State { appender, stage, .. } = state;
    for placed in appender.in_flight.drain(..).flat_map(|record| record.placed) {
        if let (Some(slot), Some(stage)) = (placed.slot, stage.as_mut()) {
            stage.cancel_move(slot);
        }
        finished.push(placed.ticket);
    }
    abandon_queue(state, finished);
}

fn abandon_queue(state: &mut State, finished: &mut Vec<Arc<Ticket>>) {
    let State { appender, stage, .. } = state;
    for queued in appender.queue.drain(..) {
        if let (Content::Slot(slot), Some(stage)) = (queued.content, stage.as_mut()) {
            stage.cancel_move(slot);
        }
        finished.push(queued.ticket);
    }
    appender.queue_bytes = 0;
}
