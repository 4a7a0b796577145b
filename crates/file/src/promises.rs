//! Whether what the device promises of durability can still be kept.
//!
//! ```text
//!   kept ──(a durable call fails)──► broken ──(the device is opened again, or its owner tells all)──► kept
//! ```
//! A failed `fdatasync` makes the kernel, or the disk, forget what it could not write; made again, it may succeed
//! without it. So one failure is remembered: every flush and every durable write that is not over by then fails, those
//! under way included, until the device is opened again. Nothing less would do: a device has many clients and a flush
//! speaks for the writes of all, so an error that one of them was given tells the others nothing. Reads and volatile
//! writes go on.
//!
//! Where the owner tells each of its clients ([`FileOptions::goes_on_after_loss`](crate::FileOptions)), that is enough:
//! then only what was submitted before the failure was known fails, and later requests are promised anew. A request
//! remembers the [`Moment`] of its submission.
//!
//! | what failed | breaks the promises |
//! |---|---|
//! | `fdatasync` | yes |
//! | `RWF_DSYNC` write | yes: the flush in it may have failed, which others' bytes depend on |
//! | `RWF_DSYNC` write for want of room | no: it was refused before anything was written, and who makes room may go on |
//! | plain write, before the sync that it shares | no: it is answered with the error, and nothing else depends on it |
//!
//! Want of room may also be the write-back error of others' pages, which the call took with it. That one is not lost:
//! flushes are made on a descriptor of their own and hear of it. A write that had to borrow that descriptor breaks the
//! promises whatever its error.

use std::sync::atomic::{AtomicU64, Ordering};

use block::{Error, ErrorKind};
use rustix::io::Errno;

use crate::durable_call::DurableCall;
use crate::failure;

/// How often durability was lost, and whether requests that come after that are promised it again.
pub(crate) struct Promises {
    /// How often they were broken.
    broken_count: AtomicU64,
    /// Whether what comes after a failure is promised anew.
    goes_on: bool,
}

/// How often they had been broken when a request was submitted; always zero where one failure is for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl Promises {
    pub(crate) fn new(goes_on: bool) -> Self {
        Self { broken_count: AtomicU64::new(0), goes_on }
    }

    /// Whether what comes after a failure is promised anew.
    pub(crate) fn go_on(&self) -> bool {
        self.goes_on
    }

    /// Whether a durable call failed.
    pub(crate) fn were_broken(&self) -> bool {
        self.broken_count.load(Ordering::Acquire) > 0
    }

    /// Now, for a request that is submitted.
    pub(crate) fn moment(&self) -> Moment {
        Moment(if self.goes_on { self.broken_count.load(Ordering::Acquire) } else { 0 })
    }

    /// # Errors
    /// `Media`, when they were broken since that moment.
    pub(crate) fn check(&self, since: Moment, path: &str) -> Result<(), Error> {
        if self.broken_count.load(Ordering::Acquire) == since.0 {
            return Ok(());
        }
        let rest = if self.goes_on { "" } else { ": nothing is promised until it is opened again" };
        let context =
            format!("what was written to {path} before may be lost, since making it durable has failed{rest}");
        Err(Error::new(ErrorKind::Media, context))
    }

    /// A durable call failed; whether that breaks them. `has_own_descriptor`: whether its write-back errors are told to
    /// flushes, too.
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
