//! Turns of connections in their handshakes: only one of them works between two looks at the
//! sockets.
//!
//! A client may repeat options of the handshake without end, on as many connections as have a
//! place. Together they get no more turns than one connection that has finished its handshake, so
//! that other clients do not wait for all of them. They wait in order of arrival.
//!
//! A step of a TLS handshake is one signature, of a millisecond and more, that cannot be divided. So
//! after a long step all handshakes rest for a multiple of its time.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::limits::{HANDSHAKE_REST, HANDSHAKE_STEP_LONG};

/// The turn of all handshakes. One for each server.
#[derive(Clone)]
pub(crate) struct HandshakeLine {
    turn: Arc<Semaphore>,
    /// When the next step may begin; `None` for at once.
    rests_until: Arc<Mutex<Option<Instant>>>,
}

impl Default for HandshakeLine {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), rests_until: Arc::default() }
    }
}

impl HandshakeLine {
    /// The turn, once it comes and no handshake has to rest.
    async fn turn(self) -> OwnedSemaphorePermit {
        let turn = self.turn.acquire_owned().await.expect("nobody closes the semaphore");
        // It stays noted: who waits here may leave, and the next one rests as well.
        let until = *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
        turn
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
            self.step = Step::InLine(Box::pin(self.line.clone().turn()));
        }
        if let Step::InLine(turn) = &mut self.step
            && let std::task::Poll::Ready(turn) = turn.as_mut().poll(context)
        {
            self.step = Step::Working { _turn: turn };
        }
        matches!(self.step, Step::Working { .. })
    }

    /// Notes how long it has worked in its turn.
    pub(crate) fn note_work(&self, time: Duration) {
        if time >= HANDSHAKE_STEP_LONG {
            let until = Instant::now() + time * HANDSHAKE_REST;
            *self.line.rests_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        }
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

    #[tokio::test(start_paused = true)]
    async fn after_a_long_step_all_rest_and_after_a_short_one_nobody() {
        let (line, mut context) = (HandshakeLine::default(), Context::from_waker(Waker::noop()));
        let mut turns: Vec<HandshakeTurn> = (0..2).map(|_| HandshakeTurn::new(line.clone())).collect();
        assert!(turns[0].begin(&mut context) && !turns[1].begin(&mut context));
        turns[0].note_work(HANDSHAKE_STEP_LONG / 2);
        turns[0].rest();
        assert!(turns[1].begin(&mut context) && !turns[0].begin(&mut context));
        turns[1].note_work(Duration::from_millis(2));
        turns[1].rest();
        assert!(!turns[0].begin(&mut context));
        // One that leaves while all rest does not end that.
        turns.remove(0);
        turns.push(HandshakeTurn::new(line));
        tokio::time::advance(Duration::from_millis(2) * HANDSHAKE_REST - Duration::from_millis(1)).await;
        assert!(!turns[0].begin(&mut context) && !turns[1].begin(&mut context));
        tokio::time::advance(Duration::from_millis(2)).await;
        assert!(turns[0].begin(&mut context));
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
