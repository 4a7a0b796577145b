//! What the origin says happened to it.
//!
//! | event | here | passed on |
//! |---|---|---|
//! | writes lost | what cleaning has sent and not flushed stays dirty | in write-through: who wrote must write again |
//! | invalidated | clean copies of the range are forgotten, after the requests in flight | yes |
//! | identity changed | nothing cached belongs to it: no request is taken any more, and nothing is cleaned | yes |
//! | missed | the events above may have been among them: the worst is assumed, but for the identity, which is compared | yes |
//! | resized | clean copies of what lies beyond the end are forgotten: if it grows again that is new. What is dirty there is stranded (`stranded`) | yes |
//! | offline, back | nothing | yes |

use std::future::{Future, poll_fn};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use base::range::ByteRange;
use block::{Device, Event};
use futures_util::future::{Either, select};

use crate::alignment::inside;
use crate::core::Core;

impl Core {
    /// Handles events as they come. Ends when the cache closes.
    pub(crate) async fn follow_origin(self: Arc<Self>) {
        loop {
            let count = self.background.count();
            if self.is_stopped.load(Ordering::Acquire) {
                return;
            }
            let event = poll_fn(|context| {
                let receiver = self.origin_events.lock().unwrap_or_else(PoisonError::into_inner);
                receiver.poll_receive(context).map(|event| self.count_loss(event))
            });
            if let Either::Left((event, _)) = select(event, self.background.changed_since(count)).await {
                self.handle_origin_event(&event);
            }
        }
    }

    /// Handles the events that have come until now; how many there were.
    pub(crate) fn handle_origin_events(self: &Arc<Self>) -> usize {
        let mut handled_count = 0;
        while let Some(event) = self.take_origin_event() {
            self.handle_origin_event(&event);
            handled_count += 1;
        }
        handled_count
    }

    fn take_origin_event(&self) -> Option<Event> {
        let receiver = self.origin_events.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.try_receive().map(|event| self.count_loss(event))
    }

    /// Counts what may be lost, and forgets copies of it, while the receiver is still locked: who finds it empty then knows of all losses until now, and
    /// no flush that ends behind them makes such a copy safe.
    fn count_loss(&self, event: Event) -> Event {
        if matches!(event, Event::WritesLost | Event::Missed) {
            self.note_losses();
        }
        event
    }

    fn handle_origin_event(self: &Arc<Self>, event: &Event) {
        let mut is_for_above = true;
        match event {
            Event::WritesLost => is_for_above = !self.mode().delays_writes(),
            Event::Invalidated(range) => self.forget_later(inside(*range, self.padding)),
            Event::IdentityChanged => self.refuse_origin(),
            Event::Missed => {
                self.forget_later(ByteRange { offset: 0, length: self.origin.geometry().size_bytes });
                if self.origin.identity() != self.identity {
                    self.refuse_origin();
                }
            }
            Event::Resized(geometry) => {
                let end = geometry.size_bytes.saturating_add(self.padding);
                let forgotten = self.forgetting(ByteRange { offset: end, length: u64::MAX - end });
                let core = Arc::clone(self);
                self.start(async move {
                    forgotten.await;
                    core.find_stranded();
                });
            }
            Event::Offline | Event::Back => {}
        }
        if is_for_above {
            self.events.publish(event);
        }
    }

    fn refuse_origin(&self) {
        tracing::error!("the origin is another disk now: the cache takes no requests any more");
        self.is_origin_refused.store(true, Ordering::Release);
        self.is_open.store(false, Ordering::Release);
    }

    /// The origin lost what it had not flushed, or may have. A copy of that must not outlive a crash as if the origin had it.
    pub(crate) fn note_losses(&self) {
        self.origin_losses.fetch_add(1, Ordering::AcqRel);
        let state = &mut *self.state();
        for frame in state.frames.mappings.unflushed_frames() {
            let line = state.frames.line(frame);
            if line.valid != line.dirty {
                state.frames.set_sectors(frame, line.dirty, line.dirty);
            }
        }
    }

    /// Forgets clean copies once the requests on them are done.
    fn forget_later(self: &Arc<Self>, range: ByteRange) {
        self.start(self.forgetting(range));
    }

    /// Forgets clean copies once the requests on them that are there now are done.
    fn forgetting(self: &Arc<Self>, range: ByteRange) -> impl Future<Output = ()> + Send + use<> {
        let core = Arc::clone(self);
        let place = self.ranges.exclusive(self.line_size().whole_lines(range));
        async move {
            // One that comes behind the end is for who opens the cache next to find out.
            let Ok(_guard) = core.enter(place).await else { return };
            core.forget_clean(range);
            core.tell_successor(range).await;
            if let Err(error) = core.unmap(range).await {
                tracing::error!(%error, "what the origin says has changed may come back after a crash");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::executor::Executor;
    use block::layer::crash::CrashLayer;
    use block::{ErrorKind, SharedDevice};

    use super::*;
    use crate::Cache;
    use crate::options::{FormatOptions, Mode, OpenOptions};

    /// By hand: a thread that follows the origin has taken the event and gets no further, while another flushes and finds none.
    #[test]
    fn who_finds_no_event_knows_of_the_loss_that_another_has_taken_and_not_handled() {
        for event in [Event::WritesLost, Event::Missed] {
            let mut executor = Executor::in_order();
            let medium = CrashLayer::new(1 << 20, 2);
            let (device, origin): (SharedDevice, SharedDevice) =
                (Arc::new(CrashLayer::new(1 << 20, 1)), Arc::new(medium.clone()));
            let formatting = (Arc::clone(&device), Arc::clone(&origin));
            executor.block_on(async move {
                Cache::format(&formatting.0, &formatting.1, FormatOptions::default()).await.expect("it fits");
            });
            let options = OpenOptions::new(Mode::WriteBack, Arc::new(executor.clock()));
            let cache = executor.block_on(Cache::open(device, origin, options)).expect("it opens");
            let core = Arc::clone(cache.core());
            let losses = core.origin_losses.load(Ordering::Acquire);
            medium.publish(&event);
            assert_eq!(core.take_origin_event(), Some(event));
            let flushed = executor.block_on(async move { core.flush_origin_since(losses).await });
            assert_eq!(flushed.map_err(|error| error.kind()), Err(ErrorKind::OutcomeUnknown));
        }
    }
}
