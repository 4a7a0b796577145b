//! Turns of connections in their handshakes: only one of them works between two looks at the
//! sockets.
//!
//! A client may repeat options of the handshake without end, on as many connections as have a
//! place. Together they get no more turns than one connection that has finished its handshake, so
//! that other clients do not wait for all of them. They wait in order of arrival.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The turn of all handshakes. One for each server.
#[derive(Clone)]
pub(crate) struct HandshakeLine(Arc<Semaphore>);

impl Default for HandshakeLine {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

/// The turns of one connection in its handshake.
pub(crate) struct HandshakeTurn {
    line: HandshakeLine,
    step: Step,
}

enum Step {
    /// It has no work.
    Resting,
    InLine(Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send>>),
    /// It works, or has worked since the last look at the sockets.
    Working {
        _turn: OwnedSemaphorePermit,
    },
}

impl HandshakeTurn {
    pub(crate) fn new(line: HandshakeLine) -> Self {
        Self { line, step: Step::Resting }
    }

    /// Whether it may work now. One that waits is woken when its turn comes; one that has just had
    /// its turn goes to the end of the line.
    pub(crate) fn begin(&mut self, context: &mut Context<'_>) -> bool {
        if !matches!(self.step, Step::InLine(_)) {
            // Before it waits again: it would wait for itself otherwise.
            self.rest();
            let line = Arc::clone(&self.line.0);
            self.step =
                Step::InLine(Box::pin(async move { line.acquire_owned().await.expect("nobody closes the semaphore") }));
        }
        if let Step::InLine(turn) = &mut self.step
            && let std::task::Poll::Ready(turn) = turn.as_mut().poll(context)
        {
            self.step = Step::Working { _turn: turn };
        }
        matches!(self.step, Step::Working { .. })
    }

    /// Ends a turn without work: it is the next one's turn.
    pub(crate) fn rest(&mut self) {
        self.step = Step::Resting;
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn one_works_at_a_time_and_then_stands_behind_the_others() {
        let (line, mut context) = (HandshakeLine::default(), Context::from_waker(Waker::noop()));
        let mut turns: Vec<HandshakeTurn> = (0..3).map(|_| HandshakeTurn::new(line.clone())).collect();
        let may: Vec<bool> = turns.iter_mut().map(|turn| turn.begin(&mut context)).collect();
        assert_eq!(may, [true, false, false]);
        for round in 0..7 {
            let mut begins = |index: usize| turns[(round + index) % 3].begin(&mut context);
            assert!(!begins(0), "it has just had its turn");
            assert!(!begins(2) && begins(1), "in their order");
        }
    }

    #[test]
    fn who_has_nothing_to_do_or_leaves_holds_nobody_up() {
        let (line, mut context) = (HandshakeLine::default(), Context::from_waker(Waker::noop()));
        let mut turns: Vec<HandshakeTurn> = (0..3).map(|_| HandshakeTurn::new(line.clone())).collect();
        assert!(turns[0].begin(&mut context) && !turns[1].begin(&mut context) && !turns[2].begin(&mut context));
        turns[0].rest();
        assert!(!turns[2].begin(&mut context) && turns[1].begin(&mut context));
        drop(turns.remove(1));
        assert!(turns[1].begin(&mut context));
    }
}
