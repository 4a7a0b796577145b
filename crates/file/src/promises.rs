//! Whether the device's promises of durability still hold.
//!
//! ```text
//!   kept ──(a durable call fails)──► broken ──(the device is opened again, or its owner notifies all clients)──► kept
//! ```
//! A failed `fdatasync` makes the kernel, or the disk, forget what it could not write; repeated, it
//! may succeed without that data. So one failure is remembered: every flush and every durable write
//! that is not over by then fails, those under way included, until the device is opened again.
//! Nothing less is enough: a device has many clients, and a flush stands for the writes of all; an
//! error returned to one of them does not reach the others. Reads and volatile writes go on.
//!
//! Where the owner notifies each of its clients
//! ([`FileOptions::goes_on_after_loss`](crate::FileOptions)), less is enough: only requests
//! submitted before the failure was known fail, and later ones are promised durability again. A
//! request remembers the [`Moment`] of its submission.
//!
//! | what failed | breaks the promises |
//! |---|---|
//! | `fdatasync` | yes |
//! | `RWF_DSYNC` write | yes: the flush in it may have failed, on which the bytes of others depend |
//! | `RWF_DSYNC` write, no space | no: it was refused before anything was written; with more space it goes on |
//! | plain write, before the sync that it shares | no: it is answered with the error, and nothing else depends on it |
//!
//! *No space* may also be the write-back error of other pages, which the call took with it. That
//! one is not lost: flushes are made on a descriptor of their own and get it, too. A write that had
//! to borrow that descriptor breaks the promises whatever its error.

use std::sync::atomic::{AtomicU64, Ordering};

use block::{Error, ErrorKind};
use rustix::io::Errno;

use crate::durable_call::DurableCall;
use crate::failure;

/// How often durability was lost, and whether later requests are promised it again.
pub(crate) struct Promises {
    /// How often the promises were broken.
    broken_count: AtomicU64,
    /// Whether requests after a failure are promised durability again.
    goes_on: bool,
}

/// The count of broken promises when a request was submitted; always zero where one failure is for
/// good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl Promises {
    pub(crate) fn new(goes_on: bool) -> Self {
        Self { broken_count: AtomicU64::new(0), goes_on }
    }

    /// Whether requests after a failure are promised durability again.
    pub(crate) fn go_on(&self) -> bool {
        self.goes_on
    }

    /// Whether a durable call failed.
    pub(crate) fn were_broken(&self) -> bool {
        self.broken_count.load(Ordering::Acquire) > 0
    }

    /// The present moment, for a request that is submitted.
    pub(crate) fn moment(&self) -> Moment {
        Moment(if self.goes_on { self.broken_count.load(Ordering::Acquire) } else { 0 })
    }

    /// # Errors
    /// `Media` when the promises were broken since that moment.
    pub(crate) fn check(&self, since: Moment, path: &str) -> Result<(), Error> {
        if self.broken_count.load(Ordering::Acquire) == since.0 {
            return Ok(());
        }
        let rest = if self.goes_on { "" } else { ": nothing is promised until it is opened again" };
        let context =
            format!("what was written to {path} before may be lost, since making it durable has failed{rest}");
        Err(Error::new(ErrorKind::Media, context))
    }

    /// Notes that a part of the file is gone, with what was written there.
    pub(crate) fn part_lost(&self) {
        self.broken_count.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes a failed durable call. Returns whether it breaks the promises. `has_own_descriptor`:
    /// whether flushes get its write-back errors, too.
    pub(crate) fn call_failed(&self, call: DurableCall, errno: Errno, has_own_descriptor: bool) -> bool {
        let is_refused = call == DurableCall::Write && failure::kind_of(errno) == ErrorKind::NoSpace;
        let breaks = !is_refused || !has_own_descriptor;
        if breaks {
            self.broken_count.fetch_add(1, Ordering::AcqRel);
        }
        breaks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_failed_durable_call_breaks_them_but_a_write_refused_for_want_of_room() {
        use DurableCall::{Sync, Write};
        for (call, errno, has_own_descriptor, breaks) in [
            (Sync, Errno::IO, false, true),
            (Sync, Errno::NOSPC, false, true),
            (Sync, Errno::NOSPC, true, true),
            (Write, Errno::IO, true, true),
            (Write, Errno::NOSPC, true, false),
            (Write, Errno::DQUOT, true, false),
            (Write, Errno::NOSPC, false, true),
        ] {
            let promises = Promises::new(false);
            let before = promises.moment();
            assert!(promises.check(before, "/p").is_ok());
            promises.call_failed(call, errno, has_own_descriptor);
            for moment in [before, promises.moment()] {
                let kind = promises.check(moment, "/p").err().map(|error| error.kind());
                assert_eq!(kind, breaks.then_some(ErrorKind::Media), "{call:?} {errno:?} {has_own_descriptor}");
            }
        }
    }

    #[test]
    fn where_all_are_told_only_what_was_submitted_before_a_failure_fails_with_it() {
        let promises = Promises::new(true);
        let before = promises.moment();
        promises.call_failed(DurableCall::Sync, Errno::IO, false);
        let between = promises.moment();
        assert!(promises.check(before, "/p").is_err() && promises.check(between, "/p").is_ok());
        promises.call_failed(DurableCall::Sync, Errno::IO, false);
        assert!(promises.check(before, "/p").is_err() && promises.check(between, "/p").is_err());
        assert!(promises.check(promises.moment(), "/p").is_ok());
    }
}
