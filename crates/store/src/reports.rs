//! What the origin of a store says happened to it: how often it lost what it had not flushed, and whether it is still
//! the same disk.
//!
//! A loss is counted when the event that tells of it is taken, while others still wait to take one, or before, by
//! whoever hears of it. So who took the count, sent something, and finds no event and the same count, has sent
//! something that was not lost. What a loss means for copies is done at the same moment. That one counts twice costs no
//! more than that something is sent again.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::signal::Signal;
use block::{Device, Event, EventReceiver, Identity, SharedDevice};
use futures_util::future::{Either, select};

use crate::life::Life;
use crate::losses::Losses;

/// See the top of this file.
pub struct OriginReports {
    origin: SharedDevice,
    /// As it was at open.
    identity: Identity,
    events: Mutex<EventReceiver>,
    losses: Arc<Losses>,
    /// Whether it said that it is another disk now. Nothing is sent to it any more.
    is_refused: AtomicBool,
}

impl OriginReports {
    /// Of an `origin` that had this `identity`, and has told `events` since before anything of it was read. Each loss
    /// is noted in `losses` while nobody takes another event.
    pub fn new(origin: SharedDevice, identity: Identity, events: EventReceiver, losses: Arc<Losses>) -> Self {
        Self { origin, identity, events: Mutex::new(events), losses, is_refused: AtomicBool::new(false) }
    }

    /// How often it lost something.
    pub fn losses(&self) -> &Losses {
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
                receiver.poll_receive(context).map(|event| self.note_loss(event))
            });
            if let Either::Left((event, _)) = select(event, woken.changed_since(count)).await {
                handle(&event);
            }
        }
    }

    /// What it has said, and nobody has taken yet.
    pub fn take(&self) -> Option<Event> {
        let receiver = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.try_receive().map(|event| self.note_loss(event))
    }

    /// Notes a loss where it has told of one, though nobody has taken that event yet; who takes it notes it once more.
    /// Whoever has read or written something meanwhile, and has not said so where copies are kept, must not take it for
    /// safe because nothing is left to flush.
    pub fn note_unread_losses(&self) {
        let receiver = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if receiver.has_unread(is_loss) {
            self.losses.note();
        }
    }

    /// Notes what may be lost while the receiver is still locked: who finds it empty then knows of all losses until
    /// now.
    fn note_loss(&self, event: Event) -> Event {
        if is_loss(&event) {
            self.losses.note();
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
    use std::sync::atomic::AtomicU64;

    use block::layer::crash::CrashLayer;

    use super::*;

    /// What an origin says, and how often copies were given up.
    fn reports_of(origin: &CrashLayer) -> (OriginReports, Arc<AtomicU64>) {
        let forgotten = Arc::new(AtomicU64::new(0));
        let counting = Arc::clone(&forgotten);
        let losses = Losses::new(move || {
            counting.fetch_add(1, Ordering::Relaxed);
        });
        let device: SharedDevice = Arc::new(origin.clone());
        (OriginReports::new(device, origin.identity(), origin.subscribe(), Arc::new(losses)), forgotten)
    }

    /// By hand: a thread that follows the origin has taken the event and gets no further, while another asks whether
    /// what it sent may be lost.
    #[test]
    fn who_finds_no_event_knows_of_the_loss_that_another_has_taken_and_not_handled() {
        let origin = CrashLayer::new(1 << 20, 1);
        let (reports, forgotten) = reports_of(&origin);
        for (event, losses) in [(Event::WritesLost, 1), (Event::Missed, 2), (Event::Back, 2)] {
            origin.publish(&event);
            assert_eq!(reports.take(), Some(event));
            assert_eq!((reports.take(), reports.losses().count()), (None, losses));
            let forgotten = forgotten.load(Ordering::Relaxed);
            assert_eq!(forgotten, losses, "whoever finds no event finds no copy of what is lost either");
        }
    }

    #[test]
    fn a_loss_that_nobody_has_taken_yet_counts_as_soon_as_it_is_heard() {
        let origin = CrashLayer::new(1 << 20, 1);
        let (reports, forgotten) = reports_of(&origin);
        let heard = |event: &Event| {
            let before = reports.losses().count();
            origin.publish(event);
            reports.note_unread_losses();
            let heard = (forgotten.swap(0, Ordering::Relaxed), reports.losses().count() - before);
            while reports.take().is_some() {}
            forgotten.store(0, Ordering::Relaxed);
            heard
        };
        assert_eq!([heard(&Event::Back), heard(&Event::WritesLost), heard(&Event::Missed)], [(0, 0), (1, 1), (1, 1)]);
    }
}
