//! What the origin says that it has lost of what it had not flushed, and what that means for lines.
//!
//! A loss is counted first, and then the lines are looked at. So who took the count, read or wrote something, and finds the same count under the lock of the
//! lines, has something that was not lost; and a loss that comes behind that finds the line.

use std::sync::Arc;

use store::LossCount;

use crate::lines::Lines;

/// See the top of this file.
pub(crate) struct Losses {
    count: Arc<LossCount>,
    lines: Arc<Lines>,
}

impl Losses {
    /// As `count` has them, of the origin of these lines.
    pub(crate) fn new(lines: &Arc<Lines>, count: &Arc<LossCount>) -> Arc<Self> {
        Arc::new(Self { count: Arc::clone(count), lines: Arc::clone(lines) })
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.count()
    }

    /// The origin lost what it had not flushed, or may have: copies of that must not outlive a crash as if it had it.
    pub(crate) fn note(&self) {
        self.count.add();
        self.lines.forget_unflushed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::tests::{empty, put, valid};
    use crate::options::Associativity;
    use crate::sectors::Sectors;

    #[test]
    fn a_loss_is_counted_and_takes_what_was_not_flushed() {
        let lines = empty(Associativity::Full);
        let losses = Losses::new(&lines, &Arc::default());
        let [unflushed, flushed] = [put(&lines, 1, 0xff, 0x01), put(&lines, 2, 0xff, 0x01)];
        lines.state().frames.mappings.set_unflushed(unflushed);
        losses.note();
        assert_eq!(losses.count(), 1);
        let dirty = Sectors::from_bytes(&[0x01]);
        assert_eq!([valid(&lines, unflushed), valid(&lines, flushed)], [dirty, Sectors::from_bytes(&[0xff])]);
    }
}
