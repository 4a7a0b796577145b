//! Delayed writes to an origin that several hosts share: a write is delayed, and sent later, only
//! under a grant of its range. See [`block::grants`].
//!
//! | what is written | happens |
//! |---|---|
//! | under a grant | it is delayed; it is acknowledged if grant and lease were still valid at its end |
//! | elsewhere | it goes to the origin, and the cache asks for a grant of the range without waiting for it |
//!
//! A range that is called back is cleaned before it is given up: see [`clean_range`](crate::clean_range).

use std::time::Duration;

use base::range::ByteRange;
use block::grants::Use;
use block::{Error, ErrorKind, Response};

use crate::alignment::outside;
use crate::core::Core;
use crate::limits::GRANT_PAUSE_MS;

/// Whether a write may be delayed, or dirty data be sent.
pub(crate) enum Right {
    /// Only this host uses the origin.
    Unshared,
    Granted(Use),
    Lacking,
}

impl Core {
    /// Whether a write of `range` may be delayed. If not, asks for a grant of the range.
    pub(crate) fn right_to_delay(&self, range: ByteRange) -> Right {
        let Some(copies) = self.revocations.copies() else { return Right::Unshared };
        let Some(grants) = copies.grants().filter(|_| copies.may_use()) else { return Right::Lacking };
        let range = outside(range, self.origin.padding);
        match grants.use_to_write(range) {
            Some(used) => Right::Granted(used),
            None => {
                grants.want(range);
                Right::Lacking
            }
        }
    }

    /// Whether what is dirty in `range` may be sent to the origin.
    pub(crate) fn right_to_send(&self, range: ByteRange) -> Right {
        let Some(copies) = self.revocations.copies() else { return Right::Unshared };
        let used = copies.grants().and_then(|grants| grants.use_to_clean(outside(range, self.origin.padding)));
        used.map_or(Right::Lacking, Right::Granted)
    }

    /// The final response of a delayed write. One that ended when the lease was over is not
    /// acknowledged: another host may have the range.
    pub(crate) fn confirm(&self, response: Response, used: &Use) -> Response {
        let is_good = used.is_good() && self.revocations.may_use_copies();
        match response.result.is_ok() && !is_good {
            true => Response::failed(lease_over(), response.buffer),
            false => response,
        }
    }

    /// Waits while the lease is in doubt: another host may have what is dirty in `range`.
    ///
    /// # Errors
    /// `Gone` when this host was fenced from the origin, or the cache is closed.
    pub(crate) async fn wait_for_lease(&self, range: ByteRange) -> Result<(), Error> {
        while !self.revocations.may_use_copies() && self.lines.has_dirty(range) {
            if self.origin.reports.is_refused() {
                return Err(lease_over());
            }
            if !self.life.is_open() {
                return Err(self.life.closed());
            }
            self.clock.sleep(Duration::from_millis(GRANT_PAUSE_MS)).await;
        }
        Ok(())
    }
}

fn lease_over() -> Error {
    let words = "several hosts share the disk, and the lease under which this host held the range alone is over: what \
                 was written there and has not reached the disk stays in the cache";
    Error::new(ErrorKind::Gone, words)
}
