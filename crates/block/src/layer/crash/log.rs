//! The writes that are not durable yet, in flight or volatile, and what a power loss makes of them.
//!
//! Records are numbered as they come in flight. Two that overlap are never in flight together
//! (because of the medium's range lock), so between overlapping ones the order of numbers is the
//! order of completion.

use std::collections::VecDeque;
use std::sync::Arc;

use base::random::Random;
use base::range::ByteRange;

use super::image::Image;
use super::loss::{ATOMIC_UNIT_BYTES, Loss};
use crate::limits::CRASH_VOLATILE_BYTES_MAX;

/// Number of a write on one medium.
pub(super) type WriteId = u64;

/// What a write stores.
#[derive(Clone)]
pub(super) enum Content {
    Zeroes,
    /// The bytes from `skip` on; pieces of one write share them.
    Bytes {
        bytes: Arc<[u8]>,
        skip: usize,
    },
}

impl Content {
    pub(super) fn copy_of(bytes: &[u8]) -> Self {
        Self::Bytes { bytes: bytes.into(), skip: 0 }
    }

    fn skipping(&self, more: u64) -> Self {
        match self {
            Self::Zeroes => Self::Zeroes,
            Self::Bytes { bytes, skip } => Self::Bytes { bytes: Arc::clone(bytes), skip: skip + more as usize },
        }
    }
}

/// A write, or the rest of one that a later durable write replaced in part.
#[derive(Clone)]
struct Record {
    id: WriteId,
    range: ByteRange,
    content: Content,
    /// How many writes had completed before it; meaningless in flight.
    completed_as: u64,
    /// Whether the power failed at this very write, which then always lands in part.
    is_torn: bool,
}

impl Record {
    fn apply(&self, image: &mut Image) {
        self.apply_part(self.range, image);
    }

    /// Stores the bytes of `part`, which lies inside the record's range.
    fn apply_part(&self, part: ByteRange, image: &mut Image) {
        match &self.content {
            Content::Zeroes => image.clear(part),
            Content::Bytes { bytes, skip } => {
                let start = skip + (part.offset - self.range.offset) as usize;
                image.store(part.offset, &bytes[start..start + part.length as usize]);
            }
        }
    }

    /// Stores each atomic unit or not, as drawn.
    fn apply_torn(&self, image: &mut Image, random: &mut Random) {
        self.torn(random).for_each(|part| self.apply_part(part, image));
    }

    /// Its atomic units that are stored, as drawn.
    fn torn(&self, random: &mut Random) -> impl Iterator<Item = ByteRange> {
        let ByteRange { offset, length } = self.range;
        (offset..offset + length)
            .step_by(ATOMIC_UNIT_BYTES as usize)
            .map(move |start| ByteRange { offset: start, length: ATOMIC_UNIT_BYTES.min(offset + length - start) })
            .filter(move |_| random.chance(0.5))
    }

    /// The rest of it outside `range`: nothing, one piece or two.
    fn without(self, range: &ByteRange) -> impl Iterator<Item = Self> {
        let end = self.range.end();
        let (before_end, after_start) =
            (range.offset.clamp(self.range.offset, end), range.end().clamp(self.range.offset, end));
        let is_apart = self.range.intersection(range).is_none();
        let spans = if is_apart {
            [(self.range.offset, end), (end, end)]
        } else {
            [(self.range.offset, before_end), (after_start, end)]
        };
        spans
            .into_iter()
            .filter(|(start, end)| start < end)
            .map(move |(start, end)| self.part(ByteRange { offset: start, length: end - start }))
    }

    /// The part of it in `range`, which lies inside its own.
    fn part(&self, range: ByteRange) -> Self {
        Self { range, content: self.content.skipping(range.offset - self.range.offset), ..self.clone() }
    }
}

/// The writes that a power loss may undo, oldest first.
#[derive(Default)]
pub(super) struct WriteLog {
    id_next: WriteId,
    completed_count: u64,
    in_flight: Vec<Record>,
    /// In the order of completion.
    volatile: VecDeque<Record>,
    volatile_bytes: u64,
}

impl WriteLog {
    /// Writes completed so far: what a flush submitted now makes durable.
    pub(super) fn completed_count(&self) -> u64 {
        self.completed_count
    }

    /// Puts a write in flight.
    pub(super) fn begin(&mut self, range: ByteRange, content: Content) -> WriteId {
        self.enter(range, content, false)
    }

    /// Puts in flight the write at which the power failed.
    pub(super) fn begin_torn(&mut self, range: ByteRange, content: Content) {
        self.enter(range, content, true);
    }

    fn enter(&mut self, range: ByteRange, content: Content, is_torn: bool) -> WriteId {
        let id = self.id_next;
        self.id_next += 1;
        self.in_flight.push(Record { id, range, content, completed_as: 0, is_torn });
        id
    }

    /// Completes a write in flight: it is visible, and durable or volatile.
    pub(super) fn complete(&mut self, id: WriteId, is_durable: bool, visible: &mut Image, durable: &mut Image) {
        let record = self.take(id);
        self.settle(record, is_durable, visible, durable);
    }

    /// Ends a write in flight of which only some units are stored, as drawn.
    pub(super) fn complete_torn(
        &mut self,
        id: WriteId,
        is_durable: bool,
        visible: &mut Image,
        durable: &mut Image,
        random: &mut Random,
    ) {
        let record = self.take(id);
        for part in record.torn(random) {
            self.settle(record.part(part), is_durable, visible, durable);
        }
    }

    /// Ends a write in flight of which nothing is stored.
    pub(super) fn abandon(&mut self, id: WriteId) {
        self.take(id);
    }

    fn take(&mut self, id: WriteId) -> Record {
        let index = self.in_flight.iter().position(|record| record.id == id).expect("a write completes once");
        self.in_flight.swap_remove(index)
    }

    fn settle(&mut self, mut record: Record, is_durable: bool, visible: &mut Image, durable: &mut Image) {
        record.completed_as = self.completed_count;
        self.completed_count += 1;
        record.apply(visible);
        if is_durable {
            self.supersede(&record.range);
            record.apply(durable);
        } else {
            self.volatile_bytes += record.range.length;
            self.volatile.push_back(record);
            while self.volatile_bytes > CRASH_VOLATILE_BYTES_MAX {
                self.harden_oldest(durable);
            }
        }
    }

    /// Makes durable the first `completed_count` writes that completed.
    pub(super) fn flush(&mut self, completed_count: u64, durable: &mut Image) {
        while self.volatile.front().is_some_and(|record| record.completed_as < completed_count) {
            self.harden_oldest(durable);
        }
    }

    /// A flush of the first `completed_count` writes that completed fails: each becomes durable, becomes so in part, or
    /// is forgotten.
    pub(super) fn lose(&mut self, completed_count: u64, durable: &mut Image, random: &mut Random) {
        let (covered, rest) =
            std::mem::take(&mut self.volatile).into_iter().partition(|record| record.completed_as < completed_count);
        self.volatile = rest;
        self.count_volatile_bytes();
        land_by_chance(&Vec::from(covered).iter().collect::<Vec<_>>(), durable, random);
    }

    /// The content that reads return after losses: what is durable, and over it what is volatile.
    pub(super) fn show(&self, durable: &Image) -> Image {
        let mut visible = durable.clone();
        self.volatile.iter().for_each(|record| record.apply(&mut visible));
        visible
    }

    /// The log after a restart of the host, without a power loss of the medium: completed writes
    /// stay volatile; `loss` decides which writes in flight are carried out, and these are
    /// volatile, too.
    pub(super) fn after_restart(&self, loss: Loss, visible: &mut Image) -> Self {
        let mut log = Self {
            id_next: self.id_next,
            completed_count: self.completed_count,
            in_flight: Vec::new(),
            volatile: self.volatile.clone(),
            volatile_bytes: self.volatile_bytes,
        };
        let Loss::Seeded(seed) = loss else { return log };
        let random = &mut Random::new(seed);
        let mut in_flight = self.in_flight.clone();
        in_flight.sort_by_key(|record| record.id);
        for record in in_flight {
            let parts: Vec<_> = match Fate::draw(record.is_torn, random) {
                Fate::Nothing => Vec::new(),
                Fate::Whole => vec![record],
                Fate::Torn => record.torn(random).map(|part| record.part(part)).collect(),
            };
            for part in parts {
                log.settle(part, false, visible, &mut Image::default());
            }
        }
        log
    }

    fn harden_oldest(&mut self, durable: &mut Image) {
        if let Some(record) = self.volatile.pop_front() {
            self.volatile_bytes -= record.range.length;
            record.apply(durable);
        }
    }

    /// Drops volatile bytes in `range`: newer ones are durable, or the range is cut off. A later
    /// flush must not bring the old ones back.
    pub(super) fn supersede(&mut self, range: &ByteRange) {
        if self.volatile.iter().any(|record| record.range.overlaps(range)) {
            self.volatile = self.volatile.drain(..).flat_map(|record| record.without(range)).collect();
            self.count_volatile_bytes();
        }
    }

    fn count_volatile_bytes(&mut self) {
        self.volatile_bytes = self.volatile.iter().map(|record| record.range.length).sum();
    }

    /// Applies to `image`, the durable content, the writes of the log that survive a power loss.
    pub(super) fn land(&self, image: &mut Image, loss: Loss) {
        match loss {
            Loss::All => {}
            Loss::InFlightOnly => self.volatile.iter().for_each(|record| record.apply(image)),
            Loss::Seeded(seed) => {
                let mut records: Vec<&Record> = self.volatile.iter().chain(&self.in_flight).collect();
                records.sort_by_key(|record| record.id);
                land_by_chance(&records, image, &mut Random::new(seed));
            }
        }
    }
}

/// Lets each write land whole, in part or not at all.
fn land_by_chance(records: &[&Record], image: &mut Image, random: &mut Random) {
    let mut fate = (None, Fate::Nothing);
    for record in records {
        // Pieces of one write share its fate.
        if fate.0 != Some(record.id) {
            fate = (Some(record.id), Fate::draw(record.is_torn, random));
        }
        match fate.1 {
            Fate::Nothing => {}
            Fate::Whole => record.apply(image),
            Fate::Torn => record.apply_torn(image, random),
        }
    }
}

/// Whether a write lands.
#[derive(Clone, Copy)]
enum Fate {
    Nothing,
    Whole,
    Torn,
}

impl Fate {
    fn draw(is_torn: bool, random: &mut Random) -> Self {
        match random.below(3) {
            _ if is_torn => Self::Torn,
            0 => Self::Nothing,
            1 => Self::Whole,
            _ => Self::Torn,
        }
    }
}
