//! Revocations: ranges whose copies a shared origin calls back. See [`block::copies`].
//!
//! A revoked range is forgotten at once, without waiting for any request: a request that reads it
//! already was submitted before. Data of the range that is under way from the origin is not
//! inserted: each insertion knows how many revocations there were before its data was asked for,
//! and checks the later ones. Only the last ones are remembered; data that was under way for longer
//! than that is not inserted either.
//!
//! While a cache is closed the origin cannot revoke its copies. So a cache of a shared origin
//! begins without clean lines, unless the caller finds out what was changed, and registers the rest
//! ([`OpenOptions::keeps_shared`](crate::OpenOptions::keeps_shared)).

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::range::ByteRange;
use block::Copies;

use crate::limits::REVOCATIONS_REMEMBERED_MAX;

/// The revocations of an origin, and whether writes to it may be delayed.
pub(crate) struct Revocations {
    /// `None` where only this host changes the origin.
    copies: Option<Copies>,
    /// Whether writes to it may be delayed, under grants.
    may_delay: bool,
    recent: Mutex<Recent>,
}

#[derive(Default)]
struct Recent {
    /// Count of all revocations.
    count: u64,
    /// The last of them, with the padding of the cache.
    ranges: VecDeque<ByteRange>,
}

impl Revocations {
    pub(crate) fn of(copies: Option<Copies>, may_delay: bool) -> Self {
        Self { copies, may_delay, recent: Mutex::default() }
    }

    /// The copies registered at the origin; `None` where only this host changes it.
    pub(crate) fn copies(&self) -> Option<&Copies> {
        self.copies.as_ref()
    }

    /// Whether writes may be delayed although other hosts use the origin.
    pub(crate) fn may_delay(&self) -> bool {
        self.may_delay && self.copies.as_ref().is_some_and(|copies| copies.grants().is_some())
    }

    /// Whether other hosts may change the origin.
    pub(crate) fn is_shared(&self) -> bool {
        self.copies.is_some()
    }

    /// Whether clean content may be used now.
    pub(crate) fn may_use_copies(&self) -> bool {
        self.copies.as_ref().is_none_or(Copies::may_use)
    }

    pub(crate) fn count(&self) -> u64 {
        self.recent().count
    }

    pub(crate) fn note(&self, range: ByteRange) {
        let mut recent = self.recent();
        recent.count += 1;
        recent.ranges.push_back(range);
        if recent.ranges.len() > REVOCATIONS_REMEMBERED_MAX {
            recent.ranges.pop_front();
        }
    }

    /// Whether no part of `range` was revoked since the count of revocations was `count`.
    pub(crate) fn have_spared(&self, range: ByteRange, count: u64) -> bool {
        let recent = self.recent();
        let new_count = usize::try_from(recent.count - count).unwrap_or(usize::MAX);
        new_count <= recent.ranges.len()
            && !recent.ranges.iter().rev().take(new_count).any(|other| other.overlaps(&range))
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64) -> ByteRange {
        ByteRange { offset, length: 10 }
    }

    #[test]
    fn what_was_asked_back_meanwhile_is_told_from_what_was_before() {
        let revocations = Revocations::of(None, false);
        revocations.note(range(0));
        let before = revocations.count();
        revocations.note(range(100));
        assert!(revocations.have_spared(range(0), before));
        assert!(!revocations.have_spared(range(95), before));
        assert!(revocations.have_spared(range(110), before));
    }

    #[test]
    fn what_was_on_its_way_for_longer_than_is_remembered_is_not_spared() {
        let revocations = Revocations::of(None, false);
        for _ in 0..=REVOCATIONS_REMEMBERED_MAX {
            revocations.note(range(100));
        }
        assert!(!revocations.have_spared(range(0), 0));
        assert!(revocations.have_spared(range(0), 1));
    }
}
