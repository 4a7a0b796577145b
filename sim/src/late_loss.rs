//! A LUN that loses volatile data unnoticed, and reports it with the answer to a flush: as an
//! initiator sees a target that was away for a moment.

use std::sync::{Arc, Mutex, PoisonError};

use block::completion::Workers;
use block::layer::crash::CrashLayer;
use block::{Completion, Device, Event, EventReceiver, Geometry, Identity, OperationKind, Request, SharedDevice};

/// Called when the LUN reports the loss.
type Announce = Box<dyn FnOnce() + Send>;

type Lose = Box<dyn FnOnce(&dyn Fn()) -> Announce + Send>;

/// When the loss comes, and what it does.
struct Ordered {
    /// Flushes that are answered normally before.
    flushes: u64,
    /// Whether the loss may come now; else it comes with a later flush.
    may_lose: Box<dyn Fn() -> bool + Send>,
    /// Called with a function that loses the data.
    lose: Lose,
}

/// The loss ordered for a LUN, if there is one.
#[derive(Default)]
pub(crate) struct LateLoss(Mutex<Option<Ordered>>);

impl LateLoss {
    /// Orders a loss at the flush after `flushes` others: `lose` is called with a function that
    /// loses the data, and what it returns is called when the loss is reported. It comes later
    /// where it may not come then.
    pub(crate) fn order(
        &self,
        flushes: u64,
        may_lose: impl Fn() -> bool + Send + 'static,
        lose: impl FnOnce(&dyn Fn()) -> Announce + Send + 'static,
    ) {
        let ordered = Ordered { flushes, may_lose: Box::new(may_lose), lose: Box::new(lose) };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ordered);
    }

    /// Counts a flush. Returns the loss if this is its flush.
    fn see_flush(&self) -> Option<Lose> {
        let mut ordered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Ordered { flushes, may_lose, .. } = ordered.as_mut()?;
        match flushes.checked_sub(1) {
            Some(rest) => {
                *flushes = rest;
                None
            }
            None if !may_lose() => None,
            None => ordered.take().map(|ordered| ordered.lose),
        }
    }
}

/// The LUN below a stack.
pub(crate) struct LateLossLayer {
    pub(crate) inner: SharedDevice,
    pub(crate) medium: CrashLayer,
    pub(crate) loss: Arc<LateLoss>,
    pub(crate) workers: Workers,
}

impl Device for LateLossLayer {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let lose = if request.operation.kind() == OperationKind::Flush { self.loss.see_flush() } else { None };
        let Some(lose) = lose else { return self.inner.submit(request) };
        let announce = lose(&|| self.medium.lose_cache_silently());
        let medium = self.medium.clone();
        self.inner.submit(request).then(&self.workers, move |response| {
            announce();
            medium.publish(&Event::WritesLost);
            Completion::ready(response)
        })
    }

    fn subscribe(&self) -> EventReceiver {
        self.inner.subscribe()
    }
}
