//! What the origin of a store says happened to it: how often it lost what it had not flushed, and whether it is still the same disk.
//!
//! A loss is counted when the event that tells of it is taken, while others still wait to take one. So who took the count, sent something, and finds no
//! event and the same count, has sent something that was not lost. What a loss means for copies is done at the same moment.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::signal::Signal;
use block::{Device, Event, EventReceiver, Identity, SharedDevice};
use futures_util::future::{Either, select};

use crate::life::Life;

/// See the top of this file.
pub struct OriginReports {
    origin: SharedDevice,
    /// As it was at open.
    identity: Identity,
    events: Mutex<EventReceiver>,
    losses: Arc<LossCount>,
    /// What a loss means for copies.
    on_loss: Box<dyn Fn() + Send + Sync>,
    /// Whether it said that it is another disk now. Nothing is sent to it any more.
    is_refused: AtomicBool,
}

/// How often an origin said that it lost what it had not flushed, or may have.
#[derive(Default)]
pub struct LossCount(AtomicU64);

impl LossCount {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl OriginReports {
    /// Of an `origin` that had this `identity`, and has told `events` since before anything of it was read. `on_loss` is called behind each loss that is
    /// counted, and nobody takes another event meanwhile.
    pub fn new(
        origin: SharedDevice,
        identity: Identity,
        events: EventReceiver,
        on_loss: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self {
            origin,
            identity,
            events: Mutex::new(events),
            losses: Arc::default(),
            on_loss: Box::new(on_loss),
            is_refused: AtomicBool::new(false),
        }
    }

    /// How often it lost something.
    pub fn losses(&self) -> &Arc<LossCount> {
        &self.losses
    }

    /// Whether both had the same identity when they were opened.
    pub fn was_same_as(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Whether it is another disk now than at open, as far as it can be asked.
    pub fn is_another(&self) -> bool {
        self.origin.identity() != self.identity
    }

    /// Nothing is sent to it any more.
    pub fn refuse(&self) {
        self.is_refused.store(true, Ordering::Release);
    }

    /// Whether nothing is sent to it any more.
    pub fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }

    /// Gives each event to `handle` as it comes. Ends when `life` is stopped, after which `woken` is notified.
    pub async fn follow(&self, life: &Life, woken: &Signal, mut handle: impl FnMut(&Event)) {
        loop {
            let count = woken.count();
            if life.is_stopped() {
                return;
            }
            let event = poll_fn(|context| {
                let receiver = self.events.lock().unwrap_or_else(PoisonError::into_inner);
                receiver.poll_receive(context).map(|event| self.count_loss(event))
            });
            if let Either::Left((event, _)) = select(event, woken.changed_since(count)).await {
                handle(&event);
            }
        }
    }

    /// What it has said, and nobody has taken yet.
    pub fn take(&self) -> Option<Event> {
        let receiver = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.try_receive().map(|event| self.count_loss(event))
    }

    /// Does what a loss means for copies where it has told of one, though nobody has taken that event yet.
    pub fn hear_losses(&self) {
        let receiver = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if receiver.has_unread(is_loss) {
            (self.on_loss)();
        }
    }

    /// Counts what may be lost while the receiver is still locked: who finds it empty then knows of all losses until now.
    fn count_loss(&self, event: Event) -> Event {
        if is_loss(&event) {
            self.losses.add();
            (self.on_loss)();
        }
        event
    }
}

/// Whether what an origin had not flushed is lost, or may be.
fn is_loss(event: &Event) -> bool {
    matches!(event, Event::WritesLost | Event::Missed)
}

#[cfg(test)]
mod tests {
    use block::layer::crash::CrashLayer;

    use super::*;

    /// By hand: a thread that follows the origin has taken the event and gets no further, while another asks whether what it sent may be lost.
    #[test]
    fn who_finds_no_event_knows_of_the_loss_that_another_has_taken_and_not_handled() {
        let origin = CrashLayer::new(1 << 20, 1);
        let told = Arc::new(AtomicU64::new(0));
        let counting = Arc::clone(&told);
        let on_loss = move || {
            counting.fetch_add(1, Ordering::Relaxed);
        };
        let reports = OriginReports::new(Arc::new(origin.clone()), origin.identity(), origin.subscribe(), on_loss);
        for (event, losses) in [(Event::WritesLost, 1), (Event::Missed, 2), (Event::Back, 2)] {
            origin.publish(&event);
            assert_eq!(reports.take(), Some(event));
            assert_eq!((reports.take(), reports.losses().count()), (None, losses));
            assert_eq!(
                told.load(Ordering::Relaxed),
                losses,
                "whoever finds no event finds no copy of what is lost either"
            );
        }
    }

    #[test]
    fn a_loss_that_nobody_has_taken_yet_is_heard_and_not_counted() {
        let origin = CrashLayer::new(1 << 20, 1);
        let told = Arc::new(AtomicU64::new(0));
        let counting = Arc::clone(&told);
        let on_loss = move || {
            counting.fetch_add(1, Ordering::Relaxed);
        };
        let reports = OriginReports::new(Arc::new(origin.clone()), origin.identity(), origin.subscribe(), on_loss);
        let heard = |event: &Event| {
            origin.publish(event);
            reports.hear_losses();
            let heard = (told.swap(0, Ordering::Relaxed), reports.losses().count());
            while reports.take().is_some() {}
            told.store(0, Ordering::Relaxed);
            heard
        };
        assert_eq!([heard(&Event::Back), heard(&Event::WritesLost), heard(&Event::Missed)], [(0, 0), (1, 0), (1, 1)]);
    }
}
