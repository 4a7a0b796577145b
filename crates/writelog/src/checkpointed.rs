//! Time, duration and tail of the last checkpoint, from which follows when the next one is due
//! ([`crate::checkpoint`]).

use std::time::Duration;

use base::clock::Instant;

/// The last checkpoint, and the records since.
pub(crate) struct Checkpointed {
    /// When it was made; at first the time of the opening.
    at: Instant,
    /// How long it took.
    took: Duration,
    /// Bytes of records since.
    tail_bytes: u64,
}

impl Checkpointed {
    /// No checkpoint yet; the log is opened `now`.
    pub(crate) fn none(now: Instant) -> Self {
        Self { at: now, took: Duration::ZERO, tail_bytes: 0 }
    }

    /// Bytes of records since the last checkpoint.
    pub(crate) fn tail_bytes(&self) -> u64 {
        self.tail_bytes
    }

    /// Time since the last checkpoint.
    pub(crate) fn rested(&self, now: Instant) -> Duration {
        now.since(self.at)
    }

    /// How long it took.
    pub(crate) fn took(&self) -> Duration {
        self.took
    }

    /// Notes a record of `bytes`.
    pub(crate) fn note_record(&mut self, bytes: u64) {
        self.tail_bytes += bytes;
    }

    /// Notes a durable checkpoint with `bytes` of the records that the one before did not have.
    pub(crate) fn note_durable(&mut self, now: Instant, bytes: u64) {
        self.tail_bytes -= bytes;
        self.at = now;
    }

    /// Notes the end of a checkpoint, with all that follows from it; it began at `began_at`.
    pub(crate) fn note_end(&mut self, began_at: Instant, now: Instant) {
        self.took = now.since(began_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_came_while_it_was_made_are_in_the_tail_of_the_next() {
        let at = |ms| Instant::START + Duration::from_millis(ms);
        let mut checkpointed = Checkpointed::none(at(0));
        checkpointed.note_record(512);
        let in_it = checkpointed.tail_bytes();
        checkpointed.note_record(1024);
        checkpointed.note_durable(at(30), in_it);
        checkpointed.note_end(at(10), at(35));
        assert_eq!(checkpointed.tail_bytes(), 1024);
        assert_eq!(
            (checkpointed.rested(at(40)), checkpointed.took()),
            (Duration::from_millis(10), Duration::from_millis(25))
        );
    }
}
