//! The bytes on the cache device, format version 1. The page `docs/formats/cache.md` says why they are so.
//!
//! | structure | where | what |
//! |---|---|---|
//! | [`ParametersRaw`] | payload of the superblock | geometry, binding, and where the log and the table stand |
//! | [`PageHeaderRaw`], [`EntryRaw`] | table | what each frame holds |
//! | [`LogEntryRaw`] | payload of log records | what became of one line |

use base::checksum::crc32c;
use store::{BindingRaw, Kind, LogPositionRaw};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What the superblock calls a cache.
pub const KIND: Kind = Kind { code: *b"cache\0\0\0", version: 1, name: "cache" };

/// [`ParametersRaw::state`]: in use, or its program stopped without closing it.
pub const STATE_IN_USE: u8 = 0;
/// [`ParametersRaw::state`]: closed; the table is complete and the log is empty.
pub const STATE_CLOSED: u8 = 1;

/// Payload of the superblock.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ParametersRaw {
    /// The origin.
    pub binding: BindingRaw,
    /// Bytes of a line; version 1 reads 4096.
    pub line_bytes: U32,
    /// Bytes a bit of the bitmaps stands for; version 1 reads 512.
    pub sector_bytes: U32,
    /// Bytes of a table entry; version 1 reads 16. Larger lines will need larger bitmaps.
    pub entry_bytes: U32,
    /// Frames of one set.
    pub ways: U32,
    /// Consecutive blocks that share a set.
    pub run_lines: U32,
    /// The number of a [`CrashMode`](crate::CrashMode).
    pub crash_mode: u8,
    /// [`STATE_IN_USE`] or [`STATE_CLOSED`].
    pub state: u8,
    /// Zero.
    pub reserved_1: [u8; 2],
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
    /// First byte of the origin at which a line begins, below the size of a line; the part before it is the end of block 0.
    pub alignment_bytes: U64,
    /// Every table page written up to this sequence was durable when this superblock was written.
    pub table_sequence: U64,
    /// Where replay starts.
    pub log_position: LogPositionRaw,
    /// Lines dirty when this superblock was written; only to inform.
    pub dirty_lines: U64,
    /// Seconds since 1970 at which nothing was dirty: all that is has been written since. 0: not known. Only to inform.
    pub clean_at: U64,
    /// Of the origin's content, as somebody says; clean lines of another one do not count. 0: nobody has said.
    pub generation: U64,
    /// Zero.
    pub reserved_2: [u8; 8],
}
const _: () = assert!(size_of::<ParametersRaw>() == 2712);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, line_bytes) == 2560);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, set_count) == 2584);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, log_position) == 2648);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, clean_at) == 2688);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, generation) == 2696);

/// Bytes of a table page, and of a slot.
pub const PAGE_BYTES: usize = 4096;

/// Entries of a table page.
pub const ENTRIES_PER_PAGE: usize = (PAGE_BYTES - size_of::<PageHeaderRaw>()) / size_of::<EntryRaw>();
const _: () = assert!(ENTRIES_PER_PAGE == 252);

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
    /// Which page.
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

/// [`EntryRaw::flags`]: the dirty sectors of this line could not be read back after a crash.
pub const ENTRY_LOST: u8 = 1;

/// What one frame holds. All zero: nothing.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct EntryRaw {
    /// Block of the origin, little-endian: up to 2^48 lines.
    pub block: [u8; 6],
    /// Sectors that hold the block's data.
    pub valid: u8,
    /// Sectors that the origin does not have yet.
    pub dirty: u8,
    /// Reserved for a checksum of the data; zero.
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
    pub block: u64,
    /// Sectors that hold the block's data.
    pub valid: u8,
    /// Sectors that the origin does not have yet; all of them valid.
    pub dirty: u8,
    /// Whether the dirty sectors are known to be unreadable.
    pub is_lost: bool,
}

impl From<Line> for EntryRaw {
    fn from(line: Line) -> Self {
        let [b0, b1, b2, b3, b4, b5, _, _] = line.block.to_le_bytes();
        Self {
            block: [b0, b1, b2, b3, b4, b5],
            valid: line.valid,
            dirty: line.dirty,
            checksum: U32::ZERO,
            flags: if line.is_lost { ENTRY_LOST } else { 0 },
            reserved: [0; 3],
        }
    }
}

impl From<EntryRaw> for Line {
    /// Bits that contradict each other are taken as the safe side: a dirty sector is a valid one.
    fn from(raw: EntryRaw) -> Self {
        let [b0, b1, b2, b3, b4, b5] = raw.block;
        Self {
            block: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, 0, 0]),
            valid: raw.valid | raw.dirty,
            dirty: raw.dirty,
            is_lost: raw.flags & ENTRY_LOST != 0,
        }
    }
}

/// Writes a table page into `bytes`, which are one page long.
pub fn emit_page(bytes: &mut [u8], uuid: Uuid, page_index: u64, sequence: u64, lines: impl Iterator<Item = Line>) {
    assert_eq!(bytes.len(), PAGE_BYTES);
    bytes.fill(0);
    let header = PageHeaderRaw {
        checksum: U32::ZERO,
        magic: PAGE_MAGIC.into(),
        page_index: page_index.into(),
        sequence: sequence.into(),
        uuid: uuid.into_bytes(),
        reserved: [0; 24],
    };
    let (head, entries) = bytes.split_at_mut(size_of::<PageHeaderRaw>());
    head.copy_from_slice(header.as_bytes());
    for (place, line) in entries.chunks_exact_mut(size_of::<EntryRaw>()).zip(lines) {
        if line.valid != 0 {
            place.copy_from_slice(EntryRaw::from(line).as_bytes());
        }
    }
    let checksum = crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// What a slot of the table turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// All zero: never written.
    Empty,
    /// A whole page of this sequence.
    Valid(u64),
    /// Not whole. The sequence is what its header claims, if that is one of this page.
    Damaged(Option<u64>),
}

/// Looks at one slot.
pub fn parse_slot(bytes: &[u8], uuid: Uuid, page_index: u64) -> Slot {
    if bytes.iter().all(|&byte| byte == 0) {
        return Slot::Empty;
    }
    let Ok((header, _)) = PageHeaderRaw::read_from_prefix(bytes) else { return Slot::Damaged(None) };
    let is_ours =
        header.magic.get() == PAGE_MAGIC && header.uuid == *uuid.as_bytes() && header.page_index.get() == page_index;
    let is_whole = bytes.get(4..).is_some_and(|covered| crc32c(covered) == header.checksum.get());
    match (is_ours, is_whole) {
        (true, true) => Slot::Valid(header.sequence.get()),
        (true, false) => Slot::Damaged(Some(header.sequence.get())),
        (false, _) => Slot::Damaged(None),
    }
}

/// The lines of a page that [`parse_slot`] found valid.
pub fn page_lines(bytes: &[u8]) -> impl Iterator<Item = Line> + '_ {
    let entries = bytes.get(size_of::<PageHeaderRaw>()..).unwrap_or(&[]);
    entries
        .chunks_exact(size_of::<EntryRaw>())
        .map(|chunk| EntryRaw::read_from_bytes(chunk).map(Line::from).unwrap_or_default())
}

/// [`LogEntryRaw::frame_freed`]: no frame.
pub const FRAME_NONE: u32 = u32::MAX;

/// [`LogEntryRaw::kind`]: data was written to the frame at the same time as this record; `checksum` says whether it landed.
pub const ENTRY_WRITE: u8 = 1;
/// [`LogEntryRaw::kind`]: only the state changed, and what it rests on was durable before.
pub const ENTRY_STATE: u8 = 2;
/// [`LogEntryRaw::kind`]: like [`ENTRY_STATE`], and the clean sectors count after a crash (crash mode *all*).
pub const ENTRY_CLEAN: u8 = 3;

/// What became of one line. It carries the resulting state whole, never a difference, so that replaying it twice, or over a table that is
/// newer than it, ends the same.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct LogEntryRaw {
    /// [`ENTRY_WRITE`], [`ENTRY_STATE`] or [`ENTRY_CLEAN`].
    pub kind: u8,
    /// [`ENTRY_LOST`].
    pub flags: u8,
    /// Resulting valid sectors.
    pub valid: u8,
    /// Resulting dirty sectors.
    pub dirty: u8,
    /// Sectors that `checksum` covers, lowest first: those written that must not change while the line stays as it is.
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
    /// Zero.
    pub reserved_2: U32,
}
const _: () = assert!(size_of::<LogEntryRaw>() == 32);
const _: () = assert!(std::mem::offset_of!(LogEntryRaw, block) == 8);
const _: () = assert!(std::mem::offset_of!(LogEntryRaw, checksum) == 24);

impl LogEntryRaw {
    /// An entry of the state `line` of `frame`, without data.
    pub fn state(frame: u32, frame_freed: u32, line: Line) -> Self {
        Self {
            kind: ENTRY_STATE,
            flags: if line.is_lost { ENTRY_LOST } else { 0 },
            valid: line.valid,
            dirty: line.dirty,
            checked: 0,
            reserved_1: [0; 3],
            block: line.block.into(),
            frame: frame.into(),
            frame_freed: frame_freed.into(),
            checksum: U32::ZERO,
            reserved_2: U32::ZERO,
        }
    }

    /// The resulting state.
    pub fn line(&self) -> Line {
        let is_lost = self.flags & ENTRY_LOST != 0;
        Line { block: self.block.get(), valid: self.valid | self.dirty, dirty: self.dirty, is_lost }
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

    #[test]
    fn an_entry_is_what_the_format_page_says() {
        let line = Line { block: 0x0605_0403_0201, valid: 0xff, dirty: 0x0f, is_lost: true };
        assert_eq!(hex(EntryRaw::from(line).as_bytes()), "010203040506ff0f0000000001000000");
        assert_eq!(Line::from(EntryRaw::from(line)), line);
    }

    #[test]
    fn a_log_entry_is_what_the_format_page_says() {
        let line = Line { block: 0x0807_0605_0403_0201, valid: 0xf0, dirty: 0x30, is_lost: false };
        let mut entry = LogEntryRaw::state(0x0a0b_0c0d, FRAME_NONE, line);
        assert_eq!(hex(entry.as_bytes()), "0200f0300000000001020304050607080d0c0b0affffffff0000000000000000");
        entry.kind = ENTRY_CLEAN;
        assert_eq!(hex(entry.as_bytes()), "0300f0300000000001020304050607080d0c0b0affffffff0000000000000000");
        entry.kind = ENTRY_WRITE;
        entry.checked = 0x30;
        entry.checksum = 0x1122_3344.into();
        assert_eq!(hex(entry.as_bytes()), "0100f0303000000001020304050607080d0c0b0affffffff4433221100000000");
    }

    #[test]
    fn a_page_is_what_the_format_page_says() {
        let mut page = [0xa5; PAGE_BYTES];
        let line = Line { block: 2, valid: 1, dirty: 1, is_lost: false };
        emit_page(&mut page, ID, 3, 4, [Line::default(), line].into_iter());
        let golden = "667461620300000000000000040000000000000007070707070707070707070707070707";
        assert_eq!(hex(&page[4..40]), golden);
        assert!(page[40..80].iter().all(|&byte| byte == 0));
        assert_eq!(hex(&page[80..96]), "02000000000001010000000000000000");
        assert!(page[96..].iter().all(|&byte| byte == 0));
        assert_eq!(parse_slot(&page, ID, 3), Slot::Valid(4));
        assert_eq!(parse_slot(&page, ID, 2), Slot::Damaged(None));
        page[95] = 1;
        assert_eq!(parse_slot(&page, ID, 3), Slot::Damaged(Some(4)));
        assert_eq!(parse_slot(&[0; PAGE_BYTES], ID, 3), Slot::Empty);
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
        ];
        assert_eq!(offsets, [2560, 2572, 2580, 2592, 2616, 2640, 2648, 2680, 2688, 2696]);
    }

    proptest! {
        #[test]
        fn what_a_page_holds_is_read_back(lines in proptest::collection::vec((0u64..1 << 48, 1u8.., any::<u8>()), 0..=252)) {
            let lines: Vec<Line> = lines
                .into_iter()
                .map(|(block, valid, dirty)| Line { block, valid, dirty: dirty & valid, is_lost: false })
                .collect();
            let mut page = [0xa5; PAGE_BYTES];
            emit_page(&mut page, ID, 0, 1, lines.iter().copied());
            prop_assert_eq!(parse_slot(&page, ID, 0), Slot::Valid(1));
            let read: Vec<Line> = page_lines(&page).collect();
            prop_assert_eq!(&read[..lines.len()], &lines[..]);
            prop_assert!(read[lines.len()..].iter().all(|line| *line == Line::default()));
        }

        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            parse_slot(&bytes, ID, 0);
            assert!(page_lines(&bytes).count() < 300);
        }
    }
}
