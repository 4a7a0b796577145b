//! The end of a connection's turn: it goes on only after the runtime has looked at all sockets.
//!
//! A task that yields is polled again at once if something else wakes it, for example an answer of
//! the device. A client that keeps answers coming would get turn after turn without a look at the
//! sockets of others. So would several clients together: so only one of those whose turns are over
//! goes on after each look, in order.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Connections whose turns are over. One for each server, whose connections share a thread.
#[derive(Default)]
pub(crate) struct TurnLine(Mutex<Line>);

/// Short sections, never across an await.
#[derive(Default)]
struct Line {
    waiting: VecDeque<Arc<Place>>,
    /// Whether the runtime's next look at the sockets is awaited.
    awaits_look: bool,
}

/// A waiting connection.
#[derive(Default)]
struct Place {
    connection: AtomicWaker,
    is_called: AtomicBool,
}

impl TurnLine {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the next one go on after the next look at the sockets.
    fn go_on(self: &Arc<Self>, mut line: MutexGuard<'_, Line>) {
        if line.waiting.is_empty() || std::mem::replace(&mut line.awaits_look, true) {
            return;
        }
        drop(line);
        let waker = Waker::from(Arc::clone(self));
        // A plain wake-up could come before that look.
        let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
    }
}

impl Wake for TurnLine {
    fn wake(self: Arc<Self>) {
        let mut line = self.lock();
        line.awaits_look = false;
        let first = line.waiting.pop_front();
        drop(line);
        if let Some(place) = first {
            place.is_called.store(true, Ordering::SeqCst);
            place.connection.wake();
        }
    }
}

/// The wait of a connection for its next turn.
pub(crate) struct NextTurn {
    line: Arc<TurnLine>,
    place: Arc<Place>,
    is_waiting: bool,
}

impl NextTurn {
    pub(crate) fn new(line: Arc<TurnLine>) -> Self {
        Self { line, place: Arc::default(), is_waiting: false }
    }

    /// Ends the turn. The connection is woken for the next one.
    pub(crate) fn wait(&mut self, context: &Context<'_>) {
        self.place.connection.register(context.waker());
        self.is_waiting = true;
        let mut line = self.line.lock();
        line.waiting.push_back(Arc::clone(&self.place));
        self.line.go_on(line);
    }

    /// Ready when the connection may go on.
    pub(crate) fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        if self.is_waiting {
            self.place.connection.register(context.waker());
            if !self.place.is_called.swap(false, Ordering::SeqCst) {
                return Poll::Pending;
            }
            self.is_waiting = false;
            self.line.go_on(self.line.lock());
        }
        Poll::Ready(())
    }
}

impl Drop for NextTurn {
    fn drop(&mut self) {
        let mut line = self.line.lock();
        line.waiting.retain(|place| !Arc::ptr_eq(place, &self.place));
        self.line.go_on(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_woken_meanwhile_waits_until_all_sockets_were_looked_at() {
        let mut turn = NextTurn::new(Arc::default());
        let context = Context::from_waker(Waker::noop());
        assert!(turn.poll(&context).is_ready());
        turn.wait(&context);
        assert!(turn.poll(&context).is_pending() && turn.poll(&context).is_pending());
        tokio::task::yield_now().await;
        assert!(turn.poll(&context).is_ready());
        assert!(turn.poll(&context).is_ready(), "until the next one is over");
    }

    #[tokio::test]
    async fn after_each_look_at_the_sockets_one_goes_on() {
        let line = Arc::<TurnLine>::default();
        let context = Context::from_waker(Waker::noop());
        let mut turns: Vec<NextTurn> = (0..4).map(|_| NextTurn::new(Arc::clone(&line))).collect();
        turns.iter_mut().for_each(|turn| turn.wait(&context));
        for round in 0..9 {
            tokio::task::yield_now().await;
            let ready = |turns: &mut [NextTurn]| -> Vec<usize> {
                (0..turns.len()).filter(|&index| turns[index].poll(&context).is_ready()).collect()
            };
            assert_eq!(ready(&mut turns), [round % 4]);
            turns[round % 4].wait(&context);
        }
        // The one whose turn it is leaves before it has begun.
        tokio::task::yield_now().await;
        drop(turns.remove(1));
        tokio::task::yield_now().await;
        assert!(turns[1].poll(&context).is_ready(), "the one behind it");
    }
}
