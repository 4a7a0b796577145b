//! What waits for a record of the log, and the records on their way.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::buffer::Buffer;
use block::completion::SlotSender;
use block::{Error, Response};

use crate::format::{ENTRY_DATA, ENTRY_DISCARDED, ENTRY_FLAG_NOT_NEEDED, ENTRY_ZEROES, EntryRaw, prefix_bytes};
use crate::layout::LogPlace;
use crate::limits::{
    EXTENTS_OF_A_CHANGE, LOGICAL_BLOCK_BYTES_MAX, RECORD_ENTRIES_MAX, RECORDS_IN_FLIGHT_MAX, SECOND_RECORD_BYTES,
    SEGMENT_BYTES_PAPER, UNIT_BYTES,
};
use crate::map::{Piece, Zeroed};

/// Data up to here is not split between records: a request stays in one piece.
const WHOLE_BYTES_MAX: u64 = SEGMENT_BYTES_PAPER as u64 / 2;

/// Requests are split where sectors are multiples of this: the largest blocks that an origin has.
const SPLIT_SECTORS: u64 = LOGICAL_BLOCK_BYTES_MAX as u64 / UNIT_BYTES;

/// What is to be recorded of a run of sectors.
pub(crate) enum Content {
    Bytes { buffer: Arc<Buffer>, at: usize },
    Slot(u32),
    Zeroes(Zeroed),
}

/// One entry that waits for a record.
pub(crate) struct Queued {
    pub(crate) sector: u64,
    pub(crate) sectors: u64,
    pub(crate) content: Content,
    pub(crate) ticket: Arc<Ticket>,
}

/// Several entries whose owner is told when all are durable, or that some are not. In either case none is on its way any more: the owner then lets
/// others change the same sectors.
pub(crate) struct Ticket {
    pub(crate) rest: AtomicU32,
    pub(crate) owner: Mutex<Owner>,
}

pub(crate) struct Owner {
    pub(crate) sender: Option<SlotSender>,
    pub(crate) error: Option<Error>,
}

impl Ticket {
    pub(crate) fn finish(&self, result: Result<(), Error>) {
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
pub(crate) struct Placed {
    pub(crate) piece: Piece,
    pub(crate) slot: Option<u32>,
    pub(crate) ticket: Arc<Ticket>,
}

pub(crate) struct InFlight {
    pub(crate) sequence: u64,
    pub(crate) is_epoch_end: bool,
    /// What it adds to a checkpoint, at most.
    pub(crate) extents: usize,
    pub(crate) end: LogPlace,
    pub(crate) place: u32,
    pub(crate) bytes: u64,
    pub(crate) placed: Vec<Placed>,
    /// The record's bytes, once it is durable.
    pub(crate) done: Option<Buffer>,
}

pub(crate) struct OpenSegment {
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    pub(crate) next_segment: u32,
}

/// See the module.
pub(crate) struct Appender {
    pub(crate) queue: VecDeque<Queued>,
    pub(crate) queue_bytes: u64,
    pub(crate) open: Option<OpenSegment>,
    /// The segment that is opened next.
    pub(crate) next_segment: u32,
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) sequence_next: u64,
    pub(crate) link: u32,
    /// Whether the workers were told to send records, and have not had their turn yet.
    pub(crate) is_turn_near: bool,
}

pub(crate) struct Outgoing {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
    pub(crate) buffer: Buffer,
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

    pub(crate) fn may_start(&self) -> bool {
        !self.queue.is_empty()
            && match self.in_flight.len() {
                0 => true,
                count => count < RECORDS_IN_FLIGHT_MAX && self.queue_bytes >= SECOND_RECORD_BYTES,
            }
    }
}

impl Queued {
    pub(crate) fn data_bytes(&self) -> u64 {
        match self.content {
            Content::Bytes { .. } | Content::Slot(_) => self.sectors * UNIT_BYTES,
            Content::Zeroes(_) => 0,
        }
    }

    /// Extents that it adds to a checkpoint, at most.
    pub(crate) fn extents(&self) -> usize {
        match self.content {
            Content::Slot(_) => extents_of_slot(self.sectors),
            Content::Bytes { .. } | Content::Zeroes(_) => EXTENTS_OF_A_CHANGE,
        }
    }

    pub(crate) fn entry(&self) -> EntryRaw {
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
pub(crate) fn take_queued(appender: &mut Appender, limit: u64, extents_max: usize) -> Vec<Queued> {
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
