//! How far the origin has the records in the order of the log: where the next epoch begins
//! ([`crate::epoch`]), and whether it may have an end.
use store::Sequence;

/// How far the origin has the log, in sequences of records.
pub(crate) struct Destaged {
    /// Everything up to this record is on the origin, where the epoch under way has nothing newer,
    /// and nothing behind it is clean. When a step of an epoch is on the origin this number moves
    /// first, then its sectors become clean.
    sequence: Sequence,
    /// The last record that the opening found: the program before sent nothing newer.
    found: Sequence,
    /// The last record with data that another order left: until it is destaged a checkpoint says
    /// that the log is in no order.
    leftovers_end: Sequence,
    /// Whether an epoch may end behind `sequence`. With slots many records may come without such an
    /// end: the search waits until one may have come.
    may_have_epoch: bool,
}

impl Destaged {
    /// Nothing is on the origin yet; `found` is the last record of the log.
    pub(crate) fn new(found: Sequence) -> Self {
        Self { sequence: Sequence::NONE, found, leftovers_end: Sequence::NONE, may_have_epoch: true }
    }

    /// Everything up to this record is on the origin.
    pub(crate) fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// The last record that the opening found.
    pub(crate) fn found(&self) -> Sequence {
        self.found
    }

    /// Sets how far the origin is, from the superblock or from what the opening found out.
    pub(crate) fn begin_at(&mut self, sequence: Sequence) {
        self.sequence = sequence;
    }

    /// Notes that the records found were left by another order, and go first.
    pub(crate) fn begin_with_leftovers(&mut self) {
        self.leftovers_end = self.found;
    }

    /// Whether data left by another order is still missing on the origin when everything up to
    /// `sequence` is there.
    pub(crate) fn has_leftovers_behind(&self, sequence: Sequence) -> bool {
        sequence < self.leftovers_end
    }

    /// Notes that a step of an epoch is on the origin; `end` is its last record.
    pub(crate) fn note_step(&mut self, end: Sequence) {
        self.sequence = end;
        self.may_have_epoch = true;
    }

    /// Notes a record after which an epoch can end.
    pub(crate) fn note_epoch_end(&mut self) {
        self.may_have_epoch = true;
    }

    /// Whether to look for the end of the next epoch; then not again until one may have come.
    pub(crate) fn take_epoch_hint(&mut self) -> bool {
        std::mem::replace(&mut self.may_have_epoch, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_epoch_is_looked_for_once_until_another_may_have_come() {
        let mut destaged = Destaged::new(Sequence(7));
        assert!(destaged.take_epoch_hint() && !destaged.take_epoch_hint());
        destaged.note_epoch_end();
        assert!(destaged.take_epoch_hint() && !destaged.take_epoch_hint());
        destaged.note_step(Sequence(3));
        assert!(destaged.take_epoch_hint(), "the rest may be another");
        assert_eq!(destaged.sequence(), Sequence(3));
    }

    #[test]
    fn what_another_order_left_is_left_until_the_last_record_of_it_is_on_the_origin() {
        let mut destaged = Destaged::new(Sequence(7));
        assert!(!destaged.has_leftovers_behind(Sequence::NONE), "the order is the same as before");
        destaged.begin_with_leftovers();
        assert_eq!([6, 7].map(|number| destaged.has_leftovers_behind(Sequence(number))), [true, false]);
    }
}
