//! Who starts the next record of a log, and when: one of those who wait, some turns of the runtime after it may be started.
//!
//! ```text
//!   nobody ──(polled, and a record may start)──► starter ──(polled again, turn after turn)──► starts it
//!      ▲                                            │
//!      └─────(over or gone, or none may start)──────┘
//! ```
//! In these turns whoever was just told of the record before appends again, to this one.

use crate::limits::TURNS_BEFORE_RECORD;

/// Sequence of the record of an append, and its number in it.
pub(crate) type AppendId = (u64, usize);

/// What a waiter that was polled has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Start,
    /// Be polled again after the others.
    Yield,
    /// Another has to: this one is not polled any more.
    HandOver,
    Nothing,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Turns {
    starter: Option<Starter>,
}

struct Starter {
    append: AppendId,
    turns_left: u32,
}

impl Turns {
    /// What whoever waits for `append`, or is over, has to do.
    pub(crate) fn step(&mut self, append: AppendId, is_over: bool, may_start: bool) -> Step {
        if !may_start {
            self.starter = None;
            return Step::Nothing;
        }
        match &mut self.starter {
            Some(starter) if starter.append != append => Step::Nothing,
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
                self.starter = Some(Starter { append, turns_left: TURNS_BEFORE_RECORD - 1 });
                Step::Yield
            }
        }
    }

    /// Nobody waits for `append` any more.
    pub(crate) fn forget(&mut self, append: AppendId) {
        self.starter.take_if(|starter| starter.append == append);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: AppendId = (7, 0);
    const OTHER: AppendId = (7, 1);

    #[test]
    fn the_first_to_see_that_it_may_starts_it_after_the_turns() {
        let mut turns = Turns::default();
        assert_eq!(turns.step(ONE, false, false), Step::Nothing);
        for _ in 0..TURNS_BEFORE_RECORD {
            assert_eq!(turns.step(ONE, false, true), Step::Yield);
            assert_eq!(turns.step(OTHER, false, true), Step::Nothing, "one is enough");
        }
        assert_eq!(turns.step(ONE, false, true), Step::Start);
        assert_eq!(turns.step(OTHER, false, true), Step::Yield, "the next one");
    }

    #[test]
    fn who_is_over_or_gone_leaves_it_to_another() {
        let mut turns = Turns::default();
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
