//! Deferred data: what small writes wrote, durable in the records of the log and not in its frames yet.
//!
//! ```text
//!   record with its data, durable ─► here, acknowledged ─► placed: written to its frame, and flushed ─► gone; the record is needed no more
//! ```
//! - What is here is newer than what the frame holds. All of it is dirty.
//! - A line with deferred data is read, and written by further deferred writes. Every other
//!   operation on its bytes has them placed first.
//! - Each part holds its record until it is placed, or until a later part replaces all of it: until
//!   then a replay finds the data there.
//! - Memory for it is bounded: writes that find no room take the other way, to the frame at once.

use std::collections::BTreeMap;
use std::ops::Range;

use store::Hold;

use crate::limits::DEFERRED_PART_BYTES;
use crate::numbers::{BlockNumber, FrameNumber};
use crate::sectors::{SectorRun, Sectors};

/// Data of small writes that is not in its frame yet, by frame.
pub(crate) struct Deferred {
    lines: BTreeMap<FrameNumber, DeferredLine>,
    /// Bytes of memory of all parts.
    held_bytes: usize,
    /// Bytes reserved for writes whose records are under way.
    reserved_bytes: usize,
    bytes_max: usize,
    /// Bytes of the largest write that is deferred.
    write_bytes_max: u64,
    next_number: u64,
    /// Whether a task waits until all is placed.
    is_wanted: bool,
}

struct DeferredLine {
    block: BlockNumber,
    /// Oldest first: a later part overrides earlier ones.
    parts: Vec<Part>,
}

/// The data that one write has for one line.
pub(crate) struct Part {
    number: u64,
    sectors: Sectors,
    /// The bytes of `sectors`, lowest first.
    data: Vec<u8>,
    /// Hold of its record; `None` when a replay found it.
    _hold: Option<Hold>,
}

/// The parts that one placing writes to their frames.
pub(crate) struct Placing {
    /// Frames with deferred data, ascending.
    pub(crate) frames: Vec<FrameNumber>,
    /// Number behind the last of these parts.
    end: u64,
}

impl Deferred {
    /// No deferred data yet.
    pub(crate) fn new() -> Self {
        Self {
            lines: BTreeMap::new(),
            held_bytes: 0,
            reserved_bytes: 0,
            bytes_max: 0,
            write_bytes_max: 0,
            next_number: 0,
            is_wanted: false,
        }
    }

    /// From now on defers writes of up to `write_bytes_max` bytes, as long as all parts take at
    /// most `bytes_max` of memory.
    pub(crate) fn bounded(self, write_bytes_max: u64, bytes_max: usize) -> Self {
        Self { write_bytes_max, bytes_max, ..self }
    }

    /// Bytes of the largest write that is deferred; 0 for none.
    pub(crate) fn write_bytes_max(&self) -> u64 {
        self.write_bytes_max
    }

    /// Changes the bytes of the largest write that is deferred.
    pub(crate) fn set_write_bytes_max(&mut self, bytes: u64) {
        self.write_bytes_max = bytes;
    }

    /// Bytes of memory of all parts.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Count of lines with deferred data.
    pub(crate) fn line_count(&self) -> usize {
        self.lines.len()
    }

    /// Whether the line in `frame` has deferred data.
    pub(crate) fn contains(&self, frame: FrameNumber) -> bool {
        !self.lines.is_empty() && self.lines.contains_key(&frame)
    }

    /// Whether one of `blocks` has deferred data.
    pub(crate) fn has_any_of(&self, blocks: &Range<BlockNumber>) -> bool {
        self.lines.values().any(|line| blocks.contains(&line.block))
    }

    /// Reserves memory for a write of this many bytes in this many lines; `None` when the write is
    /// too large to defer, or memory is short.
    pub(crate) fn take_room(&mut self, write_bytes: u64, line_count: usize) -> Option<usize> {
        let bytes = usize::try_from(write_bytes).ok()?.checked_add(line_count * DEFERRED_PART_BYTES)?;
        let has_room = self.held_bytes + self.reserved_bytes + bytes <= self.bytes_max;
        if write_bytes > self.write_bytes_max || !has_room {
            return None;
        }
        self.reserved_bytes += bytes;
        Some(bytes)
    }

    /// Gives back a reservation of [`Deferred::take_room`].
    pub(crate) fn give_room_back(&mut self, bytes: usize) {
        self.reserved_bytes -= bytes;
    }

    /// Adds a part: from now on the line of `block`, in `frame`, holds `data` in `sectors`.
    pub(crate) fn add(
        &mut self,
        frame: FrameNumber,
        block: BlockNumber,
        sectors: Sectors,
        data: &[u8],
        hold: Option<Hold>,
    ) {
        assert_eq!(data.len() as u64, sectors.bytes(), "each sector has its bytes");
        let line = self.lines.entry(frame).or_insert_with(|| DeferredLine { block, parts: Vec::new() });
        assert_eq!(line.block, block, "what a frame held before is placed before another line gets it");
        for replaced in line.parts.extract_if(.., |part| sectors.contains(part.sectors)) {
            self.held_bytes -= replaced.weight();
        }
        let part = Part { number: self.next_number, sectors, data: data.to_vec(), _hold: hold };
        self.next_number += 1;
        self.held_bytes += part.weight();
        line.parts.push(part);
    }

    /// The deferred sectors of the line in `frame`.
    pub(crate) fn sectors(&self, frame: FrameNumber) -> Sectors {
        let parts = self.lines.get(&frame).into_iter().flat_map(|line| &line.parts);
        parts.fold(Sectors::NONE, |all, part| all | part.sectors)
    }

    /// Visits the parts of the `wanted` sectors of the line in `frame`. A part visited later is
    /// newer.
    pub(crate) fn visit(&self, frame: FrameNumber, wanted: Sectors, mut visit: impl FnMut(SectorRun, &[u8])) {
        for part in self.lines.get(&frame).into_iter().flat_map(|line| &line.parts) {
            part.visit(wanted, &mut visit);
        }
    }

    /// Drops the deferred data of `frame`, except these sectors of `block`: a replay found later
    /// changes to the others.
    pub(crate) fn keep_only(&mut self, frame: FrameNumber, block: BlockNumber, sectors: Sectors) {
        let Some(mut line) = self.lines.remove(&frame) else { return };
        self.held_bytes -= line.parts.iter().map(Part::weight).sum::<usize>();
        if line.block != block {
            return;
        }
        line.parts.iter_mut().for_each(|part| part.keep_only(sectors));
        line.parts.retain(|part| !part.sectors.is_empty());
        self.held_bytes += line.parts.iter().map(Part::weight).sum::<usize>();
        if !line.parts.is_empty() {
            self.lines.insert(frame, line);
        }
    }

    /// The frames with deferred data.
    pub(crate) fn frames(&self) -> Vec<FrameNumber> {
        self.lines.keys().copied().collect()
    }

    /// Asks for all deferred data to be placed.
    pub(crate) fn want(&mut self) {
        self.is_wanted = !self.lines.is_empty();
    }

    /// Whether to place it now: a task waits for it, or half of the memory is in use.
    pub(crate) fn is_due(&self) -> bool {
        !self.lines.is_empty() && (self.is_wanted || self.held_bytes * 2 > self.bytes_max)
    }

    /// Begins to place all parts that are here now.
    pub(crate) fn begin_placing(&mut self) -> Placing {
        self.is_wanted = false;
        Placing { frames: self.frames(), end: self.next_number }
    }

    /// Notes that these parts are in their frames, durably. Returns those to be dropped; the caller
    /// does so without holding a lock.
    pub(crate) fn finish_placing(&mut self, placing: &Placing) -> Vec<Part> {
        let mut placed = Vec::new();
        for frame in &placing.frames {
            let Some(line) = self.lines.get_mut(frame) else { continue };
            placed.extend(line.parts.extract_if(.., |part| part.number < placing.end));
            if line.parts.is_empty() {
                self.lines.remove(frame);
            }
        }
        self.held_bytes -= placed.iter().map(Part::weight).sum::<usize>();
        placed
    }
}

impl Part {
    /// Bytes of memory of a part, approximately.
    fn weight(&self) -> usize {
        self.data.len() + DEFERRED_PART_BYTES
    }

    fn visit(&self, wanted: Sectors, mut visit: impl FnMut(SectorRun, &[u8])) {
        let mut at = 0;
        for run in self.sectors.runs() {
            for part in (Sectors::of(run) & wanted).runs() {
                let start = at + (part.offset() - run.offset()) as usize;
                visit(part, &self.data[start..start + part.length() as usize]);
            }
            at += run.length() as usize;
        }
    }

    fn keep_only(&mut self, sectors: Sectors) {
        let mut data = Vec::with_capacity(self.data.len());
        self.visit(sectors, |_, bytes| data.extend_from_slice(bytes));
        (self.sectors, self.data) = (self.sectors & sectors, data);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FRAME: FrameNumber = FrameNumber(3);
    const BLOCK: BlockNumber = BlockNumber(30);

    fn sectors(bits: u8) -> Sectors {
        Sectors::from_bytes(&[bits])
    }

    fn add(deferred: &mut Deferred, frame: FrameNumber, bits: u8, byte: u8) {
        let data = vec![byte; sectors(bits).bytes() as usize];
        deferred.add(frame, BLOCK, sectors(bits), &data, None);
    }

    /// The first byte of each sector; 0 where nothing is deferred.
    fn line(deferred: &Deferred, frame: FrameNumber, wanted: u8) -> [u8; 8] {
        let mut line = [0; 8];
        deferred.visit(frame, sectors(wanted), |run, bytes| {
            for (sector, bytes) in (run.first..).zip(bytes.chunks(512)) {
                line[sector as usize] = bytes[0];
            }
        });
        line
    }

    #[test]
    fn what_was_written_last_counts_and_what_it_replaces_takes_no_memory() {
        let mut deferred = Deferred::new();
        add(&mut deferred, FRAME, 0b0011_1100, 1);
        let one = deferred.held_bytes();
        add(&mut deferred, FRAME, 0b0111_1100, 2);
        assert_eq!(deferred.held_bytes(), one + 512, "the first is replaced");
        add(&mut deferred, FRAME, 0b0000_0110, 3);
        assert_eq!(line(&deferred, FRAME, 0xff), [0, 3, 3, 2, 2, 2, 2, 0]);
        assert_eq!(line(&deferred, FRAME, 0b0000_1100), [0, 0, 3, 2, 0, 0, 0, 0]);
        assert_eq!(deferred.sectors(FRAME), sectors(0b0111_1110));
        assert_eq!(line(&deferred, FRAME.next(), 0xff), [0; 8]);
    }

    #[test]
    fn what_came_while_others_were_placed_stays() {
        let mut deferred = Deferred::new();
        add(&mut deferred, FRAME, 0b1111_0000, 1);
        add(&mut deferred, FRAME.next(), 0b0000_0001, 1);
        let placing = deferred.begin_placing();
        add(&mut deferred, FRAME, 0b0001_1000, 2);
        assert_eq!((placing.frames.clone(), deferred.finish_placing(&placing).len()), (vec![FRAME, FRAME.next()], 2));
        assert_eq!(line(&deferred, FRAME, 0xff), [0, 0, 0, 2, 2, 0, 0, 0]);
        assert!(!deferred.contains(FRAME.next()));
        let placing = deferred.begin_placing();
        deferred.finish_placing(&placing);
        assert_eq!((deferred.held_bytes(), deferred.line_count()), (0, 0));
    }

    /// Otherwise the task that places in the background would look again and again.
    #[test]
    fn what_somebody_waits_for_is_not_due_any_more_when_all_of_it_was_on_its_way_then() {
        let mut deferred = Deferred::new().bounded(4096, 1 << 20);
        add(&mut deferred, FRAME, 1, 1);
        let placing = deferred.begin_placing();
        deferred.want();
        assert!(deferred.is_due());
        drop(deferred.finish_placing(&placing));
        assert!(!deferred.is_due());
    }

    #[test]
    fn memory_is_bounded_and_half_of_it_makes_placing_due() {
        let mut deferred = Deferred::new().bounded(4096, 4 * (512 + DEFERRED_PART_BYTES));
        assert!(deferred.take_room(8192, 1).is_none(), "too large a write");
        for sector in 0..4 {
            assert_eq!(deferred.is_due(), sector > 2);
            let room = deferred.take_room(512, 1).expect("there is room");
            assert_eq!(room, 512 + DEFERRED_PART_BYTES);
            add(&mut deferred, FRAME, 1 << sector, 1);
            deferred.give_room_back(room);
        }
        assert!(deferred.take_room(512, 1).is_none(), "all of it is in use");
        let placing = deferred.begin_placing();
        deferred.finish_placing(&placing);
        assert!((0..4).all(|_| deferred.take_room(512, 1).is_some()));
        assert!(deferred.take_room(512, 1).is_none(), "what is reserved counts");
    }

    proptest! {
        /// Beside a line that is written at once.
        #[test]
        fn it_is_as_if_each_write_had_been_placed_at_once(
            steps in proptest::collection::vec((0u8..4, any::<u8>(), 1u8..), 1..40),
        ) {
            let mut deferred = Deferred::new();
            let mut expected = [0; 8];
            let mut placing = None;
            let mut placed = [0; 8];
            for (step, bits, byte) in steps {
                let of = |sector: &usize| bits >> sector & 1 == 1;
                match step {
                    0 | 1 if bits != 0 => {
                        add(&mut deferred, FRAME, bits, byte);
                        (0..8).filter(of).for_each(|sector| expected[sector] = byte);
                    }
                    2 => {
                        deferred.keep_only(FRAME, BLOCK, sectors(bits));
                        (0..8).filter(|sector| !of(sector)).for_each(|sector| expected[sector] = placed[sector]);
                    }
                    3 => match placing.take() {
                        None => {
                            let now = line(&deferred, FRAME, 0xff);
                            placing = Some((deferred.begin_placing(), now));
                        }
                        Some((begun, now)) => {
                            drop(deferred.finish_placing(&begun));
                            (0..8).filter(|&sector| now[sector] != 0).for_each(|sector| placed[sector] = now[sector]);
                        }
                    },
                    _ => {}
                }
                if step == 2 {
                    // Nothing is placed while a log is replayed.
                    placing = None;
                }
                let deferred_now = line(&deferred, FRAME, 0xff);
                let newest = |at: usize| if deferred_now[at] != 0 { deferred_now[at] } else { placed[at] };
                let seen: [u8; 8] = std::array::from_fn(newest);
                prop_assert_eq!(seen, expected);
            }
        }
    }
}
