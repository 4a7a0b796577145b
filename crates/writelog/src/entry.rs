//! Entries that wait for a record of the log, and the ticket of their owner.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::buffer::Buffer;
use block::completion::SlotSender;
use block::{Completion, Error, Response};
use store::Weighed;
use store::limits::LOGICAL_BLOCK_BYTES_MAX;

use crate::format::{ENTRY_DATA, ENTRY_DISCARDED, ENTRY_FLAG_NOT_NEEDED, ENTRY_ZEROES, EntryRaw};
use crate::limits::{EXTENTS_OF_A_CHANGE, SEGMENT_BYTES_PAPER, UNIT_BYTES};
use crate::numbers::{Sector, SlotNumber};
use crate::place::Zeroed;

/// Data up to this size is not split between records: such a request stays whole.
const WHOLE_BYTES_MAX: u64 = SEGMENT_BYTES_PAPER as u64 / 2;

/// Entries are split only at multiples of this: the largest block of an origin.
const SPLIT_SECTORS: u64 = LOGICAL_BLOCK_BYTES_MAX as u64 / UNIT_BYTES;

/// The content that a record has for a run of sectors.
pub(crate) enum Content {
    Bytes { buffer: Arc<Buffer>, at: usize },
    Slot(SlotNumber),
    Zeroes(Zeroed),
}

/// One entry that waits for a record.
pub(crate) struct Entry {
    pub(crate) sector: Sector,
    pub(crate) sectors: u64,
    pub(crate) content: Content,
    pub(crate) ticket: Arc<Ticket>,
}

impl Weighed for Entry {
    fn weight(&self) -> u64 {
        self.data_bytes()
    }

    fn is_full(&self) -> bool {
        false
    }
}

impl Entry {
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

    /// The slot that it moves, if it moves one.
    pub(crate) fn slot(&self) -> Option<SlotNumber> {
        match self.content {
            Content::Slot(slot) => Some(slot),
            Content::Bytes { .. } | Content::Zeroes(_) => None,
        }
    }

    /// Its row in the record.
    pub(crate) fn raw(&self) -> EntryRaw {
        let (kind, flags) = match self.content {
            Content::Bytes { .. } | Content::Slot(_) => (ENTRY_DATA, 0),
            Content::Zeroes(Zeroed::Kept) => (ENTRY_ZEROES, 0),
            Content::Zeroes(Zeroed::MayDiscard) => (ENTRY_DISCARDED, 0),
            Content::Zeroes(Zeroed::Discarded) => (ENTRY_DISCARDED, ENTRY_FLAG_NOT_NEEDED),
        };
        EntryRaw { sector: self.sector.into(), sectors: (self.sectors as u32).into(), kind, flags, reserved: [0; 2] }
    }

    /// Splits off as much as fits into `room` bytes. Each part is destaged on its own, so it ends
    /// at a block of the origin. Short entries and slots stay whole.
    pub(crate) fn split_off(&mut self, room: u64) -> Option<Self> {
        let end = (self.sector + room / UNIT_BYTES).last_multiple_of(SPLIT_SECTORS);
        let part = end.max(self.sector) - self.sector;
        if self.data_bytes() <= WHOLE_BYTES_MAX || part == 0 {
            return None;
        }
        let Content::Bytes { buffer, at } = &mut self.content else { return None };
        let content = Content::Bytes { buffer: Arc::clone(buffer), at: *at };
        *at += (part * UNIT_BYTES) as usize;
        let first = Self { sector: self.sector, sectors: part, content, ticket: self.ticket.for_one_more() };
        self.sector += part;
        self.sectors -= part;
        Some(first)
    }
}

/// Extents that a moved slot adds to a checkpoint, at most: newer slots may hold parts of it, so
/// each sector may be one.
pub(crate) fn extents_of_slot(sectors: u64) -> usize {
    EXTENTS_OF_A_CHANGE + sectors as usize
}

/// The completion of several entries: it ends when all are durable, or some refused, and none is
/// under way any more. The owner then lets others change the same sectors.
pub(crate) struct Ticket {
    rest: AtomicU32,
    owner: Mutex<Owner>,
}

struct Owner {
    sender: Option<SlotSender>,
    error: Option<Error>,
}

impl Ticket {
    /// A ticket for `entry_count` entries, and its completion.
    pub(crate) fn new(entry_count: usize) -> (Completion, Arc<Self>) {
        let (completion, sender) = Completion::slot();
        let owner = Mutex::new(Owner { sender: Some(sender), error: None });
        (completion, Arc::new(Self { rest: AtomicU32::new(entry_count as u32), owner }))
    }

    fn for_one_more(self: &Arc<Self>) -> Arc<Self> {
        self.rest.fetch_add(1, Ordering::AcqRel);
        Arc::clone(self)
    }

    /// Notes that one of the entries is durable, or refused and not under way any more.
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
            let result = error.map_or(Ok(()), Err);
            sender.complete(Response { result, buffer: Buffer::empty(), extents: Vec::new() });
        }
    }
}
