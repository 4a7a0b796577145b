//! Where a layer's operations go on that nobody awaits.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use futures_util::stream::{FuturesUnordered, StreamExt};

type BackgroundFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tasks of a layer: its detached operations and background work are polled here. Clones are
/// the same workers.
#[derive(Clone, Default)]
pub struct Workers {
    shared: Arc<Mutex<WorkersState>>,
}

#[derive(Default)]
struct WorkersState {
    incoming: VecDeque<BackgroundFuture>,
    waker: Option<Waker>,
    /// Wakers to be woken at the next poll of [`Workers::run`].
    deferred: Vec<Waker>,
    is_stopped: bool,
}

impl Workers {
    /// Workers without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a future, which [`Workers::run`] polls.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let waker = {
            let mut state = self.lock();
            if state.is_stopped {
                return;
            }
            state.incoming.push_back(Box::pin(future));
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Asks [`Workers::run`] to return once all its futures are done. Futures added later are
    /// dropped.
    pub fn stop(&self) {
        let waker = {
            let mut state = self.lock();
            state.is_stopped = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits until [`Workers::run`] has returned to its executor once, so that other tasks that are
    /// ready now have had their turn. For use inside these workers.
    pub fn yield_now(&self) -> impl Future<Output = ()> + Send + 'static {
        let (workers, mut is_deferred) = (self.clone(), false);
        poll_fn(move |context| {
            if is_deferred {
                return Poll::Ready(());
            }
            is_deferred = true;
            let waker = {
                let mut state = workers.lock();
                state.deferred.push(context.waker().clone());
                state.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
            Poll::Pending
        })
    }

    /// Polls all futures that were added, until [`Workers::stop`]. The program that assembles a
    /// stack polls this once.
    pub async fn run(&self) {
        let mut running = FuturesUnordered::new();
        poll_fn(|context| {
            let deferred = std::mem::take(&mut self.lock().deferred);
            deferred.into_iter().for_each(Waker::wake);
            loop {
                let is_stopped = {
                    let mut state = self.lock();
                    running.extend(state.incoming.drain(..));
                    state.waker = Some(context.waker().clone());
                    state.is_stopped
                };
                match running.poll_next_unpin(context) {
                    Poll::Ready(Some(())) => {}
                    Poll::Ready(None) if is_stopped => return Poll::Ready(()),
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, WorkersState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
