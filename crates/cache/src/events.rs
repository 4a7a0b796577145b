//! Events of the origin, and how the cache handles them.
//!
//! | event | here | passed on |
//! |---|---|---|
//! | writes lost | what cleaning has sent and not flushed stays dirty | in write-through: the client must write again |
//! | invalidated | clean copies of the range are forgotten, after the requests in flight | yes |
//! | identity changed | the content is of another disk: requests are refused, and nothing is cleaned | yes |
//! | missed | the events above may have been among them: the worst is assumed, but for the identity, which is compared | yes |
//! | resized | clean copies of what lies beyond the end are forgotten: if it grows again that is new. What is dirty there is stranded (`stranded`) | yes |
//! | offline, back | nothing | yes |
//!
use std::future::Future;
use std::sync::Arc;

use base::range::ByteRange;
use block::{Error, ErrorKind, Event};

use crate::core::Core;

impl Core {
    /// Handles events as they come. Ends when the cache closes.
    pub(crate) async fn follow_origin(self: Arc<Self>) {
        let reports = &self.origin.reports;
        reports.follow(&self.life, &self.lines.background, |event| self.handle_origin_event(event)).await;
    }

    /// Handles the events received so far. Returns how many there were.
    pub(crate) fn handle_origin_events(self: &Arc<Self>) -> usize {
        let mut handled_count = 0;
        while let Some(event) = self.origin.reports.take() {
            self.handle_origin_event(&event);
            handled_count += 1;
        }
        handled_count
    }

    fn handle_origin_event(self: &Arc<Self>, event: &Event) {
        let mut is_for_above = true;
        match event {
            Event::WritesLost => is_for_above = !self.lines.mode().delays_writes(),
            Event::Invalidated(range) => self.forget_later(self.origin.inside(*range)),
            Event::IdentityChanged => self.refuse(),
            Event::Missed => {
                self.forget_later(ByteRange { offset: 0, length: self.origin.end() });
                if self.origin.reports.is_another() {
                    self.refuse();
                }
            }
            Event::Resized(geometry) => {
                let end = geometry.size_bytes.saturating_add(self.origin.padding);
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

    /// Flushes the origin. It makes durable what the origin took since its count of losses
    /// ([`Losses`](store::Losses)) was `losses`.
    ///
    /// # Errors
    /// `OutcomeUnknown` when it lost something meanwhile: what it took may be gone.
    pub(crate) async fn flush_origin_since(self: &Arc<Self>, losses: u64) -> Result<(), Error> {
        self.origin.flush_anyway().await?;
        self.handle_origin_events();
        match self.origin.losses.count() == losses {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::OutcomeUnknown, "the origin lost writes that were not flushed yet")),
        }
    }

    /// Refuses everything: the cached content is of another disk.
    fn refuse(&self) {
        tracing::error!(
            "the origin is another disk now, or this host was fenced from it: the cache takes no requests any more; \
             detach, look at the data, and attach again"
        );
        self.origin.reports.refuse();
        self.life.refuse_requests();
    }

    /// Forgets clean copies once the requests on them are done.
    fn forget_later(self: &Arc<Self>, range: ByteRange) {
        self.start(self.forgetting(range));
    }

    /// Forgets clean copies once the requests that are on them now are done.
    fn forgetting(self: &Arc<Self>, range: ByteRange) -> impl Future<Output = ()> + Send + use<> {
        let core = Arc::clone(self);
        let place = self.ranges.exclusive(self.line_size().whole_lines(range));
        async move {
            // After the end of the cache the next open drops such copies.
            let Ok(_guard) = core.enter(place).await else { return };
            core.lines.forget_clean(range);
            core.succession.tell(range, core.origin.padding).await;
            if let Err(error) = core.journal.unmap(range).await {
                tracing::error!(%error, "what the origin says has changed may come back after a crash");
            }
        }
    }
}
