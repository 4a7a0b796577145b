//! Events of devices, for the layers above.
//!
//! Events are about states, not about steps: a receiver that missed some reads the state anew. Each
//! subscriber has a bounded queue of its own; a slow one delays no other.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use base::range::ByteRange;

use crate::geometry::Geometry;
use crate::limits::EVENTS_UNREAD_MAX;

/// Something that happened to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its geometry changed.
    Resized(Geometry),
    /// It does not answer; requests wait or fail as its configuration says.
    Offline,
    /// It answers again, with the same data.
    Back,
    /// It answers, but is another device now: everything known about it is void.
    IdentityChanged,
    /// It lost data that was written and not flushed (power-on, new session without continuity);
    /// all writes since the last completed flush must be repeated.
    WritesLost,
    /// Another host is about to change or has changed these bytes; copies of them are void.
    Invalidated(ByteRange),
    /// This receiver was too slow and lost events.
    Missed,
}

/// Where a device publishes its events.
#[derive(Clone, Default)]
pub struct EventHub {
    subscribers: Arc<Mutex<Vec<Weak<Mailbox>>>>,
}

#[derive(Default)]
struct Mailbox {
    /// Whether there may be events: cleared when a receiver looks and finds none. Makes a look
    /// before every request nearly free.
    is_filled: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    waker: Option<Waker>,
    /// The mailbox to which events are forwarded instead: see [`EventRelay`].
    forwards_to: Option<Weak<Mailbox>>,
}

/// The receiving end of one subscriber.
pub struct EventReceiver {
    mailbox: Option<Arc<Mailbox>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EventHub {
    /// A hub without subscribers.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new subscriber, which receives events from now on.
    pub fn subscribe(&self) -> EventReceiver {
        let mailbox = Arc::new(Mailbox::default());
        lock(&self.subscribers).push(Arc::downgrade(&mailbox));
        EventReceiver { mailbox: Some(mailbox) }
    }

    /// Sends the event to every subscriber.
    pub fn publish(&self, event: &Event) {
        let mut wakers = Vec::new();
        lock(&self.subscribers).retain(|subscriber| {
            let Some(mailbox) = subscriber.upgrade() else { return false };
            wakers.extend(mailbox.push(event));
            true
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Mailbox {
    /// Puts an event into this mailbox, or into the one it forwards to. Returns the waker of the
    /// receiver there.
    fn push(&self, event: &Event) -> Option<Waker> {
        let mut queue = lock(&self.queue);
        if let Some(next) = &queue.forwards_to {
            let next = next.upgrade();
            // One lock at a time: the forwarding mailbox may be about to lock this one.
            drop(queue);
            return next?.push(event);
        }
        if queue.events.len() == EVENTS_UNREAD_MAX {
            queue.events.clear();
            queue.events.push_back(Event::Missed);
        }
        queue.events.push_back(event.clone());
        self.is_filled.store(true, Ordering::Release);
        queue.waker.take()
    }

    /// Takes the oldest event of `queue`, the queue of this mailbox.
    fn pop(&self, queue: &mut Queue) -> Option<Event> {
        let event = queue.events.pop_front();
        if event.is_none() {
            self.is_filled.store(false, Ordering::Release);
        }
        event
    }
}

/// The sending end of a receiver that follows one device after another. An event of the device is
/// in the receiver's mailbox before `publish` returns, as if it had subscribed itself: no task
/// carries it.
pub struct EventRelay {
    to: Weak<Mailbox>,
    /// The receiver of the device that is followed.
    from: EventReceiver,
}

impl EventRelay {
    /// A receiver without a device yet, and the relay that chooses its devices.
    pub fn new() -> (EventReceiver, Self) {
        let mailbox = Arc::new(Mailbox::default());
        let relay = Self { to: Arc::downgrade(&mailbox), from: EventReceiver::silent() };
        (EventReceiver { mailbox: Some(mailbox) }, relay)
    }

    /// Whether the receiver still exists.
    pub fn has_receiver(&self) -> bool {
        self.to.strong_count() > 0
    }

    /// Makes the receiver follow `from`: it gets the unread and the later events of `from`, and
    /// none of the device before.
    pub fn follow(&mut self, from: EventReceiver) {
        if let Some(mailbox) = &from.mailbox {
            // Locked until the old events are forwarded, so that no new one overtakes them.
            let mut queue = lock(&mailbox.queue);
            queue.forwards_to = Some(Weak::clone(&self.to));
            std::mem::take(&mut queue.events).iter().for_each(|event| self.tell(event));
        }
        self.from = from;
    }

    /// Sends the receiver an event that comes from no device.
    pub fn tell(&self, event: &Event) {
        if let Some(waker) = self.to.upgrade().and_then(|mailbox| mailbox.push(event)) {
            waker.wake();
        }
    }
}

impl EventReceiver {
    /// A receiver that never receives.
    pub fn silent() -> Self {
        Self { mailbox: None }
    }

    /// Whether there may be an event. `false` only after a receive found none: so a receiver that
    /// handles each event before it receives the next knows that all are handled.
    pub fn may_have_event(&self) -> bool {
        self.mailbox.as_ref().is_some_and(|mailbox| mailbox.is_filled.load(Ordering::Acquire))
    }

    /// Whether any unread event satisfies `is_one`.
    pub fn has_unread(&self, is_one: impl Fn(&Event) -> bool) -> bool {
        let mailbox = self.mailbox.as_ref().filter(|_| self.may_have_event());
        mailbox.is_some_and(|mailbox| lock(&mailbox.queue).events.iter().any(is_one))
    }

    /// Takes the next event, if there is one.
    pub fn try_receive(&self) -> Option<Event> {
        let mailbox = self.mailbox.as_ref().filter(|_| self.may_have_event())?;
        mailbox.pop(&mut lock(&mailbox.queue))
    }

    /// Waits for the next event.
    pub async fn receive(&self) -> Event {
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// Like [`EventReceiver::receive`], for a task that waits for several things.
    pub fn poll_receive(&self, context: &mut Context<'_>) -> Poll<Event> {
        let Some(mailbox) = &self.mailbox else { return Poll::Pending };
        let mut queue = lock(&mailbox.queue);
        match mailbox.pop(&mut queue) {
            Some(event) => Poll::Ready(event),
            None => {
                queue.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reads_no_events_for_long_loses_the_oldest_and_is_told_so() {
        let hub = EventHub::new();
        let (reads, lags) = (hub.subscribe(), hub.subscribe());
        for _ in 0..EVENTS_UNREAD_MAX {
            hub.publish(&Event::Back);
            assert_eq!(reads.try_receive(), Some(Event::Back));
        }
        hub.publish(&Event::WritesLost);
        let unread: Vec<Event> = std::iter::from_fn(|| lags.try_receive()).collect();
        assert_eq!(unread, [Event::Missed, Event::WritesLost]);
        assert_eq!((reads.try_receive(), reads.try_receive()), (Some(Event::WritesLost), None));
    }
}
