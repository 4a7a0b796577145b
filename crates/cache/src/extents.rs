//! Extents: those of the origin, overlaid with what is dirty here.

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::limits::EXTENTS_PER_RESPONSE_MAX;
use block::range_lock::Acquire;
use block::{Extent, ExtentKind, Response};

use crate::alignment::outside;
use crate::core::Core;

pub(crate) async fn extents(core: Arc<Core>, range: ByteRange, place: Acquire) -> Response {
    let _guard = match core.enter(place).await {
        Ok(guard) => guard,
        Err(error) => return Response::failed(error, Buffer::empty()),
    };
    // Before the origin is asked: a line cleaned meanwhile is dirty neither then nor surely in the
    // answer.
    let dirty: Vec<ByteRange> =
        core.dirty_ranges(range).into_iter().map(|range| outside(range, core.origin.padding)).collect();
    match core.origin.device().extents(range.offset, range.length).await {
        // The answer is in offsets of the origin, and so is the cache's answer.
        Ok(extents) => Response { extents: overlay(&extents, &dirty), ..Response::done(Buffer::empty()) },
        Err(error) => Response::failed(error, Buffer::empty()),
    }
}

impl Core {
    /// All dirty bytes as ranges of the origin, ascending and joined.
    pub(crate) fn all_dirty_ranges(&self) -> Vec<ByteRange> {
        let all = self.dirty_ranges(ByteRange { offset: 0, length: self.origin.end() });
        all.into_iter().map(|range| outside(range, self.origin.padding)).collect()
    }

    /// The dirty bytes in `range`, ascending and joined.
    fn dirty_ranges(&self, range: ByteRange) -> Vec<ByteRange> {
        let mut ranges: Vec<ByteRange> = Vec::new();
        let line_size = self.line_size();
        let state = self.lines.state();
        for block in state.frames.dirty_in(line_size.blocks_of(range)) {
            let Some((_, line)) = state.frames.find(block) else { continue };
            for run in (line.dirty & line_size.part_of(block, range).0).runs() {
                let offset = line_size.line_range(block).offset + run.offset();
                match ranges.last_mut() {
                    Some(last) if last.end() == offset => last.length += run.length(),
                    _ => ranges.push(ByteRange { offset, length: run.length() }),
                }
            }
        }
        ranges
    }
}

/// `extents` with the bytes of `data` (ascending) being data, cut at the most extents one response holds.
fn overlay(extents: &[Extent], data: &[ByteRange]) -> Vec<Extent> {
    let mut result: Vec<Extent> = Vec::new();
    let mut data = data.iter().peekable();
    for extent in extents {
        let mut offset = extent.range.offset;
        while offset < extent.range.end() {
            while data.next_if(|range| range.end() <= offset).is_some() {}
            let (end, kind) = match data.peek() {
                Some(range) if range.offset <= offset => (range.end(), ExtentKind::Data),
                Some(range) => (range.offset, extent.kind),
                None => (extent.range.end(), extent.kind),
            };
            let length = end.min(extent.range.end()) - offset;
            push(&mut result, Extent { range: ByteRange { offset, length }, kind });
            offset += length;
        }
    }
    result.truncate(EXTENTS_PER_RESPONSE_MAX);
    result
}

fn push(extents: &mut Vec<Extent>, extent: Extent) {
    match extents.last_mut() {
        Some(last) if last.kind == extent.kind => last.range.length += extent.range.length,
        _ => extents.push(extent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a bitmap, one bool per unit.
        #[test]
        fn an_overlay_is_a_union(
            lengths in proptest::collection::vec((1u64..8, any::<bool>()), 1..20),
            holes in proptest::collection::vec((1u64..5, 1u64..5), 0..20),
        ) {
            let mut extents = Vec::new();
            let mut bitmap = Vec::new();
            for (length, is_data) in lengths {
                let kind = if is_data { ExtentKind::Data } else { ExtentKind::Hole };
                let range = ByteRange { offset: bitmap.len() as u64, length };
                push(&mut extents, Extent { range, kind });
                bitmap.extend(std::iter::repeat_n(is_data, length as usize));
            }
            let mut data = Vec::new();
            let mut offset = 0;
            for (gap, length) in holes {
                let start = offset + gap;
                offset = start + length;
                if offset <= bitmap.len() as u64 {
                    data.push(ByteRange { offset: start, length });
                    bitmap[start as usize..offset as usize].fill(true);
                }
            }
            let mut seen = Vec::new();
            for extent in overlay(&extents, &data) {
                prop_assert_eq!(extent.range.offset, seen.len() as u64);
                seen.extend(std::iter::repeat_n(extent.kind == ExtentKind::Data, extent.range.length as usize));
            }
            prop_assert_eq!(seen, bitmap);
        }
    }
}
