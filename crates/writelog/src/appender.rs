//! The queue of entries that wait for a record, the records under way, and the place of the next
//! record.
//!
//! [`Appends`] decides which record may start, and in which order they count. When the log device
//! refuses one, all that are not settled are refused, those before it, too: from then on the
//! failure note says what a later start finds of the log, and a record that lands later does not
//! count.

use std::sync::Arc;

use base::buffer::Buffer;
use block::Error;
use store::turns::{Step, Turns};
use store::{Appends, Gathering, LogPosition, Sequence, Worth};

use crate::entry::{Entry, Ticket};
use crate::format::prefix_bytes;
use crate::layout::LogPlace;
use crate::limits::{RECORD_ENTRIES_MAX, RECORDS_IN_FLIGHT_MAX, SECOND_RECORD_BYTES, TURNS_BEFORE_RECORD};
use crate::map::Piece;
use crate::numbers::{SegmentNumber, SlotNumber};
use crate::unit::LogUnit;

/// The weight of an entry is its bytes of data.
const GATHERING: Gathering = Gathering {
    in_flight_max: RECORDS_IN_FLIGHT_MAX,
    worth: Worth::Weight(SECOND_RECORD_BYTES),
    turns: TURNS_BEFORE_RECORD,
};

/// An entry of a record under way, with its place in the log.
pub(crate) struct Placed {
    pub(crate) piece: Piece,
    pub(crate) slot: Option<SlotNumber>,
    pub(crate) ticket: Arc<Ticket>,
}

/// A record under way.
pub(crate) struct Record {
    pub(crate) is_epoch_end: bool,
    /// Extents that it adds to a checkpoint, at most.
    pub(crate) extents: usize,
    pub(crate) data_bytes: u64,
    pub(crate) end: LogPlace,
    pub(crate) unit: LogUnit,
    pub(crate) bytes: u64,
    pub(crate) placed: Vec<Placed>,
    /// Its bytes, once it is durable.
    pub(crate) done: Option<Buffer>,
}

/// The segment that records go to.
pub(crate) struct OpenSegment {
    pub(crate) segment: SegmentNumber,
    pub(crate) offset: u64,
    /// The segment that its records name as the next one.
    pub(crate) next_segment: SegmentNumber,
}

/// A task that will send records after the turns of other tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SenderId(u64);

/// Entries that wait for a record, records on their way, and the place of the next record.
pub(crate) struct Appender {
    appends: Appends<Entry, Record>,
    turns: Turns<SenderId>,
    sender_next: SenderId,
    pub(crate) open: Option<OpenSegment>,
    /// The segment to open next.
    pub(crate) next_segment: SegmentNumber,
    epoch: u64,
    link: u32,
}

impl Appender {
    /// The first record goes to the start of `start.segment`, which was taken as the next one.
    pub(crate) fn new(start: &LogPlace) -> Self {
        assert_eq!(start.position.offset, 0, "each opening starts a segment");
        Self {
            appends: Appends::new(GATHERING, start.position.sequence),
            turns: Turns::new(GATHERING.turns),
            sender_next: SenderId(0),
            open: None,
            next_segment: start.segment,
            epoch: start.position.epoch,
            link: start.position.link,
        }
    }

    /// Bytes of data that wait for a record.
    pub(crate) fn queue_bytes(&self) -> u64 {
        self.appends.waiting_weight()
    }

    pub(crate) fn has_queue(&self) -> bool {
        self.queue_count() > 0
    }

    pub(crate) fn queue_count(&self) -> usize {
        self.appends.waiting().len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.has_queue() && self.appends.records().next().is_none()
    }

    /// Extents that the records under way add to a checkpoint, at most.
    pub(crate) fn extents_in_flight(&self) -> usize {
        self.appends.records().map(|record| record.extents).sum()
    }

    /// Whether a slot waits to be moved.
    pub(crate) fn is_slot_queued(&self) -> bool {
        self.appends.waiting().any(|entry| entry.slot().is_some())
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.appends.push(entry);
    }

    pub(crate) fn may_start(&self) -> bool {
        self.appends.may_start()
    }

    /// A new sender of the next records; `None` if no record may start, or another sender is at it.
    pub(crate) fn begin_turns(&mut self) -> Option<SenderId> {
        let sender = self.sender_next;
        let step = self.step(sender);
        (step == Step::Yield).then(|| {
            self.sender_next = SenderId(sender.0 + 1);
            sender
        })
    }

    /// What a sender has to do after a turn of the other tasks.
    pub(crate) fn step(&mut self, sender: SenderId) -> Step {
        self.turns.step(sender, false, self.appends.may_start())
    }

    /// Whether the oldest queued entry has room in a checkpoint that can take `extents_max` more
    /// extents.
    pub(crate) fn has_room(&self, extents_max: usize) -> bool {
        self.appends.waiting().next().is_some_and(|front| front.extents() <= extents_max)
    }

    /// Takes as many entries from the queue as fit into a record of `limit` bytes, and into a
    /// checkpoint. A long entry is split.
    pub(crate) fn take(&mut self, limit: u64, extents_max: usize) -> Vec<Entry> {
        let mut taken: Vec<Entry> = Vec::new();
        let (mut data_bytes, mut extents) = (0, 0);
        let next = |appends: &Appends<Entry, Record>| {
            appends.waiting().next().map(|front| (front.extents(), front.data_bytes()))
        };
        while let Some((more_extents, wanted)) = next(&self.appends) {
            extents += more_extents;
            if taken.len() == RECORD_ENTRIES_MAX || extents > extents_max {
                break;
            }
            let Some(room) = limit.checked_sub(prefix_bytes(taken.len() + 1) as u64 + data_bytes) else { break };
            if wanted > room {
                taken.extend(self.take_part(room));
                break;
            }
            data_bytes += wanted;
            taken.extend(self.appends.pop());
        }
        taken
    }

    fn take_part(&mut self, room: u64) -> Option<Entry> {
        let mut front = self.appends.pop()?;
        let part = front.split_off(room);
        self.appends.put_back(front);
        part
    }

    /// Position of the next record in the open segment: its number, and the checksum that it
    /// follows.
    pub(crate) fn position(&self, offset: u64) -> LogPosition {
        LogPosition { offset, epoch: self.epoch, sequence: self.appends.next_sequence(), link: self.link }
    }

    /// Count of records right before the next one that may not have landed.
    pub(crate) fn in_flight(&self) -> usize {
        self.appends.in_flight()
    }

    /// Notes that the next record was submitted.
    pub(crate) fn start(&mut self, record: Record) {
        if let Some(open) = &mut self.open {
            open.offset = record.end.position.offset;
        }
        self.link = record.end.position.link;
        let weight = record.data_bytes;
        self.appends.start(record, weight);
    }

    /// Notes that the write of a record has ended.
    pub(crate) fn finish(&mut self, sequence: Sequence, result: Result<(), Error>) -> Option<&mut Record> {
        self.appends.finish(sequence, result);
        self.appends.record_mut(sequence)
    }

    /// Refuses all records that are not settled: the log failed.
    pub(crate) fn refuse(&mut self, error: &Error) {
        self.appends.refuse_from(self.appends.durable_end(), error.clone());
    }

    /// The next record that is durable with all before it, or that is refused and no longer under
    /// way.
    pub(crate) fn settle(&mut self) -> Option<(Record, Result<(), Error>)> {
        self.appends.settle()
    }

    /// Takes all queued entries.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Entry> + use<> {
        self.appends.drain().into_iter()
    }
}
