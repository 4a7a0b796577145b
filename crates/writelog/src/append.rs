//! Sending records to the log device: group commit.
//!
//! Entries are queued. A record takes as much of the queue as fits. It is submitted with force unit
//! access after a turn of the other tasks, in which writers that are ready or were just answered
//! queue theirs. [`store::Gathering`] decides when the next record may start. A device may carry
//! out a write inside `submit` and so keep its thread; after each record the other tasks get their
//! turn first.
//!
//! - Records are applied to the map, and their writers answered, in the order of their sequences: a record counts only
//!   when all before it are durable, as replay will see it.
//! - A segment is opened only when another one is free to be named as the next, so that replay
//!   finds its way.
//! - When the device refuses a record, nothing may follow it: the log has failed, and waiting
//!   writers get the error.

use std::sync::Arc;

use base::buffer::Buffer;
use base::clock::Clock;
use block::completion::Workers;
use block::{Completion, Device, Error, Request, Response, SharedDevice};
use store::limits::RECORD_BYTES_MAX;
use store::record::{Claims, RECORD_HEADER_BYTES, seal};
use store::turns::Step;
use store::{LogPosition, Sequence};
use uuid::Uuid;
use zerocopy::IntoBytes;

use crate::appender::{OpenSegment, Placed, Record, SenderId};
use crate::contents::Contents;
use crate::counters::Counters;
use crate::entry::{Content, Entry, Ticket};
use crate::format::{EntryRaw, FLAG_EPOCH_END, HeadRaw, prefix_bytes};
use crate::layout::LogPlace;
use crate::limits::UNIT_BYTES;
use crate::log_state::{LogState, State};
use crate::map::Piece;
use crate::numbers::{Sector, SegmentNumber, SlotNumber};
use crate::options::DestageOrder;
use crate::place::Place;
use crate::stage::Stage;
use crate::unit::LogUnit;
use crate::used_buffers::UsedBuffers;

/// A record that is to be submitted now.
struct Outgoing {
    sequence: Sequence,
    offset: u64,
    buffer: Buffer,
}

/// Tickets and their results, to be completed after the lock of the state is released.
type Finished = Vec<(Arc<Ticket>, Result<(), Error>)>;

/// Makes records of what is queued, and sends them to the log device.
pub(crate) struct RecordSender {
    pub(crate) log: Arc<LogState>,
    pub(crate) log_device: SharedDevice,
    pub(crate) uuid: Uuid,
    pub(crate) workers: Workers,
    pub(crate) buffers: UsedBuffers,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) order: DestageOrder,
}

impl RecordSender {
    /// Queues runs of sectors for the next records. The completion ends when all of them are
    /// durable in the log, or with the log's error.
    pub(crate) fn append(self: &Arc<Self>, entries: Vec<(Sector, u64, Content)>) -> Completion {
        if entries.is_empty() {
            return Completion::ready(Response::done(Buffer::empty()));
        }
        let (completion, ticket) = Ticket::new(entries.len());
        {
            let state = &mut *self.log.state();
            let entries = entries.into_iter().map(|(sector, sectors, content)| {
                let ticket = Arc::clone(&ticket);
                Entry { sector, sectors, content, ticket }
            });
            if let Some(error) = state.failure.error().cloned() {
                entries.for_each(|entry| cancel_move(&mut state.contents.stage, entry.slot()));
                return Completion::ready(Response::failed(error, Buffer::empty()));
            }
            entries.for_each(|entry| state.appender.push(entry));
        }
        self.start();
        completion
    }

    /// Lets the workers submit as many records as may be under way, after the turns of other tasks.
    pub(crate) fn start(self: &Arc<Self>) {
        let Some(id) = self.log.state().appender.begin_turns() else { return };
        let sender = Arc::clone(self);
        self.workers.spawn(async move { sender.send_in_turn(id).await });
    }

    async fn send_in_turn(self: Arc<Self>, id: SenderId) {
        loop {
            self.workers.yield_now().await;
            let step = self.log.state().appender.step(id);
            match step {
                Step::Yield => {}
                Step::Start => return self.send_records(),
                Step::HandOver | Step::Nothing => return,
            }
        }
    }

    fn send_records(self: &Arc<Self>) {
        loop {
            let record = self.next_record(&mut self.log.state());
            let Some(record) = record else { return };
            let mut written = self.log_device.submit(Request::write(record.offset, record.buffer, true));
            if let Some(response) = written.try_take() {
                return self.finish_record(record.sequence, response);
            }
            let sender = Arc::clone(self);
            self.workers.spawn(async move { sender.finish_record(record.sequence, written.await) });
        }
    }

    fn next_record(&self, state: &mut State) -> Option<Outgoing> {
        if !state.appender.may_start() {
            return None;
        }
        let extents_max = state.extents_free();
        if !state.appender.has_room(extents_max) {
            return self.want_room(state);
        }
        loop {
            if state.appender.open.is_none() && !self.open_segment(state) {
                return self.want_room(state);
            }
            let limit = {
                let open = state.appender.open.as_ref().expect("it was opened above");
                (self.log.layout.segment_bytes - open.offset).min(RECORD_BYTES_MAX as u64)
            };
            let taken = state.appender.take(limit, extents_max);
            if !taken.is_empty() {
                state.room.note_found(false);
                return Some(self.assemble(state, taken));
            }
            let open = state.appender.open.take().expect("it was opened above");
            assert!(open.offset > 0, "an empty segment holds any entry");
            state.contents.segments.close(open.segment);
            state.appender.next_segment = open.next_segment;
        }
    }

    /// Records wait for room, and level 2 cannot make any: the waiting writers get the error.
    pub(crate) fn give_up_queue(&self, error: &Error) {
        let mut finished = Vec::new();
        {
            let state = &mut *self.log.state();
            if !state.room.give_up(error) {
                return;
            }
            abandon_queue(state, error, &mut finished);
        }
        tell(finished);
        self.log.changed.notify();
    }

    fn want_room(&self, state: &mut State) -> Option<Outgoing> {
        self.log.ask_for_room(state);
        None
    }

    fn open_segment(&self, state: &mut State) -> bool {
        let Some(next_segment) = state.contents.segments.take_next() else { return false };
        let segment = state.appender.next_segment;
        // Slots leave in their order, so what comes after the oldest is newer.
        let now = self.clock.now();
        let oldest_at = state.contents.stage.as_ref().and_then(Stage::oldest_at).map_or(now, |at| at.min(now));
        state.contents.segments.open(segment, oldest_at);
        state.contents.sums.begin(segment);
        state.contents.records.forget(self.log.layout.unit(segment, 0), self.log.layout.segment_bytes / UNIT_BYTES);
        state.appender.open = Some(OpenSegment { segment, offset: 0, next_segment });
        true
    }

    fn assemble(&self, state: &mut State, taken: Vec<Entry>) -> Outgoing {
        let (head, position, segment) = self.head_of(state, taken.len());
        let is_epoch_end = head.flags.get() & FLAG_EPOCH_END != 0;
        let extents = taken.iter().map(Entry::extents).sum();
        let data_bytes: u64 = taken.iter().map(Entry::data_bytes).sum();
        let prefix = prefix_bytes(taken.len());
        let mut buffer = self.buffers.take(prefix + data_bytes as usize);
        buffer[..prefix].fill(0);
        let entries_at = RECORD_HEADER_BYTES + size_of::<HeadRaw>();
        buffer[RECORD_HEADER_BYTES..entries_at].copy_from_slice(head.as_bytes());
        for (entry, raw) in taken.iter().zip(buffer[entries_at..].chunks_mut(size_of::<EntryRaw>())) {
            raw.copy_from_slice(entry.raw().as_bytes());
        }
        let unit = self.log.layout.unit(segment, position.offset);
        let placed = self.place_entries(state, taken, segment, unit, position.sequence, &mut buffer);
        let payload_bytes = buffer.len() - RECORD_HEADER_BYTES;
        let settled = state.newest();
        let claims = Claims { settled, in_flight: state.appender.in_flight() as u64 };
        let checksum = seal(&mut buffer, self.uuid, position, claims, payload_bytes);
        state.contents.segments.add_record(segment, position.sequence);
        let bytes = buffer.len() as u64;
        let end = LogPlace {
            segment,
            next_segment: head.next_segment.into(),
            position: LogPosition {
                offset: position.offset + bytes,
                sequence: position.sequence.next(),
                link: checksum,
                ..position
            },
        };
        state.appender.start(Record { is_epoch_end, extents, data_bytes, end, unit, bytes, placed, done: None });
        self.counters.record(bytes, data_bytes);
        Outgoing { sequence: position.sequence, offset: self.log.layout.offset_of(unit), buffer }
    }

    /// The head of the next record with `entry_count` entries, its position and its segment.
    fn head_of(&self, state: &State, entry_count: usize) -> (HeadRaw, LogPosition, SegmentNumber) {
        let State { appender, contents: Contents { stage, .. }, .. } = state;
        let open = appender.open.as_ref().expect("a record has a segment");
        let is_epoch_end = stage.as_ref().is_none_or(|stage| stage.is_at_cut() && !appender.is_slot_queued());
        let head = HeadRaw {
            segment: open.segment.into(),
            next_segment: open.next_segment.into(),
            time_ns: self.clock.now().as_nanoseconds().into(),
            entry_count: (entry_count as u16).into(),
            in_flight: (appender.in_flight() as u16).into(),
            flags: if is_epoch_end { FLAG_EPOCH_END.into() } else { 0.into() },
            reserved: 0.into(),
        };
        (head, appender.position(open.offset), open.segment)
    }

    /// Copies the data of entries to their places in the record `sequence`, which begins at `record_unit` of `segment`.
    fn place_entries(
        &self,
        state: &mut State,
        taken: Vec<Entry>,
        segment: SegmentNumber,
        record_unit: LogUnit,
        sequence: Sequence,
        buffer: &mut Buffer,
    ) -> Vec<Placed> {
        let Contents { stage, segments, sums, .. } = &mut state.contents;
        let tag = segments.tag(segment);
        let first = self.log.layout.unit(segment, 0);
        let mut at = prefix_bytes(taken.len());
        let mut placed = Vec::with_capacity(taken.len());
        for entry in taken {
            let target = &mut buffer[at..at + entry.data_bytes() as usize];
            let place = match &entry.content {
                Content::Zeroes(zeroed) => Place::zeroes(sequence, *zeroed),
                _ => {
                    load(stage.as_ref(), &entry.content, target);
                    let unit = record_unit + at as u64 / UNIT_BYTES;
                    if sums.is_kept() {
                        sums.add(segment, first, unit, target);
                    }
                    Place::segment(unit)
                }
            };
            at += target.len();
            let piece = Piece { sector: entry.sector, sectors: entry.sectors, place, tag };
            placed.push(Placed { piece, slot: entry.slot(), ticket: entry.ticket });
        }
        placed
    }

    fn finish_record(self: &Arc<Self>, sequence: Sequence, response: Response) {
        let has_landed = response.result.is_ok();
        let mut finished = Vec::new();
        {
            let state = &mut *self.log.state();
            if let Err(error) = &response.result {
                self.fail(state, error);
            }
            if let Some(record) = state.appender.finish(sequence, response.result) {
                record.done = Some(response.buffer);
            }
            self.settle(state, &mut finished);
        }
        tell(finished);
        if has_landed {
            // After the answers, since the writers just answered may write again at once.
            self.start();
        }
        self.log.wake_all();
    }

    /// Notes that the log device failed, so that nothing new can be promised with it. The first
    /// failure is logged.
    fn fail(&self, state: &mut State, error: &Error) {
        if state.failure.comes(error) {
            tracing::error!(
                %error,
                dirty_bytes = state.contents.map.dirty_sectors() * UNIT_BYTES,
                "the log device failed: writes go to the LUN, and what only the log has is brought there as far as it \
                 can be read"
            );
            state.appender.refuse(error);
        }
        self.log.wake_all();
    }

    /// The log device refused a checkpoint: nothing may follow it. Waiting writers get the error,
    /// once their record is not under way any more. A record under way does not count, even if it
    /// lands: its writers, and later ones, write to the origin.
    pub(crate) fn give_up(self: &Arc<Self>, error: &Error) {
        let mut finished = Vec::new();
        {
            let state = &mut *self.log.state();
            self.fail(state, error);
            self.settle(state, &mut finished);
        }
        tell(finished);
        self.log.wake_all();
    }

    /// Takes what is durable by now into the map, and refuses the failed records.
    fn settle(&self, state: &mut State, finished: &mut Finished) {
        while let Some((record, result)) = state.appender.settle() {
            match result {
                Ok(()) => self.apply(state, record, finished),
                Err(error) => {
                    for placed in record.placed {
                        cancel_move(&mut state.contents.stage, placed.slot);
                        finished.push((placed.ticket, Err(error.clone())));
                    }
                }
            }
        }
        if let Some(error) = state.failure.error().cloned() {
            abandon_queue(state, &error, finished);
        }
    }

    /// Puts the pieces of a durable record into the map.
    fn apply(&self, state: &mut State, record: Record, finished: &mut Finished) {
        let mut slots_freed = 0;
        for placed in record.placed {
            match placed.slot {
                Some(slot) => {
                    state.contents.note_moved(slot, &placed.piece);
                    slots_freed += 1;
                }
                None => {
                    if placed.piece.is_zero() {
                        state.contents.zeroes_since.get_or_insert(self.clock.now());
                    }
                    let superseded = state.contents.index(placed.piece);
                    self.counters.superseded_in(self.order, superseded);
                }
            }
            finished.push((placed.ticket, Ok(())));
        }
        if slots_freed > 0 {
            state.slot_pace.room_made(self.clock.now(), slots_freed * self.log.layout.slot_bytes);
        }
        state.contents.applied = record.end;
        if record.is_epoch_end {
            state.destaged.note_epoch_end();
        }
        state.checkpointed.note_record(record.bytes);
        if let Some(buffer) = record.done {
            state.contents.records.insert(record.unit, buffer);
        }
    }
}

/// Copies the data of an entry into a record.
fn load(stage: Option<&Stage>, content: &Content, target: &mut [u8]) {
    match (content, stage) {
        (Content::Bytes { buffer, at }, _) => target.copy_from_slice(&buffer[*at..*at + target.len()]),
        (Content::Slot(slot), Some(stage)) => stage.load(stage.unit(*slot), target),
        (Content::Slot(_), None) | (Content::Zeroes(_), _) => {}
    }
}

/// Refuses all queued entries.
fn abandon_queue(state: &mut State, error: &Error, finished: &mut Finished) {
    for entry in state.appender.drain() {
        cancel_move(&mut state.contents.stage, entry.slot());
        finished.push((entry.ticket, Err(error.clone())));
    }
}

fn cancel_move(stage: &mut Option<Stage>, slot: Option<SlotNumber>) {
    if let (Some(slot), Some(stage)) = (slot, stage) {
        stage.cancel_move(slot);
    }
}

fn tell(finished: Finished) {
    finished.into_iter().for_each(|(ticket, result)| ticket.finish(result));
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;
    use crate::tests::{Parts, bytes_of};

    #[test]
    fn what_waits_for_its_turn_shares_a_record() {
        let mut parts = Parts::new(|_| {});
        let records = Arc::new(parts.assembly.records());
        let before = parts.device.writes_seen();
        let appended: Vec<Completion> = (0..3).map(|index| records.append(vec![bytes_of(8 * index, 4, 1)])).collect();
        for completion in appended {
            parts.executor.block_on(completion).result.expect("nothing fails");
        }
        assert_eq!(parts.device.writes_seen() - before, 1);
        let state = parts.assembly.log.state();
        assert_eq!((state.contents.map.dirty_sectors(), state.contents.applied.position.sequence), (12, Sequence(2)));
    }

    #[test]
    fn after_a_record_that_is_refused_the_log_takes_no_other() {
        let mut parts = Parts::new(|_| {});
        let records = Arc::new(parts.assembly.records());
        parts.device.fail_write_once(parts.device.writes_seen(), ErrorKind::Media);
        let mut append = |sector| {
            let appended = records.append(vec![bytes_of(sector, 4, 1)]);
            let result = parts.executor.block_on(appended).result;
            (result.map_err(|error| error.kind()), parts.device.writes_seen())
        };
        let (refused, writes) = append(0);
        assert_eq!(refused, Err(ErrorKind::Media));
        assert_eq!(append(8), (Err(ErrorKind::Media), writes), "not tried");
        assert!(parts.assembly.log.has_failed() && parts.assembly.log.state().contents.map.len() == 0);
    }
}
