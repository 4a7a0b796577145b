//! A command whose R2T is held back until other hosts that share the unit have dropped their
//! copies.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;

use iscsi::target::TaskId;

/// A command whose data is not requested yet. Dropping it ends the wait.
pub(crate) struct HeldData {
    /// The command's task.
    pub(crate) task: TaskId,
    copies_dropped: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl HeldData {
    /// Holds `task` until `copies_dropped` is ready.
    pub(crate) fn new(task: TaskId, copies_dropped: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { task, copies_dropped: Box::pin(copies_dropped) }
    }

    /// Whether its data may be requested now.
    pub(crate) fn poll_is_free(&mut self, context: &mut Context<'_>) -> bool {
        self.copies_dropped.as_mut().poll(context).is_ready()
    }
}
