//! What the origin says happened to it.
//!
//! | event | here | passed on |
//! |---|---|---|
//! | writes lost | what a batch has sent and not flushed stays dirty | no: what was acknowledged is in the log |
//! | invalidated | clean copies of the range are forgotten, after the requests in flight | yes |
//! | identity changed | nothing in the log belongs to it: no request is taken any more, and nothing is destaged | yes |
//! | missed | the events above may have been among them: the worst is assumed, but for the identity, which is compared | yes |
//! | resized, offline, back | nothing | yes |

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use base::range::ByteRange;
use block::{Device, Event};
use futures_util::future::{Either, select};

use crate::core::Core;
use crate::map::Piece;
use crate::sectors::sectors_of;

impl Core {
    /// Handles events as they come. Ends when the log closes.
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

    /// Handles the events that have come until now.
    pub(crate) fn handle_origin_events(self: &Arc<Self>) {
        while let Some(event) = self.take_origin_event() {
            self.handle_origin_event(&event);
        }
    }

    fn take_origin_event(&self) -> Option<Event> {
        let receiver = self.origin_events.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.try_receive().map(|event| self.count_loss(event))
    }

    /// Counts what may be lost while the receiver is still locked: who finds it empty then knows of all losses until now.
    fn count_loss(&self, event: Event) -> Event {
        if matches!(event, Event::WritesLost | Event::Missed) {
            self.origin_losses.fetch_add(1, Ordering::AcqRel);
        }
        event
    }

    fn handle_origin_event(self: &Arc<Self>, event: &Event) {
        let mut is_for_above = true;
        match event {
            Event::WritesLost => is_for_above = false,
            Event::Invalidated(range) => self.forget_later(*range),
            Event::IdentityChanged => self.refuse_origin(),
            Event::Missed => {
                self.forget_later(ByteRange { offset: 0, length: self.origin.geometry().size_bytes });
                if self.origin.identity() != self.identity {
                    self.refuse_origin();
                }
            }
            Event::Resized(_) | Event::Offline | Event::Back => {}
        }
        if is_for_above {
            self.events.publish(event);
        }
    }

    fn refuse_origin(&self) {
        tracing::error!("the LUN behind the write log is another disk now: the log takes no requests any more");
        self.is_origin_refused.store(true, Ordering::Release);
        self.is_open.store(false, Ordering::Release);
        self.background.notify();
    }

    /// Forgets clean copies once the requests on them are done.
    fn forget_later(self: &Arc<Self>, range: ByteRange) {
        let core = Arc::clone(self);
        let place = self.ranges.exclusive(range);
        self.start(async move {
            let _guard = place.await;
            core.forget_clean_in(sectors_of(range));
        });
    }

    /// Forgets clean copies of so many sectors from `sector` on, which the caller has alone.
    pub(crate) fn forget_clean_in(&self, (sector, sectors): (u64, u64)) {
        let state = &mut *self.state();
        let clean: Vec<Piece> = state.map.pieces(sector, sectors).filter(|piece| !piece.tag.is_dirty()).collect();
        clean.iter().for_each(|piece| state.forget(&self.layout, piece.sector, piece.sectors));
    }
}

#[cfg(test)]
mod tests {
    use base::executor::Executor;
    use block::SharedDevice;
    use block::layer::crash::CrashLayer;

    use super::*;
    use crate::open;
    use crate::options::{FormatOptions, OpenOptions};

    /// By hand: a thread that follows the origin has taken the event and gets no further, while a batch asks whether what it sent may be lost.
    #[test]
    fn who_finds_no_event_knows_of_the_loss_that_another_has_taken_and_not_handled() {
        for event in [Event::WritesLost, Event::Missed] {
            let mut executor = Executor::in_order();
            let medium = CrashLayer::new(1 << 20, 2);
            let (device, origin): (SharedDevice, SharedDevice) =
                (Arc::new(CrashLayer::new(2 << 20, 1)), Arc::new(medium.clone()));
            let options = OpenOptions::new(Arc::new(executor.clock()));
            let core = executor.block_on(async move {
                open::format(&device, &origin, FormatOptions::default()).await.expect("it fits");
                open::open(device, origin, options).await.expect("it opens")
            });
            let losses = core.origin_losses.load(Ordering::Acquire);
            medium.publish(&event);
            assert_eq!(core.take_origin_event(), Some(event));
            assert_eq!(core.origin_losses.load(Ordering::Acquire), losses + 1);
        }
    }
}
