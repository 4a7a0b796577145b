//! The completion of a request: the future that every `submit` returns.
//!
//! The operation is under way when `submit` returns: a [`Completion`] only waits for it. Dropping it *detaches*: the
//! operation goes on to its end, keeping its buffer and its range. There are three ways to make one:
//!
//! | constructor | for | carried on by |
//! |---|---|---|
//! | [`Completion::ready`] | answers known at once (RAM, page cache, errors) | nothing: it is over |
//! | [`Completion::slot`] | drivers that complete from elsewhere (a ring, a connection) | that driver |
//! | [`Completion::task`] | layers: futures over devices | the awaiting task, else the layer's [`Workers`] |
//!
//! A layer with little to do after the request to another device adds a step to its completion
//! ([`Completion::then`]). Where a driver carries the operation on, this needs no task.
//!
//! A task is polled once when it is made, so that it has reached its first wait. From then on the
//! task that awaits the completion polls it in place, without a hop to another task. An operation
//! that is not awaited yet must go on, too: it holds its range, and other requests wait for that.
//! So when it can make progress the workers take it over.

mod task;
mod workers;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use base::buffer::Buffer;

use crate::error::{Error, ErrorKind};
use crate::request::Response;
use task::Task;
pub use workers::Workers;

type Step = Box<dyn FnOnce(Response) -> Completion + Send>;
type Watch = Box<dyn FnOnce(&Response) + Send>;

/// Waits for one operation. Dropping it detaches: the operation goes on to its end.
pub struct Completion(State);

enum State {
    Ready(Option<Response>),
    Slot(Arc<SlotShared>),
    Task(Arc<Task>),
    Watched(Box<Watched>),
}

/// An operation whose response is looked at by who takes it.
struct Watched {
    completion: Completion,
    watch: Option<Watch>,
}

impl Watched {
    fn look(&mut self, response: &Response) {
        if let Some(watch) = self.watch.take() {
            watch(response);
        }
    }
}

impl Completion {
    /// An operation that is over.
    pub fn ready(response: Response) -> Self {
        Self(State::Ready(Some(response)))
    }

    /// An operation that another task completes through the returned sender.
    pub fn slot() -> (Self, SlotSender) {
        let shared = Arc::new(SlotShared { state: Mutex::new(SlotState::Waiting { waker: None, step: None }) });
        (Self(State::Slot(Arc::clone(&shared))), SlotSender { shared: Some(shared) })
    }

    /// An operation that is a future of a layer. It is polled once here; while it is not awaited,
    /// and when it is dropped unfinished, `workers` carry it on.
    pub fn task(workers: &Workers, future: impl Future<Output = Response> + Send + 'static) -> Self {
        let task = Task::new(workers, Box::pin(future));
        match task.poll_future() {
            Poll::Ready(response) => {
                task.finish();
                Self::ready(response)
            }
            Poll::Pending => Self(State::Task(task)),
        }
    }

    /// The same operation with a step after it, whose completion becomes this one's. The step is
    /// taken where the operation ends, also when it is not awaited: on any thread, in a submit to
    /// the same device or in its driver. So it must not wait, and no lock that it takes may be held
    /// over a submit.
    pub fn then(mut self, workers: &Workers, step: impl FnOnce(Response) -> Self + Send + 'static) -> Self {
        let shared = match &mut self.0 {
            State::Ready(response) => return step(response.take().expect("a completion completes once")),
            State::Slot(shared) => Arc::clone(shared),
            State::Task(_) | State::Watched(_) => return Self::task(workers, async move { step(self.await).await }),
        };
        match shared.put_behind(step) {
            PutBehind::Put => self,
            PutBehind::Done(step, response) => step(response),
            PutBehind::Taken(step) => Self::task(workers, async move { step(self.await).await }),
        }
    }

    /// The same operation, whose response `watch` looks at as it is taken: before whoever awaits it goes
    /// on. Nobody looks at the response of an operation that is not awaited to its end. For a look that
    /// must not cost a task ([`Self::then`]).
    pub fn watched(mut self, watch: impl FnOnce(&Response) + Send + 'static) -> Self {
        match &mut self.0 {
            State::Ready(Some(response)) => {
                watch(response);
                self
            }
            _ => Self(State::Watched(Box::new(Watched { completion: self, watch: Some(Box::new(watch)) }))),
        }
    }

    /// The response, if the operation has ended and it was not taken before.
    pub fn try_take(&mut self) -> Option<Response> {
        match &mut self.0 {
            State::Ready(response) => response.take(),
            State::Slot(shared) => match shared.try_take()? {
                Outcome::Done(response) => Some(response),
                Outcome::Forwarded(completion) => {
                    *self = completion;
                    self.try_take()
                }
            },
            State::Task(task) => task.try_take(),
            State::Watched(watched) => {
                let response = watched.completion.try_take()?;
                watched.look(&response);
                Some(response)
            }
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
            State::Slot(shared) => match std::task::ready!(shared.poll(context)) {
                Outcome::Done(response) => Poll::Ready(response),
                Outcome::Forwarded(completion) => {
                    *self = completion;
                    self.poll(context)
                }
            },
            State::Task(task) => task.poll_owner(context),
            State::Watched(watched) => {
                let response = std::task::ready!(Pin::new(&mut watched.completion).poll(context));
                watched.look(&response);
                Poll::Ready(response)
            }
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let State::Task(task) = &self.0 {
            task.detach();
        }
    }
}

struct SlotShared {
    state: Mutex<SlotState>,
}

enum SlotState {
    Waiting {
        waker: Option<Waker>,
        step: Option<Step>,
    },
    /// The driver has answered, and the step after it runs. No further step can be added now.
    Stepping {
        waker: Option<Waker>,
    },
    Over(Outcome),
    Taken,
}

/// How an operation ended.
enum Outcome {
    Done(Response),
    /// The completion of a step that is not over.
    Forwarded(Completion),
}

/// Outcome of adding a step.
enum PutBehind<F> {
    /// The driver will take it.
    Put,
    /// The operation is over: the step is to be taken at once, with this response.
    Done(F, Response),
    /// It cannot be added: there is a step already, or the outcome is not a response.
    Taken(F),
}

impl SlotShared {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_take(&self) -> Option<Outcome> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Over(outcome) => Some(outcome),
            other => {
                *state = other;
                None
            }
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.lock();
        match &mut *state {
            SlotState::Waiting { waker, .. } | SlotState::Stepping { waker } => {
                *waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            SlotState::Over(_) => {}
            SlotState::Taken => panic!("a completion completes once"),
        }
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Over(outcome) => Poll::Ready(outcome),
            _ => unreachable!("looked at above, under the same lock"),
        }
    }

    fn put_behind<F: FnOnce(Response) -> Completion + Send + 'static>(&self, new: F) -> PutBehind<F> {
        let mut state = self.lock();
        match &mut *state {
            SlotState::Waiting { step: step @ None, .. } => {
                *step = Some(Box::new(new));
                return PutBehind::Put;
            }
            SlotState::Over(Outcome::Done(_)) => {}
            _ => return PutBehind::Taken(new),
        }
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Over(Outcome::Done(response)) => PutBehind::Done(new, response),
            _ => unreachable!("looked at above, under the same lock"),
        }
    }

    /// Ends the operation and takes its step, if there is one.
    fn finish(&self, response: Response) {
        let mut state = self.lock();
        let (step, waker) = match &mut *state {
            SlotState::Waiting { step, waker } => (step.take(), waker),
            _ => return Self::end(state, Outcome::Done(response)),
        };
        let Some(step) = step else { return Self::end(state, Outcome::Done(response)) };
        let waker = waker.take();
        *state = SlotState::Stepping { waker };
        drop(state);
        // Without the lock: the step may do anything.
        let mut completion = step(response);
        let outcome = completion.try_take().map_or_else(|| Outcome::Forwarded(completion), Outcome::Done);
        Self::end(self.lock(), outcome);
    }

    /// Sets the outcome and wakes the task that awaits it, after releasing the lock.
    fn end(mut state: MutexGuard<'_, SlotState>, outcome: Outcome) {
        let previous = std::mem::replace(&mut *state, SlotState::Over(outcome));
        drop(state);
        if let SlotState::Waiting { waker: Some(waker), .. } | SlotState::Stepping { waker: Some(waker) } = previous {
            waker.wake();
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
        if let Some(shared) = self.shared.take() {
            shared.finish(response);
        }
    }
}

impl Drop for SlotSender {
    fn drop(&mut self) {
        // Normally it was used; then no error is needed.
        if self.shared.is_none() {
            return;
        }
        let error = Error::new(ErrorKind::OutcomeUnknown, "the driver of this device stopped before it answered");
        self.finish(Response::failed(error, Buffer::empty()));
    }
}

#[cfg(test)]
mod tests;
