//! Turns of the sessions of one thread.
//!
//! A session works in portions. After one it stands in line if it has more to do; before the first in line goes on, the runtime looks at all
//! sockets, and everybody who has waited for one has a poll. So who asks for little waits for one portion of one other session, however many ask
//! for all they can get.
//!
//! ```text
//!           a portion, and there is more           called: the runtime has looked at the sockets
//! working ─────────────────────────────► in line ────────────────────────────────────────────────► working
//! ```
//!
//! Where several sessions work on a thread, and one of them asks for little, portions are smaller than where one has it for itself or where all move
//! much: small ones cost system calls, which nobody's wait is shortened by there.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::limits::{LIGHT_BYTES, POLL_BUDGET, POLL_BUDGET_SHARED, SHARED_POLLS, TURN_BYTES, TURN_BYTES_SHARED};

/// The sessions of one thread.
#[derive(Default)]
pub(crate) struct Turns {
    line: Mutex<Line>,
    /// Sessions so far: their numbers begin with one.
    entered: AtomicU64,
    /// Who worked last.
    worked_last: AtomicU64,
    /// Polls for which the thread counts as shared by several sessions.
    shared_polls: AtomicU32,
    /// Polls for which somebody counts as one who asks for little.
    light_polls: AtomicU32,
    /// Polls in which a session did something.
    work: AtomicU64,
}

/// Guarded by `Turns::line`; sections are short.
#[derive(Default)]
struct Line {
    waiting: VecDeque<(u64, Waker)>,
    /// Whose turn it is. While somebody waits, it is somebody's.
    called: Option<u64>,
}

/// What a session may do before others have their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    /// Bytes that commands may move in one turn of its loop, the last command excepted.
    pub(crate) bytes: usize,
    /// Time after which no further turn begins.
    pub(crate) time: Duration,
}

impl Turns {
    /// How much was done by sessions so far.
    pub(crate) fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// It is the turn of whoever is first, after the runtime has looked at the sockets.
    fn call_first(&mut self) {
        self.called = self.waiting.front().map(|(number, _)| *number);
        if let Some((_, waker)) = self.waiting.front() {
            // Not a plain wake-up: the runtime would poll it again many times before it looks at the sockets of others.
            let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(waker));
        }
    }
}

/// The place of one session among those of its thread.
pub(crate) struct Place {
    turns: Arc<Turns>,
    number: u64,
    is_in_line: bool,
    /// It has been called, and works.
    is_called: bool,
}

impl Place {
    pub(crate) fn new(turns: Arc<Turns>) -> Self {
        let number = turns.entered.fetch_add(1, Ordering::Relaxed) + 1;
        Self { turns, number, is_in_line: false, is_called: false }
    }

    /// Whether the session may work now. One that waits in line is woken when its turn comes.
    pub(crate) fn begin(&mut self, context: &Context<'_>) -> bool {
        if !self.is_in_line {
            return true;
        }
        let mut line = self.turns.lock();
        if line.called == Some(self.number) {
            line.waiting.pop_front();
            (self.is_in_line, self.is_called) = (false, true);
            return true;
        }
        if let Some((_, waker)) = line.waiting.iter_mut().find(|(number, _)| *number == self.number) {
            waker.clone_from(context.waker());
        }
        false
    }

    /// What it may do before others have their turn.
    pub(crate) fn portion(&self) -> Portion {
        let Turns { shared_polls, light_polls, .. } = &*self.turns;
        if shared_polls.load(Ordering::Relaxed).min(light_polls.load(Ordering::Relaxed)) > 0 {
            Portion { bytes: TURN_BYTES_SHARED, time: POLL_BUDGET_SHARED }
        } else {
            Portion { bytes: TURN_BYTES, time: POLL_BUDGET }
        }
    }

    /// It did something in this poll.
    pub(crate) fn note_work(&self) {
        let Turns { worked_last, shared_polls, light_polls, work, .. } = &*self.turns;
        let is_other = worked_last.load(Ordering::Relaxed) != self.number;
        let polls = if is_other { SHARED_POLLS } else { shared_polls.load(Ordering::Relaxed).saturating_sub(1) };
        worked_last.store(self.number, Ordering::Relaxed);
        shared_polls.store(polls, Ordering::Relaxed);
        light_polls.store(light_polls.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        work.fetch_add(1, Ordering::Relaxed);
    }

    /// It began commands that move so many bytes in all.
    pub(crate) fn note_commands(&self, bytes: usize) {
        if bytes as u64 <= LIGHT_BYTES {
            self.turns.light_polls.store(SHARED_POLLS, Ordering::Relaxed);
        }
    }

    /// Its portion is over, and there is more to do: it waits for its next turn.
    pub(crate) fn stand_in_line(&mut self, context: &Context<'_>) {
        (self.is_in_line, self.is_called) = (true, false);
        let mut line = self.turns.lock();
        line.waiting.push_back((self.number, context.waker().clone()));
        if line.called.is_none_or(|called| called == self.number) {
            line.call_first();
        }
    }

    /// Its portion is over, and there is nothing more to do for now.
    pub(crate) fn rest(&mut self) {
        if std::mem::take(&mut self.is_called) {
            self.turns.lock().call_first();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut line = self.turns.lock();
        line.waiting.retain(|(number, _)| *number != self.number);
        if line.called == Some(self.number) {
            line.call_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(count: usize) -> (Arc<Turns>, Vec<Place>) {
        let turns = Arc::<Turns>::default();
        let places = (0..count).map(|_| Place::new(Arc::clone(&turns))).collect();
        (turns, places)
    }

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    #[test]
    fn those_in_line_go_on_one_after_the_other() {
        let (_, mut places) = places(3);
        for place in &mut places {
            assert!(place.begin(&context()), "who is not in line works");
            place.stand_in_line(&context());
        }
        for round in 0..7 {
            let may: Vec<usize> = (0..3).filter(|&index| places[index].begin(&context())).collect();
            assert_eq!(may, [round % 3], "one at a time, in their order");
            places[round % 3].stand_in_line(&context());
        }
    }

    #[test]
    fn who_rests_or_leaves_calls_the_next_one() {
        let (_, mut places) = places(4);
        places.iter_mut().for_each(|place| place.stand_in_line(&context()));
        assert!(places[0].begin(&context()));
        places[0].rest();
        drop(places.remove(1));
        assert!(!places[2].begin(&context()), "the third is before it");
        drop(places.remove(1));
        assert!(places[1].begin(&context()));
        places[1].rest();
        places[0].stand_in_line(&context());
        assert!(places[0].begin(&context()), "alone");
    }

    /// Whether the portions of `place` are those of a shared thread.
    fn is_small(place: &Place) -> bool {
        place.portion().bytes == TURN_BYTES_SHARED && place.portion().time == POLL_BUDGET_SHARED
    }

    #[test]
    fn portions_are_small_while_a_thread_is_shared() {
        let (turns, places) = places(2);
        places[0].note_work();
        places[0].note_commands(4096);
        (1..SHARED_POLLS).for_each(|_| places[0].note_work());
        places[0].note_commands(4096);
        assert!(is_small(&places[0]), "it may not be alone yet");
        places[0].note_work();
        assert!(!is_small(&places[0]));
        places[1].note_work();
        assert!(is_small(&places[0]));
        (0..SHARED_POLLS).for_each(|_| places[1].note_work());
        places[1].note_commands(4096);
        assert!(!is_small(&places[1]));
        assert_eq!(turns.work(), u64::from(2 * SHARED_POLLS) + 2);
    }

    #[test]
    fn portions_are_small_only_while_somebody_asks_for_little() {
        let (_, places) = places(2);
        places[0].note_work();
        places[1].note_work();
        places[0].note_commands(LIGHT_BYTES as usize + 1);
        assert!(!is_small(&places[0]));
        places[1].note_commands(LIGHT_BYTES as usize);
        assert!(is_small(&places[0]) && is_small(&places[1]));
        (1..SHARED_POLLS).for_each(|number| places[number as usize % 2].note_work());
        assert!(is_small(&places[0]));
        places[0].note_work();
        places[1].note_work();
        assert!(!is_small(&places[0]) && !is_small(&places[1]), "it went away, or asks for much now");
    }
}
