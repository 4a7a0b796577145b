//! The server's buffers that one connection holds.
//!
//! A connection that holds buffers has a share of its own, so that no other can take them: a full
//! share, or a small one when all full shares are taken. An idle connection has none; the kind of
//! share stays until the connection holds nothing. A request larger than a share takes one of a few
//! *large places* instead, for which connections wait in turn. A large place may depend on the
//! client: its payload is still to come, or its reply is still to be taken. A client that keeps one
//! for long while others wait is disconnected; where none waits, a client that was stopped for an
//! hour finds everything unchanged.
//!
//! A buffer counts with the memory that it takes. That of a read is held until its last byte is
//! sent.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use base::limits::BUFFER_ALIGNMENT;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

use crate::limits::{LARGE_REQUESTS_MAX, LARGE_TIME_MAX, SPARE_SHARE_BYTES};

/// The large places of a server.
pub(crate) struct LargePlaces {
    permits: Arc<Semaphore>,
    /// Count of connections that wait for one.
    waiting: AtomicUsize,
}

impl Default for LargePlaces {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(LARGE_REQUESTS_MAX)), waiting: AtomicUsize::new(0) }
    }
}

/// A large place that may be available later.
pub(crate) type AwaitedPlace = Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send>>;

/// Counts a connection as waiting while it lives.
struct Waiting(Arc<LargePlaces>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LargePlaces {
    /// Waits for a place, in order of arrival.
    pub(crate) fn acquire(self: &Arc<Self>) -> AwaitedPlace {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(Arc::clone(self));
        let permits = Arc::clone(&self.permits);
        Box::pin(async move {
            let _waiting = waiting;
            permits.acquire_owned().await.expect("nobody closes the semaphore")
        })
    }
}

/// The large request of a connection.
struct Large {
    _place: OwnedSemaphorePermit,
    /// Until when the client may keep it while others wait; `None` while it is with the device.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Count of bytes sent after which its reply is over, once that is queued.
    reply_end: Option<u64>,
}

fn deadline() -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(LARGE_TIME_MAX))
}

/// The full shares of a server.
#[derive(Clone)]
pub(crate) struct Shares {
    permits: Arc<Semaphore>,
    full_bytes: u64,
    /// The share in bytes of a connection without a full one.
    spare_bytes: u64,
}

impl Shares {
    /// `bytes` in equal shares for `count` connections.
    pub(crate) fn new(bytes: usize, count: usize) -> Self {
        let full_bytes = (bytes / count.max(1)).max(BUFFER_ALIGNMENT);
        let permits = Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
        Self { permits, full_bytes: full_bytes as u64, spare_bytes: full_bytes.min(SPARE_SHARE_BYTES) as u64 }
    }
}

/// The buffers that a connection holds.
pub(crate) struct Holdings {
    shares: Shares,
    full_share: Option<OwnedSemaphorePermit>,
    places: Arc<LargePlaces>,
    held_bytes: u64,
    /// Bytes sent so far.
    sent_bytes: u64,
    /// Unsent replies of reads within the share: the total of sent bytes at which each is sent, and
    /// its memory.
    unsent: VecDeque<(u64, u64)>,
    large: Option<Large>,
}

/// The memory of a buffer of `length` bytes.
fn capacity(length: usize) -> u64 {
    length.next_power_of_two().max(BUFFER_ALIGNMENT) as u64
}

impl Holdings {
    pub(crate) fn new(shares: Shares, places: Arc<LargePlaces>) -> Self {
        Self { shares, full_share: None, places, held_bytes: 0, sent_bytes: 0, unsent: VecDeque::new(), large: None }
    }

    /// Prepares for a buffer: a connection that holds nothing takes a full share, if one is free.
    pub(crate) fn choose_share(&mut self) {
        if self.is_empty() && self.full_share.is_none() {
            self.full_share = Arc::clone(&self.shares.permits).try_acquire_owned().ok();
        }
    }

    fn share_bytes(&self) -> u64 {
        if self.full_share.is_some() { self.shares.full_bytes } else { self.shares.spare_bytes }
    }

    fn is_empty(&self) -> bool {
        self.held_bytes == 0 && self.large.is_none()
    }

    fn give_share_back(&mut self) {
        if self.is_empty() {
            self.full_share = None;
        }
    }

    /// Whether a buffer of `length` bytes takes a large place.
    pub(crate) fn is_large(&self, length: usize) -> bool {
        capacity(length) > self.share_bytes()
    }

    /// Whether the connection may ask for a buffer of `length` bytes now.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        if self.is_large(length) {
            return self.large.is_none();
        }
        self.held_bytes + capacity(length) <= self.share_bytes()
    }

    /// Notes that a buffer of the share was taken.
    pub(crate) fn take(&mut self, length: usize) {
        self.held_bytes += capacity(length);
    }

    /// Notes that a large place was taken, for a payload that is to come or for a read.
    pub(crate) fn take_large(&mut self, place: OwnedSemaphorePermit, is_payload: bool) {
        self.large = Some(Large { _place: place, deadline: is_payload.then(deadline), reply_end: None });
    }

    /// Notes that a payload of `length` bytes has arrived completely.
    pub(crate) fn note_received(&mut self, length: usize) {
        if self.is_large(length)
            && let Some(large) = &mut self.large
        {
            large.deadline = None;
        }
    }

    /// Notes that a request with a buffer of `length` bytes has ended, and no reply holds the
    /// buffer.
    pub(crate) fn release(&mut self, length: usize) {
        if self.is_large(length) {
            self.large = None;
        } else {
            self.held_bytes -= capacity(length);
        }
        self.give_share_back();
    }

    /// Notes that the reply to a read of `length` bytes is the last one queued; `waiting_bytes` are
    /// to be sent now.
    pub(crate) fn note_reply(&mut self, length: usize, waiting_bytes: u64) {
        let end = self.sent_bytes + waiting_bytes;
        if !self.is_large(length) {
            self.unsent.push_back((end, capacity(length)));
        } else if let Some(large) = &mut self.large {
            large.reply_end = Some(end);
            large.deadline = Some(deadline());
        }
    }

    /// Notes that `count` more bytes were sent.
    pub(crate) fn note_sent(&mut self, count: usize) {
        self.sent_bytes += count as u64;
        while let Some((_, bytes)) = self.unsent.pop_front_if(|(end, _)| *end <= self.sent_bytes) {
            self.held_bytes -= bytes;
        }
        let is_over = |large: &Large| large.reply_end.is_some_and(|end| end <= self.sent_bytes);
        if self.large.as_ref().is_some_and(is_over) {
            self.large = None;
        }
        self.give_share_back();
    }

    /// Whether the client has kept others waiting for too long. The task is woken for the next
    /// check.
    pub(crate) fn is_overdue(&mut self, context: &mut Context<'_>) -> bool {
        let Some(time) = self.large.as_mut().and_then(|large| large.deadline.as_mut()) else { return false };
        while let Poll::Ready(()) = time.as_mut().poll(context) {
            if self.places.waiting.load(Ordering::Relaxed) > 0 {
                return true;
            }
            *time = deadline();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_share_is_held_until_the_replies_are_sent() {
        let mut holdings = Holdings::new(Shares::new(64 << 10, 1), Arc::default());
        holdings.choose_share();
        assert!(holdings.is_large((64 << 10) + 1) && !holdings.is_large(64 << 10));
        holdings.take(20_000);
        holdings.take(100);
        assert!(holdings.has_room(16 << 10) && !holdings.has_room(32 << 10), "36 KiB are held");
        holdings.note_reply(100, 116);
        holdings.note_reply(20_000, 116 + 20_016);
        holdings.note_sent(115);
        assert_eq!(holdings.held_bytes, 36 << 10);
        holdings.note_sent(1);
        assert_eq!(holdings.held_bytes, 32 << 10);
        holdings.note_sent(20_016);
        assert_eq!(holdings.held_bytes, 0);
    }

    #[tokio::test]
    async fn who_holds_nothing_has_no_share() {
        const MIB: usize = 1 << 20;
        let shares = Shares::new(16 * MIB, 1);
        let [mut first, mut second] = [(); 2].map(|()| Holdings::new(shares.clone(), Arc::default()));
        let (takes, has_full) = (
            |holdings: &mut Holdings, length: usize| {
                holdings.choose_share();
                holdings.take(length);
            },
            |holdings: &Holdings| holdings.has_room(2 * MIB) && !holdings.is_large(2 * MIB),
        );
        takes(&mut first, MIB);
        takes(&mut second, MIB / 2);
        assert!(has_full(&first) && !has_full(&second) && second.is_large(2 * MIB));
        first.release(MIB);
        takes(&mut second, MIB / 4);
        assert!(!has_full(&second), "a share stays what it is while something is held");
        second.release(MIB / 2);
        second.release(MIB / 4);
        takes(&mut second, MIB);
        assert!(has_full(&second));
    }

    #[tokio::test]
    async fn a_connection_has_one_large_place_and_gives_it_back() {
        let places = Arc::new(LargePlaces::default());
        let mut holdings = Holdings::new(Shares::new(64 << 10, 1), Arc::clone(&places));
        holdings.choose_share();
        let place = places.acquire().await;
        holdings.take_large(place, false);
        assert!(!holdings.has_room(1 << 20) && holdings.has_room(64 << 10));
        holdings.note_reply(1 << 20, 100);
        holdings.note_sent(99);
        assert_eq!(places.permits.available_permits(), LARGE_REQUESTS_MAX - 1);
        holdings.note_sent(1);
        assert_eq!(places.permits.available_permits(), LARGE_REQUESTS_MAX);
        assert_eq!(places.waiting.load(Ordering::Relaxed), 0);
    }
}
