//! A command under way.
//!
//! | state | allocates | waits for |
//! |---|---|---|
//! | ready | nothing | nothing |
//! | device | nothing | one request of the device, holding its range |
//! | task | one box | what the command needs: its turn, a range, a buffer, several requests |
//!
//! The command is under way when the execution is made; awaiting it only collects the outcome. Dropping it detaches:
//! the unit's workers finish it, and its range stays locked until then.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use block::completion::Workers;
use block::range_lock::RangeGuard;
use block::{Completion, Response};

use crate::command::Outcome;
use crate::task_set::{Abort, Ticket};

type OutcomeFuture = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A command under way: a future of its [`Outcome`].
pub struct Execution(State);

enum State {
    Ready(Option<Outcome>),
    Device(Option<DeviceWait>),
    Task(Option<TaskWait>),
}

/// One device request that answers the whole command.
struct DeviceWait {
    completion: Completion,
    /// Released before the ticket: fields drop in this order.
    guard: RangeGuard,
    finish: Finish,
    lba: u64,
    ticket: Ticket,
    workers: Workers,
}

/// How a device's response becomes an outcome. A function and not a closure, so that it takes no allocation.
pub(crate) type Finish = fn(Response, lba: u64) -> Outcome;

struct TaskWait {
    future: OutcomeFuture,
    ticket: Arc<Ticket>,
    workers: Workers,
}

impl Execution {
    /// A command that is over.
    pub fn ready(outcome: Outcome) -> Self {
        Self(State::Ready(Some(outcome)))
    }

    pub(crate) fn device(
        completion: Completion,
        guard: RangeGuard,
        (finish, lba): (Finish, u64),
        ticket: Ticket,
        workers: &Workers,
    ) -> Self {
        Self(State::Device(Some(DeviceWait { completion, guard, finish, lba, ticket, workers: workers.clone() })))
    }

    /// A command that runs as a future; it is polled once here, so that it has reached its first
    /// wait.
    pub(crate) fn task(
        future: impl Future<Output = Outcome> + Send + 'static,
        ticket: Arc<Ticket>,
        workers: &Workers,
    ) -> Self {
        let mut future: OutcomeFuture = Box::pin(future);
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Self::ready(judge(outcome, &ticket)),
            Poll::Pending => Self(State::Task(Some(TaskWait { future, ticket, workers: workers.clone() }))),
        }
    }

    /// Takes the outcome, if the command has ended without waiting and the outcome was not taken
    /// before.
    pub fn try_take(&mut self) -> Option<Outcome> {
        match &mut self.0 {
            State::Ready(outcome) => outcome.take(),
            State::Device(wait) => {
                let response = wait.as_mut()?.completion.try_take()?;
                wait.take().map(|wait| wait.end(response))
            }
            State::Task(_) => None,
        }
    }
}

impl DeviceWait {
    fn end(self, response: Response) -> Outcome {
        drop(self.guard);
        judge((self.finish)(response, self.lba), &self.ticket)
    }
}

/// The outcome for the initiator: an aborted task ends as its abort decides, whatever was done of
/// it.
fn judge(outcome: Outcome, ticket: &Ticket) -> Outcome {
    match ticket.abort() {
        None => outcome,
        Some(abort) => Outcome::aborted(abort == Abort::ByItself),
    }
}

impl Future for Execution {
    type Output = Outcome;

    /// # Panics
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.0 {
            State::Ready(outcome) => Poll::Ready(outcome.take().expect("a command ends once")),
            State::Device(wait) => {
                let waiting = wait.as_mut().expect("a command ends once");
                let response = ready!(Pin::new(&mut waiting.completion).poll(context));
                Poll::Ready(wait.take().expect("it was there a moment ago").end(response))
            }
            State::Task(wait) => {
                let waiting = wait.as_mut().expect("a command ends once");
                let outcome = ready!(waiting.future.as_mut().poll(context));
                let TaskWait { future, ticket, .. } = wait.take().expect("it was there a moment ago");
                drop(future);
                Poll::Ready(judge(outcome, &ticket))
            }
        }
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        match &mut self.0 {
            State::Ready(_) => {}
            State::Device(wait) => {
                let Some(DeviceWait { completion, guard, ticket, workers, .. }) = wait.take() else { return };
                workers.spawn(async move {
                    completion.await;
                    drop((guard, ticket));
                });
            }
            State::Task(wait) => {
                let Some(TaskWait { future, ticket, workers }) = wait.take() else { return };
                ticket.leave();
                workers.spawn(async move {
                    future.await;
                    drop(ticket);
                });
            }
        }
    }
}
