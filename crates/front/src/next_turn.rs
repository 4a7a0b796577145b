//! The end of a connection's turn: it goes on when the runtime has looked at all sockets, and not before.
//!
//! A task that yields is polled again at once if something else wakes it, as an answer of the device does. A client
//! that keeps answers coming would get turn after turn without a look at the sockets of others.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Whether it is the turn of a connection.
pub(crate) struct NextTurn {
    look: Arc<Look>,
    waker: Waker,
    is_waiting: bool,
}

/// The look at the sockets that a connection waits for.
#[derive(Default)]
struct Look {
    connection: AtomicWaker,
    is_over: AtomicBool,
}

impl NextTurn {
    pub(crate) fn new() -> Self {
        let look = Arc::<Look>::default();
        Self { waker: Waker::from(Arc::clone(&look)), look, is_waiting: false }
    }

    /// The turn is over. The connection is woken for the next one.
    pub(crate) fn wait(&mut self, context: &Context<'_>) {
        self.look.connection.register(context.waker());
        self.is_waiting = true;
        // Not a plain wake-up: this one comes after the look.
        let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&self.waker));
    }

    /// Ready when the connection may go on.
    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.is_waiting {
            self.look.connection.register(context.waker());
            if !self.look.is_over.swap(false, Ordering::SeqCst) {
                return Poll::Pending;
            }
            self.is_waiting = false;
        }
        Poll::Ready(())
    }
}

impl Wake for Look {
    fn wake(self: Arc<Self>) {
        self.is_over.store(true, Ordering::SeqCst);
        self.connection.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_woken_meanwhile_waits_until_all_sockets_were_looked_at() {
        let mut turn = NextTurn::new();
        let context = Context::from_waker(Waker::noop());
        assert!(turn.poll(&context).is_ready());
        turn.wait(&context);
        assert!(turn.poll(&context).is_pending() && turn.poll(&context).is_pending());
        tokio::task::yield_now().await;
        assert!(turn.poll(&context).is_ready());
        assert!(turn.poll(&context).is_ready(), "until the next one is over");
    }
}
