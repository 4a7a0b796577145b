//! A layer's operation that had to wait.
//!
//! Whoever awaits the completion polls it in place. While nobody does, the layer's [`Workers`] have
//! it, from the first time on that it is woken.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::workers::Workers;
use crate::request::Response;

type TaskFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

/// A layer's operation that had to wait, shared by the completion and, if they carry it on, the
/// workers.
pub(super) struct Task {
    workers: Workers,
    /// Locked during a poll. Never locked together with `state` except in this order.
    future: Mutex<Option<TaskFuture>>,
    state: Mutex<TaskState>,
}

/// Short sections, never across a poll.
#[derive(Default)]
struct TaskState {
    /// Waker of the task that awaits the completion. While it is set the workers do not poll.
    owner: Option<Waker>,
    /// Waker of the workers, once they have the task.
    worker: Option<Waker>,
    carrier: Carrier,
    is_detached: bool,
    outcome: TaskOutcome,
}

/// Who polls a task that nobody awaits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Carrier {
    #[default]
    Nobody,
    Workers,
    /// The workers have ended: the task that awaits the completion polls it, and nobody before.
    Ended,
}

#[derive(Default)]
enum TaskOutcome {
    #[default]
    Running,
    Done(Response),
    Taken,
}

impl Task {
    pub(super) fn new(workers: &Workers, future: TaskFuture) -> Arc<Self> {
        let state = Mutex::new(TaskState::default());
        Arc::new(Self { workers: workers.clone(), future: Mutex::new(Some(future)), state })
    }

    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the future, with this task as its waker.
    pub(super) fn poll_future(self: &Arc<Self>) -> Poll<Response> {
        let mut future = self.future.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(running) = future.as_mut() else { return Poll::Pending };
        let waker = Waker::from(Arc::clone(self));
        let response = std::task::ready!(running.as_mut().poll(&mut Context::from_waker(&waker)));
        *future = None;
        Poll::Ready(response)
    }

    pub(super) fn try_take(&self) -> Option<Response> {
        let mut state = self.lock();
        match std::mem::replace(&mut state.outcome, TaskOutcome::Taken) {
            TaskOutcome::Done(response) => Some(response),
            other => {
                state.outcome = other;
                None
            }
        }
    }

    pub(super) fn poll_owner(self: &Arc<Self>, context: &mut Context<'_>) -> Poll<Response> {
        {
            let mut state = self.lock();
            match std::mem::replace(&mut state.outcome, TaskOutcome::Taken) {
                TaskOutcome::Done(response) => return Poll::Ready(response),
                TaskOutcome::Taken => panic!("a completion completes once"),
                TaskOutcome::Running => state.outcome = TaskOutcome::Running,
            }
            state.owner = Some(context.waker().clone());
        }
        let response = std::task::ready!(self.poll_future());
        self.finish();
        Poll::Ready(response)
    }

    /// Ends the task: the owner has the response. Workers that had it are woken once more, and drop
    /// it.
    pub(super) fn finish(&self) {
        let worker = {
            let mut state = self.lock();
            state.outcome = TaskOutcome::Taken;
            state.worker.take()
        };
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    /// Polls the task for the workers, until it is over or an owner awaits it.
    fn poll_worker(self: &Arc<Self>, context: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = self.lock();
            if !matches!(state.outcome, TaskOutcome::Running) {
                return Poll::Ready(());
            }
            if state.owner.is_some() {
                state.carrier = Carrier::Nobody;
                state.worker = None;
                return Poll::Ready(());
            }
            state.worker = Some(context.waker().clone());
        }
        let response = std::task::ready!(self.poll_future());
        let owner = {
            let mut state = self.lock();
            state.outcome = TaskOutcome::Done(response);
            state.owner.take()
        };
        if let Some(owner) = owner {
            owner.wake();
        }
        Poll::Ready(())
    }

    /// The completion was dropped: hands the task to the workers.
    pub(super) fn detach(self: &Arc<Self>) {
        let worker = {
            let mut state = self.lock();
            if !matches!(state.outcome, TaskOutcome::Running) {
                return;
            }
            (state.owner, state.is_detached) = (None, true);
            match state.carrier {
                Carrier::Nobody => return self.give_to_workers(state),
                Carrier::Workers => state.worker.clone(),
                Carrier::Ended => {
                    drop(state);
                    return self.abandon();
                }
            }
        };
        if let Some(worker) = worker {
            worker.wake();
        }
    }

    /// Drops the future: nobody will poll it any more.
    fn abandon(&self) {
        let future = self.future.try_lock().ok().and_then(|mut future| future.take());
        drop(future);
    }

    fn give_to_workers(self: &Arc<Self>, mut state: MutexGuard<'_, TaskState>) {
        state.carrier = Carrier::Workers;
        drop(state);
        let carried = Carried(Arc::clone(self));
        self.workers.spawn(poll_fn(move |context| carried.0.poll_worker(context)));
    }
}

/// A task in the hands of the workers. When they end, or are dropped, with it and its completion is
/// dropped already, its future is dropped here: otherwise the last waker would drop it in the middle
/// of a wake-up, under the locks of the waking code. While there is a completion, it can still be
/// awaited.
struct Carried(Arc<Task>);

impl Drop for Carried {
    fn drop(&mut self) {
        let is_abandoned = {
            let mut state = self.0.lock();
            if state.carrier != Carrier::Workers || !matches!(state.outcome, TaskOutcome::Running) {
                return;
            }
            state.carrier = Carrier::Ended;
            state.is_detached
        };
        if is_abandoned {
            self.0.abandon();
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let waker = {
            let state = self.lock();
            // Wakers may outlive their purpose; a task that is over is not woken.
            if !matches!(state.outcome, TaskOutcome::Running) {
                return;
            }
            if state.owner.is_none() && state.carrier == Carrier::Nobody {
                return self.give_to_workers(state);
            }
            // Workers that have not polled it yet will do so without being woken.
            state.owner.as_ref().or(state.worker.as_ref()).cloned()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
