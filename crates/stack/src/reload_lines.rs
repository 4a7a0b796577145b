//! The log's lines about reloads of the configuration. Who may ask for one may ask for thousands.

use std::sync::Arc;

use base::clock::Clock;
use base::refusals::Refusals;

use crate::error::Error;
use crate::status::Reloaded;

/// Tells of the first few reloads of each interval, and counts the others.
pub(crate) struct ReloadLines {
    clock: Arc<dyn Clock>,
    taken: Refusals,
    refused: Refusals,
}

impl ReloadLines {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, taken: Refusals::default(), refused: Refusals::default() }
    }

    /// A configuration was taken over.
    pub(crate) fn taken_over(&self, reloaded: &Reloaded) {
        let Some(others) = self.taken.note(self.clock.now()) else { return };
        tracing::info!(
            added = reloaded.luns_added,
            removed = reloaded.luns_removed,
            resized = reloaded.luns_resized,
            portals_added = reloaded.portals_added,
            portals_removed = reloaded.portals_removed,
            sessions_ended = reloaded.sessions_ended,
            others,
            "the configuration was read again"
        );
    }

    /// A configuration could not be taken over.
    pub(crate) fn refused(&self, error: &Error) {
        if let Some(others) = self.refused.note(self.clock.now()) {
            tracing::error!(%error, others, "the configuration could not be taken over; everything goes on as before");
        }
    }
}

#[cfg(test)]
#[path = "../../cache/tests/common/lines.rs"]
mod lines;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;
    use base::clock::VirtualClock;
    use base::limits::{REFUSAL_LOG_INTERVAL, REFUSALS_LOGGED_MAX};

    /// Of many reloads at one moment, and one more after the interval.
    fn check_few_lines(note: impl Fn(&ReloadLines)) {
        let lines = lines::Lines::with_information();
        let _guard = lines.listen();
        let clock = VirtualClock::new();
        let reloads = ReloadLines::new(Arc::new(clock.clone()));
        (0..9000).for_each(|_| note(&reloads));
        assert_eq!(lines.count(), REFUSALS_LOGGED_MAX as usize);
        clock.advance_to(clock.now() + REFUSAL_LOG_INTERVAL);
        note(&reloads);
        assert_eq!(lines.count(), REFUSALS_LOGGED_MAX as usize + 1);
    }

    #[test]
    fn reloads_that_are_refused_are_a_few_lines() {
        let error = Error::new(Failure::Usage, "there is no file to read again");
        check_few_lines(|reloads| reloads.refused(&error));
    }

    #[test]
    fn reloads_that_are_taken_over_are_a_few_lines() {
        let reloaded = Reloaded { name: "disks".into(), ..Reloaded::default() };
        check_few_lines(|reloads| reloads.taken_over(&reloaded));
    }
}
