//! Reads: each run of sectors from where its newest bytes are.
//!
//! | where | how |
//! |---|---|
//! | slots and the newest records | copied on the spot |
//! | zeroes | filled in |
//! | segments | read from the log device, which is kept from using them again meanwhile |
//! | nowhere known | read from the origin; runs with small gaps in one request |
//!
//! The sources of a read are decided in one moment, when it has its range. While it waits for a
//! device, writes to the range go on: segments that it reads from are pinned, and nothing is
//! destaged to its range of the origin until it is done.
//!
//! A segment that the opening found is read as a whole before the first read from it, and its
//! records are checked: other programs had the device meanwhile. Records appended since are read
//! unchecked.
//!
//! Bytes that only the log has and that cannot be read are an error, never the origin's old bytes.
//! A clean copy that cannot be read is forgotten, and the sources are decided anew: the origin, or
//! data written meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::clock::Clock;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::range_lock::{Acquire, RangeGuard, RangeLock};
use block::{Error, ErrorKind, Response, SharedDevice};
use futures_util::future::{join, join_all};
use futures_util::lock::Mutex;

use crate::append::RecordSender;
use crate::counters::Counters;
use crate::limits::{READ_GAP_BYTES_MAX, UNIT_BYTES};
use crate::loaded::SegmentLoader;
use crate::log_state::{LogState, State};
use crate::map::Piece;
use crate::numbers::{Sector, SegmentNumber};
use crate::origin::Origin;
use crate::pins::Pins;
use crate::place::PlaceView;
use crate::reads::FoundSectors;
use crate::sectors::{range_of, sectors_of, whole_blocks};

/// Answers reads.
pub(crate) struct Reader {
    pub(crate) log: Arc<LogState>,
    pub(crate) log_device: SharedDevice,
    pub(crate) origin: Arc<Origin>,
    pub(crate) loader: Arc<SegmentLoader>,
    /// Wait for segments that a read has pinned.
    pub(crate) records: Arc<RecordSender>,
    /// Keeps what a read finds on the origin as it was when it began.
    pub(crate) below: RangeLock,
    /// Held while a segment that was found when the log was opened is checked: one at a time is in RAM.
    pub(crate) checking: Mutex<()>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// The parts of a read that are not in RAM.
struct Rest {
    log: Vec<Piece>,
    /// Ascending, apart by more than the gap.
    below: Vec<Below>,
    pins: Pins,
    /// The sectors of the read by where they were found.
    found: FoundSectors,
}

/// One read of the origin, in whole blocks of it, and the runs that are wanted.
struct Below {
    hull: ByteRange,
    runs: Vec<ByteRange>,
}

impl Reader {
    /// Reads a range once it has its place among overlapping requests.
    pub(crate) async fn read(self: Arc<Self>, range: ByteRange, buffer: Buffer, place: Acquire) -> Response {
        let came_at = self.clock.now();
        let guard = place.await;
        if range.is_empty() {
            return Response::done(buffer);
        }
        self.wait_for_gate().await;
        match self.read_from_all(range, buffer, guard).await {
            Ok((buffer, found)) => {
                self.counters.reads.add(found, self.clock.now().since(came_at));
                Response::done(buffer)
            }
            Err(error) => Response::failed(error, Buffer::empty()),
        }
    }

    /// In the paper's profile reads wait for level 1, too.
    async fn wait_for_gate(&self) {
        loop {
            let count = self.log.changed.count();
            if !self.log.state().is_gated {
                return;
            }
            self.log.changed.changed_since(count).await;
        }
    }

    /// Reads; returns the bytes and where they were found.
    async fn read_from_all(
        &self,
        range: ByteRange,
        buffer: Buffer,
        guard: RangeGuard,
    ) -> Result<(Buffer, FoundSectors), Error> {
        let mut buffer = buffer;
        let mut rest = self.copy_known(range, &mut buffer)?;
        // Writes to the range wait meanwhile, so the sources are still those of the beginning.
        if self.check_found(&rest).await {
            rest = self.copy_known(range, &mut buffer)?;
        }
        if rest.is_empty() {
            return Ok((buffer, rest.found));
        }
        // The place in `below` is taken first: no later write reaches the origin before this read
        // is done.
        let place = self.below.shared(range);
        drop(guard);
        let _below = place.await;
        loop {
            if rest.log.is_empty() && rest.below.len() == 1 && rest.below[0].runs == [range] {
                self.origin.check()?;
                return Ok((self.origin.device().read(range.offset, buffer).await?, rest.found));
            }
            let found = rest.found;
            if self.read_rest(range, &mut buffer, rest).await? {
                return Ok((buffer, found));
            }
            rest = self.copy_known(range, &mut buffer)?;
            if rest.is_empty() {
                return Ok((buffer, rest.found));
            }
        }
    }

    /// Checks the segments with pieces of `rest` that were not checked yet: damaged data is marked
    /// lost. Returns whether there were any.
    async fn check_found(&self, rest: &Rest) -> bool {
        let segment_of = |piece: &Piece| self.log.layout.segment_of(piece.unit());
        let unchecked: BTreeSet<SegmentNumber> = {
            let state = self.log.state();
            rest.log
                .iter()
                .map(segment_of)
                .filter(|&segment| state.contents.segments.get(segment).is_unchecked)
                .collect()
        };
        for &segment in &unchecked {
            let _checking = self.checking.lock().await;
            if self.log.state().contents.segments.get(segment).is_unchecked {
                let loaded = self.loader.load_segment(segment).await;
                self.loader.lose_damaged(segment, &loaded);
                self.log.state().contents.segments.note_checked(segment);
            }
        }
        !unchecked.is_empty()
    }

    /// Copies the parts that are in RAM, and returns the rest.
    fn copy_known(&self, range: ByteRange, buffer: &mut Buffer) -> Result<Rest, Error> {
        let (start, sectors) = sectors_of(range);
        let found = FoundSectors::default();
        let mut rest = Rest { log: Vec::new(), below: Vec::new(), pins: Pins::none(&self.records), found };
        let (mut ram, mut at) = (0, start);
        let block_bytes = u64::from(self.origin.device().geometry().logical_block_bytes);
        let state = &mut *self.log.state();
        let pieces: Vec<Piece> =
            state.contents.map.pieces(start, sectors).filter(|piece| state.contents.is_current(piece)).collect();
        for piece in pieces {
            rest.add_below(at, piece.sector, block_bytes);
            at = piece.end();
            if piece.tag.is_lost() {
                return Err(lost(&piece));
            }
            let offset = ((piece.sector - start) * UNIT_BYTES) as usize;
            let target = &mut buffer[offset..offset + (piece.sectors * UNIT_BYTES) as usize];
            if copy_from_ram(state, &piece, target) {
                ram += piece.sectors;
            } else {
                rest.pins.add(&mut state.contents.segments, self.log.layout.segment_of(piece.unit()));
                rest.log.push(piece);
            }
        }
        rest.add_below(at, start + sectors, block_bytes);
        let log: u64 = rest.log.iter().map(|piece| piece.sectors).sum();
        rest.found = FoundSectors { ram, log, origin: sectors - ram - log };
        Ok(rest)
    }

    /// Reads the rest from the devices. Returns `false` when a clean copy was unreadable, and was
    /// removed from the map.
    async fn read_rest(&self, range: ByteRange, buffer: &mut Buffer, rest: Rest) -> Result<bool, Error> {
        if !rest.below.is_empty() {
            self.origin.check()?;
        }
        let from_log = join_all(rest.log.iter().map(|piece| {
            let length = (piece.sectors * UNIT_BYTES) as usize;
            self.log_device.read(self.log.layout.offset_of(piece.unit()), Buffer::zeroed(length))
        }));
        let from_below = join_all(rest.below.iter().map(|below| {
            let length = below.hull.length as usize;
            self.origin.device().read(below.hull.offset, Buffer::zeroed(length))
        }));
        let (from_log, from_below) = join(from_log, from_below).await;
        for (below, bytes) in rest.below.iter().zip(from_below) {
            let bytes = bytes?;
            for run in &below.runs {
                let (to, from) = ((run.offset - range.offset) as usize, (run.offset - below.hull.offset) as usize);
                let length = run.length as usize;
                buffer[to..to + length].copy_from_slice(&bytes[from..from + length]);
            }
        }
        let mut is_whole = true;
        for (piece, bytes) in rest.log.iter().zip(from_log) {
            match bytes {
                Ok(bytes) => {
                    let at = (piece.sector.offset() - range.offset) as usize;
                    buffer[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Err(error) => {
                    self.counters.log_read_errors.fetch_add(1, Ordering::Relaxed);
                    if piece.tag.is_dirty() {
                        let context =
                            format!("{} are only in the log, and its device cannot return them", range_of(piece));
                        return Err(Error::with_source(ErrorKind::Media, context, error));
                    }
                    self.log.state().contents.forget_clean_at(piece);
                    is_whole = false;
                }
            }
        }
        Ok(is_whole)
    }
}

impl Rest {
    fn is_empty(&self) -> bool {
        self.log.is_empty() && self.below.is_empty()
    }

    /// Adds sectors `start..end` as the origin's; read together with the run before when the gap is
    /// small.
    fn add_below(&mut self, start: Sector, end: Sector, block_bytes: u64) {
        if start >= end {
            return;
        }
        let run = ByteRange { offset: start.offset(), length: (end - start) * UNIT_BYTES };
        // A slot may be smaller than a block: of a write cut off by a power loss the log may have
        // part of a block.
        let hull = whole_blocks(run, block_bytes);
        match self.below.last_mut() {
            Some(last) if hull.offset.saturating_sub(last.hull.end()) <= READ_GAP_BYTES_MAX => {
                last.hull.length = hull.end() - last.hull.offset;
                last.runs.push(run);
            }
            _ => self.below.push(Below { hull, runs: vec![run] }),
        }
    }
}

/// Copies a piece that is in slots, in the newest records or zero. Returns whether it is.
fn copy_from_ram(state: &mut State, piece: &Piece, target: &mut [u8]) -> bool {
    match piece.place.view() {
        PlaceView::Zeroes(_) => target.fill(0),
        PlaceView::Slot(unit) => {
            if let Some(stage) = &state.contents.stage {
                stage.load(unit, target);
            }
        }
        PlaceView::Segment(unit) => match state.contents.records.get_used(unit, target.len()) {
            Some(bytes) => target.copy_from_slice(bytes),
            None => return false,
        },
    }
    true
}

fn lost(piece: &Piece) -> Error {
    let context = format!("{} were only in the log, and could not be read back from its device", range_of(piece));
    Error::new(ErrorKind::Media, context)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::{Context, Poll, Wake, Waker};

    use base::executor::Executor;
    use block::memory::MemoryDevice;

    use super::*;
    use crate::core::Core;
    use crate::options::{DestageOrder, Durability, FormatOptions, OpenOptions};
    use crate::tests::Parts;

    const RANGE: ByteRange = ByteRange { offset: 0, length: 4096 };

    /// A writer that waits for a read, woken when the read gives up its range: on another thread it
    /// could bring its bytes to the origin at once.
    struct Writer {
        core: Arc<Core>,
        is_woken: AtomicBool,
        is_let_through: AtomicBool,
    }

    impl Wake for Writer {
        fn wake(self: Arc<Self>) {
            self.is_woken.store(true, Ordering::Relaxed);
            self.is_let_through.store(self.core.reader.below.try_exclusive(RANGE).is_some(), Ordering::Relaxed);
        }
    }

    #[test]
    fn a_read_has_its_place_before_the_origin_changes_when_it_lets_writers_in() {
        let mut executor = Executor::in_order();
        let log: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, block::Identity::default()));
        let origin: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, block::Identity::default()));
        let options = OpenOptions::new(Arc::new(executor.clock()));
        let opened = async move {
            crate::open::format(&log, &origin, FormatOptions::paper()).await?;
            crate::open::open(log, origin, options).await
        };
        let core = executor.block_on(opened).expect("nothing fails");

        let place = core.ranges.shared(RANGE);
        let (is_woken, is_let_through) = (AtomicBool::new(false), AtomicBool::new(false));
        let writer = Arc::new(Writer { core: Arc::clone(&core), is_woken, is_let_through });
        let mut waiting = Box::pin(core.ranges.exclusive(RANGE));
        let waker = Waker::from(Arc::clone(&writer));
        assert!(matches!(waiting.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending), "the read has it");

        let response =
            executor.block_on(Arc::clone(&core.reader).read(RANGE, Buffer::zeroed(RANGE.length as usize), place));
        response.result.expect("nothing fails");
        assert!(writer.is_woken.load(Ordering::Relaxed), "the read never let it in");
        assert!(!writer.is_let_through.load(Ordering::Relaxed), "the origin could change below the read");
    }

    /// Alone, without a log around it.
    #[test]
    fn a_read_is_made_of_what_slots_log_and_origin_have() {
        let mut parts = Parts::new(|options| {
            options.order = DestageOrder::Lba;
            options.durability = Durability::UnsafeVolatile;
        });
        let (records, loader) = (Arc::new(parts.assembly.records()), Arc::new(parts.assembly.loader()));
        let origin = Arc::clone(&parts.assembly.origin);
        let written = async move { origin.device().write(0, Buffer::copy_of(&[3; 12 * 512]), true).await };
        parts.executor.block_on(written).expect("nothing fails");
        parts.append(&records, 4, 4, 2);
        for sector in [0, 2] {
            parts.put_in_slot(sector, 2, 1);
        }
        let reader = Arc::new(parts.assembly.reader(records, loader));
        let range = ByteRange { offset: 0, length: 12 * 512 };
        let place = parts.assembly.ranges.shared(range);
        let reading = Arc::clone(&reader).read(range, Buffer::zeroed(12 * 512), place);
        let response = parts.executor.block_on(reading);
        let firsts: Vec<u8> = response.buffer.chunks(4 * 512).map(|part| part[0]).collect();
        assert_eq!((response.result.map_err(|error| error.kind()), firsts), (Ok(()), vec![1, 2, 3]));
        let counted = reader.counters.reads.status();
        assert_eq!((counted.ram_bytes, counted.log_bytes, counted.origin_bytes), (2048, 2048, 2048));
    }
}
