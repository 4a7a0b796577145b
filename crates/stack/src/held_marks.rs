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
//! With the candidate for the last token it is noted that this token is owed, until the mark has it:
//! an end that is cut short, whose target is away or does not take it, leaves that note, and the next
//! attach begins without clean lines.
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

use block::{ByteRange, Device, Event};
use initiator::{RemoteLun, State};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::caches::{Caches, MarkRecord, MarkStage};
use crate::dirty_guard::DirtyGuard;
use crate::error::Result;
use crate::freshness::clear_pauses;
use crate::freshness::report::report_of;
use crate::freshness::token::draw_token;
use crate::limits::LAST_MARKS_TIME_MAX;
use crate::place::Place;
use crate::remotes::MemberLun;

/// The marks of one store.
pub(crate) struct HeldMarks {
    caches: Caches,
    place: Place,
    is_shared: bool,
    marks: Vec<HeldMark>,
}

struct HeldMark {
    id: [u8; 16],
    /// Its LUN, with the paths to it.
    member: MemberLun,
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

    /// Adds a mark of this LUN.
    pub(crate) fn add(&mut self, id: [u8; 16], member: MemberLun) {
        self.marks.push(HeldMark { id, member, renewing: Mutex::default(), is_emptied: AtomicBool::new(false) });
    }

    /// Gives a mark another token, by the paths to its LUN that are online, if any. If that fails,
    /// either token is accepted.
    async fn renew(&self, mark: &HeldMark) {
        let _renewing = mark.renewing.lock().await;
        let online = mark.online();
        if online.is_empty() {
            return;
        }
        let renewed = match self.caches.mark(&self.place, &mark.id) {
            Ok(Some(record)) => {
                let stage = record.stage();
                self.renew_by(&online, mark, record, stage).await
            }
            found => found.map(|_| ()),
        };
        if let Err(error) = renewed {
            tracing::warn!(%error, "a change mark keeps its token: a copy of the LUN from before now is not told from \
                                    it");
        }
    }

    /// Gives a mark its last token. Until the mark has it, it is noted as owed.
    async fn renew_last(&self, mark: &HeldMark) -> Result<()> {
        let _renewing = mark.renewing.lock().await;
        let Some(record) = self.caches.mark(&self.place, &mark.id)? else { return Ok(()) };
        let stage = record.stage();
        let owing = match stage {
            MarkStage::Cleared => record.with_stage(MarkStage::TokenOwed),
            MarkStage::Owing | MarkStage::New | MarkStage::TokenOwed => record,
        };
        let online = mark.online();
        if online.is_empty() {
            tracing::warn!("the target is away, and gives a change mark no last token: the next attach begins cold");
            return self.caches.note_mark(&self.place, &owing);
        }
        self.renew_by(&online, mark, owing, stage).await
    }

    /// Gives a mark another token. Once it has that, it is of this `stage`.
    async fn renew_by(
        &self,
        online: &[&RemoteLun],
        mark: &HeldMark,
        mut record: MarkRecord,
        stage: MarkStage,
    ) -> Result<()> {
        // A token that was on its way before is accepted until it is known to be there.
        if record.candidate().is_some() {
            record = self.give(online, mark, record.clone(), record.stage()).await?;
        }
        self.give(online, mark, record.with_candidate(draw_token()), stage).await.map(|_| ())
    }

    /// Sends the candidate of `record`, which becomes its token, and then is of this `stage`.
    async fn give(
        &self,
        online: &[&RemoteLun],
        mark: &HeldMark,
        record: MarkRecord,
        stage: MarkStage,
    ) -> Result<MarkRecord> {
        self.caches.note_mark(&self.place, &record)?;
        let token = record.newest();
        mark.member.luns.iter().for_each(|path| path.expect_token(mark.id, token));
        for lun in online {
            lun.renew_mark(mark.id, token).await?;
        }
        let settled = record.settled().with_stage(stage);
        self.caches.note_mark(&self.place, &settled)?;
        mark.member.luns.iter().for_each(|path| path.settle_token(mark.id, token));
        Ok(settled)
    }

    /// Clears what the new session of a path heard of changes by others, which concerned nothing
    /// dirty, once the store is without its copies.
    async fn clear_reported(&self, path: &RemoteLun, mark: &HeldMark, guard: &DirtyGuard) -> Result<()> {
        let reported = path.reported_changes();
        let (Some(opened), None) = (guard.opened(&self.place), guard.trouble()) else { return Ok(()) };
        if reported.is_empty() || self.is_shared {
            return Ok(());
        }
        let Some(record) = self.caches.mark(&self.place, &mark.id)? else { return Ok(()) };
        let report = report_of(path, mark.id).await?;
        let size_bytes = path.geometry().size_bytes;
        let is_reported = |range: &ByteRange| {
            let end = range.end().min(size_bytes);
            reported.iter().any(|reported| reported.offset <= range.offset && end <= reported.end())
        };
        // Others go on writing: the next attach is told of that.
        if report.ranges.is_empty() || !report.ranges.iter().all(is_reported) {
            return Ok(());
        }
        let changed: Vec<ByteRange> = report.ranges.iter().filter_map(|&range| mark.member.in_whole(range)).collect();
        // What is dirty there was written after the changes.
        opened.invalidate(&changed, true).await?;
        path.clear_mark(mark.id, record.newest(), report.sequence).await?;
        Ok(())
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
        for lun in &mark.member.luns {
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
            if let Err(error) = self.renew_last(mark).await {
                tracing::warn!(%error, "a change mark did not get its last token: the next attach begins cold");
            }
        }
    }
}

impl HeldMark {
    /// The paths to its LUN that are there.
    fn online(&self) -> Vec<&RemoteLun> {
        let is_online = |lun: &&RemoteLun| lun.status().state == State::Online;
        self.member.luns.iter().map(AsRef::as_ref).filter(is_online).collect()
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
    /// Starts to renew them at every reconnection. Where there is a `guard`, what a reconnection told
    /// and concerned nothing dirty is cleared from them then.
    pub(crate) fn start(stores: Vec<HeldMarks>, guard: Option<&Arc<DirtyGuard>>) -> Self {
        let stores: Vec<Arc<HeldMarks>> = stores.into_iter().map(Arc::new).collect();
        let mut watches = JoinSet::new();
        for store in &stores {
            for (index, mark) in store.marks.iter().enumerate() {
                for path in &mark.member.luns {
                    let (store, path, guard) = (Arc::clone(store), Arc::clone(path), guard.cloned());
                    let watching = async move { watch(&path, (&store, index), guard.as_deref()).await };
                    watches.spawn(base::background::named("marks", watching));
                }
            }
        }
        Self { stores, watches }
    }

    /// Clears the marks of stores of shared LUNs, which are about to be closed and not used any
    /// more. A target whose disk is slow answers BUSY for a while, which is waited for; a caller that
    /// has no time drops this.
    pub(crate) async fn empty_shared(&self) {
        let emptied = async {
            for store in self.stores.iter().filter(|store| store.is_shared) {
                store.empty_all().await;
            }
        };
        if tokio::time::timeout(LAST_MARKS_TIME_MAX, emptied).await.is_err() {
            tracing::warn!("the target is too slow to empty a change mark: the next attach begins cold");
        }
    }

    /// Notes that the stores are closed in order, after [`empty_shared`](Self::empty_shared): from
    /// now on the marks of shared LUNs report changes.
    pub(crate) fn note_telling(&self) {
        self.stores.iter().for_each(|store| store.note_telling());
    }

    /// Gives the marks their last token: the stores are equal to their LUNs. A target whose disk is
    /// slow answers BUSY for a while, which is waited for; a caller that has no time drops this.
    /// `are_closed` means that nothing is written in the stores any more.
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
        if tokio::time::timeout(LAST_MARKS_TIME_MAX, renewed).await.is_err() {
            tracing::warn!("the target is too slow to give a change mark its last token: the next attach begins cold");
        }
    }
}

async fn watch(path: &RemoteLun, (store, index): (&HeldMarks, usize), guard: Option<&DirtyGuard>) {
    let events = path.subscribe();
    loop {
        // Missed events may include `Back`; another token does no harm.
        if matches!(events.receive().await, Event::Back | Event::Missed) {
            let mark = &store.marks[index];
            if let Some(guard) = guard
                && let Err(error) = store.clear_reported(path, mark, guard).await
            {
                tracing::warn!(%error, "a change mark cannot be cleared: the next attach is colder");
            }
            store.renew(mark).await;
        }
    }
}
