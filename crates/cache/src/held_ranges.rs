//! The ranges in which a cache has something clean, joined to few: for the caller that registers
//! them at a shared origin.
//!
//! The origin is divided into parts of a line or more. Where there would be too many ranges, near
//! ones are joined, with what lies between.

use base::range::ByteRange;

use crate::core::Core;
use crate::limits::HELD_PARTS_MAX;

impl Core {
    /// The clean content as few ranges: see [`Cache::clean_ranges`](crate::Cache::clean_ranges).
    pub(crate) fn clean_ranges(&self, count_max: usize) -> Vec<ByteRange> {
        let (start, end) = (self.origin.padding, self.origin.end());
        let line_size = self.line_size();
        let mut parts = Parts::new(end, line_size.bytes());
        {
            let state = self.lines.state();
            let frames = &state.frames;
            for frame in frames.layout().frames() {
                let Some(block) = frames.block(frame) else { continue };
                let line = frames.line(frame);
                if !(line.valid & !line.dirty).is_empty() {
                    parts.add(line_size.line_range(block));
                }
            }
        }
        let outside = |range: ByteRange| {
            let (from, to) = (range.offset.max(start), range.end().min(end));
            (from < to).then(|| ByteRange { offset: from - start, length: to - from })
        };
        joined_to(parts.ranges().into_iter().filter_map(outside).collect(), count_max)
    }
}

/// Parts of one size of an origin, with a bit each for those that hold something.
struct Parts {
    bytes: u64,
    has_any: Vec<bool>,
}

impl Parts {
    /// The empty parts of a device of `size_bytes`, each of `least` bytes (a power of two) or more.
    fn new(size_bytes: u64, least: u64) -> Self {
        let bytes = least.max(size_bytes.div_ceil(HELD_PARTS_MAX).next_power_of_two());
        Self { bytes, has_any: vec![false; size_bytes.div_ceil(bytes) as usize] }
    }

    /// Marks the parts of a line, which is no longer than a part.
    fn add(&mut self, line: ByteRange) {
        if let Some(part) = self.has_any.get_mut((line.offset / self.bytes) as usize) {
            *part = true;
        }
    }

    fn ranges(&self) -> Vec<ByteRange> {
        let mut ranges: Vec<ByteRange> = Vec::new();
        for (part, _) in self.has_any.iter().enumerate().filter(|(_, has_any)| **has_any) {
            let offset = part as u64 * self.bytes;
            match ranges.last_mut().filter(|last| last.end() == offset) {
                Some(last) => last.length += self.bytes,
                None => ranges.push(ByteRange { offset, length: self.bytes }),
            }
        }
        ranges
    }
}

/// `ranges` joined over their smallest gaps, until at most `count_max` are left.
fn joined_to(ranges: Vec<ByteRange>, count_max: usize) -> Vec<ByteRange> {
    let Some(excess) = ranges.len().checked_sub(count_max.max(1)).filter(|excess| *excess > 0) else { return ranges };
    let mut gaps: Vec<u64> = ranges.windows(2).map(|pair| pair[1].offset - pair[0].end()).collect();
    let (_, widest, _) = gaps.select_nth_unstable(excess - 1);
    let widest = *widest;
    let mut joined: Vec<ByteRange> = Vec::with_capacity(count_max);
    for range in ranges {
        match joined.last_mut().filter(|last| range.offset - last.end() <= widest) {
            Some(last) => last.length = range.end() - last.offset,
            None => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, length: u64) -> ByteRange {
        ByteRange { offset, length }
    }

    #[test]
    fn neighbours_are_one_range_and_a_large_device_has_larger_parts() {
        let mut parts = Parts::new(64 << 10, 4096);
        [0, 4096, 12288].into_iter().for_each(|offset| parts.add(range(offset, 4096)));
        assert_eq!(parts.ranges(), [range(0, 8192), range(12288, 4096)]);
        // Beyond the present end of the origin.
        parts.add(range(64 << 10, 4096));
        assert_eq!(parts.ranges().len(), 2);
        let mut parts = Parts::new(1 << 40, 4096);
        parts.add(range((1 << 40) - 4096, 4096));
        assert_eq!(parts.ranges(), [range((1 << 40) - (1 << 20), 1 << 20)]);
    }

    #[test]
    fn too_many_ranges_are_joined_where_the_gaps_are_smallest() {
        let ranges = vec![range(0, 10), range(30, 10), range(45, 10), range(100, 10)];
        assert_eq!(joined_to(ranges.clone(), 4), ranges);
        assert_eq!(joined_to(ranges.clone(), 3), [range(0, 10), range(30, 25), range(100, 10)]);
        assert_eq!(joined_to(ranges.clone(), 2), [range(0, 55), range(100, 10)]);
        assert_eq!(joined_to(ranges, 0), [range(0, 110)]);
        assert_eq!(joined_to(Vec::new(), 1), []);
    }
}
