//! Pinned segments: a read or a batch uses their bytes.

use std::sync::Arc;

use crate::append::RecordSender;
use crate::numbers::SegmentNumber;
use crate::segments::Segments;

/// Pinned segments, which are not used again. Dropping it unpins them.
pub(crate) struct Pins {
    /// It may wait for one of them.
    records: Arc<RecordSender>,
    segments: Vec<SegmentNumber>,
}

impl Pins {
    pub(crate) fn none(records: &Arc<RecordSender>) -> Self {
        Self { records: Arc::clone(records), segments: Vec::new() }
    }

    /// Pins one more segment. `segments` is the locked state of the same log.
    pub(crate) fn add(&mut self, segments: &mut Segments, segment: SegmentNumber) {
        segments.pin(segment);
        self.segments.push(segment);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if self.segments.is_empty() {
            return;
        }
        let is_room_wanted = {
            let state = &mut *self.records.log.state();
            self.segments.iter().for_each(|&segment| state.contents.segments.unpin(segment));
            state.room.is_wanted()
        };
        if is_room_wanted {
            self.records.start();
        }
    }
}
