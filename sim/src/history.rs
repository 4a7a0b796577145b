//! A slow, obvious model of a disk in many lives of a program: the possible contents of each
//! sector.
//!
//! Overlapping changes are carried out in the order of their submission. So each sector has one
//! history: the stamps that were written to it, in order. The possible results of a read follow
//! from it:
//!
//! - Without a crash: the last change acknowledged before the read was submitted, or any submitted
//!   later, before the read was answered: a write that waits for room in a log keeps no read
//!   waiting, and a log whose clean copy cannot be read looks once more for the newest data.
//! - After a crash that loses nothing volatile: the last acknowledged, or any submitted later.
//! - After a crash that does: the last one known to be durable, or any submitted later.
//!
//! - While a LUN may drop volatile data ([`History::doubt_volatile`]): as after such a crash.
//!
//! The content found after a crash stays: a later crash may not bring back another one, unless it
//! was still volatile. A flush that succeeds makes durable what was acknowledged before it, unless
//! a failed one was reported meanwhile: then the client knows, and volatile data may be there or
//! not.

use std::collections::BTreeSet;

use base::buffer::Buffer;
use base::range::ByteRange;

/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    Acknowledged,
    Failed,
    /// It may be dropped already, though it is still shown: no flush makes it durable any more.
    Doubtful,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    stamp: u64,
    fate: Fate,
    /// Number of its acknowledgement, counted over all changes: 0 for the initial content, and
    /// without an acknowledgement.
    number: u64,
    /// Whether it went past a failed log, durably.
    is_past_log: bool,
    /// Whether the device reported before it and after it that its write cache is volatile.
    is_volatile: bool,
}

impl Change {
    fn new(stamp: u64, fate: Fate) -> Self {
        Self { stamp, fate, number: 0, is_past_log: false, is_volatile: false }
    }
}

/// The history of a sector. The first change is its initial content.
struct Sector {
    changes: Vec<Change>,
    /// Index of the last change that survives any failure.
    durable: usize,
    /// Stamps of changes lost in a crash: below a log that is given up they may be there all the
    /// same.
    taken: Vec<u64>,
}

impl Sector {
    fn last(&self) -> usize {
        self.changes.len() - 1
    }

    /// The last acknowledged change up to that index.
    fn acknowledged(&self, up_to: usize) -> usize {
        (0..=up_to).rev().find(|&index| self.changes[index].fate == Fate::Acknowledged).unwrap_or(0)
    }

    /// The last change from `first` to `last` that wrote this stamp.
    fn find(&self, stamp: u64, first: usize, last: usize) -> Option<usize> {
        (first..=last).rev().find(|&index| self.changes[index].stamp == stamp)
    }
}

/// The data that a crash may have lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Unacknowledged writes.
    Unacknowledged,
    /// Also acknowledged ones that are volatile until a flush.
    Volatile,
    /// The same, on a LUN that may still show data that it has dropped, until it loses its power:
    /// no later flush makes that durable.
    VolatileUnseen,
}

impl Lost {
    /// The data lost in two crashes, one after the other, without a look in between.
    #[must_use]
    pub fn and(self, next: Self) -> Self {
        match (self, next) {
            (Self::Volatile, _) | (_, Self::Volatile) => Self::Volatile,
            (Self::VolatileUnseen, _) | (_, Self::VolatileUnseen) => Self::VolatileUnseen,
            (Self::Unacknowledged, Self::Unacknowledged) => Self::Unacknowledged,
        }
    }
}

/// A change under way.
pub struct Submitted {
    range: ByteRange,
    /// Stamp of its first sector; the following ones count up.
    first_stamp: u64,
    indices: Vec<usize>,
}

impl Submitted {
    /// The bytes to write.
    pub fn buffer(&self) -> Buffer {
        let mut buffer = Buffer::zeroed(self.range.length as usize);
        for (index, sector) in buffer.chunks_mut(SECTOR_BYTES as usize).enumerate() {
            sector.as_chunks_mut::<8>().0.fill((self.first_stamp + index as u64).to_le_bytes());
        }
        buffer
    }
}

/// A read under way.
pub struct SubmittedRead {
    /// For each sector the last change acknowledged before its submission.
    acknowledged: Vec<usize>,
    /// For each sector the last change that was durable then.
    durable: Vec<usize>,
    /// Losses reported before.
    losses_told: u64,
}

/// The histories of all sectors.
pub struct History {
    sectors: Vec<Sector>,
    stamp_next: u64,
    acknowledged_count: u64,
    /// Whether reads may return less than was acknowledged, while it is volatile.
    doubts_volatile: bool,
    /// Whether reads may return anything.
    doubts_reads: bool,
    /// Changes with an older stamp were submitted before a flush failed: their acknowledgements do
    /// not count any more.
    told_lost_below: u64,
    /// Count of flushes that failed, and of losses of volatile data.
    losses_told: u64,
    /// Count of losses of acknowledged data without a failed request.
    loss_count: u64,
    /// The last of them, if it was not reported to the client yet.
    untold: Option<u64>,
    /// Promises of durability that have been given, and not counted yet.
    promises: u32,
    /// What [`Self::count_ahead`] counted last, by sector and stamp.
    ahead: BTreeSet<(usize, u64)>,
}

impl History {
    /// The histories of a device of zeroes.
    pub fn new(size_bytes: u64) -> Self {
        let zero = || Sector { changes: vec![Change::new(0, Fate::Acknowledged)], durable: 0, taken: Vec::new() };
        Self {
            sectors: (0..size_bytes / SECTOR_BYTES).map(|_| zero()).collect(),
            stamp_next: 1,
            acknowledged_count: 0,
            doubts_volatile: false,
            doubts_reads: false,
            told_lost_below: 0,
            losses_told: 0,
            loss_count: 0,
            untold: None,
            promises: 0,
            ahead: BTreeSet::new(),
        }
    }

    fn indices(range: ByteRange) -> std::ops::Range<usize> {
        (range.offset / SECTOR_BYTES) as usize..(range.end() / SECTOR_BYTES) as usize
    }

    /// Submits a change of `range`: to new stamps, or to zeroes.
    pub fn submit(&mut self, range: ByteRange, is_zero: bool) -> Submitted {
        let first_stamp = self.stamp_next;
        let mut indices = Vec::new();
        for sector in &mut self.sectors[Self::indices(range)] {
            let stamp = if is_zero { 0 } else { self.stamp_next };
            self.stamp_next += 1;
            sector.changes.push(Change::new(stamp, Fate::InFlight));
            indices.push(sector.last());
        }
        Submitted { range, first_stamp, indices }
    }

    /// Ends a change.
    pub fn finish(&mut self, submitted: &Submitted, is_acknowledged: bool, is_durable: bool) {
        let counts = is_acknowledged && (is_durable || submitted.first_stamp >= self.told_lost_below);
        self.acknowledged_count += u64::from(counts);
        let sectors = &mut self.sectors[Self::indices(submitted.range)];
        for (sector, &index) in sectors.iter_mut().zip(&submitted.indices) {
            sector.changes[index].fate = if counts { Fate::Acknowledged } else { Fate::Failed };
            sector.changes[index].number = if counts { self.acknowledged_count } else { 0 };
            if is_acknowledged && is_durable {
                sector.durable = sector.durable.max(index);
            }
        }
    }

    /// Notes that an ended change may be lost before a flush.
    pub fn note_volatile(&mut self, submitted: &Submitted) {
        let sectors = &mut self.sectors[Self::indices(submitted.range)];
        for (sector, &index) in sectors.iter_mut().zip(&submitted.indices) {
            sector.changes[index].is_volatile = true;
        }
    }

    /// Notes that an ended change went past a failed log.
    pub fn note_past_log(&mut self, submitted: &Submitted) {
        let sectors = &mut self.sectors[Self::indices(submitted.range)];
        for (sector, &index) in sectors.iter_mut().zip(&submitted.indices) {
            sector.changes[index].is_past_log = true;
        }
    }

    /// The user gives up a log that must be discarded. Writes that went past it are there; sectors
    /// of which only the log had data may have any older content.
    pub fn give_up_log(&mut self) {
        for sector in &mut self.sectors {
            let past_log = sector.changes.iter().rposition(|change| change.is_past_log);
            for (index, change) in sector.changes.iter_mut().enumerate() {
                if change.fate == Fate::Acknowledged && past_log != Some(index) {
                    change.fate = Fate::Failed;
                }
            }
            let taken = sector.taken.drain(..).map(|stamp| Change::new(stamp, Fate::Failed));
            sector.durable = past_log.map_or(0, |past_log| past_log + taken.len());
            sector.changes.splice(0..0, taken);
        }
    }

    /// Submits a read of `range`.
    pub fn submit_read(&self, range: ByteRange) -> SubmittedRead {
        let sectors = &self.sectors[Self::indices(range)];
        SubmittedRead {
            acknowledged: sectors.iter().map(|sector| sector.acknowledged(sector.last())).collect(),
            durable: sectors.iter().map(|sector| sector.durable).collect(),
            losses_told: self.losses_told,
        }
    }

    /// Checks the result of a read against the histories.
    pub fn check_read(&self, range: ByteRange, submitted: &SubmittedRead, bytes: &[u8], context: &str) {
        if self.doubts_reads {
            return;
        }
        let has_lost_meanwhile = self.losses_told != submitted.losses_told;
        let sectors = self.sectors[Self::indices(range)].iter().zip(bytes.chunks(SECTOR_BYTES as usize));
        for (number, (sector, bytes)) in sectors.enumerate() {
            let (stamp, last) = (stamp_of(bytes, context), sector.last());
            // Less, where a flush that failed meanwhile, or a loss, was reported.
            let acknowledged = sector.acknowledged(submitted.acknowledged[number]);
            let first = match (has_lost_meanwhile, self.doubts_volatile) {
                // It may have been read behind the loss and before a durable write that came later.
                (true, _) => submitted.durable[number].min(acknowledged),
                (false, true) => sector.durable.min(acknowledged),
                (false, false) => acknowledged,
            };
            let number = range.offset / SECTOR_BYTES + number as u64;
            assert!(
                sector.find(stamp, first, last).is_some(),
                "{context}: sector {number} reads {stamp}, not one of {:?}",
                &sector.changes[first..=last]
            );
        }
    }

    /// Submits a flush. Returns the changes that it covers.
    pub fn submit_flush(&self) -> Vec<usize> {
        self.sectors.iter().map(|sector| sector.acknowledged(sector.last())).collect()
    }

    /// Ends that flush with success. It does not bring back data reported lost meanwhile.
    pub fn finish_flush(&mut self, indices: &[usize]) {
        for (sector, &index) in self.sectors.iter_mut().zip(indices) {
            if sector.changes[index].fate == Fate::Acknowledged {
                sector.durable = sector.durable.max(index);
            }
        }
    }

    /// A promise that all is durable has been given. Until it is counted nothing is lost that it covers.
    pub fn begin_promise(&mut self) {
        self.promises += 1;
    }

    /// It is counted.
    pub fn end_promise(&mut self) {
        self.promises -= 1;
    }

    /// Whether a loss of volatile data would be taken for one of data that is promised to be durable.
    pub fn is_promising(&self) -> bool {
        self.promises > 0
    }

    /// Notes that acknowledged volatile data is lost, without a failed request. Returns the number
    /// of the loss, if there was any such data.
    pub fn lose_volatile(&mut self) -> Option<u64> {
        let is_volatile = |sector: &Sector| {
            let mut behind = sector.changes[sector.durable + 1..].iter();
            behind.any(|change| change.fate == Fate::Acknowledged && change.is_volatile)
        };
        let is_at_stake = self.sectors.iter().any(is_volatile);
        self.fail_flush();
        self.loss_count += u64::from(is_at_stake);
        is_at_stake.then_some(self.loss_count)
    }

    /// The medium has reported this loss: the client has to get the event.
    pub fn announce(&mut self, loss: Option<u64>) {
        self.untold = loss.or(self.untold);
    }

    /// Notes that the client has got the event of a loss.
    pub fn note_told(&mut self) {
        self.untold = None;
    }

    /// The loss that was not reported to the client yet.
    pub fn untold(&self) -> Option<u64> {
        self.untold
    }

    /// Checks a flush that succeeded; `untold` was the unreported loss when it was submitted.
    ///
    /// # Panics
    /// When the loss was not reported since: the flush would have promised data that is lost.
    pub fn check_told(&self, untold: Option<u64>, context: &str) {
        assert!(
            untold.is_none() || untold != self.untold,
            "{context}: a flush ends well behind a loss that nobody tells"
        );
    }

    /// Notes a flush that failed, with an error to the client: volatile data may be lost.
    pub fn fail_flush(&mut self) {
        self.note_told();
        self.losses_told += 1;
        self.told_lost_below = self.stamp_next;
        for sector in &mut self.sectors {
            let volatile = sector.durable + 1..sector.changes.len();
            for change in sector.changes[volatile].iter_mut().filter(|change| change.fate == Fate::Acknowledged) {
                change.fate = Fate::Failed;
            }
        }
    }

    /// The device ended at `end`, and data beyond was lost: it reads as zero when the device is
    /// larger again, except where a store `keeps` it or, with the answer `None`, may keep it.
    pub fn cut(&mut self, end: u64, keeps: impl Fn(u64) -> Option<bool>) {
        let first = (end / SECTOR_BYTES) as usize;
        for (number, sector) in self.sectors.iter_mut().enumerate().skip(first) {
            let fate = match keeps(number as u64 * SECTOR_BYTES) {
                Some(true) => continue,
                Some(false) => Fate::Acknowledged,
                None => Fate::Failed,
            };
            sector.changes.push(Change::new(0, fate));
            if fate == Fate::Acknowledged {
                sector.durable = sector.last();
            }
        }
    }

    /// Sets whether the LUN may drop volatile data.
    pub fn doubt_volatile(&mut self, doubts: bool) {
        self.doubts_volatile = doubts;
    }

    /// Sets whether reads may return anything; durable data stays durable.
    pub fn doubt_reads(&mut self, doubts: bool) {
        self.doubts_reads = doubts;
    }

    /// Checks the content found by the next life of the program against the histories, and goes on
    /// from there.
    pub fn check_after(&mut self, lost: Lost, bytes: &[u8], context: &str) {
        for (number, (sector, bytes)) in self.sectors.iter_mut().zip(bytes.chunks(SECTOR_BYTES as usize)).enumerate() {
            let stamp = stamp_of(bytes, context);
            let last = sector.last();
            let first = match lost {
                Lost::Unacknowledged => sector.acknowledged(last),
                Lost::Volatile | Lost::VolatileUnseen => sector.durable,
            };
            let Some(found) = sector.find(stamp, first, last) else {
                panic!(
                    "{context}: after the crash sector {number} holds {stamp}, not one of {:?}",
                    &sector.changes[first..=last]
                );
            };
            sector.taken.extend(sector.changes.drain(found + 1..).map(|change| change.stamp));
            match lost {
                // Volatile data may still be lost.
                Lost::Unacknowledged => sector.durable = sector.durable.min(found),
                Lost::Volatile => sector.durable = found,
                Lost::VolatileUnseen => {
                    sector.changes[sector.durable + 1..].iter_mut().for_each(|change| change.fate = Fate::Doubtful);
                }
            }
            let change = &mut sector.changes[found];
            if change.fate != Fate::Doubtful || sector.durable == found {
                if change.fate != Fate::Acknowledged {
                    // It was under way when all other changes had been acknowledged.
                    change.number = self.acknowledged_count;
                }
                change.fate = Fate::Acknowledged;
            }
        }
    }

    /// Count of sectors of `bytes` with a change acknowledged after one that is missing there. A
    /// log that keeps the order has few of these, since it sends little at once. What was among them
    /// the last time is not counted: when power is lost while a log sends something, part of that is
    /// there, and what it sends in its next life may be missing behind the same change. Up to
    /// `concurrent` changes may have been acknowledged in another order than they were carried out.
    pub fn count_ahead(&mut self, bytes: &[u8], concurrent: u64, context: &str) -> usize {
        let mut first_missing = u64::MAX;
        let mut held = Vec::new();
        for (number, (sector, bytes)) in self.sectors.iter().zip(bytes.chunks(SECTOR_BYTES as usize)).enumerate() {
            let stamp = stamp_of(bytes, context);
            // Zeroes may be of any change to zeroes: assume the one that is least of a fault.
            let latest = sector.find(stamp, 0, sector.last());
            let latest =
                latest.unwrap_or_else(|| panic!("{context}: sector {number} holds {stamp}, which is not its own"));
            let is_acknowledged = |change: &&Change| change.fate == Fate::Acknowledged;
            let missing = sector.changes[latest + 1..].iter().filter(is_acknowledged).map(|change| change.number);
            first_missing = missing.min().unwrap_or(u64::MAX).min(first_missing);
            let earliest = sector.changes.iter().find(|change| change.stamp == stamp).filter(is_acknowledged);
            held.extend(earliest.map(|change| (change.number, (number, stamp))));
        }
        held.retain(|&(number, _)| number > first_missing.saturating_add(concurrent));
        let ahead = held.into_iter().map(|(_, held)| held).collect();
        let before = std::mem::replace(&mut self.ahead, ahead);
        self.ahead.difference(&before).count()
    }
}

/// The stamp of a sector, which must be whole.
fn stamp_of(bytes: &[u8], context: &str) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    assert!(bytes[8..] == bytes[..bytes.len() - 8], "{context}: a sector is torn");
    u64::from_le_bytes(words[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: ByteRange = ByteRange { offset: 0, length: SECTOR_BYTES };

    fn sector(stamp: u64) -> Vec<u8> {
        stamp.to_le_bytes().repeat(64)
    }

    #[test]
    fn what_was_acknowledged_survives_the_host_and_what_was_flushed_survives_the_lun() {
        let mut history = History::new(SECTOR_BYTES);
        let first = history.submit(SECTOR, false);
        assert_eq!(first.buffer()[..], sector(1));
        history.finish(&first, true, false);
        let flush = history.submit_flush();
        let second = history.submit(SECTOR, false);
        history.finish(&second, true, false);
        history.finish_flush(&flush);
        history.submit(SECTOR, false);
        history.check_after(Lost::Unacknowledged, &sector(2), "");
        history.check_after(Lost::Volatile, &sector(1), "the second was never flushed");
    }

    #[test]
    #[should_panic(expected = "holds 1")]
    fn what_was_acknowledged_is_not_lost_with_the_host() {
        let mut history = History::new(SECTOR_BYTES);
        for _ in 0..2 {
            let submitted = history.submit(SECTOR, false);
            history.finish(&submitted, true, false);
        }
        history.check_after(Lost::Unacknowledged, &sector(1), "");
    }

    #[test]
    fn what_was_cut_off_is_zero_unless_somebody_keeps_it() {
        for (keeps, allowed) in [(Some(true), vec![1]), (Some(false), vec![0]), (None, vec![0, 1])] {
            for stamp in [0, 1] {
                let mut history = History::new(SECTOR_BYTES);
                let submitted = history.submit(SECTOR, false);
                history.finish(&submitted, true, true);
                history.cut(0, |_| keeps);
                let checked = std::panic::AssertUnwindSafe(|| history.check_after(Lost::Volatile, &sector(stamp), ""));
                assert_eq!(std::panic::catch_unwind(checked).is_ok(), allowed.contains(&stamp), "{keeps:?}: {stamp}");
            }
        }
    }

    #[test]
    fn whoever_was_told_that_a_flush_failed_may_find_either() {
        for stamp in [0, 1] {
            let mut history = History::new(SECTOR_BYTES);
            let submitted = history.submit(SECTOR, false);
            history.fail_flush();
            history.finish(&submitted, true, false);
            history.check_after(Lost::Unacknowledged, &sector(stamp), "");
        }
    }

    #[test]
    #[should_panic(expected = "nobody tells")]
    fn a_flush_behind_a_loss_that_nobody_tells_does_not_end_well() {
        let mut history = History::new(SECTOR_BYTES);
        let submitted = history.submit(SECTOR, false);
        history.finish(&submitted, true, false);
        history.note_volatile(&submitted);
        let loss = history.lose_volatile();
        history.announce(loss);
        history.check_told(None, "submitted before it");
        history.check_told(history.untold(), "");
    }

    #[test]
    fn of_a_log_that_is_given_up_there_is_what_went_past_it() {
        for (stamp, is_allowed) in [(1, false), (2, true), (3, true)] {
            let mut history = History::new(SECTOR_BYTES);
            for number in 1..=3 {
                let submitted = history.submit(SECTOR, false);
                history.finish(&submitted, true, true);
                if number == 2 {
                    history.note_past_log(&submitted);
                }
            }
            history.give_up_log();
            let checked = std::panic::AssertUnwindSafe(|| history.check_after(Lost::Volatile, &sector(stamp), ""));
            assert_eq!(std::panic::catch_unwind(checked).is_ok(), is_allowed, "{stamp}");
        }
    }

    #[test]
    fn a_read_gives_what_was_acknowledged_before_it_or_what_came_before_its_answer() {
        let mut history = History::new(SECTOR_BYTES);
        let [first, second] = [(); 2].map(|()| history.submit(SECTOR, false));
        history.finish(&first, true, true);
        let read = history.submit_read(SECTOR);
        history.finish(&second, true, true);
        history.submit(SECTOR, false);
        [1, 2, 3].iter().for_each(|&stamp| history.check_read(SECTOR, &read, &sector(stamp), ""));
    }

    #[test]
    fn a_read_beside_a_flush_that_fails_may_come_before_a_durable_write_beside_it() {
        for is_beside in [true, false] {
            let mut history = History::new(SECTOR_BYTES);
            let [durable, dropped] = [(); 2].map(|()| history.submit(SECTOR, false));
            history.finish(&durable, true, true);
            history.finish(&dropped, true, false);
            let read = history.submit_read(SECTOR);
            let beside = history.submit(SECTOR, false);
            history.finish(&beside, true, true);
            history.fail_flush();
            let read = if is_beside { read } else { history.submit_read(SECTOR) };
            let checked = std::panic::AssertUnwindSafe(|| history.check_read(SECTOR, &read, &sector(1), ""));
            assert_eq!(std::panic::catch_unwind(checked).is_ok(), is_beside);
        }
    }

    #[test]
    #[should_panic(expected = "reads 1")]
    fn a_read_gives_nothing_older_than_what_was_acknowledged_before_it() {
        let mut history = History::new(SECTOR_BYTES);
        for _ in 0..2 {
            let submitted = history.submit(SECTOR, false);
            history.finish(&submitted, true, true);
        }
        history.check_read(SECTOR, &history.submit_read(SECTOR), &sector(1), "");
    }

    #[test]
    fn what_is_ahead_of_something_missing_is_counted() {
        let mut history = History::new(3 * SECTOR_BYTES);
        for index in [0, 1, 2] {
            let submitted = history.submit(ByteRange { offset: index * SECTOR_BYTES, length: SECTOR_BYTES }, false);
            history.finish(&submitted, true, true);
        }
        let mut count = |held: [u64; 3], concurrent| history.count_ahead(&held.map(sector).concat(), concurrent, "");
        assert_eq!([count([0, 0, 0], 0), count([1, 0, 0], 0), count([1, 2, 3], 0)], [0, 0, 0]);
        assert_eq!([count([0, 2, 3], 0), count([1, 2, 3], 0), count([0, 2, 3], 1)], [2, 0, 1]);
        assert_eq!([count([0, 2, 3], 0), count([0, 2, 3], 0)], [1, 0], "what was ahead before is not counted again");
    }

    #[test]
    #[should_panic(expected = "holds 0")]
    fn what_was_found_once_stays() {
        let mut history = History::new(SECTOR_BYTES);
        history.submit(SECTOR, false);
        history.check_after(Lost::Unacknowledged, &sector(1), "it was in flight, and is there");
        history.check_after(Lost::Unacknowledged, &sector(0), "");
    }
}
