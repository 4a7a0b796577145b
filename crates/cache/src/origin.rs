//! The origin as its cache knows it: the device, what it has said of itself, and what it still has to flush.
//!
//! It begins `padding` bytes earlier here than for everybody else: see [`alignment`](crate::alignment).
//!
//! One flush of the origin is under way at a time. One that fails may have dropped what another, answered well a moment later, seems to have made durable: cleaning
//! would call lines clean that are nowhere any more. So the failure is noted, as a loss, before the next flush begins. All of this a cache shares with the
//! successor that is to take its place ([`OriginFlushes`]): each flushes what the other wrote.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::range_lock::RangeLock;
use block::{Completion, Device, Error, ErrorKind, Event, EventReceiver, Geometry, Identity, Request, SharedDevice};

use crate::alignment::{Padded, inside};
use crate::counters::RequestCounters;
use crate::lines::Lines;
use crate::losses::Losses;
use crate::origin_flushes::OriginFlushes;

/// See the top of this file.
pub(crate) struct Origin {
    /// As it is inside.
    device: SharedDevice,
    pub(crate) padding: u64,
    /// As it was at open.
    identity: Identity,
    lines: Arc<Lines>,
    events: Mutex<EventReceiver>,
    pub(crate) losses: Arc<Losses>,
    /// What is known about flushes, here and in a cache that takes the place of this one.
    pub(crate) flushes: Arc<OriginFlushes>,
    /// Held by whoever writes to the origin: what is sent to one place gets there in its order.
    pub(crate) order: RangeLock,
    /// Whether it said that it is another disk now. Nothing is sent to it any more.
    is_refused: AtomicBool,
}

impl Origin {
    /// `device` as everybody else knows it, which had this `identity`, and has told `events` since before anything was read.
    pub(crate) fn new(
        device: SharedDevice,
        padding: u64,
        identity: Identity,
        lines: &Arc<Lines>,
        events: EventReceiver,
        flushes: Arc<OriginFlushes>,
    ) -> Self {
        let losses = Losses::new(lines);
        flushes.join(&losses);
        Self {
            device: Padded::over(device, padding),
            padding,
            identity,
            lines: Arc::clone(lines),
            events: Mutex::new(events),
            losses,
            flushes,
            order: RangeLock::new(),
            is_refused: AtomicBool::new(false),
        }
    }

    /// The geometry but for the padding.
    pub(crate) fn geometry(&self) -> Geometry {
        let inside = self.device.geometry();
        Geometry { size_bytes: inside.size_bytes.saturating_sub(self.padding), ..inside }
    }

    /// Its end now, as seen from inside.
    pub(crate) fn end(&self) -> u64 {
        self.device.geometry().size_bytes
    }

    /// Which disk it is now.
    pub(crate) fn identity(&self) -> Identity {
        self.device.identity()
    }

    /// Whether both had the same identity when they were opened.
    pub(crate) fn was_same_as(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Where requests go; ranges are as seen from inside.
    pub(crate) fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// The only way to read it.
    pub(crate) async fn read(
        &self,
        range: ByteRange,
        buffer: Buffer,
        counters: &RequestCounters,
    ) -> (Result<(), Error>, Buffer) {
        counters.origin_reads.fetch_add(1, Ordering::Relaxed);
        let response = self.device.submit(Request::read(range.offset, buffer)).await;
        (response.result, response.buffer)
    }

    /// Sends a write. The caller has its place in `order`.
    pub(crate) fn write(&self, range: ByteRange, buffer: Buffer, fua: bool) -> Completion {
        self.device.submit(Request::write(range.offset, buffer, fua))
    }

    /// Nothing is sent to it any more.
    pub(crate) fn refuse(&self) {
        tracing::error!("the origin is another disk now: the cache takes no requests any more");
        self.is_refused.store(true, Ordering::Release);
    }

    /// Whether nothing is sent to it any more.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }

    /// Whether it is another disk now than at open, as far as it can be asked.
    pub(crate) fn is_another(&self) -> bool {
        self.identity() != self.identity
    }

    /// Waits for what it says next.
    pub(crate) async fn next_event(&self) -> Event {
        poll_fn(|context| {
            let receiver = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            receiver.poll_receive(context).map(|event| self.count_loss(event))
        })
        .await
    }

    /// What it has said, and nobody has taken yet.
    pub(crate) fn take_event(&self) -> Option<Event> {
        let receiver = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.try_receive().map(|event| self.count_loss(event))
    }

    /// Counts what may be lost, and forgets copies of it, while the receiver is still locked: who finds it empty then knows of all losses until now.
    fn count_loss(&self, event: Event) -> Event {
        if is_loss(&event) {
            self.losses.note();
        }
        event
    }

    /// Forgets copies of what it says that it has lost, though nobody has taken that event yet.
    fn hear_losses(&self) {
        let receiver = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if receiver.has_unread(is_loss) {
            self.losses.forget();
        }
    }

    /// Makes durable what it acknowledged to us, if there is any.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        if self.has_unflushed_writes() || self.lines.state().frames.mappings.has_unflushed() {
            return self.flush_anyway().await;
        }
        Ok(())
    }

    /// Makes durable all that it has.
    pub(crate) async fn flush_anyway(&self) -> Result<(), Error> {
        let flushes = &self.flushes;
        let _turn = flushes.turn.lock().await;
        let written = {
            let mappings = &mut self.lines.state().frames.mappings;
            mappings.start_flush();
            flushes.writes()
        };
        let result = self.device.flush().await;
        // When it lost something before this flush, it says so with the answer at the latest: copies of that are not safe now.
        self.hear_losses();
        if result.is_err() {
            flushes.note_losses();
        }
        self.lines.state().frames.mappings.finish_flush(result.is_ok(), flushes.has_lost());
        match &result {
            Ok(()) => flushes.note_flushed(written),
            Err(error) if may_have_lost(error) => flushes.failures.note(error, || flushes.has_unflushed_writes()),
            Err(_) => {}
        }
        result
    }

    /// Whether it could still lose something that it acknowledged to us.
    pub(crate) fn has_unflushed_writes(&self) -> bool {
        self.flushes.has_unflushed_writes()
    }

    /// Notes a change that it acknowledged and may still lose: perhaps in a flush that failed since it was sent, when there had been
    /// `failures_before` of them.
    pub(crate) fn note_write(&self, failures_before: u64) {
        self.flushes.note_write();
        self.flushes.failures.note_stake(failures_before);
    }

    /// A range as everybody else names it, as it is inside.
    pub(crate) fn inside(&self, range: ByteRange) -> ByteRange {
        inside(range, self.padding)
    }
}

/// Whether what an origin had not flushed is lost, or may be.
fn is_loss(event: &Event) -> bool {
    matches!(event, Event::WritesLost | Event::Missed)
}

/// Whether an origin that failed to flush may have lost what it had acknowledged: not one that was not reached.
fn may_have_lost(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::NoAccess | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use base::executor::Executor;
    use block::layer::crash::CrashLayer;

    use super::*;
    use crate::lines::tests::{empty, put, valid};
    use crate::options::Associativity;
    use crate::sectors::Sectors;

    /// An origin on this medium that nobody has flushed yet, and the lines of its cache.
    fn origin(medium: &CrashLayer) -> (Arc<Origin>, Arc<Lines>) {
        let lines = empty(Associativity::Full);
        let device: SharedDevice = Arc::new(medium.clone());
        let (identity, events) = (device.identity(), device.subscribe());
        let origin = Origin::new(device, 0, identity, &lines, events, OriginFlushes::new());
        (Arc::new(origin), lines)
    }

    /// By hand: a thread that follows the origin has taken the event and gets no further, while another asks and finds none.
    #[test]
    fn who_finds_no_event_knows_of_the_loss_that_another_has_taken_and_not_handled() {
        for event in [Event::WritesLost, Event::Missed] {
            let medium = CrashLayer::new(1 << 20, 2);
            let (origin, _lines) = origin(&medium);
            let losses = origin.losses.count();
            medium.publish(&event);
            assert_eq!([origin.take_event(), origin.take_event()], [Some(event), None]);
            assert_ne!(origin.losses.count(), losses);
        }
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
        assert!(origin.has_unflushed_writes() && origin.flushes.failures.untold().is_some());
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
        origin.note_write(origin.flushes.failures.count());
        assert_eq!(flush(), 2);
    }
}
