//! A LUN that loses what it holds volatile while nobody looks, and says so with the answer to a flush: what an
//! initiator hears of a target that was away for a moment.

use std::sync::{Arc, Mutex, PoisonError};

use block::completion::Workers;
use block::layer::crash::CrashLayer;
use block::{Completion, Device, Event, EventReceiver, Geometry, Identity, OperationKind, Request, SharedDevice};

/// What is to be done when it is said.
type Announce = Box<dyn FnOnce() + Send>;

type Lose = Box<dyn FnOnce(&dyn Fn()) -> Announce + Send>;

/// When it happens, and what happens with it.
struct Ordered {
    /// Flushes that are answered before as ever.
    flushes: u64,
    /// Called to lose it, with what does so.
    lose: Lose,
}

/// What is to happen to a LUN, if anything is.
#[derive(Default)]
pub(crate) struct LateLoss(Mutex<Option<Ordered>>);

impl LateLoss {
    /// It happens at the flush behind so many others, when `lose` calls what it is given; what that returns is called
    /// when it is said.
    pub(crate) fn order(&self, flushes: u64, lose: impl FnOnce(&dyn Fn()) -> Announce + Send + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Ordered { flushes, lose: Box::new(lose) });
    }

    /// Counts a flush; whether it is the one.
    fn see_flush(&self) -> Option<Lose> {
        let mut ordered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let flushes = &mut ordered.as_mut()?.flushes;
        match flushes.checked_sub(1) {
            Some(rest) => {
                *flushes = rest;
                None
            }
            None => ordered.take().map(|ordered| ordered.lose),
        }
    }
}

/// The LUN as a stack sees it.
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
