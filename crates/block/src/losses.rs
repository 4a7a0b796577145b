//! Losses of acknowledged data, and which clients have been told of them.
//!
//! A device reports a loss once: to the next flush, whoever asked for it. But the lost data may be
//! another client's, and the client that asked may be gone before the answer reaches it. So each
//! client has a [`LossReader`]: its first flush after a loss fails, until an answer with the error has
//! reached it. A client that left without knowing passes this on to the next one that comes, which is
//! likely the same one, connected anew; and a loss that nobody knows of is told to every new client.
//! Linux does the same for the descriptors of a file (`errseq_t`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::limits::LEFT_CLIENTS_MAX;

/// The losses of one device so far.
#[derive(Default)]
pub struct Losses {
    /// How many there were. Changes under `state`; flushes read it without the lock.
    count: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<Error>,
    /// The losses of which some client knows: all up to this count.
    known: u64,
    /// For each client that left and may not know of all losses: of how many it knows.
    left: VecDeque<u64>,
}

impl Losses {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Notes the end of a flush, if it says that data was lost.
    pub fn note(&self, result: &Result<(), Error>) {
        let Err(error) = result else { return };
        if error.kind().may_have_lost() {
            let mut state = self.lock();
            state.last = Some(error.clone());
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// A new client.
    pub fn reader(self: &Arc<Self>) -> LossReader {
        let mut state = self.lock();
        let heir_of = state.left.pop_front();
        let told = heir_of.map_or(state.known, |left| left.min(state.known));
        LossReader { losses: Arc::clone(self), told, answered: told, under_way: 0, is_heir: heir_of.is_some() }
    }

    /// Fails with the last loss, if no client knows of it.
    ///
    /// # Errors
    /// That of the flush that reported it.
    pub fn check_known(&self) -> Result<(), Error> {
        let state = self.lock();
        match &state.last {
            Some(error) if state.known < self.count() => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// One client's knowledge of the losses.
pub struct LossReader {
    losses: Arc<Losses>,
    /// The losses it knows of.
    told: u64,
    /// The losses that answers to it report, which may not have reached it yet.
    answered: u64,
    /// Flushes whose outcome it has not got.
    under_way: usize,
    /// Whether it came after one that left and may not have known, and has not flushed yet.
    is_heir: bool,
}

impl LossReader {
    /// Notes that one of its flushes begins.
    pub fn begin(&mut self) {
        self.under_way += 1;
    }

    /// The result of one of its flushes, as it is to be answered.
    ///
    /// # Errors
    /// That of the flush; otherwise the last loss that it does not know of.
    pub fn end(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        self.under_way = self.under_way.saturating_sub(1);
        let count = self.losses.count();
        if self.told == count {
            self.is_heir &= result.is_err();
            return result;
        }
        if result.as_ref().is_err_and(|error| !error.kind().may_have_lost()) {
            return result;
        }
        self.answered = count;
        match (result, self.losses.lock().last.clone()) {
            (Ok(()), Some(loss)) => Err(loss),
            (result, _) => result,
        }
    }

    /// Notes that its answers so far have reached it.
    pub fn note_delivered(&mut self) {
        if self.answered > self.told {
            self.told = self.answered;
            self.is_heir = false;
            let mut state = self.losses.lock();
            state.known = state.known.max(self.told);
        }
    }

    /// Whether there was a loss since the last call: for a client that tells others of it, and
    /// notes when the first of them knows.
    pub fn has_new(&mut self) -> bool {
        let count = self.losses.count();
        std::mem::replace(&mut self.answered, count) != count
    }
}

impl Drop for LossReader {
    fn drop(&mut self) {
        if self.under_way == 0 && self.told == self.losses.count() && !self.is_heir {
            return;
        }
        let mut state = self.losses.lock();
        if state.left.len() < LEFT_CLIENTS_MAX {
            state.left.push_back(self.told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn loss() -> Result<(), Error> {
        Err(Error::new(ErrorKind::Media, "lost"))
    }

    /// A flush of a client, with the device's result.
    fn flush(reader: &mut LossReader, result: Result<(), Error>) -> Option<ErrorKind> {
        reader.begin();
        reader.losses.note(&result);
        reader.end(result).err().map(|error| error.kind())
    }

    #[test]
    fn every_client_is_told_once_of_a_loss_whoever_asked() {
        let losses = Arc::<Losses>::default();
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
    fn a_client_is_told_again_until_an_answer_has_reached_it() {
        let losses = Arc::<Losses>::default();
        let mut client = losses.reader();
        assert_eq!(flush(&mut client, loss()), Some(ErrorKind::Media));
        assert_eq!(flush(&mut client, Ok(())), Some(ErrorKind::Media));
        assert!(losses.check_known().is_err());
        client.note_delivered();
        assert_eq!(flush(&mut client, Ok(())), None);
        assert!(losses.check_known().is_ok());
    }

    #[test]
    fn who_comes_after_a_client_whose_flush_is_still_under_way_is_told_of_its_loss() {
        let losses = Arc::<Losses>::default();
        let (mut gone, mut beside) = (losses.reader(), losses.reader());
        gone.begin();
        drop(gone);
        let mut again = losses.reader();
        losses.note(&loss());
        assert_eq!(flush(&mut beside, Ok(())), Some(ErrorKind::Media));
        beside.note_delivered();
        assert_eq!(flush(&mut again, Ok(())), Some(ErrorKind::Media), "that others know does not help it");
    }

    #[test]
    fn who_only_looks_takes_no_report_from_the_one_who_comes_again() {
        let losses = Arc::<Losses>::default();
        let (mut gone, mut beside) = (losses.reader(), losses.reader());
        gone.begin();
        drop(gone);
        drop(losses.reader());
        losses.note(&loss());
        assert_eq!(flush(&mut beside, Ok(())), Some(ErrorKind::Media));
        beside.note_delivered();
        drop(losses.reader());
        assert_eq!(flush(&mut losses.reader(), Ok(())), Some(ErrorKind::Media));
    }

    #[test]
    fn a_loss_that_nobody_knows_of_is_told_to_every_new_client() {
        let losses = Arc::<Losses>::default();
        losses.note(&loss());
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
        let losses = Arc::<Losses>::default();
        let (mut one, mut other) = (losses.reader(), losses.reader());
        let refused = || Err(Error::new(ErrorKind::NoAccess, "standby"));
        assert_eq!((flush(&mut one, refused()), losses.count()), (Some(ErrorKind::NoAccess), 0));
        assert_eq!(flush(&mut one, loss()), Some(ErrorKind::Media));
        assert_eq!(flush(&mut other, refused()), Some(ErrorKind::NoAccess));
        other.note_delivered();
        assert_eq!(flush(&mut other, Ok(())), Some(ErrorKind::Media));
    }

    #[test]
    fn clients_that_left_are_remembered_to_a_bound() {
        let losses = Arc::<Losses>::default();
        let mut clients: Vec<_> = (0..=LEFT_CLIENTS_MAX).map(|_| losses.reader()).collect();
        losses.note(&loss());
        clients.clear();
        assert_eq!(losses.lock().left.len(), LEFT_CLIENTS_MAX);
    }
}
