//! What devices tell upwards.
//!
//! Events are about states, not about steps: a receiver that missed some reads the state anew. Each subscriber has a
//! bounded queue of its own; nobody waits for a slow one.

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
    /// It lost what was written and not flushed (power-on, new session without continuity); everything since the last
    /// completed flush must be written again.
    WritesLost,
    /// Somebody else is about to change or has changed these bytes; copies of them are void.
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
    /// Whether there are events, or the last one was taken and nobody has looked again since: looking costs those who
    /// look before every request next to nothing.
    is_filled: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    waker: Option<Waker>,
    /// Where events go instead: see [`EventRelay`].
    forwards_to: Option<Weak<Mailbox>>,
}

/// One subscriber's end.
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

    /// A new subscriber, who sees events from now on.
    pub fn subscribe(&self) -> EventReceiver {
        let mailbox = Arc::new(Mailbox::default());
        lock(&self.subscribers).push(Arc::downgrade(&mailbox));
        EventReceiver { mailbox: Some(mailbox) }
    }

    /// Tells every subscriber.
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
    /// Puts an event in it, or where its events go instead; who waits for one there.
    fn push(&self, event: &Event) -> Option<Waker> {
        let mut queue = lock(&self.queue);
        if let Some(next) = &queue.forwards_to {
            let next = next.upgrade();
            // One lock at a time: who forwards to this one may be on its way here.
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

    /// The oldest event of `queue`, which is its own.
    fn pop(&self, queue: &mut Queue) -> Option<Event> {
        let event = queue.events.pop_front();
        if event.is_none() {
            self.is_filled.store(false, Ordering::Release);
        }
        event
    }
}

/// The other end of a receiver that hears one device after another. What a device publishes is there before publishing
/// returns, as in a mailbox of the device's own: no task carries it.
pub struct EventRelay {
    to: Weak<Mailbox>,
    /// Of the device that is heard.
    from: EventReceiver,
}

impl EventRelay {
    /// A receiver that hears nothing yet, and who has it hear devices.
    pub fn new() -> (EventReceiver, Self) {
        let mailbox = Arc::new(Mailbox::default());
        let relay = Self { to: Arc::downgrade(&mailbox), from: EventReceiver::silent() };
        (EventReceiver { mailbox: Some(mailbox) }, relay)
    }

    /// Whether somebody still has the receiver.
    pub fn has_receiver(&self) -> bool {
        self.to.strong_count() > 0
    }

    /// The receiver hears what `from` would from now on, and what it has not read; the device before that no more.
    pub fn follow(&mut self, from: EventReceiver) {
        if let Some(mailbox) = &from.mailbox {
            // Locked until the old events are there, so that no new one comes before them.
            let mut queue = lock(&mailbox.queue);
            queue.forwards_to = Some(Weak::clone(&self.to));
            std::mem::take(&mut queue.events).iter().for_each(|event| self.tell(event));
        }
        self.from = from;
    }

    /// Tells the receiver something that no device says.
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

    /// Whether there may be an event. False is said only after somebody asked for one and there was none: whoever
    /// handles each event before asking for the next knows then that all are handled.
    pub fn may_have_event(&self) -> bool {
        self.mailbox.as_ref().is_some_and(|mailbox| mailbox.is_filled.load(Ordering::Acquire))
    }

    /// Whether an event that nobody has received yet is one of these.
    pub fn has_unread(&self, is_one: impl Fn(&Event) -> bool) -> bool {
        let mailbox = self.mailbox.as_ref().filter(|_| self.may_have_event());
        mailbox.is_some_and(|mailbox| lock(&mailbox.queue).events.iter().any(is_one))
    }

    /// The next event, if there is one now.
    pub fn try_receive(&self) -> Option<Event> {
        let mailbox = self.mailbox.as_ref().filter(|_| self.may_have_event())?;
        mailbox.pop(&mut lock(&mailbox.queue))
    }

    /// The next event.
    pub async fn receive(&self) -> Event {
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// As [`EventReceiver::receive`], for whoever waits for several.
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
