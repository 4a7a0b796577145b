//! The origin in the view of its cache: device, reports, and what is not flushed.
//!
//! Inside the cache it begins `padding` bytes earlier: see [`alignment`](crate::alignment).
//!
//! One flush of the origin is under way at a time. A flush that fails may have dropped data that
//! another one, answered well a moment later, seems to have made durable: cleaning would then mark
//! lines clean whose data is gone. So the failure is noted, as a loss, before the next flush
//! begins. A cache shares all of this with its successor ([`OriginFlushes`]): each flushes what the
//! other wrote.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::range_lock::RangeLock;
use block::{Completion, Copies, Device, Error, EventReceiver, Geometry, Identity, Request, SharedDevice};
use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use store::{OriginLosses, OriginReports};

use crate::alignment::{Padded, inside};
use crate::counters::RequestCounters;
use crate::lines::Lines;
use crate::origin_flushes::OriginFlushes;

/// The origin's device, its reports and losses, and the order of writes to it.
pub(crate) struct Origin {
    /// The device, with the padding before it.
    device: SharedDevice,
    pub(crate) padding: u64,
    pub(crate) reports: OriginReports,
    lines: Arc<Lines>,
    pub(crate) losses: Arc<OriginLosses>,
    /// State of flushes, shared with a successor.
    pub(crate) flushes: Arc<OriginFlushes>,
    /// Held during each write to the origin: overlapping writes arrive in their order.
    pub(crate) order: RangeLock,
}

impl Origin {
    /// `device` (without padding) had this `identity`; `events` has received from it since before
    /// anything was read.
    pub(crate) fn new(
        device: SharedDevice,
        padding: u64,
        identity: Identity,
        lines: &Arc<Lines>,
        events: EventReceiver,
        flushes: Arc<OriginFlushes>,
    ) -> Self {
        let device = Padded::over(device, padding);
        let copies = Arc::clone(lines);
        let losses = Arc::new(OriginLosses::new(move || copies.forget_unflushed()));
        let reports = OriginReports::new(Arc::clone(&device), identity, events, Arc::clone(&losses));
        flushes.join(&losses);
        Self { device, padding, reports, lines: Arc::clone(lines), losses, flushes, order: RangeLock::new() }
    }

    /// The geometry of the device without the padding.
    pub(crate) fn geometry(&self) -> Geometry {
        let inside = self.device.geometry();
        Geometry { size_bytes: inside.size_bytes.saturating_sub(self.padding), ..inside }
    }

    /// Its present end, with the padding.
    pub(crate) fn end(&self) -> u64 {
        self.device.geometry().size_bytes
    }

    /// The device for requests, with the padding in their offsets.
    pub(crate) fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Reads; every read of the origin goes through here.
    pub(crate) async fn read(
        &self,
        range: ByteRange,
        buffer: Buffer,
        counters: &RequestCounters,
    ) -> (Result<(), Error>, Buffer) {
        counters.origin_reads.fetch_add(1, Ordering::Relaxed);
        let parts = self.granted_parts(range);
        if parts.len() > 1 {
            return self.read_parts(range, buffer, parts).await;
        }
        let response = self.device.submit(Request::read(range.offset, buffer)).await;
        (response.result, response.buffer)
    }

    /// A range, cut at the bounds of the parts in which grants are given.
    fn granted_parts(&self, range: ByteRange) -> SmallVec<[ByteRange; 1]> {
        let copies = self.device.copies();
        let Some(grants) = copies.as_ref().and_then(Copies::grants) else { return smallvec![range] };
        let mut parts = SmallVec::new();
        let mut offset = range.offset;
        while offset < range.end() {
            let part = grants.range_of(offset.saturating_sub(self.padding) / grants.part_bytes());
            let end = inside(part, self.padding).end().min(range.end());
            parts.push(ByteRange { offset, length: end - offset });
            offset = end;
        }
        parts
    }

    /// Reads each part by a request of its own: one that waits for another host does not keep this
    /// host from sending what lies in its own ranges.
    async fn read_parts(
        &self,
        range: ByteRange,
        mut buffer: Buffer,
        parts: SmallVec<[ByteRange; 1]>,
    ) -> (Result<(), Error>, Buffer) {
        let reads = parts.iter().map(|part| self.device.read(part.offset, Buffer::zeroed(part.length as usize)));
        let read = join_all(reads).await;
        for (part, bytes) in parts.iter().zip(read) {
            match bytes {
                Ok(bytes) => {
                    let at = (part.offset - range.offset) as usize;
                    buffer[at..at + bytes.len()].copy_from_slice(&bytes);
                }
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }

    /// Sends a write. The caller has its place in `order`.
    pub(crate) fn write(&self, range: ByteRange, buffer: Buffer, fua: bool) -> Completion {
        self.device.submit(Request::write(range.offset, buffer, fua))
    }

    /// Flushes the origin, unless nothing is known that it could still lose.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        if self.has_unflushed_writes() || self.lines.state().frames.mappings.has_unflushed() {
            return self.flush_anyway().await;
        }
        Ok(())
    }

    /// Flushes the origin.
    pub(crate) async fn flush_anyway(&self) -> Result<(), Error> {
        let flushes = &self.flushes;
        let _turn = flushes.turn.lock().await;
        let written = {
            let mappings = &mut self.lines.state().frames.mappings;
            mappings.start_flush();
            flushes.writes()
        };
        let result = self.device.flush().await;
        // A loss before this flush is reported with its answer at the latest: copies of lost data
        // are not safe now.
        self.reports.note_unread_losses();
        if result.is_err() {
            flushes.note_losses();
        }
        self.lines.state().frames.mappings.finish_flush(result.is_ok(), flushes.has_lost());
        match &result {
            Ok(()) => flushes.note_flushed(written),
            Err(error) if error.kind().may_have_lost() => {
                flushes.failures.note(error, || flushes.has_unflushed_writes())
            }
            Err(_) => {}
        }
        result
    }

    /// Whether the origin acknowledged writes of a cache that are not flushed.
    pub(crate) fn has_unflushed_writes(&self) -> bool {
        self.flushes.has_unflushed_writes()
    }

    /// Notes the end of a change that was sent when `failures_before` flushes had failed. One that
    /// the origin acknowledged it may still lose, unless `is_durable`, and a flush that failed since
    /// may have dropped it. One that failed may have landed all the same: what is read there from now
    /// on is not durable, whatever was asked for.
    pub(crate) fn note_change(&self, result: &Result<(), Error>, is_durable: bool, failures_before: u64) {
        match result {
            Ok(()) if is_durable => {}
            Ok(()) => {
                self.flushes.note_write();
                self.flushes.failures.note_stake(failures_before);
            }
            Err(_) => self.flushes.note_write(),
        }
    }

    /// A range of the origin, with the padding added.
    pub(crate) fn inside(&self, range: ByteRange) -> ByteRange {
        inside(range, self.padding)
    }
}

#[cfg(test)]
mod tests {
    use base::executor::Executor;
    use block::ErrorKind;
    use block::layer::crash::CrashLayer;

    use super::*;
    use crate::lines::tests::{empty, put, valid};
    use crate::options::Associativity;
    use crate::sectors::Sectors;

    /// An origin on this medium, not flushed yet, and the lines of its cache.
    fn origin(medium: &CrashLayer) -> (Arc<Origin>, Arc<Lines>) {
        let lines = empty(Associativity::Full);
        let device: SharedDevice = Arc::new(medium.clone());
        let (identity, events) = (device.identity(), device.subscribe());
        let origin = Origin::new(device, 0, identity, &lines, events, OriginFlushes::new());
        (Arc::new(origin), lines)
    }

    #[test]
    fn a_flush_that_fails_is_a_loss_and_a_stake_of_whoever_wrote() {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, 2);
        let (origin, lines) = origin(&medium);
        let frame = put(&lines, 0, 0xff, 0);
        lines.state().frames.mappings.set_unflushed(frame);
        medium.fail_flush_once(medium.flushes_seen(), ErrorKind::Media);
        let mut flush = || {
            let origin = Arc::clone(&origin);
            executor.block_on(async move { origin.flush().await }).map_err(|error| error.kind())
        };
        assert_eq!(flush(), Err(ErrorKind::Media));
        assert_eq!((origin.losses.count(), valid(&lines, frame)), (1, Sectors::NONE));
        assert!(origin.has_unflushed_writes() && origin.flushes.failures.check_reported().is_err());
        assert_eq!(flush(), Ok(()));
        assert!(!origin.has_unflushed_writes() && origin.flushes.has_lost(), "what it shows it may not have");
    }

    #[test]
    fn a_flush_with_nothing_to_flush_asks_nobody() {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, 2);
        let (origin, _lines) = origin(&medium);
        let mut flush = || {
            let origin = Arc::clone(&origin);
            executor.block_on(async move { origin.flush().await }).expect("nothing fails");
            medium.flushes_seen()
        };
        assert_eq!([flush(), flush()], [1, 1], "nobody knows what it had acknowledged before the first");
        origin.note_change(&Ok(()), false, origin.flushes.failures.count());
        assert_eq!(flush(), 2);
    }

    /// A loss that a flush has seen counts for a copy that is not finished yet, and that then finds
    /// nothing left to flush.
    #[test]
    fn a_loss_that_a_flush_has_heard_of_counts_before_anybody_takes_it() {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, 2);
        let (origin, _lines) = origin(&medium);
        let losses = origin.losses.count();
        origin.note_change(&Ok(()), false, origin.flushes.failures.count());
        medium.lose_cache();
        let flushing = Arc::clone(&origin);
        executor.block_on(async move { flushing.flush().await }).expect("nothing fails");
        assert!(!origin.has_unflushed_writes());
        assert_ne!(origin.losses.count(), losses, "what was copied may be lost");
    }

    #[test]
    fn a_loss_is_counted_and_takes_what_was_not_flushed() {
        let (origin, lines) = origin(&CrashLayer::new(1 << 20, 2));
        let [unflushed, flushed] = [put(&lines, 1, 0xff, 0x01), put(&lines, 2, 0xff, 0x01)];
        lines.state().frames.mappings.set_unflushed(unflushed);
        origin.losses.note();
        assert_eq!(origin.losses.count(), 1);
        let dirty = Sectors::from_bytes(&[0x01]);
        assert_eq!([valid(&lines, unflushed), valid(&lines, flushed)], [dirty, Sectors::from_bytes(&[0xff])]);
    }
}
