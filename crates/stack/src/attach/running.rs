//! An attachment while it serves: its concurrent work, and the control requests to it.

use std::future::Future;
use std::rc::Rc;

use super::{Attachment, served};
use crate::control::{ControlRequest, Handler, Progress, is_no_daemon};
use crate::error::{Error, Failure, Result};
use crate::events::{EventKind, EventLog};
use crate::flag::wait_until;
use crate::fronts::Fronts;
use crate::occurrences::note_occurrences;
use crate::stack::{Ending, Stack};
use crate::status::{Answer, Left, ProcessStatus};
use crate::systemd;
use crate::watch::Watch;

impl Attachment {
    /// Serves until it is detached, or until `signal`: then it stops at once and keeps dirty data.
    ///
    /// # Errors
    /// When no front is left, or dirty data could not be made safe.
    pub async fn run(self, signal: impl Future<Output = ()>) -> Result<()> {
        let Self { stack, fronts, control, metrics } = self;
        let events = control.events();
        events.note(EventKind::Started, format!("at {}", fronts.addresses().join(" ")));
        let inside = Rc::new(Inside { stack, fronts, events: Rc::clone(&events) });
        let stack = &inside.stack;
        let serve = async {
            let served = inside.fronts.serve(served(stack), stack.stopping()).await;
            stack.note_unused();
            let is_stopping = *stack.stopping().borrow();
            match is_stopping {
                true => served,
                // Without a front no application can reach it.
                false => stack.end_at_once().await.and(served),
            }
        };
        let stop_on_signal = async {
            tokio::select! {
                () = signal => stack.end_at_once().await,
                () = wait_until(stack.ended()) => Ok(()),
            }
        };
        let control = control.serve(Rc::clone(&inside), wait_until(stack.ended()));
        let metrics = async {
            let Some(metrics) = metrics else { return };
            // An attachment goes on without its metrics.
            if let Err(error) = metrics.serve(async || inside.status(), wait_until(stack.ended())).await {
                tracing::error!(%error, "there are no metrics any more");
            }
        };
        let informing = async {
            systemd::ready();
            tokio::select! {
                () = systemd::keep_informed(|| async { stack.summary() }) => {}
                () = wait_until(stack.stopping()) => systemd::stopping(),
            }
        };
        let watching = async {
            let mut watch = Watch::default();
            let noting = note_occurrences(&events, || stack.look(&inside.fronts.status()));
            tokio::select! {
                () = base::background::named("watch", watch.run(|| stack.observation())) => {}
                () = noting => {}
                () = wait_until(stack.ended()) => {}
            }
        };
        let (served, stopped, ..) = tokio::join!(serve, stop_on_signal, control, metrics, informing, watching);
        stack.stop_background();
        served.and(stopped).and(stack.check_end())
    }
}

/// The handler of control requests while it serves.
struct Inside {
    stack: Stack,
    fronts: Fronts,
    events: Rc<EventLog>,
}

impl Inside {
    fn status(&self) -> ProcessStatus {
        ProcessStatus::Attachment(Box::new(self.stack.status(self.fronts.status())))
    }
}

impl Inside {
    async fn detach(&self, keep_dirty: bool, remove_cache: bool, progress: Progress) -> Result<Left> {
        let stack = &self.stack;
        stack.check_difference_stays().await?;
        if remove_cache {
            return stack.detach_and_remove(progress).await;
        }
        let ending = if keep_dirty { Ending::KeepDirty } else { Ending::Clean };
        stack.check_last_copy(ending)?;
        stack.check_overwrites_nothing(ending)?;
        stack.detach(ending, Some(progress)).await
    }
}

impl Handler for Inside {
    async fn handle(&self, request: ControlRequest, progress: Progress) -> Result<Answer> {
        let stack = &self.stack;
        match request {
            ControlRequest::Status => Ok(Answer::Status(Box::new(self.status()))),
            ControlRequest::Reload => {
                let message =
                    format!("\"{}\" is an attachment: its configuration file counts when it starts", stack.name());
                Err(Error::new(Failure::Usage, message))
            }
            ControlRequest::Events { after } => Ok(self.events.answer(after)),
            ControlRequest::Start { .. } | ControlRequest::Hold { .. } => Err(is_no_daemon(stack.name())),
            ControlRequest::Flush => stack.flush(progress).await.map(Answer::Flushed),
            ControlRequest::Clean => stack.clean(progress).await.map(Answer::Left),
            ControlRequest::Set { key, value } => {
                let set = stack.set(&key, &value).await?;
                self.events.note(EventKind::Set, format!("{key}={value}"));
                Ok(set)
            }
            ControlRequest::Detach { keep_dirty, remove_cache } => {
                let in_use = self.fronts.in_use();
                let left = self.detach(keep_dirty, remove_cache, progress).await?;
                Ok(Answer::Left(Left { in_use, ..left }))
            }
        }
    }
}
