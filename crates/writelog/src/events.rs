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

use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Device, Error, ErrorKind, Event};

use crate::core::Core;
use crate::map::Piece;
use crate::numbers::Sector;
use crate::sectors::sectors_of;

impl Core {
    /// Handles events as they come. Ends when the log closes.
    pub(crate) async fn follow_origin(self: Arc<Self>) {
        let prepare = |event: &Event| self.forgetting_for(event);
        self.origin
            .reports
            .follow(&self.life, &self.background, prepare, |event, forgetting| {
                self.handle_origin_event(event, forgetting);
            })
            .await;
    }

    /// Handles the events received so far.
    pub(crate) fn handle_origin_events(self: &Arc<Self>) {
        while let Some((event, forgetting)) = self.origin.reports.take(|event| self.forgetting_for(event)) {
            self.handle_origin_event(&event, forgetting);
        }
    }

    /// Handles the origin's events, and returns how often it has lost what it had not flushed.
    pub(crate) fn losses_until_now(self: &Arc<Self>) -> u64 {
        self.handle_origin_events();
        self.origin.reports.losses().count()
    }

    /// Flushes the origin: what it has taken since its count of losses was `losses`
    /// ([`Core::losses_until_now`]) is durable.
    ///
    /// # Errors
    /// `OutcomeUnknown` when it lost something meanwhile, as it reports with the answer to the
    /// flush at the latest: what it took may be gone.
    pub(crate) async fn flush_origin_since(self: &Arc<Self>, losses: u64) -> Result<(), Error> {
        self.origin.device().flush().await?;
        match self.losses_until_now() == losses {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::OutcomeUnknown, "the LUN lost what it had not flushed yet")),
        }
    }

    fn handle_origin_event(
        self: &Arc<Self>,
        event: &Event,
        forgetting: Option<impl Future<Output = ()> + Send + 'static>,
    ) {
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
            self.events.publish(event);
        }
    }

    fn refuse_origin(&self) {
        tracing::error!("the LUN behind the write log is another disk now: the log takes no requests any more");
        self.origin.reports.refuse();
        self.life.refuse_requests();
        self.background.notify();
    }

    /// The forgetting of clean copies that an event asks for, once the requests on them are done. Its
    /// place among the requests is taken here, so that no request that comes after the event was
    /// taken is answered from such a copy.
    fn forgetting_for(self: &Arc<Self>, event: &Event) -> Option<impl Future<Output = ()> + Send + use<>> {
        let range = match event {
            Event::Invalidated(range) => *range,
            Event::Missed => ByteRange { offset: 0, length: self.origin.device().geometry().size_bytes },
            Event::WritesLost | Event::IdentityChanged | Event::Resized(_) | Event::Offline | Event::Back => {
                return None;
            }
        };
        let (core, place) = (Arc::clone(self), self.ranges.exclusive(range));
        Some(async move {
            let _guard = place.await;
            core.forget_clean_in(sectors_of(range));
        })
    }

    /// Forgets clean copies of `sectors` from `sector` on. The caller holds the range exclusively.
    pub(crate) fn forget_clean_in(&self, (sector, sectors): (Sector, u64)) {
        let state = &mut *self.state();
        let clean: Vec<Piece> =
            state.contents.map.pieces(sector, sectors).filter(|piece| !piece.tag.is_dirty()).collect();
        clean.iter().for_each(|piece| state.contents.forget(piece.sector, piece.sectors));
    }
}
