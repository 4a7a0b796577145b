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
        if let Some(path) = self.shared.client() {
            path.end(now);
            // Also where no driver is polled any more to say what has become of the client.
            let sharing = path.with(|member, _| member.status(now));
            self.shared.view().status.sharing = Some(sharing);
        }
        self.shared.stop(&self.place);
    }
}
