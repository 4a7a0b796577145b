//! The layout of a log device.

use base::range::ByteRange;
use block::{Error, ErrorKind};
use store::LogPosition;
use store::limits::SUPERBLOCK_BYTES;

use crate::format::{CheckpointRaw, ExtentRaw, ParametersRaw, SegmentRaw};
use crate::limits::{
    CHECKPOINT_BYTES_PER_EXTENT, LOG_BYTES_MAX, SEGMENT_BYTES_AUTO, SEGMENT_BYTES_MAX, SEGMENT_BYTES_PAPER,
    SEGMENTS_MIN, SEGMENTS_WANTED, SLOT_BYTES_MAX, UNIT_BYTES,
};
use crate::numbers::SegmentNumber;
use crate::options::FormatOptions;
use crate::unit::LogUnit;

const PAGE: u64 = SUPERBLOCK_BYTES as u64;

/// The offsets and sizes of all structures on a log device; the picture is in `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of an NVRAM slot.
    pub slot_bytes: u64,
    /// Count of segments.
    pub segment_count: u32,
    /// Offset of the first checkpoint slot.
    pub checkpoint_offset: u64,
    /// Bytes of one checkpoint slot.
    pub checkpoint_bytes: u64,
    /// Offset of the first segment.
    pub segments_offset: u64,
}

/// A place between two records, with all that the next one must carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPlace {
    pub(crate) segment: SegmentNumber,
    /// Segment that the record before this place names as the next one.
    pub(crate) next_segment: SegmentNumber,
    /// Position; its offset is within the segment.
    pub(crate) position: LogPosition,
}

impl Layout {
    /// As many segments as `device_bytes` hold.
    ///
    /// # Errors
    /// `InvalidRange` when these are too few, `Unsupported` for sizes that cannot be.
    pub fn new(device_bytes: u64, options: &FormatOptions) -> Result<Self, Error> {
        let segment_bytes = options.segment_bytes.map_or_else(|| suitable_segment_bytes(device_bytes), u64::from);
        let is_fit = (u64::from(SEGMENT_BYTES_PAPER)..=u64::from(SEGMENT_BYTES_MAX)).contains(&segment_bytes)
            && segment_bytes.is_multiple_of(PAGE)
            && (UNIT_BYTES as u32..=SLOT_BYTES_MAX).contains(&options.slot_bytes)
            && options.slot_bytes.is_power_of_two();
        if !is_fit {
            let context = format!(
                "segments of {segment_bytes} bytes with slots of {} bytes cannot be: segments are multiples of 4 KiB \
                 from 64 KiB to 4 MiB, slots powers of two from 512 bytes to 16 KiB",
                options.slot_bytes
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let room = (device_bytes / PAGE * PAGE).saturating_sub(2 * PAGE).min(LOG_BYTES_MAX);
        let with_checkpoints = |count: u64| count * segment_bytes + 2 * checkpoint_bytes(count, segment_bytes);
        let mut count = room / segment_bytes;
        while count > 0 && with_checkpoints(count) > room {
            count -= (count / 64).max(1);
        }
        if count < u64::from(SEGMENTS_MIN) {
            let least = u64::from(SEGMENTS_MIN);
            let context = format!(
                "a device of {device_bytes} bytes has no room for a log of {least} segments of {} KiB: it needs at \
                 least {} KiB, sensibly some MiB",
                segment_bytes >> 10,
                (2 * PAGE + with_checkpoints(least)) >> 10
            );
            return Err(Error::new(ErrorKind::InvalidRange, context));
        }
        let checkpoint_bytes = checkpoint_bytes(count, segment_bytes);
        Ok(Self {
            segment_bytes,
            slot_bytes: u64::from(options.slot_bytes),
            segment_count: count as u32,
            checkpoint_offset: PAGE,
            checkpoint_bytes,
            segments_offset: PAGE + 2 * checkpoint_bytes,
        })
    }

    /// The layout that a superblock describes.
    ///
    /// # Errors
    /// `Corrupt` when it cannot be.
    pub fn from_parameters(raw: &ParametersRaw, device_bytes: u64) -> Result<Self, Error> {
        let options = FormatOptions {
            segment_bytes: Some(raw.segment_bytes.get()),
            slot_bytes: raw.slot_bytes.get(),
            ..FormatOptions::default()
        };
        let found = Self {
            segment_bytes: u64::from(raw.segment_bytes.get()),
            slot_bytes: u64::from(raw.slot_bytes.get()),
            segment_count: raw.segment_count.get(),
            checkpoint_offset: raw.checkpoint_offset.get(),
            checkpoint_bytes: raw.checkpoint_bytes.get(),
            segments_offset: raw.segments_offset.get(),
        };
        match Self::new(device_bytes, &options) {
            Ok(layout) if layout == found => Ok(layout),
            _ => Err(Error::new(ErrorKind::Corrupt, "the write log's superblock describes a layout that cannot be")),
        }
    }

    /// Offset of a checkpoint slot.
    pub fn checkpoint_slot(&self, slot: u8) -> u64 {
        self.checkpoint_offset + u64::from(slot & 1) * self.checkpoint_bytes
    }

    /// Bytes of all segments.
    pub(crate) fn log_bytes(&self) -> u64 {
        u64::from(self.segment_count) * self.segment_bytes
    }

    /// Most extents that a checkpoint holds.
    pub fn extents_max(&self) -> usize {
        (self.log_bytes() / CHECKPOINT_BYTES_PER_EXTENT) as usize
    }

    /// All segments, in their order on the device.
    pub fn segments(&self) -> impl Iterator<Item = SegmentNumber> + use<> {
        (0..self.segment_count).map(SegmentNumber)
    }

    /// Whether there is such a segment.
    pub(crate) fn has_segment(&self, segment: SegmentNumber) -> bool {
        segment.0 < self.segment_count
    }

    /// A segment's bytes on the device.
    pub fn segment(&self, segment: SegmentNumber) -> ByteRange {
        let offset = self.segments_offset + u64::from(segment.0) * self.segment_bytes;
        ByteRange { offset, length: self.segment_bytes }
    }

    /// The unit `offset` bytes into `segment`.
    pub fn unit(&self, segment: SegmentNumber, offset: u64) -> LogUnit {
        LogUnit((u64::from(segment.0) * self.segment_bytes + offset) / UNIT_BYTES)
    }

    /// The unit behind the last one of `segment`.
    pub fn unit_behind(&self, segment: SegmentNumber) -> LogUnit {
        self.unit(segment, self.segment_bytes)
    }

    /// The segment a unit is in.
    pub fn segment_of(&self, unit: LogUnit) -> SegmentNumber {
        SegmentNumber((unit.0 * UNIT_BYTES / self.segment_bytes) as u32)
    }

    /// Offset on the device of a unit.
    pub fn offset_of(&self, unit: LogUnit) -> u64 {
        self.segments_offset + unit.0 * UNIT_BYTES
    }

    /// The unit behind the last one.
    pub fn end(&self) -> LogUnit {
        self.unit(SegmentNumber(self.segment_count), 0)
    }
}

/// A segment size that gives many segments, each with room for several records.
fn suitable_segment_bytes(device_bytes: u64) -> u64 {
    let wanted = (device_bytes / SEGMENTS_WANTED).max(1).ilog2();
    let (least, most) = (*SEGMENT_BYTES_AUTO.start(), *SEGMENT_BYTES_AUTO.end());
    (1 << wanted).clamp(u64::from(least), u64::from(most))
}

fn checkpoint_bytes(segment_count: u64, segment_bytes: u64) -> u64 {
    let extents = segment_count * segment_bytes / CHECKPOINT_BYTES_PER_EXTENT * size_of::<ExtentRaw>() as u64;
    let segments = segment_count * size_of::<SegmentRaw>() as u64;
    (size_of::<CheckpointRaw>() as u64 + segments + extents).next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nothing_overlaps_and_all_fits(device_bytes in (1u64 << 19)..(8 << 30), shift in 0u32..5) {
            let options = FormatOptions { segment_bytes: Some((64 << 10) << shift), ..FormatOptions::default() };
            if let Ok(layout) = Layout::new(device_bytes, &options) {
                prop_assert!(layout.checkpoint_offset >= PAGE);
                prop_assert_eq!(layout.checkpoint_slot(1), layout.checkpoint_offset + layout.checkpoint_bytes);
                prop_assert_eq!(layout.segments_offset, layout.checkpoint_slot(1) + layout.checkpoint_bytes);
                let segment = layout.segments().last().expect("there are some");
                prop_assert!(layout.segment(segment).end() + PAGE <= device_bytes);
                let last = layout.unit(segment, layout.segment_bytes - 512);
                prop_assert_eq!(layout.segment_of(last), segment);
            }
        }
    }

    #[test]
    fn the_papers_log_has_its_320_segments() {
        let layout = Layout::new((20 << 20) + (1 << 20), &FormatOptions::paper()).unwrap();
        assert!(layout.segment_count >= 320, "{}", layout.segment_count);
        assert!(Layout::new(128 << 10, &FormatOptions::paper()).is_err());
    }
}
