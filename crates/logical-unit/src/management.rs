//! A task management function, from its call to the end of the tasks that it aborted.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::join_all;
use scsi::TaskManagementOutcome;

use crate::task_set::Aborted;

/// A function that was carried out or refused at its call: a future of its outcome, which waits until the aborted tasks
/// have ended.
pub struct Management {
    outcome: TaskManagementOutcome,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Management {
    pub(crate) fn new(outcome: TaskManagementOutcome, aborted: Vec<Aborted>) -> Self {
        let ended = join_all(aborted.into_iter().map(Aborted::ended));
        Self { outcome, ended: Box::pin(async move { drop(ended.await) }) }
    }

    /// The outcome that it will have: it is decided.
    pub fn outcome(&self) -> TaskManagementOutcome {
        self.outcome
    }
}

impl Future for Management {
    type Output = TaskManagementOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<TaskManagementOutcome> {
        ready!(self.ended.as_mut().poll(context));
        Poll::Ready(self.outcome)
    }
}
