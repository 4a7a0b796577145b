//! The life of what is opened on a store, as far as everything in it has to know: open, stopped, ended.
//!
//! | | from when | means |
//! |---|---|---|
//! | open | it is opened, until it closes | requests are taken |
//! | stopped | the origin has all that it is to get | background work ends, and nothing is sent to the origin any more |
//! | ended | all that was here is stored, or somebody else's | nothing is done with the devices any more |
//!
//! All of it is sequentially consistent: who changes something looks then who is still at work, and who begins looks
//! behind saying so. One of the two sees the other.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use block::{Error, ErrorKind};
use futures_util::lock::Mutex;

/// See the top of this file.
pub struct Life {
    /// As users know it.
    name: &'static str,
    is_open: AtomicBool,
    /// Who is closing it, or has. More than one where some want less of it than others.
    closing_count: AtomicU64,
    is_stopped: AtomicBool,
    /// Changed by who excludes requests.
    has_ended: AtomicBool,
    /// What came of closing it, once it is closed. Locked by whoever closes it, until that has come to its end.
    outcome: Mutex<Option<Result<(), Error>>>,
}

impl Life {
    /// Open. `name` is what users call it: "the cache".
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

    /// No request is taken any more.
    pub fn refuse_requests(&self) {
        self.is_open.store(false, Ordering::SeqCst);
    }

    /// No request is taken, unless whoever closes it gives that up.
    pub fn begin_close(&self) {
        self.closing_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Whoever began to close it cannot. It goes on, if nobody else is closing it, or has.
    pub fn give_up_close(&self) {
        self.closing_count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether background work is to end.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Background work is to end. The caller wakes it.
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

    /// Nothing is done with the devices any more. The caller keeps requests out.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    /// What is said to whoever comes too late.
    pub fn closed(&self) -> Error {
        Error::new(ErrorKind::Gone, format!("{} is closed", self.name))
    }
}
