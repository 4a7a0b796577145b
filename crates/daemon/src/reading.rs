//! Reads the files beside everything else: a disk or a file system that does not answer keeps
//! neither requests nor signals waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use stack::{Error, Failure, Result};
use tokio::sync::oneshot;

use crate::limits::FILES_READ_TIME_MAX;

/// One reading at a time, in a thread of its own. The end of the process waits for none.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    is_under_way: Arc<AtomicBool>,
}

impl Reading {
    /// What `read` returns.
    ///
    /// # Errors
    /// `Unreachable` when that takes too long; `InUse` while one that took too long goes on.
    pub(crate) async fn read<T: Send + 'static>(&self, read: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.read_within(FILES_READ_TIME_MAX, read).await
    }

    async fn read_within<T: Send + 'static>(
        &self,
        time_max: Duration,
        read: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.is_under_way.swap(true, Ordering::AcqRel) {
            return Err(Error::new(Failure::InUse, "the files are still being read: their disk does not answer"));
        }
        let (sender, receiver) = oneshot::channel();
        let is_under_way = Arc::clone(&self.is_under_way);
        let started = thread::Builder::new().name("files".to_owned()).spawn(move || {
            base::background::turn("daemon-files");
            let read = read();
            is_under_way.store(false, Ordering::Release);
            // Nobody may wait for it any more.
            let _ = sender.send(read);
        });
        if let Err(error) = started {
            self.is_under_way.store(false, Ordering::Release);
            return Err(Error::io("cannot read the files", &error));
        }
        let seconds = time_max.as_secs();
        match tokio::time::timeout(time_max, receiver).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => Err(Error::new(Failure::Other, "the files could not be read")),
            Err(_) => {
                let message = format!("the files could not be read within {seconds} s: their disk does not answer");
                Err(Error::new(Failure::Unreachable, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn files_that_cannot_be_read_keep_nobody_waiting_for_ever_and_no_second_thread_is_begun() {
        let reading = Reading::default();
        assert_eq!(reading.read(|| Ok(7)).await.unwrap(), 7);
        let (release, stuck) = mpsc::channel::<()>();
        let (done, is_done) = mpsc::channel::<()>();
        let late = reading.read_within(Duration::ZERO, move || {
            let _ = stuck.recv();
            drop(done);
            Ok(8)
        });
        assert_eq!(late.await.unwrap_err().failure(), Failure::Unreachable);
        assert_eq!(reading.read(|| Ok(9)).await.unwrap_err().failure(), Failure::InUse);
        drop(release);
        assert!(is_done.recv().is_err());
        while reading.is_under_way.load(Ordering::Acquire) {
            thread::yield_now();
        }
        assert_eq!(reading.read(|| Ok(9)).await.unwrap(), 9);
    }
}
