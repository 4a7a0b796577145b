//! Frames whose bytes must stay what they are, as long as somebody reads or writes them.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::frames::Frames;
use crate::lines::Lines;

/// Frames whose bytes must stay what they are. Dropping it lets them go.
pub(crate) struct Pins {
    lines: Arc<Lines>,
    /// Most requests touch one line.
    frames: SmallVec<[u32; 1]>,
}

impl Pins {
    pub(crate) fn frames(&self) -> &[u32] {
        &self.frames
    }

    pub(crate) fn none(lines: &Arc<Lines>) -> Self {
        Self { lines: Arc::clone(lines), frames: SmallVec::new() }
    }

    /// Pins one more frame. `frames` are those of these very lines, locked.
    pub(crate) fn add(&mut self, frames: &mut Frames, frame: u32) {
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
