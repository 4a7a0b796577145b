//! Turns of the sessions of one thread.
//!
//! A session works in portions. After a portion it waits in line if it has more to do. Before the
//! first in line goes on, the runtime looks at all sockets, and every task that was woken by one is
//! polled. So a light session waits for one portion of one other session, however many heavy ones
//! there are.
//!
//! ```text
//!           a portion, and there is more           called: the runtime has looked at the sockets
//! working ─────────────────────────────► in line ────────────────────────────────────────────────► working
//! ```
//!
//! Sessions of one host, by its address, get few polls between two looks at the sockets, except for
//! the one that is called: the others wait in line as if they had more to do. In line the hosts
//! take turns, and the initiator names of a host. So a host gets no more of the thread by having
//! many sessions or names, and a name no more of its host's turns by having many sessions.
//!
//! Where several sessions work on a thread, and one of them is light, portions are small. Where one
//! is alone, or all are heavy, they are larger: small portions cost system calls, and shorten no
//! light session's wait there.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::limits::{
    FREE_POLLS, LIGHT_BYTES, POLL_BUDGET, POLL_BUDGET_ALONE, POLL_BUDGET_SHARED, SHARED_POLLS, TURN_BYTES,
    TURN_BYTES_ALONE, TURN_BYTES_SHARED,
};
use crate::waiting::{Initiator, Waiting};

/// The sessions of one thread.
#[derive(Default)]
pub(crate) struct Turns {
    line: Mutex<Line>,
    /// Count of sessions so far: their numbers begin with one.
    entered: AtomicU64,
    /// The session that worked last.
    worked_last: AtomicU64,
    /// Polls for which the thread counts as shared by several sessions.
    shared_polls: AtomicU32,
    /// Polls for which some session counts as light.
    light_polls: AtomicU32,
    /// Polls in which a session did something.
    work: AtomicU64,
}

/// Guarded by `Turns::line`; sections are short.
#[derive(Default)]
struct Line {
    waiting: Waiting,
    /// The session whose turn it is. While any session waits, one is called.
    called: Option<u64>,
    /// Whether the runtime has looked at the sockets since the call: before that the session may
    /// not begin, whatever else wakes it.
    may_begin: bool,
    /// Polls since the last look at the sockets, by host, without those of called sessions.
    polls: BTreeMap<Arc<str>, u32>,
}

/// The work that a session may do before others have their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    /// Bytes that commands may move in one turn of its loop, not counting the last command.
    pub(crate) bytes: usize,
    /// Time after which no further turn begins.
    pub(crate) time: Duration,
}

impl Turns {
    /// A measure of the work of all sessions so far.
    pub(crate) fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the first in line.
    fn call_first(self: &Arc<Self>) {
        let is_somebody = self.lock().call_first();
        if is_somebody {
            self.await_look();
        }
    }

    /// Asks to be woken when the runtime has looked at the sockets.
    fn await_look(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        // A plain wake-up could come before that look.
        let _ = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
    }
}

impl Line {
    /// Calls the first in line, which may begin after the runtime's next look at the sockets.
    /// Returns whether a session was called, and so that look is needed.
    fn call_first(&mut self) -> bool {
        self.called = self.waiting.first().map(|(number, _)| *number);
        self.may_begin = false;
        self.called.is_some()
    }
}

impl Wake for Turns {
    /// The runtime has looked at the sockets.
    fn wake(self: Arc<Self>) {
        let mut line = self.lock();
        line.polls.clear();
        line.may_begin = true;
        let first = line.waiting.first().map(|(_, waker)| waker.clone());
        drop(line);
        if let Some(waker) = first {
            waker.wake();
        }
    }
}

/// The place of one session among those of its thread.
pub(crate) struct Place {
    turns: Arc<Turns>,
    number: u64,
    initiator: Initiator,
    is_in_line: bool,
    /// Whether it has been called, and works.
    is_called: bool,
}

impl Place {
    /// The place of a session that `initiator_name` began from `host`.
    pub(crate) fn new(turns: Arc<Turns>, host: &str, initiator_name: &str) -> Self {
        let number = turns.entered.fetch_add(1, Ordering::Relaxed) + 1;
        let initiator = Initiator { host: host.into(), name: initiator_name.to_ascii_lowercase().into() };
        Self { turns, number, initiator, is_in_line: false, is_called: false }
    }

    /// Whether the session may work now. One that waits in line is woken when its turn comes.
    pub(crate) fn begin(&mut self, context: &Context<'_>) -> bool {
        if !self.is_in_line {
            let may_begin = self.has_free_poll();
            if !may_begin {
                self.queue_up(context);
            }
            return may_begin;
        }
        let mut line = self.turns.lock();
        if line.called == Some(self.number) && line.may_begin {
            line.waiting.pop_first();
            (self.is_in_line, self.is_called) = (false, true);
            return true;
        }
        if let Some(waker) = line.waiting.waker_mut(&self.initiator, self.number) {
            waker.clone_from(context.waker());
        }
        false
    }

    /// Whether its host has polls left before the next look at the sockets. A session that is alone
    /// on the thread needs no such look.
    fn has_free_poll(&self) -> bool {
        if self.turns.shared_polls.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.turns.lock().polls.get(&self.initiator.host).is_none_or(|&polls| polls < FREE_POLLS)
    }

    /// Notes that it works without having been called.
    fn note_free_poll(&self) {
        let mut line = self.turns.lock();
        let is_first = line.polls.is_empty();
        *line.polls.entry(Arc::clone(&self.initiator.host)).or_default() += 1;
        drop(line);
        if is_first {
            self.turns.await_look();
        }
    }

    /// The work that it may do before others have their turn.
    pub(crate) fn portion(&self) -> Portion {
        let Turns { shared_polls, light_polls, .. } = &*self.turns;
        match (shared_polls.load(Ordering::Relaxed), light_polls.load(Ordering::Relaxed)) {
            (0, _) => Portion { bytes: TURN_BYTES_ALONE, time: POLL_BUDGET_ALONE },
            (_, 0) => Portion { bytes: TURN_BYTES, time: POLL_BUDGET },
            _ => Portion { bytes: TURN_BYTES_SHARED, time: POLL_BUDGET_SHARED },
        }
    }

    /// Notes that it did some work in this poll.
    pub(crate) fn note_work(&self) {
        let Turns { worked_last, shared_polls, light_polls, work, .. } = &*self.turns;
        let is_other = worked_last.load(Ordering::Relaxed) != self.number;
        let polls = if is_other { SHARED_POLLS } else { shared_polls.load(Ordering::Relaxed).saturating_sub(1) };
        worked_last.store(self.number, Ordering::Relaxed);
        shared_polls.store(polls, Ordering::Relaxed);
        light_polls.store(light_polls.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        work.fetch_add(1, Ordering::Relaxed);
        if !self.is_called && polls > 0 {
            self.note_free_poll();
        }
    }

    /// Notes that it began commands that move this many bytes in all.
    pub(crate) fn note_commands(&self, bytes: usize) {
        if bytes as u64 <= LIGHT_BYTES {
            self.turns.light_polls.store(SHARED_POLLS, Ordering::Relaxed);
        }
    }

    /// Ends its portion with more to do: it waits for its next turn.
    pub(crate) fn queue_up(&mut self, context: &Context<'_>) {
        (self.is_in_line, self.is_called) = (true, false);
        let mut line = self.turns.lock();
        line.waiting.push(&self.initiator, self.number, context.waker().clone());
        let calls = line.called.is_none_or(|called| called == self.number);
        drop(line);
        if calls {
            self.turns.call_first();
        }
    }

    /// Ends its portion with nothing more to do for now.
    pub(crate) fn rest(&mut self) {
        if std::mem::take(&mut self.is_called) {
            self.turns.call_first();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut line = self.turns.lock();
        line.waiting.remove(&self.initiator, self.number);
        let calls = line.called == Some(self.number);
        drop(line);
        if calls {
            self.turns.call_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(count: usize) -> (Arc<Turns>, Vec<Place>) {
        let turns = Arc::<Turns>::default();
        let places =
            (0..count).map(|_| Place::new(Arc::clone(&turns), "192.0.2.1", "iqn.2026-01.io.example:host")).collect();
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
            place.queue_up(&context());
        }
        for round in 0..7 {
            let may: Vec<usize> = (0..3).filter(|&index| places[index].begin(&context())).collect();
            assert_eq!(may, [round % 3], "one at a time, in their order");
            places[round % 3].queue_up(&context());
        }
    }

    #[test]
    fn who_rests_or_leaves_calls_the_next_one() {
        let (_, mut places) = places(4);
        places.iter_mut().for_each(|place| place.queue_up(&context()));
        assert!(places[0].begin(&context()));
        places[0].rest();
        drop(places.remove(1));
        assert!(!places[2].begin(&context()), "the third is before it");
        drop(places.remove(1));
        assert!(places[1].begin(&context()));
        places[1].rest();
        places[0].queue_up(&context());
        assert!(places[0].begin(&context()), "alone");
    }

    #[tokio::test]
    async fn who_is_woken_before_the_sockets_were_looked_at_waits_all_the_same() {
        let (_, mut places) = places(1);
        places[0].queue_up(&context());
        assert!(!places[0].begin(&context()) && !places[0].begin(&context()));
        tokio::task::yield_now().await;
        assert!(places[0].begin(&context()));
    }

    #[tokio::test]
    async fn sessions_of_one_host_have_few_polls_between_two_looks_at_the_sockets_whatever_their_names() {
        let turns = Arc::<Turns>::default();
        let place = |number| Place::new(Arc::clone(&turns), "192.0.2.1", &format!("iqn.a:{number}"));
        let mut many: Vec<Place> = (0..10).map(place).collect();
        let mut other = Place::new(Arc::clone(&turns), "192.0.2.2", "iqn.a:other");
        for _ in 0..3 {
            let mut working = 0;
            for place in &mut many {
                if place.begin(&context()) {
                    place.note_work();
                    place.rest();
                    working += 1;
                }
            }
            assert!((1..=FREE_POLLS + 2).contains(&working), "{working} worked");
            assert!(other.begin(&context()), "another one need not stand in line");
            other.note_work();
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn who_stands_in_line_behind_many_sessions_of_another_host_waits_for_one_of_them() {
        let turns = Arc::<Turns>::default();
        let mut many: Vec<Place> = (0..10).map(|_| Place::new(Arc::clone(&turns), "192.0.2.1", "iqn.a:many")).collect();
        many.iter_mut().for_each(|place| place.queue_up(&context()));
        let mut other = Place::new(turns, "192.0.2.2", "iqn.a:other");
        other.queue_up(&context());
        assert!(!other.begin(&context()) && many[0].begin(&context()));
        many[0].queue_up(&context());
        assert!(other.begin(&context()));
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
    fn who_is_alone_on_a_thread_has_large_portions_until_another_one_works() {
        let (_, places) = places(2);
        let is_large = |place: &Place| place.portion() == Portion { bytes: TURN_BYTES_ALONE, time: POLL_BUDGET_ALONE };
        assert!(is_large(&places[0]));
        places[0].note_work();
        assert!(!is_large(&places[0]));
        (0..SHARED_POLLS).for_each(|_| places[0].note_work());
        assert!(is_large(&places[0]));
        places[1].note_work();
        assert!(!is_large(&places[0]) && !is_large(&places[1]));
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
