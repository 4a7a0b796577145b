//! The end of a driver, by whatever way: also where it is dropped.

use std::sync::Arc;

use base::clock::Clock;

use crate::shared::Shared;
use crate::status::State;

/// Notifies those that wait for the driver's end, however it ends.
pub(super) struct StopGuard {
    pub(super) shared: Arc<Shared>,
    pub(super) place: String,
    pub(super) clock: Arc<dyn Clock>,
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        {
            let mut view = self.shared.view();
            if !matches!(view.status.state, State::Replaced | State::Fenced) {
                view.status.state = State::Closed;
            }
        }
        let now = self.clock.now();
        self.shared.client().into_iter().for_each(|path| path.end(now));
        self.shared.stop(&self.place);
    }
}
