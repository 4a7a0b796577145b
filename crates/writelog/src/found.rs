//! Records found in the image of a segment.

use std::ops::RangeInclusive;

use store::Sequence;
use store::record::{RECORD_HEADER_BYTES, parse_header, record_bytes};
use uuid::Uuid;

use crate::format::{ENTRY_DATA, ENTRY_DISCARDED, ENTRY_FLAG_NOT_NEEDED, EntryRaw, parse_payload, prefix_bytes};
use crate::limits::UNIT_BYTES;
use crate::map::Piece;
use crate::numbers::SegmentNumber;
use crate::place::{Place, Zeroed};
use crate::tag::Tag;
use crate::unit::LogUnit;

/// A record in a segment's image.
pub(crate) struct Found {
    pub(crate) sequence: Sequence,
    pub(crate) flags: u32,
    pub(crate) next_segment: SegmentNumber,
    pub(crate) link: u32,
    pub(crate) epoch: u64,
    pub(crate) checksum: u32,
    /// Offset in the segment behind the record.
    pub(crate) end: u64,
    /// Its pieces, with their places.
    pub(crate) pieces: Vec<Piece>,
}

/// The whole records in a segment's image that have one of these sequences, in the order of their
/// places: one of each, unless some are damaged or landed in the place of others. Records of an
/// earlier lap have smaller sequences. Behind a damaged record the next one may begin at any unit.
pub(crate) fn records_in(
    image: &[u8],
    sequences: RangeInclusive<Sequence>,
    segment: SegmentNumber,
    log_id: Uuid,
    segment_unit: LogUnit,
) -> Vec<Found> {
    let count = sequences.end().next().checked_since(*sequences.start()).unwrap_or(0);
    let (mut records, mut offset) = (Vec::new(), 0);
    while (records.len() as u64) < count && offset < image.len() as u64 {
        match find_record(image, offset, segment, log_id, segment_unit) {
            Some(found) if sequences.contains(&found.sequence) => {
                offset = found.end;
                records.push(found);
            }
            _ => offset += UNIT_BYTES,
        }
    }
    records
}

/// The whole record at `offset` of a segment's image, if one of this log belongs there.
pub(crate) fn find_record(
    image: &[u8],
    offset: u64,
    segment: SegmentNumber,
    log_id: Uuid,
    segment_unit: LogUnit,
) -> Option<Found> {
    let bytes = image.get(usize::try_from(offset).ok()?..)?;
    let (header, _) = parse_header(bytes, log_id)?;
    store::record::parse_payload(bytes, &header)?;
    record_at(bytes, offset, segment, log_id, segment_unit)
}

/// The record that begins with `bytes`, at `offset` of a segment. The caller has checked the
/// checksum, or the bytes never left RAM.
pub(crate) fn record_at(
    bytes: &[u8],
    offset: u64,
    segment: SegmentNumber,
    log_id: Uuid,
    segment_unit: LogUnit,
) -> Option<Found> {
    let (header, payload_bytes) = parse_header(bytes, log_id)?;
    let (head, entries) = parse_payload(bytes.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload_bytes)?)?;
    if SegmentNumber::from(head.segment) != segment || Sequence::from(header.sequence) > Sequence::MAX {
        return None;
    }
    let unit = segment_unit + offset / UNIT_BYTES;
    Some(Found {
        sequence: header.sequence.into(),
        flags: head.flags.get(),
        next_segment: head.next_segment.into(),
        link: header.link.get(),
        epoch: header.epoch.get(),
        checksum: header.checksum.get(),
        end: offset + record_bytes(payload_bytes),
        pieces: pieces_of(&entries, header.sequence.into(), unit),
    })
}

fn pieces_of(entries: &[EntryRaw], sequence: Sequence, record_unit: LogUnit) -> Vec<Piece> {
    let mut unit = record_unit + prefix_bytes(entries.len()) as u64 / UNIT_BYTES;
    let mut pieces = Vec::with_capacity(entries.len());
    for entry in entries {
        let sectors = u64::from(entry.sectors.get());
        let place = match entry.kind {
            ENTRY_DATA => {
                let place = Place::segment(unit);
                unit = unit + sectors;
                place
            }
            ENTRY_DISCARDED if entry.flags & ENTRY_FLAG_NOT_NEEDED != 0 => Place::zeroes(sequence, Zeroed::Discarded),
            ENTRY_DISCARDED => Place::zeroes(sequence, Zeroed::MayDiscard),
            _ => Place::zeroes(sequence, Zeroed::Kept),
        };
        pieces.push(Piece { sector: entry.sector.into(), sectors, place, tag: Tag::dirty(0) });
    }
    pieces
}
