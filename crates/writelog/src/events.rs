//! Events of the origin, and how the log handles them.
//!
//! | event | here | passed on |
//! |---|---|---|
//! | writes lost | what a batch has sent and not flushed stays dirty | no: acknowledged writes are in the log |
//! | invalidated | clean copies of the range are forgotten, after the requests in flight | yes |
//! | identity changed | the content is of another disk: requests are refused, and nothing is destaged | yes |
//! | missed | the events above may have been among them: the worst is assumed, but for the identity, which is compared | yes |
//! | resized, offline, back | nothing | yes |

use std::sync::Arc;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::range_lock::RangeLock;
use block::{Completion, Device, Error, Event, EventHub, Response};
use store::{Forgettings, Life};

use crate::log_state::LogState;
use crate::origin::Origin;
use crate::sectors::sectors_of;

/// Follows the events of the origin.
pub(crate) struct OriginEvents {
    pub(crate) origin: Arc<Origin>,
    pub(crate) log: Arc<LogState>,
    /// The order of requests to the log.
    pub(crate) ranges: RangeLock,
    /// What waits in `ranges` to be forgotten.
    pub(crate) forgettings: Forgettings,
    pub(crate) workers: Workers,
    /// Where they are passed on.
    pub(crate) hub: EventHub,
    pub(crate) life: Arc<Life>,
}

impl OriginEvents {
    /// Handles events as they come. Ends when the log closes.
    pub(crate) async fn follow(&self) {
        let prepare = |event: &Event| self.forgetting_for(event);
        self.origin
            .reports
            .follow(&self.life, &self.log.background, prepare, |event, forgetting| self.handle(event, forgetting))
            .await;
    }

    /// Handles the events received so far.
    pub(crate) fn handle_received(&self) {
        while let Some((event, forgetting)) = self.origin.reports.take(|event| self.forgetting_for(event)) {
            self.handle(&event, forgetting);
        }
    }

    /// Handles the origin's events, and returns how often it has lost what it had not flushed.
    pub(crate) fn losses_until_now(&self) -> u64 {
        self.handle_received();
        self.origin.reports.losses().count()
    }

    /// Flushes the origin: what it has taken since its count of losses was `losses`
    /// ([`OriginEvents::losses_until_now`]) is durable.
    ///
    /// # Errors
    /// As [`OriginReports::flush_since`](store::OriginReports::flush_since).
    pub(crate) async fn flush_origin_since(&self, losses: u64) -> Result<(), Error> {
        let flush = self.origin.device().flush();
        self.origin.reports.flush_since(losses, flush, || self.handle_received()).await
    }

    fn handle(&self, event: &Event, forgetting: Option<impl Future<Output = ()> + Send + 'static>) {
        if let Some(forgetting) = forgetting {
            self.start(forgetting);
        }
        let mut is_for_above = true;
        match event {
            Event::WritesLost => is_for_above = false,
            Event::IdentityChanged => self.refuse_origin(),
            Event::Missed if self.origin.reports.is_another() => self.refuse_origin(),
            Event::Missed | Event::Invalidated(_) | Event::Resized(_) | Event::Offline | Event::Back => {}
        }
        if is_for_above {
            self.hub.publish(event);
        }
    }

    /// Polls a future once now; the workers carry it on if it is not done.
    fn start(&self, future: impl Future<Output = ()> + Send + 'static) {
        drop(Completion::task(&self.workers, async move {
            future.await;
            Response::done(Buffer::empty())
        }));
    }

    fn refuse_origin(&self) {
        tracing::error!("the LUN behind the write log is another disk now: the log takes no requests any more");
        self.origin.reports.refuse();
        self.life.refuse_requests();
        self.log.background.notify();
    }

    /// The forgetting of clean copies that an event asks for, once the requests on them are done. Its
    /// place among the requests is taken here, so that no request that comes after the event was
    /// taken is answered from such a copy. `None` where that waits to be done already.
    fn forgetting_for(&self, event: &Event) -> Option<impl Future<Output = ()> + Send + use<>> {
        let range = match event {
            Event::Invalidated(range) => *range,
            Event::Missed => ByteRange { offset: 0, length: self.origin.device().geometry().size_bytes },
            Event::WritesLost | Event::IdentityChanged | Event::Resized(_) | Event::Offline | Event::Back => {
                return None;
            }
        };
        let log = Arc::clone(&self.log);
        let (forgetting, place) = self.forgettings.add(range, false, |range| self.ranges.exclusive(range))?;
        Some(async move {
            let _guard = place.await;
            let (range, _) = forgetting.begin();
            log.state().contents.forget_clean_in(sectors_of(range));
        })
    }
}

#[cfg(test)]
mod tests {
    use base::executor::Executor;

    use super::*;
    use crate::numbers::Sector;
    use crate::tests::Parts;

    #[test]
    fn what_others_changed_is_forgotten_where_it_is_clean_and_told() {
        let mut parts = Parts::new(|_| {});
        let (records, events) = (Arc::new(parts.assembly.records()), Arc::new(parts.assembly.origin_events()));
        let [clean, dirty] = [0, 8].map(|sector| parts.append(&records, sector, 8, 1));
        events.log.state().contents.mark_clean(&clean);
        let above = events.hub.subscribe();
        let request = parts.executor.block_on(events.ranges.shared(ByteRange { offset: 0, length: 512 }));
        let changed = Event::Invalidated(ByteRange { offset: 0, length: 16 * 512 });
        parts.origin.publish(&changed);
        events.handle_received();
        assert_eq!(above.try_receive(), Some(changed));
        let known = |executor: &mut Executor| {
            executor.run_until_stalled();
            let state = events.log.state();
            state.contents.map.pieces(Sector::FIRST, 16).map(|piece| piece.sector).collect::<Vec<_>>()
        };
        assert_eq!(known(&mut parts.executor), [clean.sector, dirty.sector], "a request is on it");
        drop(request);
        assert_eq!(known(&mut parts.executor), [dirty.sector]);
    }

    /// The target reports the same change again and again, beside a request that hangs.
    #[test]
    fn reports_that_come_again_and_again_beside_a_request_leave_one_waiting() {
        let mut parts = Parts::new(|_| {});
        let (records, events) = (Arc::new(parts.assembly.records()), Arc::new(parts.assembly.origin_events()));
        let clean = parts.append(&records, 0, 8, 1);
        events.log.state().contents.mark_clean(&clean);
        let request = parts.executor.block_on(events.ranges.shared(ByteRange { offset: 0, length: 512 }));
        for _ in 0..1000 {
            parts.origin.publish(&Event::Invalidated(ByteRange { offset: 0, length: 16 * 512 }));
            events.handle_received();
        }
        assert_eq!(events.forgettings.count(), 1);
        drop(request);
        parts.executor.run_until_stalled();
        assert_eq!(
            (events.forgettings.count(), events.log.state().contents.map.pieces(Sector::FIRST, 16).count()),
            (0, 0)
        );
    }

    #[test]
    fn a_loss_is_counted_and_not_told_and_another_disk_is_refused() {
        let parts = Parts::new(|_| {});
        let events = parts.assembly.origin_events();
        let above = events.hub.subscribe();
        parts.origin.publish(&Event::WritesLost);
        assert_eq!((events.losses_until_now(), above.try_receive()), (1, None));
        parts.origin.publish(&Event::IdentityChanged);
        assert_eq!((events.losses_until_now(), above.try_receive()), (1, Some(Event::IdentityChanged)));
        assert!(!events.life.is_open() && events.origin.check().is_err());
    }
}
