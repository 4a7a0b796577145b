//! Flush: the barrier.
//!
//! What write-back acknowledged is durable on the cache device already, so there is nothing to do for it. What was acknowledged by the origin
//! (write-through) may sit in its volatile cache, so the flush goes on to the origin when there was such a write since the last one; and the first time
//! after an open, since nobody knows what was acknowledged before.
//!
//! An origin may report only once that it lost what it had acknowledged, to whichever flush comes next. The cache flushes for its own purposes, too. So
//! the failure of such a flush, with something of a client at stake, is kept until a client's flush has told it. It is told to all flushes that wait at that moment: each of
//! them stands for what its client was told before.
//!
//! One flush of the origin is under way at a time. One that fails may have dropped what another, answered well a moment later, seems to have made durable: cleaning
//! would call lines clean that are nowhere any more. So the failure is noted, as a loss, before the next flush begins. All of this a cache shares with the
//! successor that is to take its place (`origin_flushes`): each flushes what the other wrote.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::buffer::Buffer;
use block::device::DeviceExt;
use block::{Error, ErrorKind, Response};

use crate::core::Core;

/// Failures of flushes of an origin that may have lost something then.
#[derive(Default)]
pub(crate) struct FlushFailures {
    /// How many there were. Changes only under `telling`; who writes to the origin reads it without.
    count: AtomicU64,
    telling: Mutex<Telling>,
}

#[derive(Default)]
struct Telling {
    /// The last failure.
    last: Option<Error>,
    /// Whether something of a client was at stake, and no client's flush has told it yet.
    is_untold: bool,
}

impl FlushFailures {
    fn telling(&self) -> MutexGuard<'_, Telling> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there were.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// One more. `has_stake`: whether the origin has acknowledged something of a client that it has not flushed. Asked when the failure counts: a
    /// change that is acknowledged meanwhile either is seen then, or sees the failure. Sequentially consistent with the count of changes for that.
    pub(crate) fn note(&self, error: &Error, has_stake: impl FnOnce() -> bool) {
        let mut telling = self.telling();
        self.count.fetch_add(1, Ordering::SeqCst);
        telling.last = Some(error.clone());
        telling.is_untold |= has_stake();
    }

    /// What no client's flush has told yet.
    pub(crate) fn untold(&self) -> Option<Error> {
        let telling = self.telling();
        telling.last.clone().filter(|_| telling.is_untold)
    }

    /// What a flush that begins now has to know: how many failures clients were told of, and whether there is one that none was told of.
    fn begin(&self) -> (u64, bool) {
        let telling = self.telling();
        (self.count() - u64::from(telling.is_untold), telling.is_untold)
    }

    /// Something of a client is at stake that was sent when there had been `failures_before`: one that failed since may have dropped it.
    fn note_stake(&self, failures_before: u64) {
        if self.count() != failures_before {
            self.telling().is_untold = true;
        }
    }

    /// Tells a flush of the failures that concern it: of those up to `told_before` clients knew when it began.
    fn tell(&self, told_before: u64) -> Result<(), Error> {
        let mut telling = self.telling();
        let concerns = telling.is_untold || self.count() != told_before;
        telling.is_untold = false;
        match &telling.last {
            Some(error) if concerns => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// Answers a client's flush. It stands for what was acknowledged when it is called, so failures count from then on.
pub(crate) fn flush(core: Arc<Core>) -> impl Future<Output = Response> + Send + use<> {
    let (told_before, is_untold) = core.origin_flushes.failures.begin();
    async move {
        let flushed = if is_untold { Ok(()) } else { core.flush_origin().await };
        let told = core.origin_flushes.failures.tell(told_before);
        match flushed.and(told) {
            Ok(()) => Response::done(Buffer::empty()),
            Err(error) => Response::failed(error, Buffer::empty()),
        }
    }
}

impl Core {
    /// Makes durable what the origin acknowledged to us, if there is any.
    pub(crate) async fn flush_origin(self: &Arc<Self>) -> Result<(), Error> {
        if self.has_unflushed_writes() || self.state().frames.mappings.has_unflushed() {
            return self.flush_origin_anyway().await;
        }
        Ok(())
    }

    /// Makes durable what the origin has taken since it had reported that many losses (`origin_losses`).
    ///
    /// # Errors
    /// `OutcomeUnknown` when it lost something meanwhile: what it took may be gone.
    pub(crate) async fn flush_origin_since(self: &Arc<Self>, losses: u64) -> Result<(), Error> {
        self.flush_origin_anyway().await?;
        match self.origin_losses.load(Ordering::Acquire) == losses {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::OutcomeUnknown, "the origin lost writes that were not flushed yet")),
        }
    }

    /// Makes durable all that the origin has.
    pub(crate) async fn flush_origin_anyway(self: &Arc<Self>) -> Result<(), Error> {
        let flushes = &self.origin_flushes;
        let _turn = flushes.turn.lock().await;
        let written = {
            let mappings = &mut self.state().frames.mappings;
            mappings.start_flush();
            flushes.writes()
        };
        let result = self.origin.flush().await;
        // An origin that lost something before it was flushed says so with the answer at the latest: copies of that are not safe now.
        self.handle_origin_events();
        if result.is_err() {
            flushes.note_losses();
        }
        self.state().frames.mappings.finish_flush(result.is_ok(), flushes.has_lost());
        match &result {
            Ok(()) => flushes.note_flushed(written),
            Err(error) if may_have_lost(error) => flushes.failures.note(error, || flushes.has_unflushed_writes()),
            Err(_) => {}
        }
        result
    }

    /// Whether the origin could still lose something that it acknowledged to us.
    pub(crate) fn has_unflushed_writes(&self) -> bool {
        self.origin_flushes.has_unflushed_writes()
    }

    /// Notes a change that the origin acknowledged and may still lose: perhaps in a flush that failed since it was sent, when there had been
    /// `failures_before` of them.
    pub(crate) fn note_origin_write(&self, failures_before: u64) {
        self.origin_flushes.note_write();
        self.origin_flushes.failures.note_stake(failures_before);
    }
}

/// Whether an origin that failed to flush may have lost what it had acknowledged: not one that was not reached.
fn may_have_lost(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::NoAccess | ErrorKind::TimedOut)
}
