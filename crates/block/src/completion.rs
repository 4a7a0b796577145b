//! The one future that every `submit` returns.
//!
//! The operation is under way when `submit` returns: a [`Completion`] only waits for it. Dropping it *detaches*: the operation
//! goes on to its end, keeping its buffer and its range. There are three ways to make one:
//!
//! | constructor | for | who finishes it after a drop |
//! |---|---|---|
//! | [`Completion::ready`] | answers known at once (RAM, page cache, errors) | nothing is left to do |
//! | [`Completion::slot`] | drivers that complete from elsewhere (a ring, a connection) | that driver |
//! | [`Completion::task`] | layers, whose operations are futures over other devices | the layer's [`Workers`] |
//!
//! A task is polled once when it is made, so that it has reached its first wait; from then on whoever awaits the completion
//! polls it in place: no hop to another task. `Workers::run` polls only what was dropped and what the layer
//! gave it as background work.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use base::buffer::Buffer;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::error::{Error, ErrorKind};
use crate::request::Response;

type TaskFuture = Pin<Box<dyn Future<Output = Response> + Send>>;
type BackgroundFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits for one operation. See the module for what dropping it means.
pub struct Completion(State);

enum State {
    Ready(Option<Response>),
    Slot(Arc<SlotShared>),
    Task { future: Option<TaskFuture>, workers: Workers },
}

impl Completion {
    /// An operation that is over.
    pub fn ready(response: Response) -> Self {
        Self(State::Ready(Some(response)))
    }

    /// An operation that somebody else completes through the returned sender.
    pub fn slot() -> (Self, SlotSender) {
        let shared = Arc::new(SlotShared { state: Mutex::new(SlotState::Waiting(None)) });
        (Self(State::Slot(Arc::clone(&shared))), SlotSender { shared: Some(shared) })
    }

    /// An operation that is a future of a layer. It is polled once here; if it is dropped unfinished, `workers` finish it.
    pub fn task(workers: &Workers, future: impl Future<Output = Response> + Send + 'static) -> Self {
        let mut future: TaskFuture = Box::pin(future);
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(response) => Self::ready(response),
            Poll::Pending => Self(State::Task { future: Some(future), workers: workers.clone() }),
        }
    }

    /// The response, if it is there without waiting and was not taken before.
    pub fn try_take(&mut self) -> Option<Response> {
        match &mut self.0 {
            State::Ready(response) => response.take(),
            State::Slot(shared) => shared.try_take(),
            State::Task { .. } => None,
        }
    }
}

impl Future for Completion {
    type Output = Response;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Response> {
        match &mut self.0 {
            State::Ready(response) => Poll::Ready(response.take().expect("a completion completes once")),
            State::Slot(shared) => shared.poll(context),
            State::Task { future, .. } => {
                let running = future.as_mut().expect("a completion completes once");
                let response = std::task::ready!(running.as_mut().poll(context));
                *future = None;
                Poll::Ready(response)
            }
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let State::Task { future, workers } = &mut self.0
            && let Some(future) = future.take()
        {
            workers.adopt(Box::pin(async move {
                future.await;
            }));
        }
    }
}

struct SlotShared {
    state: Mutex<SlotState>,
}

enum SlotState {
    Waiting(Option<Waker>),
    Done(Response),
    Taken,
}

impl SlotShared {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_take(&self) -> Option<Response> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Done(response) => Some(response),
            other => {
                *state = other;
                None
            }
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Response> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Done(response) => Poll::Ready(response),
            SlotState::Waiting(_) => {
                *state = SlotState::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            SlotState::Taken => panic!("a completion completes once"),
        }
    }
}

/// The other end of [`Completion::slot`]. Dropping it unused completes the operation with *outcome unknown*.
pub struct SlotSender {
    shared: Option<Arc<SlotShared>>,
}

impl SlotSender {
    /// Completes the operation.
    pub fn complete(mut self, response: Response) {
        self.finish(response);
    }

    fn finish(&mut self, response: Response) {
        let Some(shared) = self.shared.take() else { return };
        let previous = std::mem::replace(&mut *shared.lock(), SlotState::Done(response));
        if let SlotState::Waiting(Some(waker)) = previous {
            waker.wake();
        }
    }
}

impl Drop for SlotSender {
    fn drop(&mut self) {
        let error = Error::new(ErrorKind::OutcomeUnknown, "the driver of this device stopped before it answered");
        self.finish(Response::failed(error, Buffer::empty()));
    }
}

/// Where a layer's detached operations and background work are polled. Clones share one place.
#[derive(Clone, Default)]
pub struct Workers {
    shared: Arc<Mutex<WorkersState>>,
}

#[derive(Default)]
struct WorkersState {
    incoming: VecDeque<BackgroundFuture>,
    waker: Option<Waker>,
    is_stopped: bool,
}

impl Workers {
    /// A place without work.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a future to be polled by [`Workers::run`].
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.adopt(Box::pin(future));
    }

    fn adopt(&self, future: BackgroundFuture) {
        let waker = {
            let mut state = self.lock();
            if state.is_stopped {
                return;
            }
            state.incoming.push_back(future);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Asks [`Workers::run`] to return once all it was given is done. Work given later is dropped.
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

    /// Polls all it was given, until [`Workers::stop`]. Whoever assembles a stack polls this once.
    pub async fn run(&self) {
        let mut running = FuturesUnordered::new();
        poll_fn(|context| {
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
                    Poll::Ready(None) => return Poll::Pending,
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, WorkersState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::clock::Clock;
    use base::executor::Executor;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    #[test]
    fn a_dropped_task_still_finishes() {
        let mut executor = Executor::new(1);
        let workers = Workers::new();
        let is_finished = Arc::new(AtomicBool::new(false));
        let (clock, flag) = (executor.clock(), Arc::clone(&is_finished));
        drop(Completion::task(&workers, async move {
            clock.sleep(Duration::from_millis(1)).await;
            flag.store(true, Ordering::Relaxed);
            Response::done(Buffer::empty())
        }));
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        executor.run();
        assert!(is_finished.load(Ordering::Relaxed));
    }

    #[test]
    fn a_task_that_need_not_wait_is_ready_at_once() {
        let mut completion = Completion::task(&Workers::new(), async { Response::done(Buffer::empty()) });
        assert!(completion.try_take().is_some());
        assert!(completion.try_take().is_none());
    }

    #[test]
    fn a_lost_driver_is_an_unknown_outcome() {
        let (mut completion, sender) = Completion::slot();
        assert!(completion.try_take().is_none());
        drop(sender);
        let response = completion.try_take().expect("the sender is gone");
        assert_eq!(response.result.map_err(|error| error.kind()), Err(ErrorKind::OutcomeUnknown));
    }
}
