//! Whether someone who waits for a peer keeps looking for a moment, instead of sleeping at once: adaptive busy polling.
//!
//! Waking a sleeping thread takes longer than answering from RAM. Who has few things under way pays that for each of
//! them; who has many does not, since more comes while it wakes, and looking at once would only take apart what can be
//! handled in one go. So one looks again only
//!
//! - after traffic, for about as long as a wake-up takes: a silent connection costs nothing;
//! - while little is under way, and was of late: of a batch that is half answered the other half comes soon;
//! - while that pays. Each time that ends with traffic adds confidence, each in vain takes more away. Without any, as
//!   when the peer needs the very processor we would look on, one pause in 64 is tried, and then ever fewer. What the
//!   first look finds was there already, whether one looks on or not, and says nothing: on one processor that is when
//!   the peer went before;
//! - while no other thread wants the processor: when two looks are far apart, another thread had its turn in between,
//!   and confidence is gone. A shorter gap is the kernel's work, an interrupt of a network card or a disk: it ends the
//!   look, which counts as one in vain.
//!
//! ```text
//!            traffic                    quiet, may look                    time over, or interrupted
//! Sleeping ──────────► (busy) ───────────────────────────► Looking ─────────────────────────────────► Sleeping
//!                        ▲             traffic: a hit         │            in vain
//!                        └────────────────────────────────────┘
//! ```

use std::time::Duration;

use crate::clock::Instant;

/// Operations under way up to which it is the latency that the one at the other end waits for. Beyond, it has work to
/// do while we wake.
const DEPTH_MAX: usize = 16;

/// Bytes that keep the one at the other end as busy as one more operation.
const BYTES_PER_OPERATION: usize = 16 << 10;

/// How many operations are under way, bytes included.
pub fn depth_of(operations: usize, bytes: usize) -> usize {
    operations + bytes / BYTES_PER_OPERATION
}

/// Most confidence that looking pays; each hit adds one.
const CONFIDENCE_MAX: u32 = 16;

/// Confidence that a look in vain takes: it must be right in four cases of five to go on.
const IN_VAIN_COST: u32 = 4;

/// Longest looks that two looks are apart when another thread had its turn in between: the scheduler's turns are longer
/// (from 700 us on), the kernel's interrupts shorter.
const TURN_OF_ANOTHER: u32 = 4;

/// Pauses of which one is tried without confidence: at first, and after trials in vain, each of which doubles it.
const TRIAL_INTERVAL_MIN: u32 = 64;
const TRIAL_INTERVAL_MAX: u32 = 4096;

/// What looking came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyPollCounts {
    /// Pauses in which it looked again.
    pub begun: u64,
    /// Of these, those that ended with traffic.
    pub paid: u64,
    /// Time spent looking.
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

/// The looking of one who waits.
#[derive(Debug)]
pub struct BusyPoll {
    /// How long it looks at most.
    longest: Duration,
    state: State,
    confidence: u32,
    /// Pauses without confidence since the last one that was tried.
    untried: u32,
    /// How many there are to be.
    trial_interval: u32,
    /// The most that was under way in a pause; it fades.
    depth: usize,
    counts: BusyPollCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Something moved since the last pause.
    Busy,
    Looking {
        since: Instant,
        last: Instant,
    },
    Sleeping,
}

impl BusyPoll {
    /// Of one who waited for nothing so far, and looks for `longest` at most; zero for never. It has half the
    /// confidence it can have.
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

    /// Something came or went.
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

    /// Nothing moves, and `depth` operations are under way ([`depth_of`]); none where nothing can come or be looked at.
    /// Whether to look again at once; `now` is asked for only where that depends on it.
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

    /// Whether it is under way.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state, State::Looking { .. })
    }

    /// What it came to since the last time this was asked, if it came to anything.
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

    /// Whether it began.
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
            assert!(!poll.goes_on(1, at(0)) || !(poll.goes_on(1, at(1)) && poll.goes_on(1, at(30))));
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
