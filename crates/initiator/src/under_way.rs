//! Commands under way, in the order in which they were sent, which is the order of their CmdSNs.
//!
//! A unit that lost its cache, or got one, reports that with the first command that it handles
//! afterwards, and no other. On one connection that answer comes before those of later commands; on
//! several it may come after them. So there an answer that depends on the cache counts only when
//! every command sent before it has been answered.

use std::collections::VecDeque;

/// Which of the commands that were sent are answered.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    /// The number of the oldest command that is not answered, or of the next one.
    first: u64,
    /// For each command from `first` on, whether it is answered.
    is_answered: VecDeque<bool>,
    count: usize,
}

impl UnderWay {
    /// Counts a command as sent. Returns its number.
    pub(crate) fn send(&mut self) -> u64 {
        let number = self.next();
        self.is_answered.push_back(false);
        self.count += 1;
        number
    }

    /// The number of the next command that is sent.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.is_answered.len() as u64
    }

    /// Notes that a command is answered.
    pub(crate) fn answer(&mut self, number: u64) {
        let index = number.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let Some(is_answered) = index.and_then(|index| self.is_answered.get_mut(index)) else { return };
        self.count -= usize::from(!std::mem::replace(is_answered, true));
        while self.is_answered.front() == Some(&true) {
            self.is_answered.pop_front();
            self.first += 1;
        }
    }

    /// Whether a command that was sent before `number` is not answered.
    pub(crate) fn has_earlier(&self, number: u64) -> bool {
        self.first < number
    }

    /// Commands that are not answered.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Forgets all commands: the session is lost.
    pub(crate) fn clear(&mut self) {
        self.first += self.is_answered.len() as u64;
        self.is_answered.clear();
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_early_until_all_before_it_have_come() {
        let mut under_way = UnderWay::default();
        let numbers: Vec<u64> = (0..3).map(|_| under_way.send()).collect();
        assert!(!under_way.has_earlier(numbers[0]) && under_way.has_earlier(numbers[1]));
        under_way.answer(numbers[1]);
        under_way.answer(numbers[1]);
        assert_eq!(under_way.count(), 2, "an answer counts once");
        assert!(under_way.has_earlier(numbers[2]));
        under_way.answer(numbers[0]);
        assert!(!under_way.has_earlier(numbers[2]));
        under_way.clear();
        under_way.answer(numbers[2]);
        assert_eq!(under_way.count(), 0);
        let next = under_way.send();
        assert!(!under_way.has_earlier(next));
    }
}
