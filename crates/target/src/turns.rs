//! Turns of the sessions of one thread.
//!
//! A session works in portions. After a portion it waits in line if it has more to do. Before the
//! first in line goes on, the runtime looks at all sockets, and every task that was woken by one is
//! polled. So a light session waits for one portion of one other session each time that it is in line,
//! however many heavy ones there are: once for an answer, or twice where its polls take longer than its share.
//!
//! ```text
//!           a portion, and there is more           called: the runtime has looked at the sockets
//! working ─────────────────────────────► in line ────────────────────────────────────────────────► working
//! ```
//!
//! Sessions of one host, as its address tells, have little time between two looks at the sockets, and those of one
//! of its initiator names less, and none while one of them stands in line, but for the one that is called: the
//! others stand in line as if they had more to do. A name whose poll took longer has less after the next look. In
//! line hosts take turns, and of a host its names; what the one that is called leaves of its portion is for the
//! next ones of its name that have come. So a host has no more of the thread for having many sessions or names, and
//! a name no more of its host's turns for having many sessions; and whoever needs little waits for one portion
//! at a time, however many names there are that ask for more.
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
    FREE_TIME_DEBT_MAX, FREE_TIME_MIN, FREE_TIME_OF_HOST, FREE_TIME_OF_NAME, LIGHT_BYTES, POLL_BUDGET,
    POLL_BUDGET_ALONE, POLL_BUDGET_SHARED, SHARED_POLLS, TURN_BYTES, TURN_BYTES_ALONE, TURN_BYTES_SHARED,
};
use crate::waiting::{Cause, Initiator, Waiting};

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
    /// Time that is left of the portion of the one whose turn it is, for others of its name.
    left: Duration,
    /// Since the last look at the sockets, by host.
    used: BTreeMap<Arc<str>, Used>,
    /// Whether somebody has used some since then, and so the next look is awaited.
    has_used: bool,
}

/// What sessions of one host used of the thread.
#[derive(Default)]
struct Used {
    /// But for sessions that were called, so that what these take longer costs no other name of the host its own.
    time: Duration,
    /// Of each name, also what it had beyond its share before, up to [`FREE_TIME_DEBT_MAX`].
    by_name: BTreeMap<Arc<str>, Duration>,
}

impl Used {
    /// Whether a session of that name may work without having been called.
    fn leaves_some_to(&self, name: &str) -> bool {
        let own = self.by_name.get(name).copied().unwrap_or_default();
        self.time < FREE_TIME_OF_HOST && own < FREE_TIME_OF_NAME
    }

    /// The sockets have been looked at. Returns whether something is left for which a name has to wait.
    fn begin_anew(&mut self) -> bool {
        self.time = Duration::ZERO;
        self.by_name.retain(|_, own| {
            *own = own.saturating_sub(FREE_TIME_OF_NAME).min(FREE_TIME_DEBT_MAX);
            !own.is_zero()
        });
        !self.by_name.is_empty()
    }
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

    /// The work of a portion.
    fn portion(&self) -> Portion {
        match (self.shared_polls.load(Ordering::Relaxed), self.light_polls.load(Ordering::Relaxed)) {
            (0, _) => Portion { bytes: TURN_BYTES_ALONE, time: POLL_BUDGET_ALONE },
            (_, 0) => Portion { bytes: TURN_BYTES, time: POLL_BUDGET },
            _ => Portion { bytes: TURN_BYTES_SHARED, time: POLL_BUDGET_SHARED },
        }
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

    /// Whether a session of `initiator` may work without having been called.
    fn leaves_some_to(&self, initiator: &Initiator) -> bool {
        !self.waiting.has(initiator)
            && self.used.get(&initiator.host).is_none_or(|used| used.leaves_some_to(&initiator.name))
    }

    /// Notes what a session of `initiator` has used. Returns whether it is the first one since the last look at the
    /// sockets, so that the next one has to be awaited.
    fn note_time(&mut self, initiator: &Initiator, time: Duration) -> bool {
        let used = self.used.entry(Arc::clone(&initiator.host)).or_default();
        *used.by_name.entry(Arc::clone(&initiator.name)).or_default() += time;
        !std::mem::replace(&mut self.has_used, true)
    }

    /// The one that was called has ended its portion after that time: calls the next one of its name that has come for
    /// what is left of it. Returns its waker.
    fn call_next_of(&mut self, initiator: &Initiator, time: Duration) -> Option<Waker> {
        self.left = self.left.saturating_sub(time);
        let (number, waker) = self.waiting.first_come_of(initiator).filter(|_| !self.left.is_zero())?;
        self.called = Some(*number);
        Some(waker.clone())
    }
}

impl Wake for Turns {
    /// The runtime has looked at the sockets.
    fn wake(self: Arc<Self>) {
        let time = self.portion().time;
        let mut line = self.lock();
        line.used.retain(|_, used| used.begin_anew());
        (line.has_used, line.may_begin, line.left) = (false, true, time);
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
    /// It has worked in this poll without that, and others work on the thread.
    works_uncalled: bool,
}

impl Place {
    /// The place of a session that `initiator_name` began from `host`.
    pub(crate) fn new(turns: Arc<Turns>, host: &str, initiator_name: &str) -> Self {
        let number = turns.entered.fetch_add(1, Ordering::Relaxed) + 1;
        let initiator = Initiator { host: host.into(), name: initiator_name.to_ascii_lowercase().into() };
        Self { turns, number, initiator, is_in_line: false, is_called: false, works_uncalled: false }
    }

    /// Whether the session may work now. One that waits in line is woken when its turn comes.
    pub(crate) fn begin(&mut self, context: &Context<'_>) -> bool {
        if !self.is_in_line {
            let may_begin = self.has_free_time();
            if !may_begin {
                self.queue_up(context, Cause::Come);
            }
            return may_begin;
        }
        let mut line = self.turns.lock();
        if line.called == Some(self.number) && line.may_begin {
            line.waiting.take(&self.initiator, self.number);
            (self.is_in_line, self.is_called) = (false, true);
            return true;
        }
        if let Some(waker) = line.waiting.waker_mut(&self.initiator, self.number) {
            waker.clone_from(context.waker());
        }
        false
    }

    /// Whether its host and its name have not had all their time yet since the last look at the sockets. Who is alone
    /// on the thread needs no such look.
    fn has_free_time(&self) -> bool {
        if self.turns.shared_polls.load(Ordering::Relaxed) == 0 {
            return true;
        }
        self.turns.lock().leaves_some_to(&self.initiator)
    }

    /// Its poll is over, which took so long if it worked without having been called.
    fn note_free_time(&mut self, time: impl FnOnce() -> Duration) {
        if !std::mem::take(&mut self.works_uncalled) {
            return;
        }
        let time = time().max(FREE_TIME_MIN);
        let mut line = self.turns.lock();
        line.used.entry(Arc::clone(&self.initiator.host)).or_default().time += time;
        let is_first = line.note_time(&self.initiator, time);
        drop(line);
        if is_first {
            self.turns.await_look();
        }
    }

    /// The portion of the one that was called is over, and took so long: the next one's turn has come.
    fn end_portion(&self, time: Duration) {
        let mut line = self.turns.lock();
        let is_first = line.note_time(&self.initiator, time);
        let next = line.call_next_of(&self.initiator, time);
        drop(line);
        match next {
            Some(waker) => waker.wake(),
            None => self.turns.call_first(),
        }
        if is_first {
            self.turns.await_look();
        }
    }

    /// The work that it may do before others have their turn.
    pub(crate) fn portion(&self) -> Portion {
        let portion = self.turns.portion();
        if !self.is_called {
            return portion;
        }
        Portion { time: portion.time.min(self.turns.lock().left), ..portion }
    }

    /// It did something in this poll.
    pub(crate) fn note_work(&mut self) {
        let Turns { worked_last, shared_polls, light_polls, work, .. } = &*self.turns;
        let is_other = worked_last.load(Ordering::Relaxed) != self.number;
        let polls = if is_other { SHARED_POLLS } else { shared_polls.load(Ordering::Relaxed).saturating_sub(1) };
        worked_last.store(self.number, Ordering::Relaxed);
        shared_polls.store(polls, Ordering::Relaxed);
        light_polls.store(light_polls.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        work.fetch_add(1, Ordering::Relaxed);
        self.works_uncalled = !self.is_called && polls > 0;
    }

    /// Notes that it began commands that move this many bytes in all.
    pub(crate) fn note_commands(&self, bytes: usize) {
        if bytes as u64 <= LIGHT_BYTES {
            self.turns.light_polls.store(SHARED_POLLS, Ordering::Relaxed);
        }
    }

    /// Its portion is over, and took so long; there is more to do: it waits for its next turn.
    pub(crate) fn stand_in_line(&mut self, context: &Context<'_>, time: impl FnOnce() -> Duration) {
        self.note_free_time(time);
        self.queue_up(context, Cause::More);
    }

    fn queue_up(&mut self, context: &Context<'_>, cause: Cause) {
        (self.is_in_line, self.is_called) = (true, false);
        let mut line = self.turns.lock();
        line.waiting.push(&self.initiator, cause, self.number, context.waker().clone());
        let calls = line.called.is_none_or(|called| called == self.number);
        drop(line);
        if calls {
            self.turns.call_first();
        }
    }

    /// Its portion is over, and took so long; there is nothing more to do for now.
    pub(crate) fn rest(&mut self, time: impl FnOnce() -> Duration) {
        if std::mem::take(&mut self.is_called) {
            return self.end_portion(time().max(FREE_TIME_MIN));
        }
        self.note_free_time(time);
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
            place.queue_up(&context(), Cause::More);
        }
        for round in 0..7 {
            let may: Vec<usize> = (0..3).filter(|&index| places[index].begin(&context())).collect();
            assert_eq!(may, [round % 3], "one at a time, in their order");
            places[round % 3].queue_up(&context(), Cause::More);
        }
    }

    #[test]
    fn who_rests_or_leaves_calls_the_next_one() {
        let (_, mut places) = places(4);
        places.iter_mut().for_each(|place| place.queue_up(&context(), Cause::More));
        assert!(places[0].begin(&context()));
        places[0].rest(|| POLL_BUDGET);
        drop(places.remove(1));
        assert!(!places[2].begin(&context()), "the third is before it");
        drop(places.remove(1));
        assert!(places[1].begin(&context()));
        places[1].rest(|| POLL_BUDGET);
        places[0].queue_up(&context(), Cause::More);
        assert!(places[0].begin(&context()), "alone");
    }

    #[tokio::test]
    async fn who_is_woken_before_the_sockets_were_looked_at_waits_all_the_same() {
        let (_, mut places) = places(1);
        places[0].queue_up(&context(), Cause::More);
        assert!(!places[0].begin(&context()) && !places[0].begin(&context()));
        tokio::task::yield_now().await;
        assert!(places[0].begin(&context()));
    }

    /// One poll, if it may.
    fn work_once(place: &mut Place, time: Duration) -> Option<()> {
        if !place.begin(&context()) {
            return None;
        }
        place.note_work();
        place.note_commands(4096);
        place.rest(|| time);
        Some(())
    }

    /// How many portions these have until the sockets are looked at, if each always has something to do and works for
    /// that time.
    fn work_of(places: &mut [Place], time: Duration) -> usize {
        let mut count = 0;
        // Far more often than they may.
        for _ in 0..2 * places.len() {
            for place in &mut *places {
                if place.begin(&context()) {
                    place.note_work();
                    place.rest(|| time);
                    count += 1;
                }
            }
        }
        count
    }

    #[tokio::test]
    async fn sessions_of_one_name_have_a_portion_between_two_looks_and_leave_others_of_their_host_their_own() {
        // What a small command takes at least, of a portion.
        let small_max = (POLL_BUDGET_SHARED.as_micros() / FREE_TIME_MIN.as_micros()) as usize;
        for (time, polls_max) in [(POLL_BUDGET_SHARED, 1), (Duration::from_micros(1), small_max)] {
            let turns = Arc::<Turns>::default();
            let place = |name| Place::new(Arc::clone(&turns), "192.0.2.1", name);
            let mut many: Vec<Place> = (0..10).map(|_| place("iqn.a:many")).collect();
            let mut other = place("iqn.a:other");
            let mut others_work = || {
                assert!(work_once(&mut other, FREE_TIME_MIN).is_some(), "another one need not stand in line");
            };
            others_work();
            tokio::task::yield_now().await;
            // Nobody has been called yet.
            work_of(&mut many, time);
            tokio::task::yield_now().await;
            for round in 0..5 {
                let count = work_of(&mut many, time);
                assert_eq!(count, polls_max, "round {round}");
                others_work();
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn a_name_of_which_a_session_stands_in_line_has_no_time_besides_and_another_one_has() {
        let turns = Arc::<Turns>::default();
        let place = |name| Place::new(Arc::clone(&turns), "192.0.2.1", name);
        let (mut one, mut second) = (place("iqn.a:one"), place("iqn.a:one"));
        let (mut other, mut another) = (place("iqn.a:other"), place("iqn.a:another"));
        for place in [&mut one, &mut other] {
            assert!(work_once(place, FREE_TIME_MIN).is_some());
            place.queue_up(&context(), Cause::More);
        }
        tokio::task::yield_now().await;
        assert!(!second.begin(&context()), "it stands in line behind the first one");
        assert!(another.begin(&context()));
    }

    /// Each has one session, which never has more to do than it is done with in its poll.
    #[tokio::test]
    async fn who_takes_longer_than_its_share_again_and_again_stands_in_line_with_others_who_do() {
        let turns = Arc::<Turns>::default();
        let place = |number| Place::new(Arc::clone(&turns), "192.0.2.1", &format!("iqn.a:{number}"));
        let mut many: Vec<Place> = (0..6).map(place).collect();
        let mut other = place(7);
        let mut count = 0;
        for round in 0..60 {
            if round == 10 {
                count = 0;
            }
            count += many.iter_mut().filter_map(|place| work_once(place, POLL_BUDGET_SHARED)).count();
            let has_worked = work_once(&mut other, FREE_TIME_MIN).is_some();
            assert!(has_worked || round < 10, "who needs little has it, round {round}");
            tokio::task::yield_now().await;
        }
        assert!((45..=60).contains(&count), "{count} portions between fifty looks");
    }

    #[tokio::test]
    async fn of_all_names_that_have_somebody_in_line_one_has_a_portion_between_two_looks_at_the_sockets() {
        for hosts in [1, 3] {
            let turns = Arc::<Turns>::default();
            let place = |number: usize| {
                let (host, name) = (format!("192.0.2.{}", number % hosts), format!("iqn.a:{}", number % 3));
                Place::new(Arc::clone(&turns), &host, &name)
            };
            let mut many: Vec<Place> = (0..12).map(place).collect();
            let mut other = Place::new(Arc::clone(&turns), "192.0.2.1", "iqn.a:other");
            for round in 0..9 {
                let count = work_of(&mut many, POLL_BUDGET_SHARED);
                assert!(round < 1 || count == 1, "{count} portions in round {round} from {hosts} hosts");
                assert!(work_once(&mut other, FREE_TIME_MIN).is_some(), "another one need not stand in line");
                tokio::task::yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn sessions_of_one_host_have_few_polls_between_two_looks_at_the_sockets_whatever_their_names() {
        let turns = Arc::<Turns>::default();
        let place = |number| Place::new(Arc::clone(&turns), "192.0.2.1", &format!("iqn.a:{number}"));
        let mut many: Vec<Place> = (0..10).map(place).collect();
        let mut other = Place::new(Arc::clone(&turns), "192.0.2.2", "iqn.a:other");
        for _ in 0..3 {
            let working = work_of(&mut many, POLL_BUDGET_SHARED);
            assert!((1..=4).contains(&working), "{working} worked");
            assert!(work_once(&mut other, FREE_TIME_MIN).is_some(), "another one need not stand in line");
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn who_stands_in_line_behind_many_sessions_of_another_host_waits_for_one_of_them() {
        let turns = Arc::<Turns>::default();
        let mut many: Vec<Place> = (0..10).map(|_| Place::new(Arc::clone(&turns), "192.0.2.1", "iqn.a:many")).collect();
        many.iter_mut().for_each(|place| place.queue_up(&context(), Cause::More));
        let mut other = Place::new(turns, "192.0.2.2", "iqn.a:other");
        other.queue_up(&context(), Cause::More);
        assert!(!other.begin(&context()) && many[0].begin(&context()));
        many[0].queue_up(&context(), Cause::More);
        assert!(other.begin(&context()));
    }

    /// Whether the portions of `place` are those of a shared thread.
    fn is_small(place: &Place) -> bool {
        place.portion().bytes == TURN_BYTES_SHARED && place.portion().time == POLL_BUDGET_SHARED
    }

    #[test]
    fn portions_are_small_while_a_thread_is_shared() {
        let (turns, mut places) = places(2);
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
        let (_, mut places) = places(2);
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
        let (_, mut places) = places(2);
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
