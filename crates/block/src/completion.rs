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

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use base::buffer::Buffer;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::error::{Error, ErrorKind};
use crate::request::Response;

type TaskFuture = Pin<Box<dyn Future<Output = Response> + Send>>;
type Step = Box<dyn FnOnce(Response) -> Completion + Send>;
type Watch = Box<dyn FnOnce(&Response) + Send>;
type BackgroundFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

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

/// A layer's operation that had to wait, shared by the completion and, if they carry it on, the
/// workers.
struct Task {
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
    fn new(workers: &Workers, future: TaskFuture) -> Arc<Self> {
        let state = Mutex::new(TaskState::default());
        Arc::new(Self { workers: workers.clone(), future: Mutex::new(Some(future)), state })
    }

    fn lock(&self) -> MutexGuard<'_, TaskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls the future, with this task as its waker.
    fn poll_future(self: &Arc<Self>) -> Poll<Response> {
        let mut future = self.future.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(running) = future.as_mut() else { return Poll::Pending };
        let waker = Waker::from(Arc::clone(self));
        let response = std::task::ready!(running.as_mut().poll(&mut Context::from_waker(&waker)));
        *future = None;
        Poll::Ready(response)
    }

    fn try_take(&self) -> Option<Response> {
        let mut state = self.lock();
        match std::mem::replace(&mut state.outcome, TaskOutcome::Taken) {
            TaskOutcome::Done(response) => Some(response),
            other => {
                state.outcome = other;
                None
            }
        }
    }

    fn poll_owner(self: &Arc<Self>, context: &mut Context<'_>) -> Poll<Response> {
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
    fn finish(&self) {
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
    fn detach(self: &Arc<Self>) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range_lock::RangeLock;
    use base::clock::Clock;
    use base::executor::Executor;
    use base::range::ByteRange;
    use futures_util::FutureExt;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn work_that_lets_others_go_first_has_its_turn_after_them() {
        for is_last in [false, true] {
            let mut executor = Executor::in_order();
            let (workers, order) = (Workers::new(), Arc::new(Mutex::new(Vec::new())));
            let note = |name| {
                let order = Arc::clone(&order);
                move || order.lock().unwrap().push(name)
            };
            let (running, polite, work) = (workers.clone(), workers.clone(), note("work"));
            executor.spawn(async move { running.run().await });
            executor.run_until_stalled();
            workers.spawn(async move {
                if is_last {
                    polite.yield_now().await;
                }
                work();
            });
            let other = note("other");
            executor.spawn(async move { other() });
            executor.run_until_stalled();
            let expected = if is_last { ["other", "work"] } else { ["work", "other"] };
            assert_eq!(*order.lock().unwrap(), expected);
        }
    }

    #[test]
    fn a_response_is_looked_at_by_who_takes_it_and_by_nobody_else() {
        let seen = Arc::new(AtomicUsize::new(0));
        let watched = |completion: Completion| {
            let seen = Arc::clone(&seen);
            completion.watched(move |response| {
                assert!(response.result.is_ok());
                seen.fetch_add(1, Ordering::Relaxed);
            })
        };
        let done = || Response::done(Buffer::empty());
        let mut taken = watched(Completion::ready(done()));
        assert_eq!((taken.try_take().is_some(), seen.load(Ordering::Relaxed)), (true, 1));
        let (completion, sender) = Completion::slot();
        let mut polled = watched(completion);
        assert!((&mut polled).now_or_never().is_none() && polled.try_take().is_none());
        sender.complete(done());
        assert_eq!(seen.load(Ordering::Relaxed), 1, "nobody has taken it");
        assert!(polled.now_or_never().is_some());
        assert_eq!(seen.load(Ordering::Relaxed), 2);
        let (completion, sender) = Completion::slot();
        let mut tried = watched(watched(completion));
        sender.complete(done());
        assert_eq!((tried.try_take().is_some(), seen.load(Ordering::Relaxed)), (true, 4));
        let (completion, sender) = Completion::slot();
        let behind = watched(completion).then(&Workers::new(), Completion::ready);
        sender.complete(done());
        assert!(behind.now_or_never().is_some());
        assert_eq!(seen.load(Ordering::Relaxed), 5);
        let (completion, sender) = Completion::slot();
        drop(watched(completion));
        sender.complete(done());
        assert_eq!(seen.load(Ordering::Relaxed), 5);
    }

    /// `Shared` wakes under a lock that it takes again on its drop, so it must not be dropped by
    /// the wake-up.
    #[test]
    fn a_task_ends_with_its_workers_and_not_with_its_last_waker() {
        let mut executor = Executor::new(1);
        let workers = Workers::new();
        let (completion, sender) = Completion::slot();
        let shared = async move { completion.await.result.is_ok() }.shared();
        let awaited = shared.clone();
        drop(Completion::task(&workers, async move {
            awaited.await;
            Response::done(Buffer::empty())
        }));
        executor.spawn(async move { workers.run().await });
        executor.run();
        drop(executor);
        drop(sender);
        assert_eq!(shared.now_or_never(), Some(false));
    }

    /// A cache that another one replaces stops its workers, perhaps with a flush under way that its
    /// client does not await yet.
    #[test]
    fn a_task_that_is_woken_when_its_workers_have_ended_is_left_to_whoever_awaits_it() {
        for are_running in [false, true] {
            let mut executor = Executor::in_order();
            let workers = Workers::new();
            let running = workers.clone();
            let (slots, senders): (Vec<_>, Vec<_>) = (0..3).map(|_| Completion::slot()).unzip();
            let mut senders = senders.into_iter();
            let mut wake_next = || senders.next().expect("there is one").complete(Response::done(Buffer::empty()));
            let completion = Completion::task(&workers, async move {
                for slot in slots {
                    slot.await;
                }
                failed()
            });
            executor.spawn(async move { running.run().await });
            if are_running {
                // The workers have the task when they are dropped.
                wake_next();
                executor.run();
                drop(executor);
            } else {
                workers.stop();
                wake_next();
                executor.run();
            }
            wake_next();
            let awaited = completion.map(|response| response.result.map_err(|error| error.kind()));
            let result = Arc::new(Mutex::new(None));
            let mut executor = Executor::in_order();
            let kept = Arc::clone(&result);
            executor.spawn(async move { *kept.lock().unwrap() = Some(awaited.await) });
            executor.run();
            assert_eq!(*result.lock().unwrap(), None);
            wake_next();
            executor.run();
            assert_eq!(*result.lock().unwrap(), Some(Err(ErrorKind::Media)));
        }
    }

    fn failed() -> Response {
        Response::failed(Error::new(ErrorKind::Media, "a test"), Buffer::empty())
    }

    #[test]
    fn a_step_is_taken_where_the_operation_ends_whether_or_not_anybody_awaits_it() {
        let workers = Workers::new();
        for is_dropped in [false, true] {
            let is_taken = Arc::new(AtomicBool::new(false));
            let flag = Arc::clone(&is_taken);
            let (completion, sender) = Completion::slot();
            let mut completion = completion.then(&workers, move |response| {
                flag.store(true, Ordering::Relaxed);
                assert!(response.result.is_ok());
                Completion::ready(failed())
            });
            assert!(completion.try_take().is_none() && !is_taken.load(Ordering::Relaxed));
            let kept = (!is_dropped).then_some(completion);
            sender.complete(Response::done(Buffer::empty()));
            assert!(is_taken.load(Ordering::Relaxed));
            if let Some(completion) = kept {
                let response = completion.now_or_never().expect("the step is the last there is to do");
                assert_eq!(response.result.map_err(|error| error.kind()), Err(ErrorKind::Media));
            }
        }
    }

    /// After each kind of completion, and after another step.
    #[test]
    fn a_step_that_is_not_over_at_once_is_waited_for() {
        for kind in ["ready", "slot", "slot that is over", "task", "step"] {
            let mut executor = Executor::new(1);
            let workers = Workers::new();
            let running = workers.clone();
            executor.spawn(async move { running.run().await });
            let (slot, sender) = Completion::slot();
            let mut sender = Some(sender);
            let first = match kind {
                "ready" => Completion::ready(failed()),
                "slot" => slot,
                "slot that is over" => {
                    sender.take().expect("it was made just now").complete(failed());
                    slot
                }
                "task" => Completion::task(&workers, slot),
                _ => slot.then(&workers, Completion::ready),
            };
            let (clock, inner) = (executor.clock(), workers.clone());
            let completion = first.then(&workers, move |response| {
                let seconds = if response.result.is_err() { 2 } else { 1 };
                Completion::task(&inner, async move {
                    clock.sleep(Duration::from_secs(seconds)).await;
                    Response::done(Buffer::copy_of(&[seconds as u8]))
                })
            });
            if let Some(sender) = sender.filter(|_| kind != "ready") {
                executor.spawn(async move { sender.complete(failed()) });
            }
            assert_eq!(&executor.block_on(completion).buffer[..], [2], "{kind}");
        }
    }

    /// As another thread would do while the driver takes the first step.
    #[test]
    fn a_step_put_behind_one_that_is_being_taken_is_taken_too() {
        let workers = Workers::new();
        let place = Arc::new(Mutex::new(None::<Completion>));
        let (completion, sender) = Completion::slot();
        let (inner, inner_workers) = (Arc::clone(&place), workers.clone());
        let completion = completion.then(&workers, move |response| {
            let mut place = inner.lock().unwrap();
            let longer =
                place.take().map(|completion| completion.then(&inner_workers, |_| Completion::ready(failed())));
            *place = longer;
            Completion::ready(response)
        });
        *place.lock().unwrap() = Some(completion);
        sender.complete(Response::done(Buffer::empty()));
        let completion = place.lock().unwrap().take().expect("it was put back");
        let response = completion.now_or_never().expect("both steps are over at once");
        assert_eq!(response.result.map_err(|error| error.kind()), Err(ErrorKind::Media));
    }

    #[test]
    fn a_driver_that_stops_takes_the_step_with_an_error() {
        let workers = Workers::new();
        let (completion, sender) = Completion::slot();
        let completion = completion.then(&workers, Completion::ready);
        drop(sender);
        let response = completion.now_or_never().expect("there is nothing to wait for");
        assert_eq!(response.result.map_err(|error| error.kind()), Err(ErrorKind::OutcomeUnknown));
    }

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

    /// Two operations on one range, awaited in the wrong order: the second must not wait until the
    /// first one is awaited.
    #[test]
    fn a_task_nobody_awaits_yet_goes_on() {
        let mut executor = Executor::new(1);
        let workers = Workers::new();
        let running = workers.clone();
        executor.spawn(async move { running.run().await });
        let (lock, clock) = (RangeLock::new(), executor.clock());
        let operation = |workers: &Workers| {
            let (lock, clock) = (lock.clone(), clock.clone());
            Completion::task(workers, async move {
                let _guard = lock.exclusive(ByteRange { offset: 0, length: 512 }).await;
                clock.sleep(Duration::from_millis(1)).await;
                Response::done(Buffer::empty())
            })
        };
        let (first, second) = (operation(&workers), operation(&workers));
        let results = executor.block_on(async move {
            let second = second.await.result;
            (first.await.result, second)
        });
        assert!(results.0.is_ok() && results.1.is_ok());
    }

    #[test]
    fn a_late_wake_does_not_bring_a_finished_task_back() {
        let mut executor = Executor::new(1);
        let workers = Workers::new();
        let waker = Arc::new(Mutex::new(None));
        let kept = Arc::clone(&waker);
        let mut completion = Completion::task(&workers, async move {
            poll_fn(|context| {
                *kept.lock().unwrap() = Some(context.waker().clone());
                Poll::Ready(())
            })
            .await;
            Response::done(Buffer::empty())
        });
        assert!(completion.try_take().is_some());
        waker.lock().unwrap().take().expect("the task left its waker").wake();
        workers.stop();
        // It would not end with a task that never ends.
        executor.block_on(async move { workers.run().await });
    }

    #[test]
    fn a_task_that_is_awaited_needs_no_workers() {
        let mut executor = Executor::new(1);
        let clock = executor.clock();
        let completion = Completion::task(&Workers::new(), async move {
            futures_util::future::ready(()).await;
            clock.sleep(Duration::from_millis(1)).await;
            clock.sleep(Duration::from_millis(1)).await;
            Response::done(Buffer::empty())
        });
        assert!(executor.block_on(completion).result.is_ok());
    }

    /// The seed decides whether the workers or the owner come first, and whether the owner leaves
    /// in between.
    #[test]
    fn owners_and_workers_do_not_lose_a_task_between_them() {
        let test = crate::crash_test!();
        for seed in test.seeds(0, 200, 1) {
            let _printed = test.on_panic(seed, None);
            let mut executor = Executor::new(seed);
            let workers = Workers::new();
            let running = workers.clone();
            executor.spawn(async move { running.run().await });
            let finished = Arc::new(AtomicUsize::new(0));
            for number in 0..8u64 {
                let (clock, count) = (executor.clock(), Arc::clone(&finished));
                let completion = Completion::task(&workers, async move {
                    for step in 0..4 {
                        clock.sleep(Duration::from_micros(1 + (seed + number + step) % 3)).await;
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    Response::done(Buffer::empty())
                });
                let clock = executor.clock();
                executor.spawn(async move {
                    clock.sleep(Duration::from_micros((seed * number) % 5)).await;
                    match number % 3 {
                        0 => drop(completion),
                        1 => drop(completion.await),
                        _ => {
                            let mut completion = completion;
                            let pause = clock.sleep(Duration::from_micros(2));
                            // Polled for a while, then dropped or finished.
                            let _ = futures_util::future::select(&mut completion, pause).await;
                        }
                    }
                });
            }
            executor.run();
            assert_eq!(finished.load(Ordering::Relaxed), 8, "seed {seed}");
        }
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
