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

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::buffer::Buffer;
use block::completion::SlotSender;
use block::{Completion, Device, Error, Request, Response};
use store::LogPosition;
use store::limits::RECORD_BYTES_MAX;
use store::record::{Claims, RECORD_HEADER_BYTES, seal};
use zerocopy::IntoBytes;

use crate::core::{Core, State};
use crate::format::{
    ENTRY_DATA, ENTRY_DISCARDED, ENTRY_FLAG_NOT_NEEDED, ENTRY_ZEROES, EntryRaw, FLAG_EPOCH_END, HeadRaw, prefix_bytes,
};
use crate::limits::{
    EXTENTS_OF_A_CHANGE, LOGICAL_BLOCK_BYTES_MAX, RECORD_ENTRIES_MAX, RECORDS_IN_FLIGHT_MAX, SECOND_RECORD_BYTES,
    SEGMENT_BYTES_PAPER, UNIT_BYTES,
};
use crate::map::{Piece, Zeroed, place_of_zeroes};
use crate::stage::Stage;
use crate::tag::Tag;

/// Data up to here is not split between records: a request stays in one piece.
const WHOLE_BYTES_MAX: u64 = SEGMENT_BYTES_PAPER as u64 / 2;

/// Requests are split where sectors are multiples of this: the largest blocks that an origin has.
const SPLIT_SECTORS: u64 = LOGICAL_BLOCK_BYTES_MAX as u64 / UNIT_BYTES;

/// A place between two records, with all that the next one must carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPlace {
    pub(crate) segment: u32,
    /// Segment that the record before names as the next one.
    pub(crate) next_segment: u32,
    /// Its offset is in the segment.
    pub(crate) position: LogPosition,
}

/// What is to be recorded of a run of sectors.
pub(crate) enum Content {
    Bytes { buffer: Arc<Buffer>, at: usize },
    Slot(u32),
    Zeroes(Zeroed),
}

/// One entry that waits for a record.
struct Queued {
    sector: u64,
    sectors: u64,
    content: Content,
    ticket: Arc<Ticket>,
}

/// Several entries whose owner is told when all are durable, or that some are not. In either case none is on its way any more: the owner then lets
/// others change the same sectors.
pub(crate) struct Ticket {
    rest: AtomicU32,
    owner: Mutex<Owner>,
}

struct Owner {
    sender: Option<SlotSender>,
    error: Option<Error>,
}

impl Ticket {
    fn finish(&self, result: Result<(), Error>) {
        let sent = {
            let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = result {
                owner.error.get_or_insert(error);
            }
            if self.rest.fetch_sub(1, Ordering::AcqRel) > 1 {
                return;
            }
            owner.sender.take().map(|sender| (sender, owner.error.take()))
        };
        if let Some((sender, error)) = sent {
            sender.complete(Response {
                result: error.map_or(Ok(()), Err),
                buffer: Buffer::empty(),
                extents: Vec::new(),
            });
        }
    }
}

/// An entry of a record under way, and where it stands.
struct Placed {
    piece: Piece,
    slot: Option<u32>,
    ticket: Arc<Ticket>,
}

struct InFlight {
    sequence: u64,
    is_epoch_end: bool,
    /// What it adds to a checkpoint, at most.
    extents: usize,
    end: LogPlace,
    place: u32,
    bytes: u64,
    placed: Vec<Placed>,
    /// The record's bytes, once it is durable.
    done: Option<Buffer>,
}

struct OpenSegment {
    segment: u32,
    offset: u64,
    next_segment: u32,
}

/// See the module.
pub(crate) struct Appender {
    queue: VecDeque<Queued>,
    queue_bytes: u64,
    open: Option<OpenSegment>,
    /// The segment that is opened next.
    next_segment: u32,
    in_flight: VecDeque<InFlight>,
    sequence_next: u64,
    link: u32,
    /// Whether the workers were told to send records, and have not had their turn yet.
    is_turn_near: bool,
}

struct Outgoing {
    sequence: u64,
    offset: u64,
    buffer: Buffer,
}

impl Appender {
    /// An appender whose first record goes to the start of `start.segment`, which was taken as the next one.
    pub(crate) fn new(start: &LogPlace) -> Self {
        assert_eq!(start.position.offset, 0, "each opening starts a segment");
        Self {
            queue: VecDeque::new(),
            queue_bytes: 0,
            open: None,
            next_segment: start.segment,
            in_flight: VecDeque::new(),
            sequence_next: start.position.sequence,
            link: start.position.link,
            is_turn_near: false,
        }
    }

    pub(crate) fn queue_bytes(&self) -> u64 {
        self.queue_bytes
    }

    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.queue.is_empty()
    }

    /// What records under way add to a checkpoint, at most.
    pub(crate) fn extents_in_flight(&self) -> usize {
        self.in_flight.iter().map(|record| record.extents).sum()
    }

    fn may_start(&self) -> bool {
        !self.queue.is_empty()
            && match self.in_flight.len() {
                0 => true,
                count => count < RECORDS_IN_FLIGHT_MAX && self.queue_bytes >= SECOND_RECORD_BYTES,
            }
    }
}

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

impl Queued {
    fn data_bytes(&self) -> u64 {
        match self.content {
            Content::Bytes { .. } | Content::Slot(_) => self.sectors * UNIT_BYTES,
            Content::Zeroes(_) => 0,
        }
    }

    /// Extents that it adds to a checkpoint, at most.
    fn extents(&self) -> usize {
        match self.content {
            Content::Slot(_) => extents_of_slot(self.sectors),
            Content::Bytes { .. } | Content::Zeroes(_) => EXTENTS_OF_A_CHANGE,
        }
    }

    fn entry(&self) -> EntryRaw {
        let (kind, flags) = match self.content {
            Content::Bytes { .. } | Content::Slot(_) => (ENTRY_DATA, 0),
            Content::Zeroes(Zeroed::Kept) => (ENTRY_ZEROES, 0),
            Content::Zeroes(Zeroed::MayDiscard) => (ENTRY_DISCARDED, 0),
            Content::Zeroes(Zeroed::Discarded) => (ENTRY_DISCARDED, ENTRY_FLAG_NOT_NEEDED),
        };
        EntryRaw { sector: self.sector.into(), sectors: (self.sectors as u32).into(), kind, flags, reserved: [0; 2] }
    }
}

/// Takes as many entries from the queue as a record of `limit` bytes holds, and a checkpoint. A long one is split.
fn take_queued(appender: &mut Appender, limit: u64, extents_max: usize) -> Vec<Queued> {
    let mut taken: Vec<Queued> = Vec::new();
    let (mut data_bytes, mut extents) = (0, 0);
    while let Some(front) = appender.queue.front_mut() {
        extents += front.extents();
        if taken.len() == RECORD_ENTRIES_MAX || extents > extents_max {
            break;
        }
        let Some(room) = limit.checked_sub(prefix_bytes(taken.len() + 1) as u64 + data_bytes) else { break };
        let wanted = front.data_bytes();
        if wanted <= room {
            let whole = appender.queue.pop_front().expect("it was there a line ago");
            data_bytes += wanted;
            taken.push(whole);
            continue;
        }
        // Each part is sent on its own: it ends where a block of the origin does.
        let part = ((front.sector + room / UNIT_BYTES) / SPLIT_SECTORS * SPLIT_SECTORS).saturating_sub(front.sector);
        if wanted <= WHOLE_BYTES_MAX || part == 0 {
            break;
        }
        let Content::Bytes { buffer, at } = &mut front.content else { break };
        let content = Content::Bytes { buffer: Arc::clone(buffer), at: *at };
        front.ticket.rest.fetch_add(1, Ordering::AcqRel);
        taken.push(Queued { sector: front.sector, sectors: part, content, ticket: Arc::clone(&front.ticket) });
        *at += (part * UNIT_BYTES) as usize;
        front.sector += part;
        front.sectors -= part;
        data_bytes += part * UNIT_BYTES;
        break;
    }
    appender.queue_bytes -= data_bytes;
    taken
}

/// Extents that a slot adds to a checkpoint when it is moved, at most: newer ones may hold parts of it, so that each sector is one.
pub(crate) fn extents_of_slot(sectors: u64) -> usize {
    EXTENTS_OF_A_CHANGE + sectors as usize
}

/// What the tag of an extent is before its segment is known.
pub(crate) fn stage_tag() -> Tag {
    Tag::dirty(0)
}
