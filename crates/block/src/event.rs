//! What devices tell upwards.
//!
//! Events are about states, not about steps: a receiver that missed some reads the state anew. Each subscriber has a bounded
//! queue of its own; nobody waits for a slow one.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use base::range::ByteRange;

use crate::device::Geometry;
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
    /// Whether there are events, or the last one was taken and nobody has looked again since: looking costs those who look before every request next
    /// to nothing.
    is_filled: AtomicBool,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    waker: Option<Waker>,
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
            let mut queue = lock(&mailbox.queue);
            if queue.events.len() == EVENTS_UNREAD_MAX {
                queue.events.clear();
                queue.events.push_back(Event::Missed);
            }
            queue.events.push_back(event.clone());
            mailbox.is_filled.store(true, Ordering::Release);
            wakers.extend(queue.waker.take());
            true
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Mailbox {
    /// The oldest event of `queue`, which is its own.
    fn pop(&self, queue: &mut Queue) -> Option<Event> {
        let event = queue.events.pop_front();
        if event.is_none() {
            self.is_filled.store(false, Ordering::Release);
        }
        event
    }
}

impl EventReceiver {
    /// A receiver that never receives.
    pub fn silent() -> Self {
        Self { mailbox: None }
    }

    /// Whether there may be an event. False is said only after somebody asked for one and there was none: whoever handles each event before asking for
    /// the next knows then that all are handled.
    pub fn has_news(&self) -> bool {
        self.mailbox.as_ref().is_some_and(|mailbox| mailbox.is_filled.load(Ordering::Acquire))
    }

    /// The next event, if there is one now.
    pub fn try_receive(&self) -> Option<Event> {
        let mailbox = self.mailbox.as_ref().filter(|_| self.has_news())?;
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
