//! The marks of a store while it is used: at every reconnection of their LUN, and when the store is
//! closed, they get another token.
//!
//! So an older copy of the LUN with its marks (a backup that was made while the store was used) is
//! recognised by its old token. Each step is durable here before the next: a crash between them
//! leaves both tokens, and either is accepted.
//!
//! ```text
//! remember the candidate   ->   every path expects it   ->   TAKE by all that are there   ->   the candidate is the token
//! ```
//!
//! Where several hosts share the LUN, the mark of a store is cleared when no application uses the
//! store any more, before it is closed:
//!
//! ```text
//! report, CLEAR, again if it is refused   ->   the lease goes on   ->   the store is closed   ->   note that the mark tells
//! ```
//! Before a change that came earlier than the CLEAR, this host was asked for its copies, and has
//! dropped them. A later change is in the mark. A host whose lease is over may not have been asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Device, Event};
use initiator::{RemoteLun, State};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::caches::{Caches, MarkRecord};
use crate::error::Result;
use crate::freshness::clear_pauses;
use crate::freshness::report::report_of;
use crate::freshness::token::draw_token;
use crate::limits::CLOSE_TIME_MAX;
use crate::place::Place;

/// The marks of one store.
pub(crate) struct HeldMarks {
    caches: Caches,
    place: Place,
    is_shared: bool,
    marks: Vec<HeldMark>,
}

struct HeldMark {
    id: [u8; 16],
    /// The paths to its LUN.
    luns: Vec<Arc<RemoteLun>>,
    /// Held while it gets another token.
    renewing: Mutex<()>,
    /// Whether it was cleared for the end of a store of a shared LUN, and reports changes once that
    /// is closed.
    is_emptied: AtomicBool,
}

impl HeldMarks {
    /// The marks of the store at `place`, none at first. Several hosts may use its LUNs at once.
    pub(crate) fn new(caches: &Caches, place: &Place, is_shared: bool) -> Self {
        Self { caches: caches.clone(), place: place.clone(), is_shared, marks: Vec::new() }
    }

    /// Adds a mark of the LUN that these are paths to.
    pub(crate) fn add(&mut self, id: [u8; 16], luns: Vec<Arc<RemoteLun>>) {
        self.marks.push(HeldMark { id, luns, renewing: Mutex::default(), is_emptied: AtomicBool::new(false) });
    }

    /// Gives a mark another token, by the paths to its LUN that are online. If that fails, either
    /// token is accepted.
    async fn renew(&self, mark: &HeldMark) {
        let _renewing = mark.renewing.lock().await;
        let online: Vec<&RemoteLun> = mark
            .luns
            .iter()
            .map(AsRef::as_ref)
            .filter(|lun: &&RemoteLun| lun.status().state == State::Online)
            .collect();
        if online.is_empty() {
            return;
        }
        if let Err(error) = self.renew_by(&online, mark).await {
            tracing::warn!(%error, "a change mark keeps its token: a copy of the LUN from before now is not told from \
                                    it");
        }
    }

    async fn renew_by(&self, online: &[&RemoteLun], mark: &HeldMark) -> Result<()> {
        let Some(mut record) = self.caches.mark(&self.place, &mark.id)? else { return Ok(()) };
        // A token that was on its way before is accepted until it is known to be there.
        if record.candidate().is_some() {
            record = self.give(online, mark, record).await?;
        }
        self.give(online, mark, record.with_candidate(draw_token())).await.map(|_| ())
    }

    /// Sends the candidate of `record`, which becomes its token.
    async fn give(&self, online: &[&RemoteLun], mark: &HeldMark, record: MarkRecord) -> Result<MarkRecord> {
        self.caches.note_mark(&self.place, &record)?;
        let token = record.newest();
        mark.luns.iter().for_each(|path| path.expect_token(mark.id, token));
        for lun in online {
            lun.renew_mark(mark.id, token).await?;
        }
        let settled = record.settled();
        self.caches.note_mark(&self.place, &settled)?;
        mark.luns.iter().for_each(|path| path.settle_token(mark.id, token));
        Ok(settled)
    }

    async fn empty_all(&self) {
        for mark in &self.marks {
            match self.empty(mark).await {
                Ok(is_emptied) => mark.is_emptied.store(is_emptied, Ordering::Relaxed),
                Err(error) => tracing::warn!(%error, "a change mark cannot be emptied: the next attach begins cold"),
            }
        }
    }

    /// Clears a mark. Returns whether it is empty now, and this host was asked for its copies
    /// before each earlier change.
    async fn empty(&self, mark: &HeldMark) -> Result<bool> {
        let Some(record) = self.caches.mark(&self.place, &mark.id)? else { return Ok(false) };
        for lun in &mark.luns {
            let is_asked = || lun.copies().is_some_and(|copies| copies.may_use());
            if !empty_by(lun, mark.id, record.newest()).await? || !is_asked() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Notes that the store is closed, with its content of when its marks were cleared.
    fn note_telling(&self) {
        for mark in self.marks.iter().filter(|mark| mark.is_emptied.load(Ordering::Relaxed)) {
            if let Err(error) = self.caches.note_telling(&self.place, &mark.id) {
                tracing::warn!(%error, "the next attach with {} begins cold", self.place);
            }
        }
    }

    async fn renew_all(&self) {
        for mark in &self.marks {
            self.renew(mark).await;
        }
    }
}

async fn empty_by(lun: &RemoteLun, id: [u8; 16], token: u64) -> std::result::Result<bool, block::Error> {
    for pause in clear_pauses() {
        let report = report_of(lun, id).await?;
        if lun.clear_mark(id, token, report.sequence).await? {
            return Ok(true);
        }
        tokio::time::sleep(pause).await;
    }
    Ok(false)
}

/// Renews marks while their stores are used.
pub struct MarkRenewal {
    stores: Vec<Arc<HeldMarks>>,
    watches: JoinSet<()>,
}

impl MarkRenewal {
    /// Starts to renew them at every reconnection.
    pub(crate) fn start(stores: Vec<HeldMarks>) -> Self {
        let stores: Vec<Arc<HeldMarks>> = stores.into_iter().map(Arc::new).collect();
        let mut watches = JoinSet::new();
        for store in &stores {
            for (index, mark) in store.marks.iter().enumerate() {
                for path in &mark.luns {
                    let (store, path) = (Arc::clone(store), Arc::clone(path));
                    watches.spawn(base::background::named("marks", async move { watch(&path, &store, index).await }));
                }
            }
        }
        Self { stores, watches }
    }

    /// Clears the marks of stores of shared LUNs, which are about to be closed and not used any
    /// more. A target that does not answer soon is not waited for.
    pub(crate) async fn empty_shared(&self) {
        let emptied = async {
            for store in self.stores.iter().filter(|store| store.is_shared) {
                store.empty_all().await;
            }
        };
        if tokio::time::timeout(CLOSE_TIME_MAX, emptied).await.is_err() {
            tracing::warn!("the target does not answer: the next attach begins cold");
        }
    }

    /// Notes that the stores are closed in order, after [`empty_shared`](Self::empty_shared): from
    /// now on the marks of shared LUNs report changes.
    pub(crate) fn note_telling(&self) {
        self.stores.iter().for_each(|store| store.note_telling());
    }

    /// Gives the marks their last token: the stores are equal to their LUNs. A target that does not
    /// answer soon is not waited for. `are_closed` means that nothing is written in the stores any
    /// more.
    pub async fn finish(mut self, are_closed: bool) {
        self.watches.shutdown().await;
        for store in self.stores.iter().filter(|_| are_closed) {
            if let Err(error) = store.caches.note_closed(&store.place) {
                tracing::warn!(%error, "a copy of {} from before now is not told from it", store.place);
            }
        }
        let renewed = async {
            for store in &self.stores {
                store.renew_all().await;
            }
        };
        if tokio::time::timeout(CLOSE_TIME_MAX, renewed).await.is_err() {
            tracing::warn!("the target does not answer: a change mark keeps its token");
        }
    }
}

async fn watch(path: &RemoteLun, store: &HeldMarks, index: usize) {
    let events = path.subscribe();
    loop {
        // Missed events may include `Back`; another token does no harm.
        if matches!(events.receive().await, Event::Back | Event::Missed) {
            store.renew(&store.marks[index]).await;
        }
    }
}
