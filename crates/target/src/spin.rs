//! Whether a session that has nothing to do keeps looking at its sockets for a moment, instead of sleeping at once.
//!
//! Waking a sleeping thread takes longer than answering from RAM. An initiator that waits for each answer before it asks again pays that
//! for every command; one with many commands in flight does not, and a busy processor would be all it got for it. So a session spins
//! only
//!
//! - after traffic, for [`SPIN_MAX`] at most: a silent session costs nothing;
//! - while the initiator has few commands in flight ([`SPIN_DEPTH_MAX`]), as its acknowledgements tell;
//! - while that pays. Each spin that ends with traffic adds confidence, each in vain takes more away. Without any, as when the initiator
//!   needs the very processor we would spin on, one pause in [`SPIN_TRIAL_INTERVAL`] is tried;
//! - where the server has no more shards than processors.
//!
//! ```text
//!            traffic                    quiet, may spin                  SPIN_MAX over
//! Sleeping ──────────► (busy) ───────────────────────────► Spinning ─────────────────────► Sleeping
//!                        ▲             traffic: a hit         │            in vain
//!                        └────────────────────────────────────┘
//! ```

use base::clock::Instant;

use crate::limits::{SPIN_CONFIDENCE_MAX, SPIN_IN_VAIN_COST, SPIN_MAX, SPIN_TRIAL_INTERVAL};

/// The spinning of one session.
#[derive(Debug)]
pub(crate) struct Spin {
    state: State,
    confidence: u32,
    /// Pauses without confidence since the last one that was tried.
    untried: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Something moved since the last pause.
    Busy,
    SpinningUntil(Instant),
    Sleeping,
}

impl Spin {
    /// Of a session that was silent so far. It has half the confidence it can have.
    pub(crate) fn new() -> Self {
        Self { state: State::Sleeping, confidence: SPIN_CONFIDENCE_MAX / 2, untried: 0 }
    }

    /// Something came or went.
    pub(crate) fn note_traffic(&mut self) {
        if matches!(self.state, State::SpinningUntil(_)) {
            self.confidence = (self.confidence + 1).min(SPIN_CONFIDENCE_MAX);
        }
        self.state = State::Busy;
    }

    /// Nothing moves. Whether to look again at once; `now` is asked for only where that depends on it.
    pub(crate) fn goes_on(&mut self, is_worth_it: bool, now: impl FnOnce() -> Instant) -> bool {
        match self.state {
            State::Busy => {
                let dares = is_worth_it && self.dares();
                self.state = if dares { State::SpinningUntil(now() + SPIN_MAX) } else { State::Sleeping };
                dares
            }
            State::SpinningUntil(deadline) if is_worth_it && now() < deadline => true,
            State::SpinningUntil(_) => {
                self.confidence = self.confidence.saturating_sub(SPIN_IN_VAIN_COST);
                self.state = State::Sleeping;
                false
            }
            State::Sleeping => false,
        }
    }

    /// Whether it is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.state, State::SpinningUntil(_))
    }

    fn dares(&mut self) -> bool {
        if self.confidence > 0 {
            return true;
        }
        self.untried += 1;
        if self.untried < SPIN_TRIAL_INTERVAL {
            return false;
        }
        self.untried = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: u64) -> impl FnOnce() -> Instant {
        move || Instant::from_nanoseconds(microseconds * 1000)
    }

    fn spin_in_vain(spin: &mut Spin) -> bool {
        spin.note_traffic();
        let began = spin.goes_on(true, at(0));
        assert!(!spin.goes_on(true, at(1_000_000)), "its time is over");
        began
    }

    #[test]
    fn it_ends_with_its_time_and_begins_with_traffic() {
        let mut spin = Spin::new();
        assert!(!spin.goes_on(true, at(0)), "nothing came yet");
        spin.note_traffic();
        assert!(spin.goes_on(true, at(0)) && spin.is_under_way());
        assert!(spin.goes_on(true, at(1)));
        assert!(!spin.goes_on(true, || Instant::START + SPIN_MAX) && !spin.is_under_way());
        assert!(!spin.goes_on(true, at(0)), "asleep until traffic comes");
    }

    #[test]
    fn deep_queues_do_not_spin() {
        let mut spin = Spin::new();
        spin.note_traffic();
        assert!(!spin.goes_on(false, at(0)));
    }

    #[test]
    fn what_is_in_vain_is_only_tried_from_time_to_time() {
        let mut spin = Spin::new();
        while spin_in_vain(&mut spin) {}
        let tried = (0..10 * SPIN_TRIAL_INTERVAL).filter(|_| spin_in_vain(&mut spin)).count();
        assert_eq!(tried, 10);
    }

    #[test]
    fn hits_bring_confidence_back() {
        let mut spin = Spin::new();
        while spin_in_vain(&mut spin) {}
        let hit = |spin: &mut Spin| {
            spin.note_traffic();
            spin.goes_on(true, at(0))
        };
        let trials = (0..100 * SPIN_TRIAL_INTERVAL).take_while(|_| !hit(&mut spin)).count();
        assert!(trials < SPIN_TRIAL_INTERVAL as usize);
        assert!((0..100).all(|_| hit(&mut spin)), "one hit is enough to go on");
    }
}
