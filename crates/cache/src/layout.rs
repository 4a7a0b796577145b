//! The layout of a cache device.
//!
//! ```text
//! | superblock A 4 KiB | log | frames, one line each | table: two slots of 4 KiB per page | superblock B 4 KiB |
//! ```
//! The table stands at the end, as in the paper (2.3), so that frames begin at a fixed place. A block belongs to one
//! set: runs of `run_lines` consecutive blocks go to one set, the next run to the next set, around. A contiguous hot
//! region thus fills all sets evenly, and within a set consecutive blocks find consecutive frames.

use std::ops::Range;

use base::range::ByteRange;
use block::{Error, ErrorKind};
use store::limits::{LOG_BYTES_MAX, LOG_BYTES_MIN, SUPERBLOCK_BYTES};

use crate::format::{PAGE_BYTES, ParametersRaw, entries_per_page, entry_bytes};
use crate::limits::{
    FRAMES_MAX, FRAMES_MIN, LOG_BYTES_DEFAULT_MAX, LOG_BYTES_DEFAULT_MIN, LOG_SHARE, RUN_BYTES, SECTOR_BYTES,
};
use crate::line_size::LineSize;
use crate::numbers::{BlockNumber, FrameNumber, PageNumber, SetNumber, Tag};
use crate::options::{Associativity, FormatOptions};

/// The offsets and sizes of all structures on a cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a line, and of a frame.
    pub line_size: LineSize,
    /// The log region.
    pub log: ByteRange,
    /// Offset of frame 0.
    pub frames_offset: u64,
    /// Frames of one set.
    pub ways: u32,
    /// Count of sets.
    pub set_count: u32,
    /// Consecutive blocks that share a set.
    pub run_lines: u32,
    /// Offset of the table.
    pub table_offset: u64,
    /// Count of table pages.
    pub page_count: u64,
    /// Most frames, as the user limited them; `None` for as many as fit.
    pub frames_max: Option<u64>,
}

impl Layout {
    /// The layout of a new cache on a device of `size_bytes`.
    ///
    /// # Errors
    /// `InvalidRange` when it is too small, and for options that make no sense.
    pub fn new(size_bytes: u64, options: &FormatOptions) -> Result<Self, Error> {
        let unit = SUPERBLOCK_BYTES as u64;
        let device_bytes = size_bytes / unit * unit;
        if let Some(frames) = options.frames_max.filter(|&frames| frames < FRAMES_MIN) {
            let context = format!("a cache has {FRAMES_MIN} lines at least, and {frames} are too few");
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        let log_bytes = log_bytes(device_bytes, options)?;
        let fixed = 2 * unit + log_bytes;
        let line_size = options.line_size;
        let available = device_bytes.checked_sub(fixed).ok_or_else(|| too_small(size_bytes, line_size))?;
        let frames_max =
            frames_that_fit(available, line_size).min(options.frames_max.unwrap_or(u64::MAX)).min(FRAMES_MAX);
        if frames_max < FRAMES_MIN {
            return Err(too_small(size_bytes, line_size));
        }
        let ways = match options.associativity {
            Associativity::Full => frames_max,
            Associativity::Ways(0) => return Err(Error::new(ErrorKind::InvalidRange, "a set has at least one way")),
            Associativity::Ways(ways) => u64::from(ways).min(frames_max),
        };
        let set_count = frames_max / ways;
        let page_count = (set_count * ways).div_ceil(u64::from(entries_per_page(line_size)));
        let number = |value: u64| u32::try_from(value).map_err(|_| Error::from(ErrorKind::InvalidRange));
        let run_lines = number((RUN_BYTES / line_size.bytes()).clamp(1, ways))?;
        Ok(Self {
            line_size,
            log: ByteRange { offset: unit, length: log_bytes },
            frames_offset: unit + log_bytes,
            ways: number(ways)?,
            set_count: number(set_count)?,
            run_lines,
            table_offset: device_bytes - unit - page_count * 2 * PAGE_BYTES as u64,
            page_count,
            frames_max: options.frames_max,
        })
    }

    /// The layout that a superblock describes.
    ///
    /// # Errors
    /// `Unsupported` for what a later version may write, `Corrupt` for what no version does.
    pub fn from_parameters(raw: &ParametersRaw, device_bytes: u64) -> Result<Self, Error> {
        let is_ours = |line_size: &LineSize| {
            u64::from(raw.sector_bytes.get()) == SECTOR_BYTES
                && raw.entry_bytes.get() as usize == entry_bytes(*line_size)
        };
        let Some(line_size) = LineSize::new(u64::from(raw.line_bytes.get())).filter(is_ours) else {
            let context = format!(
                "this cache has lines of {} bytes, sectors of {} and table entries of {}, which this program does not \
                 know",
                raw.line_bytes, raw.sector_bytes, raw.entry_bytes
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        };
        let corrupt = || Error::new(ErrorKind::Corrupt, "the cache's superblock describes an impossible layout");
        let layout = Self {
            line_size,
            log: ByteRange::new(raw.log_offset.get(), raw.log_bytes.get()).ok_or_else(corrupt)?,
            frames_offset: raw.frames_offset.get(),
            ways: raw.ways.get(),
            set_count: u32::try_from(raw.set_count.get()).map_err(|_| corrupt())?,
            run_lines: raw.run_lines.get(),
            table_offset: raw.table_offset.get(),
            page_count: raw.page_count.get(),
            frames_max: Some(raw.frames_max.get()).filter(|&frames| frames != 0),
        };
        let alignment = raw.alignment_bytes.get();
        let is_aligned = alignment < line_size.bytes() && alignment.is_multiple_of(SECTOR_BYTES);
        (is_aligned && layout.is_possible(device_bytes)).then_some(layout).ok_or_else(corrupt)
    }

    fn is_possible(&self, device_bytes: u64) -> bool {
        let unit = SUPERBLOCK_BYTES as u64;
        let frame_count = u64::from(self.ways) * u64::from(self.set_count);
        let end = device_bytes / unit * unit - unit;
        let frames_end =
            frame_count.checked_mul(self.line_size.bytes()).and_then(|bytes| bytes.checked_add(self.frames_offset));
        let table_bytes = self.page_count.checked_mul(2 * PAGE_BYTES as u64);
        let table_end = table_bytes.and_then(|bytes| bytes.checked_add(self.table_offset));
        let is_aligned = [self.log.offset, self.log.length, self.frames_offset, self.table_offset]
            .iter()
            .all(|place| place.is_multiple_of(unit));
        is_aligned
            && (1..=FRAMES_MAX).contains(&frame_count)
            && self.run_lines > 0
            && self.page_count == frame_count.div_ceil(u64::from(self.entries_per_page()))
            && self.log.offset >= unit
            && self.log.end() <= self.frames_offset
            && frames_end.is_some_and(|frames_end| frames_end <= self.table_offset)
            && table_end.is_some_and(|table_end| table_end <= end)
    }

    /// Count of frames.
    pub fn frame_count(&self) -> u32 {
        self.ways * self.set_count
    }

    /// All frames, in their order.
    pub fn frames(&self) -> impl Iterator<Item = FrameNumber> + use<> {
        FrameNumber::FIRST.up_to(FrameNumber(self.frame_count()))
    }

    /// Offset of a frame on the cache device.
    pub fn frame_offset(&self, frame: FrameNumber) -> u64 {
        self.frames_offset + u64::from(frame.0) * self.line_size.bytes()
    }

    /// Count of frames whose entries are in one table page.
    pub fn entries_per_page(&self) -> u32 {
        entries_per_page(self.line_size)
    }

    /// The table page with the entry of a frame.
    pub fn page_of(&self, frame: FrameNumber) -> PageNumber {
        PageNumber((frame.0 / self.entries_per_page()).into())
    }

    /// The frames whose entries are in a table page.
    pub fn frames_of_page(&self, page: PageNumber) -> impl Iterator<Item = FrameNumber> + use<> {
        let entries = u64::from(self.entries_per_page());
        let first = page.0 * entries;
        let end = (first + entries).min(u64::from(self.frame_count()));
        FrameNumber(first as u32).up_to(FrameNumber(end as u32))
    }

    /// Offset of one of the two slots of a table page.
    pub fn slot_offset(&self, page: PageNumber, slot: usize) -> u64 {
        self.table_offset + (page.0 * 2 + slot as u64) * PAGE_BYTES as u64
    }

    /// The set that a block belongs to.
    pub fn set_of(&self, block: BlockNumber) -> SetNumber {
        SetNumber(((block.0 / u64::from(self.run_lines)) % u64::from(self.set_count)) as u32)
    }

    /// The tag of a block: what distinguishes it from the others of its set.
    pub fn tag_of(&self, block: BlockNumber) -> Tag {
        let run_lines = u64::from(self.run_lines);
        Tag(block.0 / run_lines / u64::from(self.set_count) * run_lines + block.0 % run_lines)
    }

    /// [`Layout::set_of`] and [`Layout::tag_of`] in one, for callers that need both of many blocks:
    /// the divisions dominate.
    pub(crate) fn place_of(&self, block: BlockNumber) -> (SetNumber, Tag) {
        let (run_lines, set_count) = (u64::from(self.run_lines), u64::from(self.set_count));
        let (run, rest) = (block.0 / run_lines, block.0 % run_lines);
        (SetNumber((run % set_count) as u32), Tag(run / set_count * run_lines + rest))
    }

    /// The block of a set that has this tag.
    pub fn block_of(&self, set: SetNumber, tag: Tag) -> BlockNumber {
        let run_lines = u64::from(self.run_lines);
        BlockNumber((tag.0 / run_lines * u64::from(self.set_count) + u64::from(set.0)) * run_lines + tag.0 % run_lines)
    }

    /// All sets, in their order.
    pub fn sets(&self) -> impl Iterator<Item = SetNumber> + use<> {
        (0..self.set_count).map(SetNumber)
    }

    /// The frames of a set.
    pub fn frames_of(&self, set: SetNumber) -> Range<FrameNumber> {
        set.frame(0, self.ways)..set.frame(self.ways, self.ways)
    }

    /// The set that a frame is in.
    pub fn set_of_frame(&self, frame: FrameNumber) -> SetNumber {
        frame.set(self.ways)
    }
}

fn log_bytes(device_bytes: u64, options: &FormatOptions) -> Result<u64, Error> {
    let unit = SUPERBLOCK_BYTES as u64;
    let Some(log_bytes) = options.log_bytes else {
        let share = (device_bytes / LOG_SHARE).clamp(LOG_BYTES_DEFAULT_MIN, LOG_BYTES_DEFAULT_MAX);
        // A very small cache gives the log at most a quarter.
        return Ok(share.min((device_bytes / 4).max(LOG_BYTES_MIN)) / unit * unit);
    };
    let log_bytes = log_bytes.next_multiple_of(unit);
    if (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&log_bytes) {
        return Ok(log_bytes);
    }
    let context = format!("the log of a cache has {LOG_BYTES_MIN} to {LOG_BYTES_MAX} bytes, not {log_bytes}");
    Err(Error::new(ErrorKind::InvalidRange, context))
}

/// The most frames that fit in `available` bytes together with their table.
fn frames_that_fit(available: u64, line_size: LineSize) -> u64 {
    let (page, entries) = (PAGE_BYTES as u64, u64::from(entries_per_page(line_size)));
    let per_group = entries * line_size.bytes() + 2 * page;
    let groups = available / per_group;
    let rest = available % per_group;
    groups * entries + rest.saturating_sub(2 * page) / line_size.bytes()
}

fn too_small(size_bytes: u64, line_size: LineSize) -> Error {
    let context = format!(
        "{size_bytes} bytes are too small for a cache of lines of {} KiB: it needs at least {} KiB, sensibly some MiB",
        line_size.bytes() >> 10,
        (line_size.bytes() * 2 * FRAMES_MIN) >> 10
    );
    Error::new(ErrorKind::InvalidRange, context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn options(associativity: Associativity) -> FormatOptions {
        FormatOptions { associativity, ..FormatOptions::default() }
    }

    proptest! {
        #[test]
        fn nothing_overlaps_and_little_is_wasted(
            device_bytes in 8u64 << 20..1 << 40, ways in 1u32..5000, full in any::<bool>(), shift in 12u32..=18
        ) {
            let associativity = if full { Associativity::Full } else { Associativity::Ways(ways) };
            let line_size = LineSize::new(1 << shift).unwrap();
            let layout = Layout::new(device_bytes, &FormatOptions { line_size, ..options(associativity) }).unwrap();
            prop_assert!(layout.is_possible(device_bytes), "{layout:?}");
            let used = u64::from(layout.frame_count()) * line_size.bytes() + layout.log.length;
            let set_bytes = u64::from(layout.ways) * line_size.bytes();
            prop_assert!(used + set_bytes + device_bytes / 100 + (64 << 10) > device_bytes, "{layout:?}");
        }
    }

    proptest! {
        #[test]
        fn a_tag_names_a_block_within_its_set(block in 0u64..1 << 52, ways in 1u32..300, bytes in 1u64 << 20..1 << 30) {
            let layout = Layout::new(bytes, &options(Associativity::Ways(ways))).unwrap();
            let block = BlockNumber(block);
            let (set, tag) = (layout.set_of(block), layout.tag_of(block));
            prop_assert_eq!(layout.block_of(set, tag), block);
            prop_assert_eq!(layout.place_of(block), (set, tag));
            prop_assert!(tag.0 <= block.0 / u64::from(layout.set_count) + u64::from(layout.run_lines));
        }
    }

    #[test]
    fn small_caches_have_room_for_lines_of_4_kib() {
        for device_bytes in [128u64 << 10, 200 << 10, 1 << 20] {
            let layout = Layout::new(device_bytes, &FormatOptions::default()).unwrap();
            assert!(layout.is_possible(device_bytes), "{layout:?}");
        }
    }

    #[test]
    fn blocks_spread_over_sets_in_runs() {
        let layout = Layout::new(64 << 20, &options(Associativity::Ways(64))).unwrap();
        assert_eq!(layout.set_of(BlockNumber(0)), layout.set_of(BlockNumber(15)));
        assert_eq!(layout.set_of(BlockNumber(16)), SetNumber(1));
        assert_eq!(layout.set_of(BlockNumber(16 * u64::from(layout.set_count))), SetNumber(0));
        assert_eq!(layout.frames_of(SetNumber(1)), FrameNumber(64)..FrameNumber(128));
        let full = Layout::new(64 << 20, &options(Associativity::Full)).unwrap();
        assert_eq!((full.set_count, full.set_of(BlockNumber(u64::MAX >> 16))), (1, SetNumber(0)));
    }

    #[test]
    fn too_few_lines_are_refused_by_their_number_and_not_by_the_size_of_the_device() {
        for frames in [0, 1, FRAMES_MIN - 1] {
            let options = FormatOptions { frames_max: Some(frames), ..FormatOptions::default() };
            let error = Layout::new(64 << 20, &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidRange);
            assert!(error.to_string().contains(&format!("16 lines at least, and {frames}")), "{error}");
        }
    }

    #[test]
    fn what_is_too_small_or_senseless_is_refused() {
        for bytes in [0, 4096, 8192, 64 << 10] {
            assert_eq!(
                Layout::new(bytes, &FormatOptions::default()).unwrap_err().kind(),
                ErrorKind::InvalidRange,
                "{bytes}"
            );
        }
        let error = Layout::new(1 << 30, &options(Associativity::Ways(0))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRange);
        let log = FormatOptions { log_bytes: Some(1), ..FormatOptions::default() };
        assert_eq!(Layout::new(1 << 30, &log).unwrap_err().kind(), ErrorKind::InvalidRange);
    }
}
