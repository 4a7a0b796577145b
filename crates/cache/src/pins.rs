//! Pinned frames: a request reads or writes their bytes, so these must stay.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::frames::Frames;
use crate::lines::Lines;
use crate::numbers::FrameNumber;

/// Pinned frames, which are not given to another block. Dropping it unpins them.
pub(crate) struct Pins {
    lines: Arc<Lines>,
    /// Most requests touch one line.
    frames: SmallVec<[FrameNumber; 1]>,
}

impl Pins {
    pub(crate) fn frames(&self) -> &[FrameNumber] {
        &self.frames
    }

    pub(crate) fn none(lines: &Arc<Lines>) -> Self {
        Self { lines: Arc::clone(lines), frames: SmallVec::new() }
    }

    /// Pins one more frame. `frames` is the locked state of the same lines.
    pub(crate) fn add(&mut self, frames: &mut Frames, frame: FrameNumber) {
        frames.pin(frame);
        self.frames.push(frame);
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if self.frames.is_empty() {
            return;
        }
        {
            let mut state = self.lines.state();
            for &frame in &self.frames {
                state.frames.unpin(frame);
            }
        }
        self.lines.changed.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::tests::{empty, put};
    use crate::numbers::BlockNumber;
    use crate::options::Associativity;

    #[test]
    fn a_pinned_frame_is_given_to_nobody_and_who_waits_for_one_is_woken_when_it_is_let_go() {
        let lines = empty(Associativity::Ways(1));
        let set = lines.layout.set_of(BlockNumber(0));
        let other =
            (1..).map(BlockNumber).find(|&block| lines.layout.set_of(block) == set).expect("sets are used again");
        let frame = put(&lines, 0, 0xff, 0);
        let mut pins = Pins::none(&lines);
        pins.add(&mut lines.state().frames, frame);
        let count = lines.changed.count();
        assert!(lines.state().frames.reserve(other).is_none());
        drop(pins);
        assert_ne!(lines.changed.count(), count);
        assert_eq!(lines.state().frames.reserve(other).map(|reserved| reserved.frame), Some(frame));
    }
}
