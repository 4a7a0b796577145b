//! What devices tell upwards.
//!
//! Events are about states, not about steps: a receiver that missed some reads the state anew. Each subscriber has a bounded
//! queue of its own; nobody waits for a slow one.

use std::collections::VecDeque;
use std::future::poll_fn;
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
    subscribers: Arc<Mutex<Vec<Weak<Mutex<Queue>>>>>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    waker: Option<Waker>,
}

/// One subscriber's end.
pub struct EventReceiver {
    queue: Option<Arc<Mutex<Queue>>>,
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
        let queue = Arc::new(Mutex::new(Queue::default()));
        lock(&self.subscribers).push(Arc::downgrade(&queue));
        EventReceiver { queue: Some(queue) }
    }

    /// Tells every subscriber.
    pub fn publish(&self, event: &Event) {
        let mut wakers = Vec::new();
        lock(&self.subscribers).retain(|subscriber| {
            let Some(queue) = subscriber.upgrade() else { return false };
            let mut queue = lock(&queue);
            if queue.events.len() == EVENTS_UNREAD_MAX {
                queue.events.clear();
                queue.events.push_back(Event::Missed);
            }
            queue.events.push_back(event.clone());
            wakers.extend(queue.waker.take());
            true
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl EventReceiver {
    /// A receiver that never receives.
    pub fn silent() -> Self {
        Self { queue: None }
    }

    /// The next event, if there is one now.
    pub fn try_receive(&mut self) -> Option<Event> {
        lock(self.queue.as_ref()?).events.pop_front()
    }

    /// The next event.
    pub async fn receive(&mut self) -> Event {
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// As [`EventReceiver::receive`], for whoever waits for several.
    pub(crate) fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        let Some(queue) = &self.queue else { return Poll::Pending };
        let mut queue = lock(queue);
        match queue.events.pop_front() {
            Some(event) => Poll::Ready(event),
            None => {
                queue.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
