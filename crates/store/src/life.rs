//! The life of a cache or log that is open on a store, as all its parts see it: open, stopped,
//! ended.
//!
//! | | from when | means |
//! |---|---|---|
//! | open | it is opened, until it closes | requests are taken |
//! | stopped | the origin has all that it is to get | background work ends, and nothing is sent to the origin any more |
//! | ended | all content is stored, or another cache has taken it over | nothing is done with the devices any more |
//!
//! All flags are sequentially consistent. The caller that sets a flag looks afterwards for work
//! under way; work announces itself first and then reads the flag. So at least one of the two sees
//! the other.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block::{Error, ErrorKind};
use futures_util::lock::Mutex;

/// The flags that say whether a cache or log is open, stopped or ended.
pub struct Life {
    /// What users call it, as in "the cache".
    name: &'static str,
    is_open: AtomicBool,
    /// Count of closes under way or done: one that keeps dirty data may overtake one that cleans.
    closing_count: AtomicU64,
    is_stopped: AtomicBool,
    /// Set by a caller that holds requests out.
    has_ended: AtomicBool,
    /// What came of closing it, once it is closed. Locked by whoever closes it, until that has come to its end.
    outcome: Mutex<Option<Result<(), Error>>>,
}

impl Life {
    /// An open life. `name` is what users call it: "the cache".
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            is_open: AtomicBool::new(true),
            closing_count: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            outcome: Mutex::new(None),
        }
    }

    /// Whether requests are taken.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst) && self.closing_count.load(Ordering::SeqCst) == 0
    }

    /// From now on requests are refused.
    pub fn refuse_requests(&self) {
        self.is_open.store(false, Ordering::SeqCst);
    }

    /// From now on requests are refused, until [`Life::give_up_close`].
    pub fn begin_close(&self) {
        self.closing_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes back one [`Life::begin_close`] that failed. Requests are taken again if no other close
    /// is under way or done.
    pub fn give_up_close(&self) {
        self.closing_count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether background work is to end.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Tells background work to end. The caller wakes it.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Closes by `closing`, once: whoever comes while another is at it, or later, waits for that one's end and is told
    /// the same. Where the first is dropped before its end, the next takes its place.
    ///
    /// # Errors
    /// Those of `closing`.
    pub async fn close_once(&self, closing: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let mut outcome = self.outcome.lock().await;
        if outcome.is_none() {
            *outcome = Some(closing.await);
        }
        outcome.clone().unwrap_or(Ok(()))
    }

    /// Whether nothing is done with the devices any more: whoever gets its turn from now on leaves.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// From now on the devices are not used. The caller holds requests out.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    /// The error for a request after the close.
    pub fn closed(&self) -> Error {
        Error::new(ErrorKind::Gone, format!("{} is closed", self.name))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn whoever_closes_later_is_told_what_came_of_it_also_of_a_failure() {
        for outcome in [Ok(()), Err(Error::new(ErrorKind::Media, "its end was not stored"))] {
            let life = Life::new("the cache");
            let told =
                |closed: Option<Result<(), Error>>| closed.expect("it waits for nobody").map_err(|error| error.kind());
            let first = told(life.close_once(std::future::ready(outcome.clone())).now_or_never());
            let later = told(life.close_once(async { unreachable!("it is closed") }).now_or_never());
            let expected = outcome.map_err(|error| error.kind());
            assert_eq!((first, later), (expected, expected));
        }
    }
}
