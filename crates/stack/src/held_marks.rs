//! The marks of a store while it is used: at every reconnection of their LUN, and when the store lets go of it, they
//! get another token.
//!
//! So an older copy of the LUN with its marks (a backup that was made while the store was used) is known by its old
//! token. Each step is durable here before the next: a crash between them leaves both tokens, and either counts.
//!
//! ```text
//! remember the candidate   ->   every path expects it   ->   TAKE by all that are there   ->   the candidate is the token
//! ```

use std::sync::Arc;

use block::{Device, Event};
use initiator::{RemoteLun, State};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::caches::{Caches, MarkRecord};
use crate::error::Result;
use crate::freshness::token::draw_token;
use crate::limits::CLOSE_TIME_MAX;
use crate::place::Place;

/// The marks of one store.
pub(crate) struct HeldMarks {
    caches: Caches,
    place: Place,
    marks: Vec<HeldMark>,
}

struct HeldMark {
    id: [u8; 16],
    /// The paths to its LUN.
    luns: Vec<Arc<RemoteLun>>,
    /// Held while it gets another token.
    renewing: Mutex<()>,
}

impl HeldMarks {
    /// Those of the store at `place`, of which there are none yet.
    pub(crate) fn new(caches: &Caches, place: &Place) -> Self {
        Self { caches: caches.clone(), place: place.clone(), marks: Vec::new() }
    }

    /// One more, of the LUN that these are paths to.
    pub(crate) fn add(&mut self, id: [u8; 16], luns: Vec<Arc<RemoteLun>>) {
        self.marks.push(HeldMark { id, luns, renewing: Mutex::default() });
    }

    /// Another token for a mark, by the paths to its LUN that are there. What cannot be done leaves it known by either.
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
        // One that was on its way before counts until it is there.
        if record.candidate().is_some() {
            record = self.give(online, mark, record).await?;
        }
        self.give(online, mark, record.with_candidate(draw_token())).await.map(|_| ())
    }

    /// The candidate of `record` becomes its token.
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

    async fn renew_all(&self) {
        for mark in &self.marks {
            self.renew(mark).await;
        }
    }
}

/// Renews marks as long as their stores are used.
pub struct MarkRenewal {
    stores: Vec<Arc<HeldMarks>>,
    watches: JoinSet<()>,
}

impl MarkRenewal {
    /// From now on, at every reconnection.
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

    /// The stores let go of their LUNs, and have what those have: the last token. A target that does not answer soon is
    /// not waited for. If they `are_closed`, nothing is written in them any more.
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
        // Which events were missed nobody knows; another token does no harm.
        if matches!(events.receive().await, Event::Back | Event::Missed) {
            store.renew(&store.marks[index]).await;
        }
    }
}
