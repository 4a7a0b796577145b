//! Directives to a connection, and the notification of its end.
//!
//! The connection polls its [`Control`] in its own loop; the holder of a [`Handle`] to it sets the
//! directive. Its end can be waited for: a session is reinstated only after the old one has ended.
//! An inquiry about a session's state is answered at its next turn.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;

use crate::status::SessionReport;

/// The directive to a connection. Directives only get stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Directive {
    Run = 0,
    /// Ask the initiator to log out, and end after that or after a while.
    Drain = 1,
    /// End now.
    Stop = 2,
}

#[derive(Default)]
struct Shared {
    directive: AtomicU8,
    waker: AtomicWaker,
    /// `None` once the connection has ended.
    waiting: Mutex<Option<Vec<Waker>>>,
    /// Whether there is anything in `inquirers`.
    is_asked: AtomicBool,
    inquirers: Mutex<Vec<oneshot::Sender<SessionReport>>>,
}

/// The connection's side. Its drop is the end.
pub(crate) struct Control(Arc<Shared>);

/// The side of all others.
#[derive(Clone)]
pub(crate) struct Handle(Arc<Shared>);

impl Control {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared { waiting: Mutex::new(Some(Vec::new())), ..Shared::default() }))
    }

    pub(crate) fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.0))
    }

    /// The directive now; the task is woken when it changes.
    pub(crate) fn poll_directive(&self, context: &Context<'_>) -> Directive {
        self.0.waker.register(context.waker());
        match self.0.directive.load(Ordering::Acquire) {
            0 => Directive::Run,
            1 => Directive::Drain,
            _ => Directive::Stop,
        }
    }
}

impl Control {
    /// Takes the inquiries about the session's state. Mostly there are none, which costs one load.
    pub(crate) fn inquirers(&self) -> Vec<oneshot::Sender<SessionReport>> {
        if !self.0.is_asked.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.0.is_asked.store(false, Ordering::Release);
        std::mem::take(&mut self.0.inquirers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The session has ended: there will be no answer.
        self.0.inquirers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Handle {
    pub(crate) fn ask(&self, directive: Directive) {
        self.0.directive.fetch_max(directive as u8, Ordering::AcqRel);
        self.0.waker.wake();
    }

    /// Asks the session for its state; `None` when it ends before it answers.
    pub(crate) fn inquire(&self) -> oneshot::Receiver<SessionReport> {
        let (sender, receiver) = oneshot::channel();
        if !self.has_ended() {
            self.0.inquirers.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
            self.0.is_asked.store(true, Ordering::Release);
            self.0.waker.wake();
        }
        receiver
    }

    /// Whether both are to the same connection.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Ready when the connection has ended.
    pub(crate) fn poll_ended(&self, context: &Context<'_>) -> Poll<()> {
        match self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            None => Poll::Ready(()),
            Some(waiting) => {
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) {
        std::future::poll_fn(|context| self.poll_ended(context)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_only_get_stronger_and_the_end_is_seen() {
        let control = Control::new();
        let handle = control.handle();
        let context = Context::from_waker(Waker::noop());
        assert_eq!(control.poll_directive(&context), Directive::Run);
        handle.ask(Directive::Stop);
        handle.ask(Directive::Drain);
        assert_eq!(control.poll_directive(&context), Directive::Stop);
        assert!(handle.poll_ended(&context).is_pending());
        drop(control);
        assert!(handle.poll_ended(&context).is_ready());
    }
}
