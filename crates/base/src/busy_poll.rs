//! Adaptive busy polling: whether a task that waits for a peer polls for a moment, or sleeps at
//! once.
//!
//! Waking a sleeping thread takes longer than answering from RAM. With few operations under way
//! each one pays for that; with many it does not matter, since more arrive while the thread wakes,
//! and polling at once would only split what can be handled together. So a task polls only
//!
//! - after traffic, for about as long as a wake-up takes: an idle connection costs nothing;
//! - while little is under way, now and lately: when half of a batch is answered the other half
//!   comes soon;
//! - while it pays. Each pause that polling ends with traffic adds confidence, each in vain takes
//!   more away. Without confidence, as when the peer needs the same processor, one pause in 64 is
//!   tried, and then ever fewer. Traffic that the first poll finds was there already and says
//!   nothing about polling: on one processor the peer then ran before;
//! - while no other thread wants the processor: when two polls are far apart, another thread ran in
//!   between, and all confidence is lost. A shorter gap is the kernel's work, an interrupt of a
//!   network card or a disk: it ends the polling, as one in vain.
//!
//! ```text
//!            traffic                    quiet, may look                    time over, or interrupted
//! Sleeping ──────────► (busy) ───────────────────────────► Looking ─────────────────────────────────► Sleeping
//!                        ▲             traffic: a hit         │            in vain
//!                        └────────────────────────────────────┘
//! ```

use std::time::Duration;

use crate::clock::Instant;

/// Most operations under way for which latency matters to the peer. With more it has work to do
/// while this thread wakes.
const DEPTH_MAX: usize = 16;

/// Bytes that keep the peer as busy as one more operation.
const BYTES_PER_OPERATION: usize = 16 << 10;

/// Operations under way, with bytes counted as operations.
pub fn depth_of(operations: usize, bytes: usize) -> usize {
    operations + bytes / BYTES_PER_OPERATION
}

/// Most confidence in polling; each hit adds one.
const CONFIDENCE_MAX: u32 = 16;

/// Confidence that a poll in vain takes: polling must pay in four cases of five to go on.
const IN_VAIN_COST: u32 = 4;

/// Longest times of polling between two polls from which on another thread ran in between: the scheduler's turns are
/// longer (from 700 us on), the kernel's interrupts shorter.
const TURN_OF_ANOTHER: u32 = 4;

/// Without confidence one pause of this many is tried, at first; each trial in vain doubles it.
const TRIAL_INTERVAL_MIN: u32 = 64;
const TRIAL_INTERVAL_MAX: u32 = 4096;

/// Counts and times of polling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyPollCounts {
    /// Pauses in which it polled.
    pub begun: u64,
    /// Of these, those that ended with traffic.
    pub paid: u64,
    /// Time spent polling.
    pub time: Duration,
    /// Of this, in pauses that did not end with traffic.
    pub time_in_vain: Duration,
}

impl std::ops::AddAssign for BusyPollCounts {
    fn add_assign(&mut self, other: Self) {
        self.begun += other.begun;
        self.paid += other.paid;
        self.time += other.time;
        self.time_in_vain += other.time_in_vain;
    }
}

/// The polling of one task.
#[derive(Debug)]
pub struct BusyPoll {
    /// Longest time of polling in one pause.
    longest: Duration,
    state: State,
    confidence: u32,
    /// Pauses without confidence since the last one that was tried.
    untried: u32,
    /// Pauses between two trials.
    trial_interval: u32,
    /// The largest depth in recent pauses; it decays.
    depth: usize,
    counts: BusyPollCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There was traffic since the last pause.
    Busy,
    Looking {
        since: Instant,
        last: Instant,
    },
    Sleeping,
}

impl BusyPoll {
    /// Polling for at most `longest` in a pause; zero for never. It begins with half of the largest
    /// confidence.
    pub fn new(longest: Duration) -> Self {
        Self {
            longest,
            state: State::Sleeping,
            confidence: CONFIDENCE_MAX / 2,
            untried: 0,
            trial_interval: TRIAL_INTERVAL_MIN,
            depth: 0,
            counts: BusyPollCounts::default(),
        }
    }

    /// Notes traffic in either direction.
    pub fn note_traffic(&mut self) {
        if let State::Looking { since, last } = self.state
            && last > since
        {
            self.confidence = (self.confidence + 1).min(CONFIDENCE_MAX);
            self.trial_interval = TRIAL_INTERVAL_MIN;
            self.counts.paid += 1;
            self.counts.time += last - since;
        }
        self.state = State::Busy;
    }

    /// In a pause, with `depth` operations under way ([`depth_of`]; zero where no traffic can
    /// come): whether to poll again at once. `now` is called only where that depends on it.
    pub fn goes_on(&mut self, depth: usize, now: impl FnOnce() -> Instant) -> bool {
        match self.state {
            State::Busy => {
                self.depth = depth.max(self.depth - self.depth.div_ceil(8));
                let dares = depth > 0 && self.depth <= DEPTH_MAX && self.dares();
                self.state = State::Sleeping;
                if dares {
                    let now = now();
                    self.state = State::Looking { since: now, last: now };
                }
                dares
            }
            State::Looking { since, last } => {
                let now = now();
                self.counts.begun += u64::from(last == since);
                let gap = now - last;
                if depth > 0 && gap <= self.longest / 2 && now - since < self.longest {
                    self.state = State::Looking { since, last: now };
                    return true;
                }
                self.give_up(last - since, gap > TURN_OF_ANOTHER * self.longest);
                false
            }
            State::Sleeping => false,
        }
    }

    fn give_up(&mut self, time: Duration, had_another_its_turn: bool) {
        self.confidence = if had_another_its_turn { 0 } else { self.confidence.saturating_sub(IN_VAIN_COST) };
        self.counts.time += time;
        self.counts.time_in_vain += time;
        self.state = State::Sleeping;
    }

    /// Whether it is polling.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state, State::Looking { .. })
    }

    /// Counts and times since the last call, if there are any.
    pub fn take_counts(&mut self) -> Option<BusyPollCounts> {
        (self.counts.begun > 0).then(|| std::mem::take(&mut self.counts))
    }

    fn dares(&mut self) -> bool {
        if self.longest.is_zero() {
            return false;
        }
        if self.confidence > 0 {
            return true;
        }
        self.untried += 1;
        if self.untried < self.trial_interval {
            return false;
        }
        self.untried = 0;
        self.trial_interval = (2 * self.trial_interval).min(TRIAL_INTERVAL_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_micros(50);

    fn at(microseconds: u64) -> impl FnOnce() -> Instant {
        move || Instant::from_nanoseconds(microseconds * 1000)
    }

    /// Polls a whole pause in vain. Returns whether it began to poll.
    fn look_in_vain(poll: &mut BusyPoll) -> bool {
        poll.note_traffic();
        let began = poll.goes_on(1, at(0));
        if began {
            assert!(poll.goes_on(1, at(20)) && poll.goes_on(1, at(40)));
        }
        assert!(!poll.goes_on(1, at(50)), "its time is over");
        began
    }

    #[test]
    fn it_ends_with_its_time_and_begins_with_traffic() {
        let mut poll = BusyPoll::new(LONGEST);
        assert!(!poll.goes_on(1, at(0)), "nothing came yet");
        poll.note_traffic();
        assert!(poll.goes_on(1, at(0)) && poll.is_under_way());
        assert!([20, 40].into_iter().all(|time| poll.goes_on(1, at(time))));
        assert!(!poll.goes_on(1, at(50)) && !poll.is_under_way());
        assert!(!poll.goes_on(1, at(51)), "asleep until traffic comes");
    }

    #[test]
    fn it_does_not_look_where_that_is_not_worth_it_or_switched_off() {
        let mut poll = BusyPoll::new(LONGEST);
        poll.note_traffic();
        assert!(!poll.goes_on(0, at(0)));
        let mut off = BusyPoll::new(Duration::ZERO);
        for _ in 0..10 * TRIAL_INTERVAL_MAX {
            off.note_traffic();
            assert!(!off.goes_on(1, at(0)));
        }
    }

    #[test]
    fn it_does_not_take_a_deep_queue_apart() {
        let mut poll = BusyPoll::new(LONGEST);
        let pause = |poll: &mut BusyPoll, depth| {
            poll.note_traffic();
            poll.goes_on(depth, at(0))
        };
        assert!(pause(&mut poll, DEPTH_MAX));
        assert!(!pause(&mut poll, 2 * DEPTH_MAX));
        assert!(!pause(&mut poll, 1), "half of a batch is answered");
        assert!((0..16).any(|_| pause(&mut poll, 1)), "the depth fades");
        assert!(!pause(&mut poll, depth_of(1, 1 << 20)), "bytes are work, too");
    }

    #[test]
    fn what_is_in_vain_is_only_tried_from_time_to_time() {
        let mut poll = BusyPoll::new(LONGEST);
        while look_in_vain(&mut poll) {}
        let mut tried_in = |count| (0..count).filter(|_| look_in_vain(&mut poll)).count();
        assert_eq!([64, 128, 256, 512, 1024, 2048, 4096].map(&mut tried_in), [1; 7]);
        assert_eq!(tried_in(10 * TRIAL_INTERVAL_MAX), 10, "it is never given up");
    }

    #[test]
    fn an_interrupt_ends_a_look_and_not_the_looking() {
        let mut poll = BusyPoll::new(LONGEST);
        let interrupted = |poll: &mut BusyPoll| {
            poll.note_traffic();
            assert!(poll.goes_on(1, at(0)) && poll.goes_on(1, at(1)) && !poll.goes_on(1, at(30)));
        };
        interrupted(&mut poll);
        poll.note_traffic();
        assert!(poll.goes_on(1, at(0)), "it was one");
        interrupted(&mut poll);
        poll.note_traffic();
        assert!(!poll.goes_on(1, at(0)), "each is a look in vain");
    }

    #[test]
    fn one_turn_of_another_thread_is_enough_to_stop() {
        let mut poll = BusyPoll::new(LONGEST);
        poll.note_traffic();
        assert!(poll.goes_on(1, at(0)) && poll.goes_on(1, at(1)));
        assert!(!poll.goes_on(1, at(700)), "another thread ran for 699 us");
        let began = (0..TRIAL_INTERVAL_MIN - 1).filter(|_| look_in_vain(&mut poll)).count();
        assert_eq!(began, 0);
    }

    #[test]
    fn hits_bring_confidence_back() {
        let mut poll = BusyPoll::new(LONGEST);
        while look_in_vain(&mut poll) {}
        let hit = |poll: &mut BusyPoll| {
            poll.note_traffic();
            poll.goes_on(1, at(0)) && poll.goes_on(1, at(1))
        };
        let trials = (0..100 * TRIAL_INTERVAL_MIN).take_while(|_| !hit(&mut poll)).count();
        assert!(trials < TRIAL_INTERVAL_MIN as usize);
        assert!((0..100).all(|_| hit(&mut poll)), "one hit is enough to go on");
    }

    #[test]
    fn what_the_first_look_finds_says_nothing() {
        let mut poll = BusyPoll::new(LONGEST);
        let find_at_once = |poll: &mut BusyPoll| {
            poll.note_traffic();
            poll.goes_on(1, at(0))
        };
        assert!((0..100).all(|_| find_at_once(&mut poll)));
        poll.note_traffic();
        assert_eq!(poll.take_counts(), None, "it looked once, as who goes to sleep does");
        let in_vain = CONFIDENCE_MAX / 2 / IN_VAIN_COST;
        assert!((0..in_vain).all(|_| find_at_once(&mut poll) && look_in_vain(&mut poll)));
        assert!(!look_in_vain(&mut poll), "no confidence came of what was there already");
    }

    #[test]
    fn it_says_what_it_came_to() {
        let mut poll = BusyPoll::new(LONGEST);
        look_in_vain(&mut poll);
        poll.note_traffic();
        assert!([100, 110, 117].into_iter().all(|time| poll.goes_on(1, at(time))));
        poll.note_traffic();
        let in_vain = Duration::from_micros(40);
        let time = in_vain + Duration::from_micros(17);
        let counts = BusyPollCounts { begun: 2, paid: 1, time, time_in_vain: in_vain };
        assert_eq!(poll.take_counts(), Some(counts));
        assert_eq!(poll.take_counts(), None);
    }
}
