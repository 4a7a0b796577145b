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
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use base::range::ByteRange;
use block::{Device, Event};
use futures_util::future::{Either, select};

use crate::alignment::inside;
use crate::core::Core;
use crate::options::Mode;

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
                pin!(receiver.receive()).poll(context)
            });
            if let Either::Left((event, _)) = select(event, self.background.changed_since(count)).await {
                self.handle_origin_event(&event);
            }
        }
    }

    /// Handles the events that have come until now.
    pub(crate) fn handle_origin_events(self: &Arc<Self>) {
        loop {
            let event = self.origin_events.lock().unwrap_or_else(PoisonError::into_inner).try_receive();
            match event {
                Some(event) => self.handle_origin_event(&event),
                None => return,
            }
        }
    }

    fn handle_origin_event(self: &Arc<Self>, event: &Event) {
        let mut is_for_above = true;
        match event {
            Event::WritesLost => {
                self.note_losses();
                is_for_above = self.mode() != Mode::WriteBack;
            }
            Event::Invalidated(range) => self.forget_later(inside(*range, self.padding)),
            Event::IdentityChanged => self.refuse_origin(),
            Event::Missed => {
                self.note_losses();
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

    /// The origin lost what it had not flushed. A copy of that must not outlive a crash as if the origin had it.
    fn note_losses(&self) {
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
            let _guard = place.await;
            core.forget_clean(range);
            core.tell_successor(range).await;
            if let Err(error) = core.unmap(range).await {
                tracing::error!(%error, "what the origin says has changed may come back after a crash");
            }
        }
    }
}
