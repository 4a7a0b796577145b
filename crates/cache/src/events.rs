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

use std::future::Future;
use std::sync::Arc;

use base::range::ByteRange;
use block::{Error, Event};

use crate::core::Core;

/// What is decided about an event where it is taken.
struct Prepared<F> {
    /// The forgetting of copies that it makes void.
    forgetting: Option<F>,
    /// Whether clients are told.
    is_for_above: bool,
}

impl Core {
    /// Handles events as they come. Ends when the cache closes.
    pub(crate) async fn follow_origin(self: Arc<Self>) {
        let reports = &self.origin.reports;
        reports
            .follow(
                &self.life,
                &self.lines.background,
                |event| self.prepared_for(event),
                |event, prepared| {
                    self.handle_origin_event(event, prepared);
                },
            )
            .await;
    }

    /// Handles the events received so far.
    pub(crate) fn handle_origin_events(self: &Arc<Self>) {
        while let Some((event, prepared)) = self.origin.reports.take(|event| self.prepared_for(event)) {
            self.handle_origin_event(&event, prepared);
        }
    }

    /// What is decided where an event is taken: which copies it makes void, and whether it concerns
    /// clients. Whoever finds no event may change the mode, and a loss concerns what was acknowledged
    /// before that.
    fn prepared_for(self: &Arc<Self>, event: &Event) -> Prepared<impl Future<Output = ()> + Send + use<>> {
        Prepared {
            forgetting: self.forgetting_for(event),
            is_for_above: !matches!(event, Event::WritesLost) || !self.lines.mode().delays_writes(),
        }
    }

    /// The forgetting of clean copies that an event asks for. Its place among the requests is taken
    /// here, so that no request that comes after the event was taken is answered from such a copy.
    fn forgetting_for(self: &Arc<Self>, event: &Event) -> Option<impl Future<Output = ()> + Send + use<>> {
        let range = match event {
            Event::Invalidated(range) => self.origin.inside(*range),
            Event::Missed => ByteRange { offset: 0, length: self.origin.end() },
            Event::Resized(geometry) => {
                let end = geometry.size_bytes.saturating_add(self.origin.padding);
                ByteRange { offset: end, length: u64::MAX - end }
            }
            Event::WritesLost | Event::IdentityChanged | Event::Offline | Event::Back => return None,
        };
        self.forgetting(range, matches!(event, Event::Resized(_)))
    }

    fn handle_origin_event(
        self: &Arc<Self>,
        event: &Event,
        Prepared { forgetting, is_for_above }: Prepared<impl Future<Output = ()> + Send + 'static>,
    ) {
        if let Some(forgetting) = forgetting {
            self.start(forgetting);
        }
        match event {
            Event::IdentityChanged => self.refuse(),
            Event::Missed if self.origin.reports.is_another() => self.refuse(),
            Event::WritesLost
            | Event::Missed
            | Event::Invalidated(_)
            | Event::Resized(_)
            | Event::Offline
            | Event::Back => {}
        }
        if is_for_above {
            self.events.publish(event);
        }
    }

    /// Flushes the origin. It makes durable what the origin took since its count of losses
    /// ([`OriginLosses`](store::OriginLosses)) was `losses`.
    ///
    /// # Errors
    /// As [`OriginReports::flush_since`](store::OriginReports::flush_since).
    pub(crate) async fn flush_origin_since(self: &Arc<Self>, losses: u64) -> Result<(), Error> {
        let flush = self.origin.flush_anyway();
        self.origin.reports.flush_since(losses, flush, || self.handle_origin_events()).await
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

    /// Forgets clean copies once the requests that are on them now are done; then finds what is stranded, if the origin
    /// has another size. `None` where that waits to be done already.
    fn forgetting(
        self: &Arc<Self>,
        range: ByteRange,
        is_resized: bool,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let core = Arc::clone(self);
        let take_place = |range| self.ranges.exclusive(self.line_size().whole_lines(range));
        let (forgetting, place) = self.forgettings.add(range, is_resized, take_place)?;
        Some(async move {
            // After the end of the cache the next open drops such copies.
            let Ok(guard) = core.enter(place).await else { return };
            let (range, is_resized) = forgetting.begin();
            core.lines.forget_clean(range);
            core.succession.tell(range, core.origin.padding).await;
            if let Err(error) = core.journal.unmap(range).await {
                tracing::error!(%error, "what the origin says has changed may come back after a crash");
            }
            drop(guard);
            if is_resized {
                core.find_stranded();
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use base::executor::Executor;
    use block::layer::crash::CrashLayer;
    use block::{Device, SharedDevice};

    use super::*;
    use crate::cache::Cache;
    use crate::mode::Mode;
    use crate::options::{FormatOptions, OpenOptions};

    /// The target reports the same changes again and again, beside a read that hangs: one task waits for its end.
    #[test]
    fn reports_that_come_again_and_again_beside_a_request_leave_one_waiting() {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(4 << 20, 1);
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(CrashLayer::new(1 << 20, 2)), Arc::new(medium.clone()));
        let clock = Arc::new(executor.clock());
        let cache = executor.block_on(async move {
            Cache::format(&device, &origin, FormatOptions::default()).await.expect("nothing fails");
            Cache::open(device, origin, OpenOptions::new(Mode::WriteThrough, clock)).await.expect("nothing fails")
        });
        let core = Arc::clone(cache.core());
        let request = executor.block_on(core.ranges.shared(ByteRange { offset: 0, length: 4 << 20 }));
        for number in 0..1000 {
            for event in [
                Event::Invalidated(ByteRange { offset: 0, length: 1 << 20 }),
                Event::Missed,
                Event::Resized(medium.geometry()),
                Event::Invalidated(ByteRange { offset: number * 4096, length: 4096 }),
            ] {
                medium.publish(&event);
                core.handle_origin_events();
            }
        }
        let waiting = core.forgettings.count();
        assert!(waiting <= 4, "{waiting} forgettings wait");
        drop(request);
    }

    /// One thread has taken the event of a loss, and another finds none and changes the mode, before the first goes on.
    #[test]
    fn a_loss_that_was_taken_before_a_change_to_write_back_is_for_clients() {
        let mut executor = Executor::in_order();
        let medium = CrashLayer::new(1 << 20, 1);
        let (device, origin): (SharedDevice, SharedDevice) =
            (Arc::new(CrashLayer::new(4 << 20, 2)), Arc::new(medium.clone()));
        let clock = Arc::new(executor.clock());
        let cache = executor.block_on(async move {
            Cache::format(&device, &origin, FormatOptions::default()).await.expect("nothing fails");
            Cache::open(device, origin, OpenOptions::new(Mode::WriteThrough, clock)).await.expect("nothing fails")
        });
        let (events, core) = (cache.subscribe(), Arc::clone(cache.core()));
        medium.publish(&Event::WritesLost);
        let (event, prepared) = core.origin.reports.take(|event| core.prepared_for(event)).expect("it was published");
        core.lines.state().mode = Mode::WriteBack;
        core.handle_origin_event(&event, prepared);
        assert_eq!(events.try_receive(), Some(Event::WritesLost));
        medium.publish(&Event::WritesLost);
        core.handle_origin_events();
        assert_eq!(events.try_receive(), None, "in write-back nothing that clients have written is lost with it");
    }
}
