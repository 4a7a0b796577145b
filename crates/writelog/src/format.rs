//! The bytes of a write log on its device. For people: `docs/formats/writelog.md`.
//!
//! ```text
//! | superblock A 4 KiB | checkpoint slot 0 | checkpoint slot 1 | segments | ... | superblock B 4 KiB |
//! segment:  | record | record | ... | what an earlier lap left |
//! record:   | header 64 | head 32 | entries 16 each | zeroes up to 512 | data of the first entry | of the second | ... |
//! ```
//! Records have the header of `store::record`; what is behind it, data included, is their payload.

use store::record::RECORD_HEADER_BYTES;
use store::{BindingRaw, StoreKind};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::limits::{RECORD_ENTRIES_MAX, UNIT_BYTES};

/// The kind of store in the superblock.
pub const KIND: StoreKind = StoreKind { code: *b"writelog", version: 1, version_min: 1, name: "write log" };

/// Open, or its program stopped in the middle.
pub const STATE_IN_USE: u8 = 0;
/// Closed in order.
pub const STATE_CLOSED: u8 = 1;
/// The device refused a write while the log was open, and the origin got newer data than the log holds.
pub const STATE_FAILED: u8 = 2;

/// The superblock's payload.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ParametersRaw {
    /// The origin.
    pub binding: BindingRaw,
    /// Bytes of a segment.
    pub segment_bytes: U32,
    /// Bytes of an NVRAM slot.
    pub slot_bytes: U32,
    /// Count of segments.
    pub segment_count: U32,
    /// [`STATE_IN_USE`], [`STATE_CLOSED`] or [`STATE_FAILED`].
    pub state: u8,
    /// The destage order since the log was last clean: 0 log, 1 lba, 2 last write first.
    pub order: u8,
    /// Which checkpoint slot counts.
    pub checkpoint_slot: u8,
    /// Whether acknowledged data may be in NVRAM only.
    pub has_nvram: u8,
    /// Offset of the first checkpoint slot.
    pub checkpoint_offset: U64,
    /// Bytes of one checkpoint slot.
    pub checkpoint_bytes: U64,
    /// Offset of the first segment.
    pub segments_offset: U64,
    /// Number of the checkpoint that counts; 0 for none.
    pub checkpoint_sequence: U64,
    /// Everything in records up to this one is on the origin (destage order `log`).
    pub destaged_sequence: U64,
    /// Where replay starts; its offset is in `position_segment`.
    pub position: store::LogPositionRaw,
    /// Segment of `position`.
    pub position_segment: U32,
    /// Segment that the record before `position` names as the next one.
    pub position_next: U32,
    /// Bytes that the origin does not have; only to inform.
    pub dirty_bytes: U64,
    /// Zero.
    pub reserved_2: [u8; 40],
}
const _: () = assert!(size_of::<ParametersRaw>() == 2704);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, checkpoint_offset) == 2576);
const _: () = assert!(std::mem::offset_of!(ParametersRaw, position) == 2616);

/// The head of a record, behind the record header.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct HeadRaw {
    /// The segment it stands in.
    pub segment: U32,
    /// The segment that follows this one.
    pub next_segment: U32,
    /// Nanoseconds of the writer's clock when it was written.
    pub time_ns: U64,
    /// Count of entries.
    pub entry_count: U16,
    /// Records on their way before it.
    pub in_flight: U16,
    /// [`FLAG_EPOCH_END`].
    pub flags: U32,
    /// Zero.
    pub reserved: U64,
}
const _: () = assert!(size_of::<HeadRaw>() == 32);

/// Flag of a record after which an epoch may end: nothing acknowledged before its last entry is missing.
pub const FLAG_EPOCH_END: u32 = 1;

/// One run of sectors in a record: a row of the slot-to-LBA table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct EntryRaw {
    /// First sector of 512 bytes on the origin.
    pub sector: U64,
    /// Count of sectors.
    pub sectors: U32,
    /// [`ENTRY_DATA`], [`ENTRY_ZEROES`] or [`ENTRY_DISCARDED`].
    pub kind: u8,
    /// [`ENTRY_FLAG_NOT_NEEDED`].
    pub flags: u8,
    /// Zero.
    pub reserved: [u8; 2],
}
const _: () = assert!(size_of::<EntryRaw>() == 16);

/// The bytes are in the record.
pub const ENTRY_DATA: u8 = 1;
/// The bytes are zero and stay allocated.
pub const ENTRY_ZEROES: u8 = 2;
/// The bytes are zero and the origin may give their space back.
pub const ENTRY_DISCARDED: u8 = 3;
/// Flag of [`ENTRY_DISCARDED`]: the client does not need the bytes, so the origin may keep what it
/// has. Without the flag they are zero.
pub const ENTRY_FLAG_NOT_NEEDED: u8 = 1;

/// The head of a checkpoint slot; then segments, then extents.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct CheckpointRaw {
    /// crc32c of everything behind this field.
    pub checksum: U32,
    /// [`CHECKPOINT_MAGIC`].
    pub magic: U32,
    /// The log's identifier.
    pub log_id: [u8; 16],
    /// Number of the checkpoint.
    pub sequence: U64,
    /// Count of segments.
    pub segment_count: U32,
    /// Count of extents.
    pub extent_count: U32,
    /// [`CHECKPOINT_FLAG_DISCARDS`].
    pub flags: U32,
    /// Zero.
    pub reserved: [u8; 20],
}
const _: () = assert!(size_of::<CheckpointRaw>() == 64);

/// First bytes after the checksum of a checkpoint.
pub const CHECKPOINT_MAGIC: u32 = u32::from_le_bytes(*b"wckp");

/// Flag of a checkpoint: the highest of the 25 low bits of a place of zeroes says that the client
/// does not need the bytes. Without the flag that bit is one more of the record's sequence.
pub const CHECKPOINT_FLAG_DISCARDS: u32 = 1;

/// A segment in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct SegmentRaw {
    /// Its number.
    pub segment: U32,
    /// Zero.
    pub reserved: U32,
    /// Sequence of its first record.
    pub first_sequence: U64,
    /// Sequence of its last record.
    pub last_sequence: U64,
}
const _: () = assert!(size_of::<SegmentRaw>() == 24);

/// A run of sectors that the origin does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct ExtentRaw {
    /// First sector on the origin.
    pub sector: U64,
    /// Count of sectors.
    pub sectors: U32,
    /// Unit of 512 bytes in the segments where its data starts; one of the last 2^25 numbers for zeroes.
    pub place: U32,
}
const _: () = assert!(size_of::<ExtentRaw>() == 16);

/// First bytes of an NVRAM region; then a header for each slot, then from the next 4 KiB on the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct NvramRaw {
    /// crc32c of what is behind this field.
    pub checksum: U32,
    /// [`NVRAM_MAGIC`].
    pub magic: U32,
    /// The log's identifier.
    pub log_id: [u8; 16],
    /// Bytes of a slot.
    pub slot_bytes: U32,
    /// Count of slots.
    pub slot_count: U32,
}
const _: () = assert!(size_of::<NvramRaw>() == 32);

/// First bytes after the checksum of an NVRAM region.
pub const NVRAM_MAGIC: u32 = u32::from_le_bytes(*b"wnvr");

/// The header of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C)]
pub struct SlotRaw {
    /// crc32c of what is behind this field and of the slot's bytes that count.
    pub checksum: U32,
    /// Count of sectors; 0 in a free slot.
    pub sectors: U32,
    /// Grows from write to write.
    pub sequence: U64,
    /// First sector on the origin.
    pub sector: U64,
    /// Zero.
    pub reserved: U64,
}
const _: () = assert!(size_of::<SlotRaw>() == 32);

/// Bytes of a record before its data.
pub fn prefix_bytes(entry_count: usize) -> usize {
    (RECORD_HEADER_BYTES + size_of::<HeadRaw>() + entry_count * size_of::<EntryRaw>())
        .next_multiple_of(UNIT_BYTES as usize)
}

/// Head and entries of a record's payload, if they make sense together with its length.
pub fn parse_payload(payload: &[u8]) -> Option<(HeadRaw, Vec<EntryRaw>)> {
    let (head, rest) = HeadRaw::read_from_prefix(payload).ok()?;
    let count = usize::from(head.entry_count.get());
    if count > RECORD_ENTRIES_MAX {
        return None;
    }
    let (entries, _) = <[EntryRaw]>::ref_from_prefix_with_elems(rest, count).ok()?;
    let mut data_bytes = 0u64;
    for entry in entries {
        match entry.kind {
            ENTRY_DATA => data_bytes += u64::from(entry.sectors.get()) * UNIT_BYTES,
            ENTRY_ZEROES | ENTRY_DISCARDED => {}
            _ => return None,
        }
        entry.sector.get().checked_add(u64::from(entry.sectors.get())).filter(|&end| end < 1 << 54)?;
    }
    let whole = prefix_bytes(count) as u64 + data_bytes;
    (whole == (payload.len() + RECORD_HEADER_BYTES) as u64).then(|| (head, entries.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Identity;
    use proptest::prelude::*;
    use store::{Binding, LogPosition, Sequence};

    #[test]
    fn the_superblocks_bytes_are_what_the_format_page_says() {
        let binding = Binding { identity: Identity::default(), size_bytes: 1 << 20, logical_block_bytes: 512 };
        let raw = ParametersRaw {
            binding: binding.to_raw().unwrap(),
            segment_bytes: 0x10000.into(),
            slot_bytes: 0x400.into(),
            segment_count: 320.into(),
            state: STATE_CLOSED,
            order: 2,
            checkpoint_slot: 1,
            has_nvram: 1,
            checkpoint_offset: 0x1000.into(),
            checkpoint_bytes: 0x2000.into(),
            segments_offset: 0x5000.into(),
            checkpoint_sequence: 3.into(),
            destaged_sequence: 4.into(),
            position: LogPosition { offset: 0x200, epoch: 5, sequence: Sequence(6), link: 7 }.into(),
            position_segment: 8.into(),
            position_next: 9.into(),
            dirty_bytes: 10.into(),
            reserved_2: [0; 40],
        };
        let golden = [
            "00000100000400004001000001020101001000000000000000200000000000000050000000000000",
            "03000000000000000400000000000000",
            "0002000000000000050000000000000006000000000000000700000000000000",
            "08000000090000000a00000000000000",
        ]
        .concat();
        assert_eq!(hex(&raw.as_bytes()[2560..2664]), golden);
    }

    #[test]
    fn a_records_bytes_are_what_the_format_page_says() {
        let head = HeadRaw {
            segment: 1.into(),
            next_segment: 2.into(),
            time_ns: 3.into(),
            entry_count: 4.into(),
            in_flight: 5.into(),
            flags: FLAG_EPOCH_END.into(),
            reserved: U64::ZERO,
        };
        assert_eq!(hex(head.as_bytes()), "0100000002000000030000000000000004000500010000000000000000000000");
        let entry =
            EntryRaw { sector: 0x1122_3344.into(), sectors: 8.into(), kind: ENTRY_ZEROES, flags: 0, reserved: [0; 2] };
        assert_eq!(hex(entry.as_bytes()), "44332211000000000800000002000000");
        let discard = EntryRaw { kind: ENTRY_DISCARDED, flags: ENTRY_FLAG_NOT_NEEDED, ..entry };
        assert_eq!(hex(discard.as_bytes()), "44332211000000000800000003010000");
        assert_eq!((prefix_bytes(0), prefix_bytes(26), prefix_bytes(27)), (512, 512, 1024));
    }

    #[test]
    fn a_checkpoints_bytes_are_what_the_format_page_says() {
        let head = CheckpointRaw {
            checksum: 1.into(),
            magic: CHECKPOINT_MAGIC.into(),
            log_id: [7; 16],
            sequence: 2.into(),
            segment_count: 3.into(),
            extent_count: 4.into(),
            flags: CHECKPOINT_FLAG_DISCARDS.into(),
            reserved: [0; 20],
        };
        assert_eq!(hex(&head.as_bytes()[..24]), "0100000077636b7007070707070707070707070707070707");
        assert_eq!(hex(&head.as_bytes()[24..44]), "0200000000000000030000000400000001000000");
        let segment =
            SegmentRaw { segment: 1.into(), reserved: 0.into(), first_sequence: 2.into(), last_sequence: 3.into() };
        assert_eq!(hex(segment.as_bytes()), "010000000000000002000000000000000300000000000000");
        let extent = ExtentRaw { sector: 1.into(), sectors: 2.into(), place: 3.into() };
        assert_eq!(hex(extent.as_bytes()), "01000000000000000200000003000000");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    proptest! {
        #[test]
        fn any_payload_is_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            if let Some((head, entries)) = parse_payload(&bytes) {
                prop_assert_eq!(usize::from(head.entry_count.get()), entries.len());
            }
        }
    }
}
