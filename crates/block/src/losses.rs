//! Losses of acknowledged data, and which clients have been told of them.
//!
//! A device reports a loss once: to the next flush, whoever asked for it. But the lost data may be
//! another client's, and the client that asked may be gone before the answer reaches it. So each
//! client has a [`LossReader`]: its first flush after a loss fails. Linux does the same for the
//! descriptors of a file (`errseq_t`).
//!
//! A connection may break before its client has read the answer, or while data is under way that is
//! lost a moment later. Its client comes back, and is not known by anything. So everybody who comes
//! within [`LEFT_TIME`](crate::limits::LEFT_TIME) knows at first no more than the one that knew least
//! of those whose connections broke: who had nothing to do with it is told once without need, but
//! nobody takes the report away from the one whose data it is. A loss that nobody knows of is told to
//! every new client, whenever it comes.

mod left;
mod stake;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

use base::clock::{Clock, Sleep};

use self::left::Left;
use self::stake::Stake;
use crate::error::Error;
use crate::limits::ANSWER_READ_TIME;

/// The losses of one device so far.
pub struct Losses {
    clock: Arc<dyn Clock>,
    /// How many there were. Changes under `state`, as the other two; flushes read them without the lock.
    count: AtomicU64,
    announced: AtomicU64,
    /// Whether the last flush failed.
    is_failing: AtomicBool,
    stake: Stake,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<Error>,
    /// The losses of which some client knows: all up to this count.
    known: u64,
    left: Left,
}

impl Losses {
    /// No losses yet. The clock says when clients left.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            count: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            stake: Stake::default(),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The losses of which clients are told that have not asked: those that there were when a flush
    /// last ended well, and the first one after that. While flushes fail one after the other, nothing
    /// is promised to anybody who asks; others would only be kept from their work by each of them.
    pub fn announced(&self) -> u64 {
        self.announced.load(Ordering::Acquire)
    }

    /// Notes a loss.
    pub fn note(&self, loss: Error) {
        let mut state = self.lock();
        state.last = Some(loss);
        self.count_one(&state);
        self.announce(&state);
    }

    fn count_one(&self, _: &MutexGuard<'_, State>) {
        self.count.fetch_add(1, Ordering::Release);
    }

    fn announce(&self, _: &MutexGuard<'_, State>) {
        self.announced.store(self.count(), Ordering::Release);
    }

    /// Notes the end of a flush. It is a loss if it says that data may be lost, and if any was at
    /// stake since the last one.
    pub fn note_flush(&self, result: &Result<(), Error>) {
        match result {
            Err(error) if error.kind().may_have_lost() => {
                self.stake.note_failure();
                let mut state = self.lock();
                if self.stake.count() {
                    state.last = Some(error.clone());
                    self.count_one(&state);
                }
                if !self.is_failing.swap(true, Ordering::AcqRel) {
                    self.announce(&state);
                }
            }
            Ok(()) if self.stake.is_due() || self.is_failing.load(Ordering::Acquire) => {
                let state = self.lock();
                if self.stake.is_due() && self.stake.count() {
                    self.count_one(&state);
                }
                self.is_failing.store(false, Ordering::Release);
                self.announce(&state);
            }
            _ => {}
        }
    }

    /// The flushes that have failed so far, for [`Self::note_change`].
    pub fn failed_flushes(&self) -> u64 {
        self.stake.failures()
    }

    /// Notes that a change is acknowledged that is durable only after a flush. `failed_before`: the
    /// flushes that had failed when it was submitted. A flush that failed since may have dropped it.
    pub fn note_change(&self, failed_before: u64) {
        self.stake.note_change(failed_before);
    }

    /// A new client.
    pub fn reader(self: &Arc<Self>) -> LossReader {
        let mut state = self.lock();
        let (known, came_at) = (state.known, self.count());
        let told = state.left.told_least(self.clock.now()).map_or(known, |least| least.min(known));
        LossReader {
            losses: Arc::clone(self),
            came_at,
            told,
            answered: told,
            receipt: Receipt::Unwritten,
            under_way: 0,
            is_leaving: false,
        }
    }

    /// Fails with the last loss, if no client is known to know of it.
    ///
    /// # Errors
    /// That of the flush that reported it.
    pub fn check_known(&self) -> Result<(), Error> {
        let state = self.lock();
        match &state.last {
            Some(error) if state.known < self.count() || self.stake.is_due() => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// One client's knowledge of the losses.
pub struct LossReader {
    losses: Arc<Losses>,
    /// The losses that there were when it came.
    came_at: u64,
    /// The losses it knows of.
    told: u64,
    /// The losses that answers to it report, which may not have reached it yet.
    answered: u64,
    receipt: Receipt,
    /// Flushes whose outcome it has not got.
    under_way: usize,
    /// Whether it has said that it leaves.
    is_leaving: bool,
}

/// What speaks for it that the client has read an answer with a loss.
enum Receipt {
    /// Nothing: it is not written yet, or there is none.
    Unwritten,
    /// It is written, and waits for the time in which any client has read it.
    Written(Sleep),
    /// That time is over. The client may have sent what comes next before.
    Due,
    /// All that it had sent by then is there: it sends what comes next after having read the answer.
    Expected,
}

impl LossReader {
    /// Notes that one of its flushes begins.
    pub fn begin(&mut self) {
        self.under_way += 1;
    }

    /// The result of one of its flushes, as it is to be answered. Answers reach a client in order, so
    /// that one which reports a loss speaks for all that come after it.
    ///
    /// # Errors
    /// That of the flush; otherwise the last loss of which no answer to it tells.
    pub fn end(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        self.under_way = self.under_way.saturating_sub(1);
        let count = self.losses.count();
        if self.answered == count || result.as_ref().is_err_and(|error| !error.kind().may_have_lost()) {
            return result;
        }
        (self.answered, self.receipt) = (count, Receipt::Unwritten);
        match (result, self.losses.lock().last.clone()) {
            (Ok(()), Some(loss)) => Err(loss),
            (result, _) => result,
        }
    }

    /// Notes that all answers so far are written to the client's connection.
    pub fn note_written(&mut self) {
        if self.answered > self.told && matches!(self.receipt, Receipt::Unwritten) {
            self.receipt = Receipt::Written(self.losses.clock.sleep(ANSWER_READ_TIME));
        }
    }

    /// Whether the client has had its time to read what was written; the caller's task is woken then.
    /// If nothing is there afterwards of what the client sends, [`Self::note_all_received`] is next.
    pub fn poll_due(&mut self, context: &mut Context<'_>) -> bool {
        if let Receipt::Written(time) = &mut self.receipt
            && time.as_mut().poll(context).is_ready()
        {
            self.receipt = Receipt::Due;
        }
        matches!(self.receipt, Receipt::Due)
    }

    /// Notes that whatever the client had sent when its time was over is received.
    pub fn note_all_received(&mut self) {
        self.receipt = Receipt::Expected;
    }

    /// Notes that the client sends more. NBD confirms no answer; what was written long before counts
    /// as read.
    pub fn note_received(&mut self) {
        if matches!(self.receipt, Receipt::Expected) {
            self.note_delivered();
        }
    }

    /// Notes that the client says that it leaves: it has all answers that were written, and does not
    /// come back for others.
    pub fn note_leaving(&mut self) {
        if !matches!(self.receipt, Receipt::Unwritten) {
            self.note_delivered();
        }
        self.is_leaving = true;
    }

    /// Notes that its answers so far have reached it.
    pub fn note_delivered(&mut self) {
        self.receipt = Receipt::Unwritten;
        if self.answered > self.told {
            self.told = self.answered;
            let mut state = self.losses.lock();
            state.known = state.known.max(self.told);
        }
    }

    /// Whether a loss was announced since the last call: for a client that tells others of it, and
    /// notes when the first of them knows.
    pub fn has_new(&mut self) -> bool {
        let announced = self.losses.announced();
        std::mem::replace(&mut self.answered, announced) != announced
    }

    /// Whether whoever comes next may be this client, and know no more. One that left in order has
    /// nothing to ask for, but for a loss of its own time of which it may not know.
    fn may_miss_a_loss(&self) -> bool {
        let count = self.losses.count();
        let has_missed = self.told < count && (self.came_at < count || self.told < self.answered);
        !self.is_leaving || self.under_way > 0 || has_missed
    }
}

impl Drop for LossReader {
    fn drop(&mut self) {
        if self.may_miss_a_loss() {
            let mut state = self.losses.lock();
            let now = self.losses.clock.now();
            state.left.add(self.told, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use base::clock::VirtualClock;

    use super::*;
    use crate::error::ErrorKind;
    use crate::limits::LEFT_TIME;

    fn loss() -> Result<(), Error> {
        Err(Error::new(ErrorKind::Media, "lost"))
    }

    fn record() -> (VirtualClock, Arc<Losses>) {
        let clock = VirtualClock::new();
        (clock.clone(), Arc::new(Losses::new(Arc::new(clock))))
    }

    /// A flush of a client, with the device's result.
    fn flush(reader: &mut LossReader, result: Result<(), Error>) -> Option<ErrorKind> {
        reader.begin();
        reader.losses.note_flush(&result);
        reader.end(result).err().map(|error| error.kind())
    }

    /// A change that is acknowledged.
    fn change(losses: &Losses) {
        losses.note_change(losses.failed_flushes());
    }

    /// Whether the client counts as having read what it was told, by sending something now.
    fn goes_on(reader: &mut LossReader) -> bool {
        let before = reader.told;
        if reader.poll_due(&mut Context::from_waker(Waker::noop())) {
            reader.note_all_received();
        }
        reader.note_received();
        reader.told > before
    }

    #[test]
    fn every_client_is_told_once_of_a_loss_whoever_asked() {
        let (_, losses) = record();
        let [mut one, mut other] = [(); 2].map(|()| losses.reader());
        assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        one.note_delivered();
        let mut later = losses.reader();
        assert_eq!(flush(&mut one, Ok(())), None);
        assert_eq!(flush(&mut other, Ok(())), Some(ErrorKind::Media));
        other.note_delivered();
        assert_eq!(flush(&mut other, Ok(())), None);
        assert_eq!(flush(&mut later, Ok(())), None, "it came when others knew");
        drop((one, other, later));
        assert_eq!(flush(&mut losses.reader(), Ok(())), None, "all who left knew");
    }

    #[test]
    fn an_answer_is_read_when_the_client_goes_on_long_after_or_says_that_it_leaves() {
        let (clock, losses) = record();
        let mut client = losses.reader();
        assert_eq!(flush(&mut client, loss()), Some(ErrorKind::Media));
        assert_eq!(flush(&mut client, Ok(())), None, "the answers before this one say it");
        clock.advance(ANSWER_READ_TIME * 2);
        assert!(!goes_on(&mut client), "it is not written yet");
        client.note_written();
        clock.advance(ANSWER_READ_TIME - std::time::Duration::from_millis(1));
        client.note_written();
        assert!(!goes_on(&mut client), "what it sends may have been on its way");
        clock.advance(std::time::Duration::from_millis(1));
        assert!(client.poll_due(&mut Context::from_waker(Waker::noop())));
        client.note_received();
        assert!(losses.check_known().is_err(), "that may have been on its way, too");
        assert!(goes_on(&mut client));
        assert!(losses.check_known().is_ok());

        change(&losses);
        assert_eq!(flush(&mut client, loss()), Some(ErrorKind::Media));
        client.note_written();
        client.note_leaving();
        assert!(losses.check_known().is_ok());
        drop(client);
        assert_eq!(flush(&mut losses.reader(), Ok(())), None);
    }

    /// What it has read tells of the first alone.
    #[test]
    fn a_further_loss_is_known_with_the_answer_that_tells_of_it_and_not_with_the_one_before() {
        let (clock, losses) = record();
        let mut client = losses.reader();
        assert_eq!(flush(&mut client, loss()), Some(ErrorKind::Media));
        client.note_written();
        clock.advance(ANSWER_READ_TIME);
        change(&losses);
        assert_eq!(flush(&mut client, loss()), Some(ErrorKind::Media));
        assert_eq!(losses.count(), 2);
        assert!(!goes_on(&mut client), "its second answer is not written yet");
        assert!(losses.check_known().is_err());
        client.note_written();
        clock.advance(ANSWER_READ_TIME);
        assert!(goes_on(&mut client));
        assert!(losses.check_known().is_ok());
    }

    #[test]
    fn an_answer_that_is_not_written_when_a_client_leaves_is_told_again() {
        let (_, losses) = record();
        let mut beside = losses.reader();
        let mut client = losses.reader();
        assert_eq!(flush(&mut client, loss()), Some(ErrorKind::Media));
        client.note_leaving();
        drop(client);
        assert_eq!(flush(&mut beside, Ok(())), Some(ErrorKind::Media));
        beside.note_delivered();
        assert_eq!(flush(&mut losses.reader(), Ok(())), Some(ErrorKind::Media));
    }

    #[test]
    fn who_comes_after_a_client_whose_flush_is_still_under_way_is_told_of_its_loss() {
        for says_so in [false, true] {
            let (_, losses) = record();
            let (mut gone, mut beside) = (losses.reader(), losses.reader());
            gone.begin();
            if says_so {
                gone.note_leaving();
            }
            drop(gone);
            let mut again = losses.reader();
            losses.note_flush(&loss());
            assert_eq!(flush(&mut beside, Ok(())), Some(ErrorKind::Media));
            beside.note_delivered();
            for client in [&mut again, &mut losses.reader()] {
                assert_eq!(flush(client, Ok(())), Some(ErrorKind::Media), "that others know does not help it");
            }
        }
    }

    /// Its data was acknowledged, and is lost while it is away.
    #[test]
    fn who_comes_back_is_told_of_what_was_lost_meanwhile() {
        let (_, losses) = record();
        let (gone, mut beside) = (losses.reader(), losses.reader());
        drop(gone);
        assert_eq!(flush(&mut beside, loss()), Some(ErrorKind::Media));
        beside.note_delivered();
        assert_eq!(flush(&mut losses.reader(), Ok(())), Some(ErrorKind::Media));
    }

    /// Whoever comes in between, or knows more: none takes the report away.
    #[test]
    fn who_knows_least_of_those_that_left_counts_and_all_who_come_meanwhile_are_told() {
        let (clock, losses) = record();
        let (gone, mut knows) = (losses.reader(), losses.reader());
        assert_eq!(flush(&mut knows, loss()), Some(ErrorKind::Media));
        knows.note_delivered();
        drop(knows);
        drop(gone);
        drop(losses.reader());
        let mut first = losses.reader();
        clock.advance(LEFT_TIME - std::time::Duration::from_millis(1));
        let mut second = losses.reader();
        first.note_leaving();
        drop(first);
        for client in [&mut second, &mut losses.reader()] {
            assert_eq!(flush(client, Ok(())), Some(ErrorKind::Media));
            assert_eq!(flush(client, Ok(())), None);
            client.note_written();
            client.note_leaving();
        }
        clock.advance(LEFT_TIME);
        assert_eq!(flush(&mut losses.reader(), Ok(())), None, "it does not come back any more");
    }

    /// Otherwise one that looks every minute would keep a report for everybody for ever.
    #[test]
    fn who_leaves_in_order_passes_on_only_what_was_lost_in_its_time() {
        let (clock, losses) = record();
        let (gone, mut beside) = (losses.reader(), losses.reader());
        assert_eq!(flush(&mut beside, loss()), Some(ErrorKind::Media));
        beside.note_delivered();
        drop(gone);
        for _ in 0..6 {
            clock.advance(LEFT_TIME / 6);
            losses.reader().note_leaving();
        }
        let mut later = losses.reader();
        assert_eq!(flush(&mut later, Ok(())), None);
        change(&losses);
        assert_eq!(flush(&mut beside, loss()), Some(ErrorKind::Media));
        beside.note_delivered();
        later.note_leaving();
        drop(later);
        assert_eq!(flush(&mut losses.reader(), Ok(())), Some(ErrorKind::Media));
    }

    #[test]
    fn a_loss_that_nobody_knows_of_is_told_to_every_new_client() {
        let (_, losses) = record();
        losses.note_flush(&loss());
        let [mut one, mut other] = [(); 2].map(|()| losses.reader());
        assert!(losses.check_known().is_err());
        for reader in [&mut one, &mut other] {
            assert_eq!(flush(reader, Ok(())), Some(ErrorKind::Media));
            reader.note_delivered();
        }
        assert_eq!(flush(&mut losses.reader(), Ok(())), None);
    }

    #[test]
    fn what_was_not_done_is_no_loss_and_does_not_tell_of_one() {
        let (_, losses) = record();
        let (mut one, mut other) = (losses.reader(), losses.reader());
        let refused = || Err(Error::new(ErrorKind::NoAccess, "standby"));
        assert_eq!((flush(&mut one, refused()), losses.count()), (Some(ErrorKind::NoAccess), 0));
        assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        assert_eq!(flush(&mut other, refused()), Some(ErrorKind::NoAccess));
        other.note_delivered();
        assert_eq!(flush(&mut other, Ok(())), Some(ErrorKind::Media));
    }

    #[test]
    fn a_flush_that_fails_with_nothing_at_stake_is_an_error_for_its_own_client_alone() {
        let (_, losses) = record();
        let (mut one, mut other) = (losses.reader(), losses.reader());
        for _ in 0..3 {
            assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        }
        assert_eq!(losses.count(), 1, "that of what was written before");
        assert_eq!(flush(&mut other, Ok(())), Some(ErrorKind::Media));
        assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        assert_eq!(flush(&mut other, Ok(())), None);
        change(&losses);
        assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        assert_eq!(losses.count(), 2);
        assert_eq!(flush(&mut other, Ok(())), Some(ErrorKind::Media));
    }

    /// Otherwise each would keep all from their work, who write again what may be lost: and that is at
    /// stake again.
    #[test]
    fn of_flushes_that_fail_one_after_the_other_the_first_is_announced_and_the_rest_with_the_next_that_does_not() {
        let (_, losses) = record();
        let (mut one, mut other) = (losses.reader(), losses.reader());
        assert!(!other.has_new());
        for round in 0..5 {
            change(&losses);
            assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
            assert_eq!((losses.count(), other.has_new()), (round + 1, round == 0), "round {round}");
        }
        assert_eq!(flush(&mut one, Ok(())), None, "its own flushes have told it");
        assert_eq!((losses.count(), other.has_new(), other.has_new()), (5, true, false));
        assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        assert_eq!((losses.count(), other.has_new()), (5, false));
        change(&losses);
        assert_eq!(flush(&mut one, Ok(())), None);
        change(&losses);
        assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        assert_eq!((losses.count(), other.has_new()), (6, true));
    }

    /// The flush that failed may have dropped it, and its client was told before.
    #[test]
    fn a_change_acknowledged_after_a_flush_failed_under_it_is_told_by_the_next_flush() {
        let (_, losses) = record();
        let (mut one, mut other) = (losses.reader(), losses.reader());
        assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        let (begun, also) = (losses.failed_flushes(), losses.failed_flushes());
        assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        assert_eq!(flush(&mut other, Ok(())), Some(ErrorKind::Media));
        assert_eq!(losses.count(), 1);
        one.note_delivered();
        assert!(losses.check_known().is_ok());
        losses.note_change(begun);
        losses.note_change(also);
        assert!(losses.check_known().is_err(), "nobody has flushed since");
        assert_eq!(flush(&mut other, Err(Error::new(ErrorKind::NoAccess, "standby"))), Some(ErrorKind::NoAccess));
        assert_eq!(flush(&mut other, Ok(())), Some(ErrorKind::Media));
        assert_eq!(flush(&mut other, Ok(())), None);
        assert_eq!(flush(&mut one, Ok(())), Some(ErrorKind::Media));
        assert_eq!(losses.count(), 2);
        assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        assert_eq!(losses.count(), 2, "both are counted");
    }
}
