//! The reports of an origin to its store: how often it lost what it had not flushed, and whether it
//! is still the same disk.
//!
//! A loss is counted when its event is taken, under the lock of the receiver, or before that by
//! [`OriginReports::note_unread_losses`]. So a caller that took the count, sent something, and then
//! finds no event and the same count, has sent something that was not lost. Copies are given up at
//! the same moment. A loss that is counted twice only makes something be sent again.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::signal::Signal;
use block::{Device, Error, ErrorKind, Event, EventReceiver, Identity, SharedDevice};
use futures_util::future::{Either, select};

use crate::life::Life;
use crate::origin_losses::OriginLosses;

/// The events and losses of one origin, and its identity at open.
pub struct OriginReports {
    origin: SharedDevice,
    /// Its identity at open.
    identity: Identity,
    events: EventReceiver,
    /// How many events were taken.
    taken_count: AtomicU64,
    /// Held from taking an event until what it asks for at once is done.
    taking: Mutex<()>,
    losses: Arc<OriginLosses>,
    /// Whether it is known to be another disk by now. Nothing is sent to it any more.
    is_refused: AtomicBool,
}

impl OriginReports {
    /// `origin` had this `identity`; `events` has received from it since before anything was read.
    /// Each loss is counted in `losses` while the receiver is locked.
    pub fn new(origin: SharedDevice, identity: Identity, events: EventReceiver, losses: Arc<OriginLosses>) -> Self {
        Self {
            origin,
            identity,
            events,
            taken_count: AtomicU64::new(0),
            taking: Mutex::default(),
            losses,
            is_refused: AtomicBool::new(false),
        }
    }

    /// How often it lost something.
    pub fn losses(&self) -> &OriginLosses {
        &self.losses
    }

    /// Whether both had the same identity when they were opened.
    pub fn was_same_as(&self, other: &Self) -> bool {
        self.identity == other.identity
    }

    /// Whether the origin reports another identity than at open.
    pub fn is_another(&self) -> bool {
        self.origin.identity() != self.identity
    }

    /// From now on nothing is sent to it.
    pub fn refuse(&self) {
        self.is_refused.store(true, Ordering::Release);
    }

    /// Whether nothing is sent to it any more.
    pub fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }

    /// Passes each event to `handle` as it arrives, with what was prepared for it ([`Self::take`]).
    /// Ends when `life` is stopped; the caller then notifies `woken`.
    pub async fn follow<T>(
        &self,
        life: &Life,
        woken: &Signal,
        prepare: impl Fn(&Event) -> T,
        mut handle: impl FnMut(&Event, T),
    ) {
        loop {
            let count = woken.count();
            if life.is_stopped() {
                return;
            }
            let event = poll_fn(|context| {
                let _taking = self.lock();
                self.events.poll_receive(context).map(|event| self.prepared(event, &prepare))
            });
            if let Either::Left(((event, prepared), _)) = select(event, woken.changed_since(count)).await {
                handle(&event, prepared);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.taking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there may be an event that is not taken, or that another thread prepares for: a look
    /// before every request is nearly free.
    pub fn may_have_event(&self) -> bool {
        self.events.may_have_event()
    }

    /// How many events were taken so far, by whomever.
    pub fn taken_count(&self) -> u64 {
        self.taken_count.load(Ordering::Acquire)
    }

    /// Takes the oldest event that is not taken yet. `prepare` is called while the receiver is still
    /// locked: whoever finds no event, on another thread, comes behind what it did. It must neither
    /// wait nor look for events.
    pub fn take<T>(&self, prepare: impl Fn(&Event) -> T) -> Option<(Event, T)> {
        let _taking = self.lock();
        self.events.try_receive().map(|event| self.prepared(event, &prepare))
    }

    /// Flushes the origin by `flush`: what it has taken since its count of losses was `losses` is durable.
    /// `handle_received` takes the events that came until then.
    ///
    /// # Errors
    /// Those of `flush`; `OutcomeUnknown` when the origin lost something meanwhile, as it reports with the answer
    /// to the flush at the latest: what it took may be gone.
    pub async fn flush_since(
        &self,
        losses: u64,
        flush: impl Future<Output = Result<(), Error>>,
        handle_received: impl FnOnce(),
    ) -> Result<(), Error> {
        flush.await?;
        handle_received();
        match self.losses.count() == losses {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::OutcomeUnknown, "the LUN lost what it had not flushed yet")),
        }
    }

    /// Counts a loss whose event is not taken yet; it is counted again when that is taken. A caller
    /// that has read or written data meanwhile, and not noted the copy yet, must not take it for
    /// safe because nothing is left to flush.
    pub fn note_unread_losses(&self) {
        let _taking = self.lock();
        if self.events.has_unread(is_loss) {
            self.losses.note();
        }
    }

    /// Counts a loss, and prepares for the event, while the receiver is still locked: a caller that
    /// finds it empty then knows of all losses until now.
    fn prepared<T>(&self, event: Event, prepare: &impl Fn(&Event) -> T) -> (Event, T) {
        if is_loss(&event) {
            self.losses.note();
        }
        if matches!(event, Event::IdentityChanged) {
            self.refuse();
        }
        let prepared = prepare(&event);
        self.taken_count.fetch_add(1, Ordering::Release);
        (event, prepared)
    }
}

/// Whether what an origin had not flushed is lost, or may be.
fn is_loss(event: &Event) -> bool {
    matches!(event, Event::WritesLost | Event::Missed)
}

#[cfg(test)]
mod tests {
    use block::layer::crash::CrashLayer;
    use futures_util::FutureExt;

    use super::*;

    /// The reports of an origin, and the count of how often copies were given up.
    fn reports_of(origin: &CrashLayer) -> (OriginReports, Arc<AtomicU64>) {
        let forgotten = Arc::new(AtomicU64::new(0));
        let counting = Arc::clone(&forgotten);
        let losses = OriginLosses::new(move || {
            counting.fetch_add(1, Ordering::Relaxed);
        });
        let device: SharedDevice = Arc::new(origin.clone());
        (OriginReports::new(device, origin.identity(), origin.subscribe(), Arc::new(losses)), forgotten)
    }

    /// By hand: a thread that follows the origin has taken the event and stops, while another asks whether
    /// what it sent may be lost.
    #[test]
    fn who_finds_no_event_knows_of_the_loss_that_another_has_taken_and_not_handled() {
        let origin = CrashLayer::new(1 << 20, 1);
        let (reports, forgotten) = reports_of(&origin);
        for (event, losses) in [(Event::WritesLost, 1), (Event::Missed, 2), (Event::Back, 2)] {
            origin.publish(&event);
            let taken = || reports.take(|_| ()).map(|(event, ())| event);
            assert_eq!(taken(), Some(event));
            assert_eq!((taken(), reports.losses().count()), (None, losses));
            let forgotten = forgotten.load(Ordering::Relaxed);
            assert_eq!(forgotten, losses, "whoever finds no event finds no copy of what is lost either");
        }
    }

    /// By hand, as above: another thread looks for events while one is prepared for, and finds the
    /// receiver locked; once it is free the event is prepared for, and another disk is refused.
    #[test]
    fn who_finds_no_event_comes_behind_what_was_prepared_for_it() {
        let origin = CrashLayer::new(1 << 20, 1);
        let (reports, _) = reports_of(&origin);
        origin.publish(&Event::IdentityChanged);
        let taken = reports.take(|event| (event.clone(), reports.taking.try_lock().is_err(), reports.is_refused()));
        assert_eq!(taken, Some((Event::IdentityChanged, (Event::IdentityChanged, true, true))));
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
            while reports.take(|_| ()).is_some() {}
            forgotten.store(0, Ordering::Relaxed);
            heard
        };
        assert_eq!([heard(&Event::Back), heard(&Event::WritesLost), heard(&Event::Missed)], [(0, 0), (1, 1), (1, 1)]);
    }

    /// What was sent after the loss before `losses` was taken, and flushed, is durable.
    #[test]
    fn a_flush_makes_durable_what_was_sent_since_the_last_loss() {
        let origin = CrashLayer::new(1 << 20, 1);
        let (reports, _) = reports_of(&origin);
        let receive = || while reports.take(|_| ()).is_some() {};
        let flush_with = |event: Event, losses: u64| {
            let flush = async {
                origin.publish(&event);
                Ok(())
            };
            let flushed = reports.flush_since(losses, flush, receive).now_or_never();
            flushed.expect("it waits for nobody").map_err(|error| error.kind())
        };
        assert_eq!(flush_with(Event::Back, 0), Ok(()));
        assert_eq!(flush_with(Event::WritesLost, 0), Err(ErrorKind::OutcomeUnknown), "it said so with its answer");
        assert_eq!(flush_with(Event::Back, 0), Err(ErrorKind::OutcomeUnknown), "sent before the loss");
        assert_eq!(flush_with(Event::Back, 1), Ok(()), "sent after it");
        let failed = async { Err(Error::new(ErrorKind::Media, "it takes no flush")) };
        let failed = reports.flush_since(1, failed, receive).now_or_never().expect("it waits for nobody");
        assert_eq!(failed.map_err(|error| error.kind()), Err(ErrorKind::Media));
    }
}
