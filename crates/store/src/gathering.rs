//! The rule that says when the next record of a log starts; appends that wait until then share it.
//!
//! | on their way | a record starts when |
//! |---|---|
//! | none | anything waits |
//! | some, but fewer than may be | what waits is worth a record ([`Worth`]), or no more can be added to it |
//! | as many as may be | one has landed |
//!
//! A record that may start does so after some *turns* of the tasks that drive the log: in these the
//! appends just acknowledged are followed by new ones, which join this record. There is no timer.

/// The rule by which a log makes records of what waits.
#[derive(Clone, Copy, Debug)]
pub struct Gathering {
    /// Most records under way at a time.
    pub in_flight_max: usize,
    /// How much must wait before a record starts while others are under way.
    pub worth: Worth,
    /// Turns between a record that may start and its start: at least one.
    pub turns: u32,
}

/// How much must wait before a record starts while others are under way.
#[derive(Clone, Copy, Debug)]
pub enum Worth {
    /// Its share of all that is not settled. For appends of a few bytes, which cost what their
    /// records do: while as many gather, the medium is busy, however many there are.
    Share,
    /// This weight. For appends of data, of which a few fill a record: smaller ones wait for one more record, which
    /// costs the medium less than another flush.
    Weight(u64),
}

impl Gathering {
    /// Whether what waits, of weight `waiting`, may become a record while `in_flight` records of
    /// weight `on_their_way` are not settled. `is_full`: nothing more can be added to what waits.
    pub fn allows(&self, in_flight: usize, on_their_way: u64, waiting: u64, is_full: bool) -> bool {
        let is_worth_it = match self.worth {
            Worth::Share => waiting.saturating_mul(self.in_flight_max as u64) >= waiting + on_their_way,
            Worth::Weight(least) => waiting >= least,
        };
        in_flight == 0 || in_flight < self.in_flight_max && (is_full || is_worth_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_beside_another_takes_its_share_or_its_weight() {
        let share = Gathering { in_flight_max: 2, worth: Worth::Share, turns: 1 };
        let weight = Gathering { worth: Worth::Weight(32), ..share };
        for (rule, in_flight, on_their_way, waiting, is_full, may) in [
            (share, 0, 0, 1, false, true),
            (share, 1, 5, 4, false, false),
            (share, 1, 5, 5, false, true),
            (share, 1, 5, 4, true, true),
            (share, 2, 5, 50, true, false),
            (weight, 0, 0, 0, false, true),
            (weight, 1, 1, 31, false, false),
            (weight, 1, 100, 32, false, true),
            (weight, 2, 1, 100, false, false),
        ] {
            let found = rule.allows(in_flight, on_their_way, waiting, is_full);
            assert_eq!(found, may, "{rule:?}: {waiting} wait, {in_flight} on their way with {on_their_way}");
        }
    }
}
