//! The check of a log at rest: whether what the origin lacks can be read back as it was written.
//!
//! A dirty extent points past the header of its record, straight at the data, and no replay reads
//! records before the checkpoint. So the records of each segment in use are searched again, one by
//! one; the data of a dirty extent counts only where a whole record with the right checksum names
//! those sectors.

use std::collections::BTreeMap;

use base::range::ByteRange;
use block::SharedDevice;
use uuid::Uuid;

use crate::found::records_in;
use crate::layout::Layout;
use crate::limits::UNIT_BYTES;
use crate::map::Piece;
use crate::numbers::{Sector, SegmentNumber};
use crate::salvage::segment_image;
use crate::segments::{Segment, Segments};

/// The sector in each unit of a segment, according to whole records.
type Units = Vec<Option<Sector>>;

/// The ranges of the origin whose newest data is in the log and is damaged or unreadable there,
/// ascending.
pub(crate) async fn damaged_ranges(
    device: &SharedDevice,
    layout: &Layout,
    log_id: Uuid,
    segments: &Segments,
    dirty: &[Piece],
) -> Vec<ByteRange> {
    let mut by_segment: BTreeMap<SegmentNumber, Vec<&Piece>> = BTreeMap::new();
    for piece in dirty.iter().filter(|piece| piece.is_in_segment()) {
        by_segment.entry(layout.segment_of(piece.unit())).or_default().push(piece);
    }
    let mut damaged: Vec<ByteRange> = Vec::new();
    for (segment, pieces) in by_segment {
        let image = segment_image(device, layout, segment).await;
        let units = units_of(&image, layout, segment, segments.get(segment), log_id);
        let first = layout.unit(segment, 0);
        for piece in pieces {
            let at = (piece.unit() - first) as usize;
            for (sector, unit) in piece.sector.up_to(piece.end()).zip(at..) {
                if units.get(unit) != Some(&Some(sector)) {
                    add(&mut damaged, ByteRange { offset: sector.offset(), length: UNIT_BYTES });
                }
            }
        }
    }
    damaged.sort_unstable();
    damaged.into_iter().fold(Vec::new(), |mut joined, range| {
        add(&mut joined, range);
        joined
    })
}

/// Adds a range, or extends the last one.
fn add(ranges: &mut Vec<ByteRange>, range: ByteRange) {
    match ranges.last_mut() {
        Some(last) if last.end() == range.offset => last.length += range.length,
        _ => ranges.push(range),
    }
}

fn units_of(image: &[u8], layout: &Layout, segment: SegmentNumber, entry: &Segment, log_id: Uuid) -> Units {
    let first = layout.unit(segment, 0);
    let mut units = vec![None; image.len() / UNIT_BYTES as usize];
    let sequences = entry.first_sequence..=entry.last_sequence;
    let records = records_in(image, sequences, segment, log_id, first);
    for piece in records.iter().flat_map(|record| &record.pieces).filter(|piece| piece.is_in_segment()) {
        let at = (piece.unit() - first) as usize;
        for (unit, sector) in units.iter_mut().skip(at).zip(piece.sector.up_to(piece.end())) {
            *unit = Some(sector);
        }
    }
    units
}
