//! The openers of a FUSE file, and the losses of which each has been told.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::Error;
use block::losses::{LossReader, Losses};

type SharedReader = Arc<Mutex<LossReader>>;

/// The open handles of a file.
pub(super) struct Openers {
    losses: Arc<Losses>,
    next: AtomicU64,
    readers: Mutex<HashMap<u64, SharedReader>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Openers {
    pub(super) fn new(losses: Arc<Losses>) -> Self {
        Self { losses, next: AtomicU64::new(1), readers: Mutex::default() }
    }

    /// A new handle.
    pub(super) fn add(&self) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.readers).insert(handle, Arc::new(Mutex::new(self.losses.reader())));
        handle
    }

    /// The handle is closed.
    pub(super) fn remove(&self, handle: u64) {
        let closed = lock(&self.readers).remove(&handle);
        if let Some(reader) = closed {
            lock(&reader).note_leaving();
        }
    }

    /// A flush for the opener of a handle, which also fails after a loss of which that opener has
    /// not been told. The kernel takes every answer.
    pub(super) fn tell<F: Future<Output = Result<(), Error>> + Send>(
        &self,
        handle: u64,
        flush: F,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<F> {
        let reader = lock(&self.readers).get(&handle).cloned();
        if let Some(reader) = &reader {
            lock(reader).begin();
        }
        async move {
            let result = flush.await;
            let Some(reader) = reader else { return result };
            let mut reader = lock(&reader);
            let told = reader.end(result);
            reader.note_delivered();
            told
        }
    }
}

#[cfg(test)]
mod tests {
    use base::clock::VirtualClock;
    use base::executor::block_on;
    use block::ErrorKind;

    use super::*;

    #[test]
    fn every_opener_is_told_once_of_a_loss_that_the_flush_of_another_reported() {
        let losses = Arc::new(Losses::new(Arc::new(VirtualClock::new())));
        let openers = Openers::new(Arc::clone(&losses));
        let (one, other) = (openers.add(), openers.add());
        let noted = Arc::clone(&losses);
        let lost = async move {
            let result = Err(Error::new(ErrorKind::Media, "lost"));
            noted.note_flush(&result);
            result
        };
        assert!(block_on(openers.tell(one, lost)).is_err());
        assert!(block_on(openers.tell(one, async { Ok(()) })).is_ok());
        assert!(block_on(openers.tell(other, async { Ok(()) })).is_err());
        assert!(block_on(openers.tell(other, async { Ok(()) })).is_ok());
        openers.remove(one);
        assert!(block_on(openers.tell(one, async { Ok(()) })).is_ok(), "a handle that is closed has no opener");
        losses.note(Error::new(ErrorKind::Media, "lost"));
        assert!(block_on(openers.tell(other, async { Ok(()) })).is_err());
        let later = openers.add();
        assert!(block_on(openers.tell(later, async { Ok(()) })).is_ok(), "who was there before has closed it in order");
    }
}
