//! The choice of the waiting append that starts the next record of a log, some turns after the
//! record may start ([`Gathering`](crate::Gathering)).
//!
//! ```text
//!     none ──(polled, and a record may start)──► starter ──(polled again, turn after turn)──► starts it
//!      ▲                                            │
//!      └─────(over or gone, or none may start)──────┘
//! ```
//! A *driver* is a task whose polls drive the log. A turn is over when the starter is polled again.
//! How long that takes depends on the driver, so each log sets its own count of turns.

/// What a driver that was polled has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Start records as long as one may.
    Start,
    /// Be polled again after the others.
    Yield,
    /// Wake another driver: this one is not polled any more.
    HandOver,
    /// Nothing: another driver is the starter, or no record may start.
    Nothing,
}

/// The starter of the next record, and its turns left. `D` names a driver.
pub struct Turns<D> {
    /// Turns between a record that may start and its start.
    count: u32,
    starter: Option<Starter<D>>,
}

struct Starter<D> {
    driver: D,
    turns_left: u32,
}

impl<D: Copy + Eq> Turns<D> {
    /// `count` turns, at least one.
    pub fn new(count: u32) -> Self {
        assert!(count > 0, "with none, whoever comes back first has a record to himself");
        Self { count, starter: None }
    }

    /// What `driver` has to do now that it was polled. `is_over`: it will not be polled again.
    pub fn step(&mut self, driver: D, is_over: bool, may_start: bool) -> Step {
        if !may_start {
            self.starter = None;
            return Step::Nothing;
        }
        match &mut self.starter {
            Some(starter) if starter.driver != driver => Step::Nothing,
            _ if is_over => {
                self.starter = None;
                Step::HandOver
            }
            Some(Starter { turns_left: 0, .. }) => {
                self.starter = None;
                Step::Start
            }
            Some(starter) => {
                starter.turns_left -= 1;
                Step::Yield
            }
            None => {
                self.starter = Some(Starter { driver, turns_left: self.count - 1 });
                Step::Yield
            }
        }
    }

    /// `driver` was dropped.
    pub fn forget(&mut self, driver: D) {
        self.starter.take_if(|starter| starter.driver == driver);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURNS: u32 = 2;
    const ONE: u32 = 1;
    const OTHER: u32 = 2;

    #[test]
    fn the_first_to_see_that_it_may_starts_it_after_the_turns() {
        let mut turns = Turns::new(TURNS);
        assert_eq!(turns.step(ONE, false, false), Step::Nothing);
        for _ in 0..TURNS {
            assert_eq!(turns.step(ONE, false, true), Step::Yield);
            assert_eq!(turns.step(OTHER, false, true), Step::Nothing, "one is enough");
        }
        assert_eq!(turns.step(ONE, false, true), Step::Start);
        assert_eq!(turns.step(OTHER, false, true), Step::Yield, "the next one");
    }

    #[test]
    fn who_is_over_or_gone_leaves_it_to_another() {
        let mut turns = Turns::new(TURNS);
        assert_eq!(turns.step(ONE, true, true), Step::HandOver);
        assert_eq!(turns.step(ONE, false, true), Step::Yield);
        assert_eq!(turns.step(ONE, true, true), Step::HandOver, "its turns are another's");
        assert_eq!(turns.step(OTHER, false, true), Step::Yield);
        turns.forget(ONE);
        assert_eq!(turns.step(ONE, false, true), Step::Nothing, "the other is there");
        turns.forget(OTHER);
        assert_eq!(turns.step(ONE, false, true), Step::Yield);
        assert_eq!(turns.step(OTHER, false, false), Step::Nothing, "none may start");
        assert_eq!(turns.step(OTHER, false, true), Step::Yield, "the turns begin again");
    }
}
