//! The bytes on the cache device, format version 2. `docs/formats/cache.md` gives the reasons.
//!
//! | structure | where | what |
//! |---|---|---|
//! | [`ParametersRaw`] | payload of the superblock | geometry, binding, and where the log and the table stand |
//! | [`PageHeaderRaw`], [`EntryRaw`] | table | what each frame holds |
//! | [`LogEntryRaw`] | payload of log records | the new state of one line |
//!
//! Entries have room for the bitmaps of a line of 4 KiB, one byte each. What larger lines need beyond that follows
//! behind the entry, bitmap by bitmap.

use base::checksum::{Crc32c, crc32c};
use store::{BindingRaw, LogPositionRaw, StoreKind};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::{LINE_BYTES_MAX, SECTOR_BYTES};
use crate::line_checksum::LineChecksum;
use crate::line_size::LineSize;
use crate::numbers::{BlockNumber, FrameNumber, PageNumber, TableSequence};
use crate::sectors::Sectors;

/// What the superblock calls a cache.
pub const KIND: StoreKind = StoreKind { code: *b"cache\0\0\0", version: 2, version_min: 1, name: "cache" };

/// [`ParametersRaw::state`]: in use, or its program stopped without closing it.
pub const STATE_IN_USE: u8 = 0;
/// [`ParametersRaw::state`]: closed; the table is complete and the log is empty.
pub const STATE_CLOSED: u8 = 1;

/// [`ParametersRaw::checksums`]: nothing is known of the data.
pub const CHECKSUMS_NONE: u8 = 0;
/// [`ParametersRaw::checksums`]: a line of which all is valid has a checksum.
pub const CHECKSUMS_OF_LINES: u8 = 1;

/// Payload of the superblock.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ParametersRaw {
    /// The origin.
    pub binding: BindingRaw,
    /// Bytes of a line.
    pub line_bytes: U32,
    /// Bytes that a bit of the bitmaps stands for: 512, in both versions.
    pub sector_bytes: U32,
    /// Bytes of a table entry, which follow from the former two.
    pub entry_bytes: U32,
    /// Frames of one set.
    pub ways: U32,
    /// Consecutive blocks that share a set.
    pub run_lines: U32,
    /// The number of a [`CrashMode`](crate::CrashMode).
    pub crash_mode: u8,
    /// [`STATE_IN_USE`] or [`STATE_CLOSED`].
    pub state: u8,
    /// [`CHECKSUMS_NONE`] or [`CHECKSUMS_OF_LINES`].
    pub checksums: u8,
    /// Zero.
    pub reserved_1: u8,
    /// Count of sets.
    pub set_count: U64,
    /// Offset of the log region on the cache device.
    pub log_offset: U64,
    /// Bytes of the log region.
    pub log_bytes: U64,
    /// Offset of frame 0.
    pub frames_offset: U64,
    /// Offset of the table.
    pub table_offset: U64,
    /// Count of table pages; each takes two slots.
    pub page_count: U64,
    /// First byte of the origin at which a line begins, below the size of a line; the part before it is the end of
    /// block 0.
    pub alignment_bytes: U64,
    /// Every table page written up to this sequence was durable when this superblock was written.
    pub table_sequence: U64,
    /// Where replay starts.
    pub log_position: LogPositionRaw,
    /// Lines dirty when this superblock was written. The table of a closed cache has as many, or it is damaged;
    /// otherwise only to inform.
    pub dirty_lines: U64,
    /// Seconds since 1970 at which nothing was dirty: all that is has been written since. 0: not known. Only to inform.
    pub clean_at: U64,
    /// Generation of the origin's content, as its user gave it; clean lines of another one do not
    /// count. 0: none given.
    pub generation: U64,
    /// Most frames, as the user limited them at formatting; a cache that takes the place of this
    /// one has no more. 0: as many as fit.
    pub frames_max: U64,
    /// Of a closed cache: a digest of the newest slot of each table page, see `Table::digest`. 0:
    /// not known, as in a cache that is in use or was closed by an earlier version.
    pub table_digest: U64,
    /// All records of the log before this sequence were durable when this superblock was written. 0: not known, as
    /// after an earlier version.
    pub log_end: U64,
}
const _: () = assert!(size_of::<ParametersRaw>() == 2728);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, line_bytes) == 2560);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, set_count) == 2584);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, log_position) == 2648);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, clean_at) == 2688);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, generation) == 2696);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, frames_max) == 2704);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, table_digest) == 2712);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, log_end) == 2720);

/// Bytes of a table page, and of a slot.
pub const PAGE_BYTES: usize = 4096;

/// Bytes of a table entry with its bitmaps.
pub fn entry_bytes(line_size: LineSize) -> usize {
    size_of::<EntryRaw>() + 2 * (line_size.bitmap_bytes() - 1)
}

/// Entries of a table page: 252 for lines of 4 KiB, 28 for those of 256 KiB.
pub fn entries_per_page(line_size: LineSize) -> u32 {
    ((PAGE_BYTES - size_of::<PageHeaderRaw>()) / entry_bytes(line_size)) as u32
}

/// First bytes after the checksum of every table page.
pub const PAGE_MAGIC: u32 = u32::from_le_bytes(*b"ftab");

/// The header of a table page.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct PageHeaderRaw {
    /// crc32c of bytes 4..4096.
    pub checksum: U32,
    /// [`PAGE_MAGIC`].
    pub magic: U32,
    /// Index of the page in the table.
    pub page_index: U64,
    /// Grows with every checkpoint; of two valid slots the larger counts.
    pub sequence: U64,
    /// The cache's identifier.
    pub uuid: [u8; 16],
    /// Zero.
    pub reserved: [u8; 24],
}
const _: () = assert!(size_of::<PageHeaderRaw>() == 64);
const _: () = assert!(std::mem::offset_of!(PageHeaderRaw, uuid) == 24);

/// [`EntryRaw::flags`]: the dirty sectors of this line could not be read back, or were not what was written.
pub const ENTRY_LOST: u8 = 1;

/// What one frame holds, up to the first byte of each bitmap. The others of *valid* follow, then those of *dirty*. All
/// zero: nothing.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct EntryRaw {
    /// Block of the origin, little-endian: up to 2^48 lines.
    pub block: [u8; 6],
    /// Sectors that hold the block's data, the first eight.
    pub valid: u8,
    /// Sectors that the origin does not have yet, the first eight.
    pub dirty: u8,
    /// [`LineChecksum`] of the line.
    pub checksum: U32,
    /// [`ENTRY_LOST`].
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 3],
}
const _: () = assert!(size_of::<EntryRaw>() == 16);

/// What one frame holds, in memory: the line of `block`, or nothing when no sector is valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Block of the origin.
    pub block: BlockNumber,
    /// Sectors that hold the block's data.
    pub valid: Sectors,
    /// Sectors that the origin does not have yet; all of them valid.
    pub dirty: Sectors,
    /// Whether the dirty sectors are known to be unreadable.
    pub is_lost: bool,
    /// Checksum of the whole line's data; without meaning when not all of it is valid.
    pub checksum: LineChecksum,
}

/// crc32c of the sectors of `mask` in a whole line, lowest first.
pub(crate) fn checksum_of(mask: Sectors, line: &[u8]) -> u32 {
    let mut checksum = Crc32c::new();
    for run in mask.runs() {
        checksum.update(&line[run.bytes()]);
    }
    checksum.finish()
}

/// The largest bitmap, empty.
const BITMAP_EMPTY: [u8; (LINE_BYTES_MAX / SECTOR_BYTES / 8) as usize] =
    [0; (LINE_BYTES_MAX / SECTOR_BYTES / 8) as usize];

/// A bitmap's first byte, and the others into `rest`.
fn emit_bitmap(sectors: Sectors, line_size: LineSize, rest: &mut [u8]) -> u8 {
    let mut bytes = BITMAP_EMPTY;
    let bytes = &mut bytes[..line_size.bitmap_bytes()];
    sectors.to_bytes(bytes);
    rest.copy_from_slice(&bytes[1..]);
    bytes[0]
}

/// The bitmap of a first byte and the others.
fn parse_bitmap(first: u8, rest: &[u8]) -> Sectors {
    if rest.is_empty() {
        return Sectors::from_bytes(&[first]);
    }
    let mut bytes = BITMAP_EMPTY;
    let count = rest.len().min(bytes.len() - 1);
    bytes[0] = first;
    bytes[1..=count].copy_from_slice(&rest[..count]);
    Sectors::from_bytes(&bytes)
}

/// Writes the table entry of a line into `place`, which is as long as one is.
fn emit_entry(line: &Line, line_size: LineSize, place: &mut [u8]) {
    let (head, rest) = place.split_at_mut(size_of::<EntryRaw>());
    let (rest_valid, rest_dirty) = rest.split_at_mut(line_size.bitmap_bytes() - 1);
    let [b0, b1, b2, b3, b4, b5, _, _] = line.block.0.to_le_bytes();
    let raw = EntryRaw {
        block: [b0, b1, b2, b3, b4, b5],
        valid: emit_bitmap(line.valid, line_size, rest_valid),
        dirty: emit_bitmap(line.dirty, line_size, rest_dirty),
        checksum: line.checksum.to_raw().into(),
        flags: if line.is_lost { ENTRY_LOST } else { 0 },
        reserved: [0; 3],
    };
    head.copy_from_slice(raw.as_bytes());
}

/// A table entry as it stands in its page. An open of a large, full cache reads every entry, so it
/// avoids a [`Line`], whose bitmaps have room for the largest line.
#[derive(Clone, Copy)]
pub struct StoredLine<'a> {
    raw: &'a EntryRaw,
    rest_valid: &'a [u8],
    rest_dirty: &'a [u8],
}

impl<'a> StoredLine<'a> {
    /// The entry in `bytes`; `None` when they are too short.
    #[inline]
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (raw, rest) = EntryRaw::ref_from_prefix(bytes).ok()?;
        let (rest_valid, rest_dirty) = rest.split_at(rest.len() / 2);
        Some(Self { raw, rest_valid, rest_dirty })
    }

    /// Block of the origin.
    #[inline]
    pub fn block(&self) -> BlockNumber {
        let [b0, b1, b2, b3, b4, b5] = self.raw.block;
        BlockNumber(u64::from_le_bytes([b0, b1, b2, b3, b4, b5, 0, 0]))
    }

    /// Whether a sector is dirty.
    #[inline]
    pub fn is_dirty(&self) -> bool {
        self.raw.dirty != 0 || !is_zero(self.rest_dirty)
    }

    /// Whether no sector is valid: the frame holds nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.raw.valid == 0 && !self.is_dirty() && is_zero(self.rest_valid)
    }

    /// The bitmap of valid sectors as stored, which may lack dirty ones: its first byte and the
    /// others.
    #[inline]
    pub(crate) fn valid_bytes(&self) -> (u8, &'a [u8]) {
        (self.raw.valid, self.rest_valid)
    }

    /// [`Line::checksum`].
    #[inline]
    pub(crate) fn checksum(&self) -> LineChecksum {
        LineChecksum::from_raw(self.raw.checksum.get())
    }

    /// The line of this entry. Contradicting bits are read the safe way: a dirty sector is a valid
    /// one.
    pub fn line(&self) -> Line {
        let dirty = parse_bitmap(self.raw.dirty, self.rest_dirty);
        Line {
            block: self.block(),
            valid: parse_bitmap(self.raw.valid, self.rest_valid) | dirty,
            dirty,
            is_lost: self.raw.flags & ENTRY_LOST != 0,
            checksum: self.checksum(),
        }
    }
}

/// Whether all bytes are zero: without an early end in each piece, so that many are compared at once.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|piece| piece.iter().fold(0, |sum, byte| sum | byte) == 0)
}

/// Writes a table page into `bytes`, which are one page long.
pub fn emit_page(
    bytes: &mut [u8],
    line_size: LineSize,
    uuid: Uuid,
    page: PageNumber,
    sequence: TableSequence,
    lines: impl Iterator<Item = Line>,
) {
    assert_eq!(bytes.len(), PAGE_BYTES);
    bytes.fill(0);
    let header = PageHeaderRaw {
        checksum: U32::ZERO,
        magic: PAGE_MAGIC.into(),
        page_index: page.0.into(),
        sequence: sequence.into(),
        uuid: uuid.into_bytes(),
        reserved: [0; 24],
    };
    let (head, entries) = bytes.split_at_mut(size_of::<PageHeaderRaw>());
    head.copy_from_slice(header.as_bytes());
    for (place, line) in entries.chunks_exact_mut(entry_bytes(line_size)).zip(lines) {
        if !line.valid.is_empty() {
            emit_entry(&line, line_size, place);
        }
    }
    let checksum = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// State of one slot of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// All zero: never written.
    Empty,
    /// A whole page of this sequence.
    Valid(TableSequence),
    /// Not whole. The sequence is what its header claims, if that is one of this page.
    Damaged(Option<TableSequence>),
}

/// The state of the slot in `bytes`, for this cache and page.
pub fn parse_slot(bytes: &[u8], uuid: Uuid, page: PageNumber) -> Slot {
    if is_zero(bytes) {
        return Slot::Empty;
    }
    let Ok((header, _)) = PageHeaderRaw::read_from_prefix(bytes) else { return Slot::Damaged(None) };
    let is_ours =
        header.magic.get() == PAGE_MAGIC && header.uuid == *uuid.as_bytes() && header.page_index.get() == page.0;
    let is_whole = bytes.get(4..).is_some_and(|covered| crc32c(covered) == header.checksum.get());
    match (is_ours, is_whole) {
        (true, true) => Slot::Valid(header.sequence.into()),
        (true, false) => Slot::Damaged(Some(header.sequence.into())),
        (false, _) => Slot::Damaged(None),
    }
}

/// The lines of a page that [`parse_slot`] found valid.
pub fn page_lines(bytes: &[u8], line_size: LineSize) -> impl Iterator<Item = StoredLine<'_>> {
    let entries = bytes.get(size_of::<PageHeaderRaw>()..).unwrap_or(&[]);
    entries.chunks_exact(entry_bytes(line_size)).filter_map(StoredLine::parse)
}

/// [`LogEntryRaw::frame_freed`]: no frame.
pub const FRAME_NONE: u32 = u32::MAX;

/// [`LogEntryRaw::kind`]: data was written to the frame at the same time as this record; `checksum` says whether it
/// landed.
pub const ENTRY_WRITE: u8 = 1;
/// [`LogEntryRaw::kind`]: only the state changed, and what it rests on was durable before.
pub const ENTRY_STATE: u8 = 2;
/// [`LogEntryRaw::kind`]: like [`ENTRY_STATE`], and the clean sectors count after a crash (crash mode *all*).
pub const ENTRY_CLEAN: u8 = 3;

/// [`LogEntryRaw::kind`]: the data of the *checked* sectors stands behind the entry and is not in the frame yet; the
/// record's checksum covers it.
pub const ENTRY_DEFERRED: u8 = 4;

/// The new state of one line, up to the first byte of each bitmap. The others of *valid* follow,
/// then those of *dirty*, then those of *checked*.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct LogEntryRaw {
    /// [`ENTRY_WRITE`], [`ENTRY_STATE`], [`ENTRY_CLEAN`] or [`ENTRY_DEFERRED`].
    pub kind: u8,
    /// [`ENTRY_LOST`].
    pub flags: u8,
    /// Resulting valid sectors, the first eight.
    pub valid: u8,
    /// Resulting dirty sectors, the first eight.
    pub dirty: u8,
    /// Sectors that `checksum` covers, the first eight.
    pub checked: u8,
    /// Zero.
    pub reserved_1: [u8; 3],
    /// Block of the origin.
    pub block: U64,
    /// The frame that now holds the line.
    pub frame: U32,
    /// The frame that held it before and does no longer, or [`FRAME_NONE`].
    pub frame_freed: U32,
    /// crc32c of the checked sectors.
    pub checksum: U32,
    /// [`LineChecksum`] of the resulting line, as in [`EntryRaw::checksum`].
    pub line_checksum: U32,
}
const _: () = assert!(size_of::<LogEntryRaw>() == 32);
const _: () = assert!(std::mem::offset_of!(LogEntryRaw, block) == 8);
const _: () = assert!(std::mem::offset_of!(LogEntryRaw, checksum) == 24);

/// Bytes of a log entry with its bitmaps.
pub fn log_entry_bytes(line_size: LineSize) -> usize {
    size_of::<LogEntryRaw>() + 3 * (line_size.bitmap_bytes() - 1)
}

/// The new state of one line. It carries the resulting state whole, never a difference, so that
/// replaying it twice, or over a table that is newer than it, ends the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// [`ENTRY_WRITE`], [`ENTRY_STATE`], [`ENTRY_CLEAN`] or [`ENTRY_DEFERRED`].
    pub kind: u8,
    /// The resulting state.
    pub line: Line,
    /// Sectors that `checksum` covers, lowest first: the written ones that do not change while the
    /// line stays as it is; for a deferred write all written ones.
    pub checked: Sectors,
    /// The frame that now holds the line.
    pub frame: FrameNumber,
    /// The frame that held it before and does no longer.
    pub frame_freed: Option<FrameNumber>,
    /// crc32c of the checked sectors.
    pub checksum: u32,
}

impl LogEntry {
    /// An entry of the state `line` of `frame`, without data.
    pub fn state(frame: FrameNumber, frame_freed: Option<FrameNumber>, line: Line) -> Self {
        Self { kind: ENTRY_STATE, line, checked: Sectors::NONE, frame, frame_freed, checksum: 0 }
    }

    /// The payload of a record with these entries, without data.
    pub fn emit(entries: &[Self], line_size: LineSize) -> Vec<u8> {
        let mut bytes = vec![0; entries.len() * log_entry_bytes(line_size)];
        for (entry, place) in entries.iter().zip(bytes.chunks_exact_mut(log_entry_bytes(line_size))) {
            entry.emit_into(line_size, place);
        }
        bytes
    }

    /// The payload of a record with these entries, each with the data behind it.
    pub fn emit_with_data(entries: &[(Self, &[u8])], line_size: LineSize) -> Vec<u8> {
        let entry_bytes = log_entry_bytes(line_size);
        let mut bytes = Vec::with_capacity(entries.iter().map(|(_, data)| entry_bytes + data.len()).sum());
        for (entry, data) in entries {
            let start = bytes.len();
            bytes.resize(start + entry_bytes, 0);
            entry.emit_into(line_size, &mut bytes[start..]);
            bytes.extend_from_slice(data);
        }
        bytes
    }

    fn emit_into(&self, line_size: LineSize, place: &mut [u8]) {
        let rest_bytes = line_size.bitmap_bytes() - 1;
        let (head, rest) = place.split_at_mut(size_of::<LogEntryRaw>());
        let (valid, rest) = rest.split_at_mut(rest_bytes);
        let (dirty, checked) = rest.split_at_mut(rest_bytes);
        let raw = LogEntryRaw {
            kind: self.kind,
            flags: if self.line.is_lost { ENTRY_LOST } else { 0 },
            valid: emit_bitmap(self.line.valid, line_size, valid),
            dirty: emit_bitmap(self.line.dirty, line_size, dirty),
            checked: emit_bitmap(self.checked, line_size, checked),
            reserved_1: [0; 3],
            block: self.line.block.into(),
            frame: self.frame.into(),
            frame_freed: self.frame_freed.map_or(FRAME_NONE.into(), U32::from),
            checksum: self.checksum.into(),
            line_checksum: self.line.checksum.to_raw().into(),
        };
        head.copy_from_slice(raw.as_bytes());
    }

    /// Takes the first entry of a record's payload and its data, which is empty but for deferred writes, off `payload`;
    /// `None` when it is torn.
    pub fn take<'a>(payload: &mut &'a [u8], line_size: LineSize) -> Option<(Self, &'a [u8])> {
        let (entry, rest) = payload.split_at_checked(log_entry_bytes(line_size))?;
        let entry = Self::parse(entry, line_size)?;
        let data_bytes = if entry.kind == ENTRY_DEFERRED { entry.checked.bytes() as usize } else { 0 };
        let (data, rest) = rest.split_at_checked(data_bytes)?;
        *payload = rest;
        Some((entry, data))
    }

    /// One entry of a record's payload; `None` when it is not as long as one is.
    pub fn parse(bytes: &[u8], line_size: LineSize) -> Option<Self> {
        let (raw, rest) = LogEntryRaw::read_from_prefix(bytes).ok()?;
        let rest_bytes = line_size.bitmap_bytes() - 1;
        let (valid, rest) = rest.split_at_checked(rest_bytes)?;
        let (dirty, checked) = rest.split_at_checked(rest_bytes)?;
        if checked.len() != rest_bytes {
            return None;
        }
        let dirty = parse_bitmap(raw.dirty, dirty);
        let line = Line {
            block: raw.block.into(),
            valid: parse_bitmap(raw.valid, valid) | dirty,
            dirty,
            is_lost: raw.flags & ENTRY_LOST != 0,
            checksum: LineChecksum::from_raw(raw.line_checksum.get()),
        };
        Some(Self {
            kind: raw.kind,
            line,
            checked: parse_bitmap(raw.checked, checked),
            frame: raw.frame.into(),
            frame_freed: Some(raw.frame_freed).filter(|freed| freed.get() != FRAME_NONE).map(FrameNumber::from),
            checksum: raw.checksum.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: Uuid = Uuid::from_bytes([7; 16]);

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn sectors(bytes: &[u8]) -> Sectors {
        Sectors::from_bytes(bytes)
    }

    /// A line of 16 KiB has bitmaps of four bytes.
    fn larger() -> LineSize {
        LineSize::new(16 << 10).unwrap()
    }

    #[test]
    fn an_entry_is_what_the_format_page_says() {
        let line = Line {
            block: BlockNumber(0x0605_0403_0201),
            valid: sectors(&[0xff]),
            dirty: sectors(&[0x0f]),
            is_lost: true,
            checksum: LineChecksum::from_raw(0x0403_0201),
        };
        let mut bytes = [0xa5; 16];
        emit_entry(&line, LineSize::default(), &mut bytes);
        assert_eq!(hex(&bytes), "010203040506ff0f0102030401000000");
        assert_eq!(StoredLine::parse(&bytes).unwrap().line(), line);
    }

    #[test]
    fn an_entry_of_a_larger_line_has_the_rest_of_its_bitmaps_behind_it() {
        let (valid, dirty) = (sectors(&[0xff, 0x1f, 0, 0x80]), sectors(&[0x0f, 0x10, 0, 0x80]));
        let line = Line { block: BlockNumber(0x0605_0403_0201), valid, dirty, ..Line::default() };
        assert_eq!((entry_bytes(larger()), log_entry_bytes(larger())), (22, 41));
        let mut bytes = [0xa5; 22];
        emit_entry(&line, larger(), &mut bytes);
        assert_eq!(hex(&bytes), "010203040506ff0f00000000000000001f0080100080");
        assert_eq!(StoredLine::parse(&bytes).unwrap().line(), line);
        let entry = LogEntry {
            kind: ENTRY_WRITE,
            checked: dirty,
            checksum: 1,
            ..LogEntry::state(FrameNumber(2), Some(FrameNumber(3)), line)
        };
        let bytes = LogEntry::emit(&[entry], larger());
        let head = "0100ff0f0f000000010203040506000002000000030000000100000000000000";
        assert_eq!(hex(&bytes), format!("{head}1f0080100080100080"));
        assert_eq!(LogEntry::parse(&bytes, larger()), Some(entry));
        assert_eq!(LogEntry::parse(&bytes[..40], larger()), None);
        let sizes = [4, 8, 64, 256].map(|kib| LineSize::new(kib << 10).unwrap());
        assert_eq!(sizes.map(entries_per_page), [252, 224, 87, 28]);
    }

    #[test]
    fn a_log_entry_is_what_the_format_page_says() {
        let line = Line {
            block: BlockNumber(0x0807_0605_0403_0201),
            valid: sectors(&[0xf0]),
            dirty: sectors(&[0x30]),
            ..Line::default()
        };
        let mut entry = LogEntry::state(FrameNumber(0x0a0b_0c0d), None, line);
        let bytes = |entry| LogEntry::emit(&[entry], LineSize::default());
        assert_eq!(hex(&bytes(entry)), "0200f0300000000001020304050607080d0c0b0affffffff0000000000000000");
        entry.kind = ENTRY_CLEAN;
        assert_eq!(hex(&bytes(entry)), "0300f0300000000001020304050607080d0c0b0affffffff0000000000000000");
        entry.kind = ENTRY_WRITE;
        entry.checked = sectors(&[0x30]);
        entry.checksum = 0x1122_3344;
        entry.line.checksum = LineChecksum::from_raw(0x5566_7788);
        assert_eq!(hex(&bytes(entry)), "0100f0303000000001020304050607080d0c0b0affffffff4433221188776655");
        assert_eq!(LogEntry::parse(&bytes(entry), LineSize::default()), Some(entry));
    }

    #[test]
    fn the_data_of_a_deferred_write_stands_behind_its_entry() {
        let (valid, dirty) = (sectors(&[0xf0]), sectors(&[0x30]));
        let line = Line { block: BlockNumber(0x0807_0605_0403_0201), valid, dirty, ..Line::default() };
        let state = LogEntry::state(FrameNumber(0x0a0b_0c0d), None, line);
        let deferred = LogEntry { kind: ENTRY_DEFERRED, checked: sectors(&[0x30]), ..state };
        let data = [[1; 512], [2; 512]].concat();
        let payload = LogEntry::emit_with_data(&[(deferred, &data), (state, &[])], LineSize::default());
        assert_eq!(hex(&payload[..32]), "0400f0303000000001020304050607080d0c0b0affffffff0000000000000000");
        assert_eq!((payload.len(), &payload[32..32 + 1024]), (32 + 1024 + 32, &data[..]));
        let mut rest = &payload[..];
        assert_eq!(LogEntry::take(&mut rest, LineSize::default()), Some((deferred, &data[..])));
        assert_eq!(LogEntry::take(&mut rest, LineSize::default()), Some((state, &[][..])));
        assert!(rest.is_empty());
        let mut torn = &payload[..32 + 1023];
        assert_eq!(LogEntry::take(&mut torn, LineSize::default()), None);
    }

    #[test]
    fn a_page_is_what_the_format_page_says() {
        let mut page = [0xa5; PAGE_BYTES];
        let line = Line { block: BlockNumber(2), valid: sectors(&[1]), dirty: sectors(&[1]), ..Line::default() };
        emit_page(
            &mut page,
            LineSize::default(),
            ID,
            PageNumber(3),
            TableSequence(4),
            [Line::default(), line].into_iter(),
        );
        let golden = "667461620300000000000000040000000000000007070707070707070707070707070707";
        assert_eq!(hex(&page[4..40]), golden);
        assert!(page[40..80].iter().all(|&byte| byte == 0));
        assert_eq!(hex(&page[80..96]), "02000000000001010000000000000000");
        assert!(page[96..].iter().all(|&byte| byte == 0));
        assert_eq!(parse_slot(&page, ID, PageNumber(3)), Slot::Valid(TableSequence(4)));
        assert_eq!(parse_slot(&page, ID, PageNumber(2)), Slot::Damaged(None));
        page[95] = 1;
        assert_eq!(parse_slot(&page, ID, PageNumber(3)), Slot::Damaged(Some(TableSequence(4))));
        assert_eq!(parse_slot(&[0; PAGE_BYTES], ID, PageNumber(3)), Slot::Empty);
    }

    #[test]
    fn the_parameters_lie_where_the_format_page_says() {
        use std::mem::offset_of;
        let offsets = [
            offset_of!(ParametersRaw, line_bytes),
            offset_of!(ParametersRaw, ways),
            offset_of!(ParametersRaw, crash_mode),
            offset_of!(ParametersRaw, log_offset),
            offset_of!(ParametersRaw, table_offset),
            offset_of!(ParametersRaw, table_sequence),
            offset_of!(ParametersRaw, log_position),
            offset_of!(ParametersRaw, dirty_lines),
            offset_of!(ParametersRaw, clean_at),
            offset_of!(ParametersRaw, generation),
            offset_of!(ParametersRaw, frames_max),
        ];
        assert_eq!(offsets, [2560, 2572, 2580, 2592, 2616, 2640, 2648, 2680, 2688, 2696, 2704]);
    }

    proptest! {
        #[test]
        fn what_a_page_holds_is_read_back(
            shift in 12u32..=18,
            lines in proptest::collection::vec(
                (
                    0u64..1 << 48,
                    proptest::collection::vec(any::<u8>(), 64),
                    proptest::collection::vec(any::<u8>(), 64),
                ),
                0..=252
            ),
        ) {
            let line_size = LineSize::new(1 << shift).unwrap();
            let lines: Vec<Line> = lines
                .into_iter()
                .take(entries_per_page(line_size) as usize)
                .map(|(block, valid, dirty)| {
                    let valid = (sectors(&valid) & line_size.all_sectors()) | sectors(&[1]);
                    Line { block: BlockNumber(block), valid, dirty: sectors(&dirty) & valid, ..Line::default() }
                })
                .collect();
            let mut page = [0xa5; PAGE_BYTES];
            emit_page(&mut page, line_size, ID, PageNumber::FIRST, TableSequence(1), lines.iter().copied());
            prop_assert_eq!(parse_slot(&page, ID, PageNumber::FIRST), Slot::Valid(TableSequence(1)));
            let read: Vec<Line> = page_lines(&page, line_size).map(|stored| stored.line()).collect();
            prop_assert_eq!(&read[..lines.len()], &lines[..]);
            let agrees = |stored: StoredLine<'_>| {
                let line = stored.line();
                let is_as_said =
                    stored.is_dirty() != line.dirty.is_empty() && stored.is_empty() == line.valid.is_empty();
                is_as_said && stored.block() == line.block
            };
            prop_assert!(page_lines(&page, line_size).all(agrees));
            prop_assert!(read[lines.len()..].iter().all(|line| *line == Line::default()));
        }

        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..300), shift in 12u32..=18) {
            let line_size = LineSize::new(1 << shift).unwrap();
            parse_slot(&bytes, ID, PageNumber::FIRST);
            assert!(page_lines(&bytes, line_size).count() < 300);
            LogEntry::parse(&bytes, line_size);
            LogEntry::take(&mut &bytes[..], line_size);
        }
    }
}
