//! Keeps what is dirty above a LUN from being written over changes by others.
//!
//! A new session hears of what others changed while there was none. Its user decides then, before
//! any request of the session, what of that was really by others, and whether this host may still
//! change the LUN. If not, its changes are refused from then on: those that wait, those that would be
//! written again, and all later ones. Otherwise what others changed is not written again: it was
//! acknowledged, and counts as lost.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use block::{ByteRange, Error};

use crate::changed_ranges;

/// What a new session heard of changes by others while there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedChanges {
    /// The target recorded these.
    pub recorded: Vec<ByteRange>,
    /// The whole unit, where the target does not know what others changed: perhaps everything.
    pub unknown: Option<ByteRange>,
    /// Why the target does not tell what it recorded, where that is so: everything counts as recorded then.
    pub unreported: Option<String>,
}

impl ReportedChanges {
    /// All that others may have changed.
    pub fn ranges(&self) -> Vec<ByteRange> {
        self.unknown.map_or_else(|| self.recorded.clone(), |whole| vec![whole])
    }

    /// What of it lies in a unit of `size_bytes`.
    pub(crate) fn within(&self, size_bytes: u64) -> Self {
        let within = |&range: &ByteRange| changed_ranges::within(range, size_bytes);
        Self {
            recorded: self.recorded.iter().filter_map(within).collect(),
            unknown: self.unknown.as_ref().and_then(within),
            unreported: self.unreported.clone(),
        }
    }
}

/// The decision about changes: those that others made, or the error of changes by this host.
pub type Deciding = Pin<Box<dyn Future<Output = Result<Vec<ByteRange>, Error>> + Send>>;

type Check = Box<dyn Fn(ReportedChanges) -> Deciding + Send + Sync>;

/// Decides about the changes by others of which one path to a LUN hears.
pub struct ChangeGuard {
    /// The error of all changes by this host from now on; that of all paths and LUNs of one device.
    refusal: Arc<OnceLock<Error>>,
    check: Check,
    reported: Mutex<Reported>,
}

/// What the last new session heard.
#[derive(Default)]
struct Reported {
    changed: Vec<ByteRange>,
    /// What of that was by others.
    by_others: Vec<ByteRange>,
}

impl ChangeGuard {
    /// A guard for one path. `check` gets what was changed while there was no session, and returns
    /// what of that was changed by others; it fails if this host must not change the LUN any more:
    /// `refusal` is its error then. No request of the session is sent before it has ended.
    pub fn new(
        refusal: Arc<OnceLock<Error>>,
        check: impl Fn(ReportedChanges) -> Deciding + Send + Sync + 'static,
    ) -> Self {
        Self { refusal, check: Box::new(check), reported: Mutex::default() }
    }

    /// A new session has heard of these changes.
    pub(crate) async fn receive(&self, reported: ReportedChanges) {
        let changed = reported.ranges();
        *self.lock() = Reported { changed: changed.clone(), by_others: changed.clone() };
        if changed.is_empty() {
            return;
        }
        match (self.check)(reported).await {
            Ok(by_others) => self.lock().by_others = by_others,
            Err(error) => {
                if self.refusal.set(error.clone()).is_ok() {
                    tracing::error!("{error}");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the last new session heard that was changed.
    pub(crate) fn reported(&self) -> Vec<ByteRange> {
        self.lock().changed.clone()
    }

    /// What of that others changed.
    pub(crate) fn by_others(&self) -> Vec<ByteRange> {
        self.lock().by_others.clone()
    }

    /// The error of changes by this host, if they are refused.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        self.refusal.get()
    }
}
