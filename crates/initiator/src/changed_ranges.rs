//! Changes by other hosts, published as events of the device.

use block::{ByteRange, Event, EventHub};

use crate::limits::EVENTS_OF_CHANGES_MAX;

/// Publishes changes by others: one by one, or as one event where a receiver would not keep so
/// many.
pub(crate) fn publish(events: &EventHub, changed: Vec<ByteRange>, size_bytes: u64) {
    if changed.len() > EVENTS_OF_CHANGES_MAX {
        events.publish(&Event::Invalidated(ByteRange { offset: 0, length: size_bytes }));
        return;
    }
    changed.into_iter().for_each(|range| events.publish(&Event::Invalidated(range)));
}

/// `range` cut to the size of the device; `None` where nothing is left of it.
pub(crate) fn within(range: ByteRange, size_bytes: u64) -> Option<ByteRange> {
    let end = range.offset.saturating_add(range.length).min(size_bytes);
    let length = end.checked_sub(range.offset).filter(|&length| length > 0)?;
    Some(ByteRange { offset: range.offset, length })
}
