//! Room for records: whether records wait for it, and whether level 2 can make any.

use block::Error;

use crate::limits::ROOM_SHARE_AFTER_FULL;

/// Whether records wait for room in the log, and the error if level 2 can make none.
#[derive(Default)]
pub(crate) struct Room {
    was_full: bool,
    is_wanted: bool,
    stuck: Option<Error>,
}

impl Room {
    /// Whether records wait for a segment or for room in the checkpoint.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Whether the log was full, and level 2 has not made [`ROOM_SHARE_AFTER_FULL`] of it free since.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full
    }

    /// The error for which level 2 makes no room, since the last batch that did.
    pub(crate) fn stuck(&self) -> Option<&Error> {
        self.stuck.as_ref()
    }

    /// Notes that a record waits for room. Returns whether it is the first to wait.
    pub(crate) fn ask(&mut self) -> bool {
        self.was_full = true;
        !std::mem::replace(&mut self.is_wanted, true)
    }

    /// Notes that there is room; more stays wanted while records wait.
    pub(crate) fn note_found(&mut self, do_records_wait: bool) {
        self.is_wanted &= do_records_wait;
    }

    /// Notes that level 2 can make none; the waiting records are refused. Returns whether any
    /// waited.
    pub(crate) fn give_up(&mut self, error: &Error) -> bool {
        let was_wanted = std::mem::take(&mut self.is_wanted);
        if was_wanted {
            self.stuck = Some(error.clone());
        }
        was_wanted
    }

    /// Notes a batch of level 2 that has sent something.
    pub(crate) fn note_batch(&mut self) {
        self.stuck = None;
    }

    /// Notes the share of the log in use after a batch (0.0 to 1.0).
    pub(crate) fn note_share_used(&mut self, share: f64) {
        self.was_full &= self.is_wanted || share > 1.0 - ROOM_SHARE_AFTER_FULL;
    }
}

#[cfg(test)]
mod tests {
    use block::ErrorKind;

    use super::*;

    #[test]
    fn a_full_log_is_full_until_a_share_of_it_is_free_and_nobody_waits() {
        let mut room = Room::default();
        assert!(room.ask() && !room.ask() && room.was_full());
        room.note_share_used(0.0);
        assert!(room.was_full(), "somebody waits");
        room.note_found(false);
        room.note_share_used(1.0);
        assert!(room.was_full() && !room.is_wanted());
        room.note_share_used(0.0);
        assert!(!room.was_full());
    }

    #[test]
    fn only_who_waits_for_room_is_told_that_there_will_be_none() {
        let (mut room, error) = (Room::default(), Error::new(ErrorKind::Media, "it takes nothing"));
        assert!(!room.give_up(&error) && room.stuck().is_none());
        room.ask();
        assert!(room.give_up(&error) && room.stuck().is_some() && !room.is_wanted());
        room.note_batch();
        assert!(room.stuck().is_none());
    }
}
