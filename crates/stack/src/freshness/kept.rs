//! Changes by others that must not be overwritten by what a store has: those found before an attachment or a replay
//! opens it.

use std::sync::Arc;

use block::ByteRange;
use store::Tokens;
use writelog::WriteLog;

use super::releasing::release_marks;
use super::{Assessed, Promise, assess};
use crate::caches::{Caches, StoreRecord};
use crate::dirty_guard::{DirtyGuard, Use};
use crate::error::{Error, Result};
use crate::held_marks::MarkRenewal;
use crate::place::Place;
use crate::registry::Store;
use crate::remotes::Remotes;

impl Assessed {
    /// The changes that must not be overwritten, unless `is_overwritten` allows it.
    pub(crate) fn kept(&self, is_overwritten: bool) -> KeptChanges<'_> {
        KeptChanges { assessed: self, is_overwritten }
    }
}

/// What others changed in a LUN since a write log was closed, for opening the log without an
/// attachment.
pub struct ChangesSince {
    assessed: Assessed,
    guard: Arc<DirtyGuard>,
}

impl ChangesSince {
    /// Asks the target what others changed. `is_overwritten` as in [`Self::kept`].
    ///
    /// # Errors
    /// Errors of this host's list; `WouldLoseData` for another copy of the log than the last one,
    /// unless it is to overwrite in any case.
    pub async fn assess(remotes: &Remotes, caches: &Caches, place: &Place, is_overwritten: bool) -> Result<Self> {
        let guard = Arc::new(DirtyGuard::of(&Use::Replay, remotes));
        release_marks(remotes, caches).await;
        let promise = Promise { overwrites_changes: is_overwritten, ..Promise::default() };
        let assessed = assess(remotes, caches, Store::Log, place, promise).await?;
        Ok(Self { assessed, guard })
    }

    /// The changes that must not be overwritten, unless `is_overwritten` allows it. They are
    /// reported again until [`Self::commit`].
    pub fn kept(&self, is_overwritten: bool) -> KeptChanges<'_> {
        self.assessed.kept(is_overwritten)
    }

    /// Clears the marks, after the `log` was opened as in an attachment; they get other tokens
    /// until it is finished. Until then what is dirty in it is not written over changes that others
    /// make while the LUN is out of reach. `is_overwritten` as in [`Self::kept`], for changes by others just now.
    ///
    /// # Errors
    /// Errors of this host's list; a change by others, just now, where the log is dirty.
    pub async fn commit(
        self,
        caches: &Caches,
        record: StoreRecord,
        (log, is_overwritten): (&Arc<WriteLog>, bool),
    ) -> Result<MarkRenewal> {
        let place = self.assessed.place.clone();
        let (_, marks) = self.assessed.commit(caches, record, (&**log, is_overwritten)).await?;
        self.guard.put(&place, Store::Log, log.clone(), false);
        Ok(MarkRenewal::start(vec![marks], Some(&self.guard)))
    }
}

/// Changes by others that a write log must not overwrite.
pub struct KeptChanges<'a> {
    assessed: &'a Assessed,
    is_overwritten: bool,
}

impl KeptChanges<'_> {
    /// The store's place.
    pub(crate) fn ranges(&self) -> &[ByteRange] {
        if self.is_overwritten { &[] } else { self.assessed.changed() }
    }

    /// [`Assessed::begin_opening`].
    pub(crate) fn begin_opening(&self, caches: &Caches) -> Result<Tokens> {
        self.assessed.begin_opening(caches)
    }

    /// [`Assessed::refusal`].
    pub(crate) fn refusal(&self, error: block::Error) -> Error {
        self.assessed.refusal(error)
    }
}
