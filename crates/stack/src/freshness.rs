//! Whether the content of a store of this host is still that of its LUN, after a time in which it
//! was not open.
//!
//! | the target | clean lines | dirty data |
//! |---|---|---|
//! | has our mark | dropped where others changed data | refused where others changed data, unless told to overwrite |
//! | has our mark, which did not get its last token | dropped | likewise |
//! | records changes and lacks our mark, which it should have | dropped | refused: others may have written there |
//! | records no changes | dropped; kept if exclusive use was promised and this host wrote nothing without it | kept |
//! | says nothing now | stay: the attach is refused (`silence`) | likewise |
//!
//! The targets of several paths to one LUN need not know of each other: each is asked, and a change
//! that any of them reports counts.
//!
//! This module asks the target, and keeps what this host remembers of it: the mark of each LUN with
//! its token, in the list of stores ([`caches`](crate::caches)). The protocol:
//! `docs/protocol/change-marks.md`.
//!
//! ```text
//! assess: remember a candidate token, TAKE, report   ->   open the store, which drops durably   ->   commit: CLEAR, and again (`clearing`)
//!                                                                          while it is used, and at its end: another token (`held_marks`)
//! ```
//! Where several hosts share the LUN, callbacks report changes while the store is used; the mark
//! reports only those between an orderly end and the next start. So it is not cleared at an attach.
//! Instead the store's content is registered (`registering`), and this host notes that the mark
//! reports nothing, until it is cleared at the end and the store is closed (`held_marks`):
//!
//! ```text
//! assess   ->   open the store, which drops durably   ->   commit: note that it is used, register what is left, report and drop again
//!                                                                      ... CLEAR, close the store, note that the mark tells
//! ```
//! A crash between two steps leaves the mark as it was, or with more changes in it: the next attach
//! gets the report again. A store without a record has no mark before it is open: a mark that is
//! made for it is noted as owned by no store until then, and removed if the attach fails.

use block::device::Device;
use block::{ByteRange, Identity};
use cache::{ConflictingChanges, Freshness};
use initiator::Mark;
use store::Tokens;
use uuid::Uuid;

use crate::caches::{Caches, LunRecord, MarkRecord, MarkStage, StoreRecord};
use crate::content::uuid_at;
use crate::error::{Error, Failure, Result};
use crate::held_marks::HeldMarks;
use crate::place::Place;
use crate::registry::Store;
use crate::remotes::{MemberLun, Remotes, place_in_whole};
use crate::status::stores::StoreFreshness;

mod clearing;
mod kept;
mod registering;
mod releasing;
pub(crate) mod report;
pub(crate) mod silence;
pub(crate) mod token;

use clearing::{Clearing, Taken};
pub(crate) use clearing::{Invalidate, clear_pauses};
pub use kept::{ChangesSince, KeptChanges};
pub(crate) use releasing::release_marks;
pub use releasing::release_refused;
use report::{everything, report_of};
use silence::{Asked, answered, ask_until_answered, is_silence, is_without_mark};
use token::draw_token;
pub use token::draw_tokens;

const NO_ORDERLY_END: &str = "it did not come to an orderly end when it was used last";

/// The user's promises about other hosts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Promise {
    /// Whether no other host writes to the LUN; `None` keeps the earlier promise.
    pub(crate) is_exclusive: Option<bool>,
    /// Whether the generation of the LUN's content was given: the cache itself detects old content
    /// then.
    pub(crate) has_generation: bool,
    /// Whether other hosts use the LUN at the same time: earlier promises are void.
    pub(crate) is_shared: bool,
    /// Whether what is dirty counts in any case. Then another copy of the store than the last one is
    /// taken, too: this host's list may be older than it.
    pub(crate) overwrites_changes: bool,
}

/// The findings about a store before it is opened.
pub(crate) struct Assessed {
    store: Store,
    place: Place,
    luns: Vec<LunRecord>,
    taken: Vec<Taken>,
    is_exclusive: bool,
    /// Several hosts use the LUNs at once.
    is_shared: bool,
    /// Whether this host had no record of it.
    is_new: bool,
    /// Whether the target should have a mark of this store: one is recorded here, or the store
    /// comes from elsewhere.
    was_marked: bool,
    /// Why its clean lines are void, where the mark reports for its dirty data alone: it was used by
    /// a client of a shared LUN, and had no orderly end, or the mark did not get its last token.
    owed: Option<&'static str>,
    /// Whether the target should have a mark, and does not: everything may have changed.
    is_mark_lost: bool,
    freshness: Freshness,
    why: String,
    /// The tokens for the store's opening.
    tokens: Tokens,
    /// Whether the user takes the store whatever copy of it it is.
    is_any_copy_taken: bool,
}

/// Finds out what other hosts changed in the LUNs since the store at `place` was closed, and holds
/// its marks from now on.
///
/// # Errors
/// `WouldLoseData` for another copy of the store than the last one; errors of this host's list;
/// `Unreachable` for a target that says nothing now, also when it is asked again for some time. One
/// that keeps no mark of ours is no error; nor is another failure, where the user takes the store
/// whatever others changed.
pub(crate) async fn assess(
    remotes: &Remotes,
    caches: &Caches,
    store: Store,
    place: &Place,
    promise: Promise,
) -> Result<Assessed> {
    if !promise.overwrites_changes {
        caches.check_is_last(place)?;
    }
    let is_other_copy = caches.last_of_other_copy(place)?.is_some();
    // One for each LUN and all attempts: what an attempt took that came to nothing is the same mark,
    // and no other.
    let new_marks: Vec<MarkRecord> = remotes.member_luns().iter().map(|_| new_mark()).collect();
    let ask = || assess_last(remotes, caches, (store, place), promise, &new_marks);
    let asked = ask_until_answered(ask).await;
    let mut assessed = answered(asked).map_err(|error| error.context(format!("the {} {place}", store.as_str())))?;
    if is_other_copy {
        assessed.take_cold("it is another copy than this host's list says, and is taken as it is");
    } else if caches.find(place)?.is_some_and(|record| record.is_cut) {
        assessed.take_cold("its file was cut, or holes made in it, while it was used last");
    }
    Ok(assessed)
}

fn new_mark() -> MarkRecord {
    MarkRecord::new(Uuid::new_v4().into_bytes(), draw_token())
}

/// As [`assess`], of the copy that this host used last. A LUN whose target has no mark of the store
/// gets its one of `new_marks`.
async fn assess_last(
    remotes: &Remotes,
    caches: &Caches,
    (store, place): (Store, &Place),
    promise: Promise,
    new_marks: &[MarkRecord],
) -> std::result::Result<Assessed, Asked> {
    let identity = remotes.identity();
    let uuid = uuid_at(place);
    let is_it = |record: &StoreRecord| record.is_of(std::slice::from_ref(&identity)) && record.is_of_store(uuid);
    let record = caches.find(place).map_err(Asked::Here)?.filter(is_it);
    let is_stale = match &record {
        Some(record) => record.is_stale,
        None => is_stale_elsewhere(caches, uuid).map_err(Asked::Here)?,
    };
    let was_exclusive = record.as_ref().is_some_and(|record| record.is_exclusive);
    let is_exclusive = !promise.is_shared && promise.is_exclusive.unwrap_or(was_exclusive);
    let mut assessed = Assessed {
        store,
        place: place.clone(),
        luns: remotes
            .member_luns()
            .iter()
            .map(|member| LunRecord::new(&member.identity, known_mark(record.as_ref(), member)))
            .collect(),
        taken: Vec::new(),
        is_exclusive,
        is_shared: promise.is_shared,
        is_new: record.is_none(),
        was_marked: false,
        owed: None,
        is_mark_lost: false,
        freshness: Freshness::Unknown,
        why: String::new(),
        tokens: draw_tokens(),
        is_any_copy_taken: promise.overwrites_changes,
    };
    let is_expected = |lun: &LunRecord| lun.mark.as_ref().is_some_and(|mark| mark.stage() != MarkStage::New);
    assessed.was_marked = record.is_none() || assessed.luns.iter().any(is_expected);
    let member_luns = remotes.member_luns();
    if member_luns.iter().flat_map(|member| &member.luns).all(|lun| lun.change_mark_support().is_some()) {
        match assessed.ask(&member_luns, new_marks, caches, record.clone()).await {
            Ok(()) => return Ok(assessed),
            Err(Asked::There(error))
                if is_without_mark(&error) || (promise.overwrites_changes && !is_silence(&error)) =>
            {
                tracing::warn!(%error, "the target does not tell what others changed");
                assessed.why = format!("the target did not tell what others changed: {error}");
                assessed.lose_mark();
                // A mark whose report was read is not cleared: its changes were not invalidated.
                assessed.taken.clear();
            }
            Err(asked) => return Err(asked),
        }
    } else {
        assessed.why = "the target cannot tell what others changed".to_owned();
    }
    // Without a record it is not known what this host wrote without the store; only its generation
    // shows that.
    let is_known = record.is_some() || promise.has_generation;
    if (is_exclusive || promise.has_generation) && is_known && !is_stale {
        let promised = if is_exclusive { "--cache-exclusive" } else { "--generation" };
        assessed.is_mark_lost = false;
        assessed.freshness = Freshness::Unchanged;
        assessed.why = format!("{}, and {promised} promises that nobody did", assessed.why);
    } else if is_exclusive {
        let but = if is_known { "used the LUN without this cache" } else { "does not know this cache" };
        assessed.why = format!("{}, and this host {but}", assessed.why);
    }
    Ok(assessed)
}

/// Whether this host used the LUN without the store with this `uuid`, which has a record at another
/// place.
fn is_stale_elsewhere(caches: &Caches, uuid: Option<Uuid>) -> Result<bool> {
    let is_it = |record: &StoreRecord| uuid.is_some() && record.uuid == uuid && record.is_stale;
    Ok(caches.stores()?.iter().any(is_it))
}

fn known_mark(record: Option<&StoreRecord>, member: &MemberLun) -> Option<MarkRecord> {
    let lun = record?.luns.iter().find(|lun| lun.is(&member.identity))?;
    lun.mark.clone()
}

/// What the targets have of the marks of a store's LUNs.
struct MarksFound {
    /// Each reports what others changed.
    is_reported: bool,
    /// One that is there reports nothing, though it should.
    is_owing: bool,
    /// Each is there, and is not of a store that had none before.
    are_all_known: bool,
    /// Each is there and reports what others changed, if perhaps with another token than its last one.
    report_all: bool,
}

impl Assessed {
    /// TAKE and report, for every LUN. A store without a record owns no mark until it is open:
    /// those taken for it are noted as owned by no store.
    async fn ask(
        &mut self,
        member_luns: &[MemberLun],
        new_marks: &[MarkRecord],
        caches: &Caches,
        record: Option<StoreRecord>,
    ) -> std::result::Result<(), Asked> {
        let remembered: Vec<Option<MarkRecord>> = self.luns.iter().map(|lun| lun.mark.clone()).collect();
        let marks = self.draw_marks(member_luns, new_marks).await.map_err(Asked::There)?;
        self.remember(caches, record.as_ref(), &remembered).map_err(Asked::Here)?;
        let mut changed = Vec::new();
        for (member, lun) in member_luns.iter().zip(&mut self.luns) {
            let Some(mark) = lun.mark.as_mut() else { continue };
            let (id, token) = (mark.id(), mark.newest());
            for path in &member.luns {
                path.take_mark(id, token).await.map_err(Asked::There)?;
            }
            *mark = mark.clone().settled();
            let (mut sequences, mut ranges) = (Vec::new(), Vec::new());
            for path in &member.luns {
                let report = report_of(path, id).await.map_err(Asked::There)?;
                ranges.extend(report.ranges);
                sequences.push(report.sequence);
            }
            changed.extend(joined(ranges).into_iter().filter_map(|range| member.in_whole(range)));
            self.taken.push(Taken { member: member.clone(), sequences, id, token });
        }
        // From now on only the new tokens are accepted: an older copy of the target's marks is
        // recognised.
        self.remember(caches, record.as_ref(), &remembered).map_err(Asked::Here)?;
        if !marks.is_reported && (marks.report_all || self.is_shared && marks.are_all_known) {
            self.owed = Some(if marks.report_all {
                "its mark did not get its last token when it was used last"
            } else {
                NO_ORDERLY_END
            });
            self.note_changes(changed);
            return Ok(());
        }
        if !marks.is_reported {
            self.why = self.why_unreported(marks.is_owing);
            self.lose_mark();
            return Ok(());
        }
        self.note_changes(changed);
        Ok(())
    }

    /// Gives each LUN the mark that it is to have: that of its target where this has one, else the new one.
    async fn draw_marks(
        &mut self,
        member_luns: &[MemberLun],
        new_marks: &[MarkRecord],
    ) -> std::result::Result<MarksFound, block::Error> {
        let mut marks = MarksFound { is_reported: true, is_owing: false, are_all_known: true, report_all: true };
        for ((member, lun), new) in member_luns.iter().zip(&mut self.luns).zip(new_marks) {
            let (found, is_known) = member.find(lun.mark.as_ref()).await?;
            let stage = match lun.mark.as_ref().map(MarkRecord::stage) {
                Some(MarkStage::Cleared | MarkStage::TokenOwed) if !is_known => MarkStage::Owing,
                Some(stage) => stage,
                None => MarkStage::New,
            };
            marks.is_reported &= stage == MarkStage::Cleared;
            marks.are_all_known &= is_known && stage != MarkStage::New;
            marks.report_all &= is_known && matches!(stage, MarkStage::Cleared | MarkStage::TokenOwed);
            marks.is_owing |= is_known && stage == MarkStage::Owing;
            let mark = match found {
                // Either token is accepted until the new one is known to be at the target.
                Some(mark) => MarkRecord::new(mark.id, mark.token).with_candidate(draw_token()),
                None => new.clone(),
            };
            lun.mark = Some(mark.with_stage(stage));
        }
        Ok(marks)
    }

    /// Why the target does not report what others changed; some mark `is_owing`.
    fn why_unreported(&self, is_owing: bool) -> String {
        match self.is_new {
            false if is_owing && self.is_shared => NO_ORDERLY_END.to_owned(),
            false if is_owing => {
                "the target has no record of the time since it was used last: an attach before this one found \
                     that, and was refused or cut short, or it was shared with other hosts and came to no orderly end"
                    .to_owned()
            }
            false => "the target kept no record of it: the logical unit's file was moved, restored, or changed while \
                     the target did not run, or the record was given up for another host's"
                .to_owned(),
            true => "this host has no record of the store: it is new, or comes from another host or from a version \
                     that kept none, or the state directory is not the one from before"
                .to_owned(),
        }
    }

    /// Notes what others changed, by the target's report: these ranges, and no others.
    fn note_changes(&mut self, changed: Vec<ByteRange>) {
        self.why = match changed.len() {
            0 => "the target says that nobody changed anything".to_owned(),
            count => format!("the target says that others changed {count} ranges"),
        };
        if let Some(owed) = self.owed {
            self.why = format!("{owed}, and {}", self.why);
        }
        self.freshness = if changed.is_empty() { Freshness::Unchanged } else { Freshness::Changed(changed) };
    }

    /// Notes that the target records changes but has no mark of this store: others may have written
    /// anywhere, also where data is dirty. No effect where the target could not record changes when
    /// the store was used last.
    fn lose_mark(&mut self) {
        if !self.was_marked {
            return;
        }
        self.is_mark_lost = true;
        self.freshness = Freshness::Changed(everything());
    }

    /// Notes that nothing clean of the store counts, whatever the target tells: it is of another
    /// time than that, or damaged.
    fn take_cold(&mut self, why: &str) {
        (self.was_marked, self.owed) = (true, None);
        why.clone_into(&mut self.why);
        self.lose_mark();
    }

    /// Notes the marks durably. A LUN whose target has none of its store may be a copy of that LUN: the
    /// record keeps the mark that was `remembered` until the store is open, which may be refused, and
    /// no store owns the new one.
    fn remember(&self, caches: &Caches, record: Option<&StoreRecord>, remembered: &[Option<MarkRecord>]) -> Result<()> {
        let is_new = |lun: &LunRecord, old: &Option<MarkRecord>| {
            lun.mark.as_ref().map(MarkRecord::id) != old.as_ref().map(MarkRecord::id)
        };
        let both = || self.luns.iter().zip(remembered);
        both().filter(|(lun, old)| is_new(lun, old)).try_for_each(|(lun, _)| caches.note_released(lun))?;
        let Some(record) = record else { return Ok(()) };
        // Only opening shows whether the store is of these LUNs alone: the marks of others stay
        // recorded.
        let mut luns = record.luns.clone();
        luns.retain(|known| !self.luns.iter().any(|lun| (&lun.unit, &lun.serial) == (&known.unit, &known.serial)));
        luns.extend(both().map(|(lun, old)| match is_new(lun, old) {
            true => LunRecord { mark: old.clone(), ..lun.clone() },
            false => lun.clone(),
        }));
        caches.note(&StoreRecord { luns, ..record.clone() })
    }

    /// Notes the tokens for the opening of the store, which no other process has open, and returns
    /// them.
    ///
    /// # Errors
    /// As [`Caches::note_opening`].
    pub(crate) fn begin_opening(&self, caches: &Caches) -> Result<Tokens> {
        caches.note_opening(&self.place, self.tokens, self.is_any_copy_taken).map(|()| self.tokens)
    }

    /// The freshness with which the store is opened.
    pub(crate) fn freshness(&self) -> Freshness {
        match self.owed {
            Some(_) => Freshness::Outdated(self.changed().to_vec()),
            None => self.freshness.clone(),
        }
    }

    /// Whether clean lines of a store of a shared LUN may stay: the target reports what was
    /// changed, and registers the rest. Until then nothing is called back.
    pub(crate) fn keeps_shared(&self) -> bool {
        let is_reported = matches!(self.freshness, Freshness::Unchanged | Freshness::Changed(_)) && !self.is_mark_lost;
        self.is_shared
            && is_reported
            && self.owed.is_none()
            && self.taken.iter().flat_map(|taken| &taken.member.luns).all(|lun| lun.registers_copies())
    }

    /// The ranges that others changed, as far as they are known.
    pub(crate) fn changed(&self) -> &[ByteRange] {
        match &self.freshness {
            Freshness::Changed(ranges) | Freshness::Outdated(ranges) => ranges,
            Freshness::Unchanged | Freshness::Unknown => &[],
        }
    }

    /// Clears the marks, after the `store` was opened and old lines were dropped durably. Lines
    /// that others change meanwhile are dropped, too. Returns the freshness for `status`, and the
    /// held marks.
    ///
    /// # Errors
    /// Errors of this host's list; a change by others, just now, where the store is dirty, unless
    /// that `is_overwritten`; `Unreachable` for a target that says nothing now: its marks are noted
    /// as before then, since nobody has written through the store.
    pub(crate) async fn commit(
        mut self,
        caches: &Caches,
        record: StoreRecord,
        (store, is_overwritten): (&dyn Invalidate, bool),
    ) -> Result<(StoreFreshness, HeldMarks)> {
        let (is_exclusive, is_new, is_shared) = (self.is_exclusive, self.is_new, self.is_shared);
        let mut keeps_any = self.owed.is_none() && !is_shared || self.keeps_shared();
        let taken = std::mem::take(&mut self.taken);
        // Its clean lines are gone, durably.
        taken.iter().for_each(|taken| self.note_stage(taken.id, MarkStage::TokenOwed, MarkStage::Cleared));
        let unused = self.luns_if_unused(store);
        // From now on the store is used, and its marks have to report changes; for a shared LUN
        // only after an orderly end.
        taken.iter().for_each(|taken| self.note_stage(taken.id, MarkStage::New, MarkStage::Owing));
        if is_shared {
            taken.iter().for_each(|taken| self.note_stage(taken.id, MarkStage::Cleared, MarkStage::Owing));
        }
        let uuid = uuid_at(&self.place);
        let tokens = vec![self.tokens.in_use, self.tokens.closed];
        let mut record = StoreRecord { store: self.store, is_stale: is_shared, is_exclusive, uuid, tokens, ..record };
        record.luns.clone_from(&self.luns);
        caches.note_opened(&record)?;
        let marks = self.luns.iter().filter_map(|lun| lun.mark.as_ref());
        marks.filter(|mark| mark.stage() != MarkStage::Cleared).try_for_each(|mark| caches.note_forgotten(mark))?;
        let mut held = HeldMarks::new(caches, &self.place, is_shared);
        let is_reported = matches!(self.freshness, Freshness::Unchanged | Freshness::Changed(_)) && !self.is_mark_lost;
        let mut clearing = Clearing { store, is_overwritten: is_overwritten || !is_reported, invalidated: Vec::new() };
        if let Err(error) = self.settle(taken, (&mut clearing, &mut held), &mut keeps_any).await {
            if is_silence(&error) {
                record.luns = unused;
                caches.note(&record)?;
            }
            return Err(self.refusal(error));
        }
        if is_reported && !clearing.invalidated.is_empty() {
            self.note_changes(joined([self.changed(), &clearing.invalidated].concat()));
        }
        if record.luns != self.luns {
            record.luns.clone_from(&self.luns);
            caches.note(&record)?;
        }
        let overwritten_bytes = self.overwritten_bytes(store);
        if is_reported && !keeps_any && self.owed.is_none() {
            self.why = format!("{}, and it does not register what a host has from before", self.why);
        }
        let what = self.store.as_str();
        let (state, ranges, bytes) = match &self.freshness {
            _ if !keeps_any => ("cold", 0, None),
            Freshness::Unchanged => ("kept", 0, Some(0)),
            Freshness::Changed(ranges) if !self.is_mark_lost => {
                ("partly", ranges.len(), Some(ranges.iter().map(|range| range.length).sum::<u64>()))
            }
            Freshness::Changed(_) | Freshness::Outdated(_) | Freshness::Unknown => ("cold", 0, None),
        };
        match state {
            "kept" => tracing::info!("what the {what} {} holds counts: {}", self.place, self.why),
            "partly" => tracing::info!("what others changed goes from the {what} {}: {}", self.place, self.why),
            _ if is_new => tracing::info!("the {what} {} begins new: {}", self.place, self.why),
            _ if self.store == Store::Log => {
                tracing::warn!("nobody can say what others did without the log {}: {}", self.place, self.why);
            }
            _ => tracing::warn!("the {what} {} begins without clean lines: {}", self.place, self.why),
        }
        let reported = StoreFreshness {
            state: state.to_owned(),
            changed_ranges: ranges,
            changed_by_others_bytes: bytes,
            overwritten_bytes,
            why: self.why,
        };
        Ok((reported, held))
    }

    /// Clears the marks, or for a shared LUN registers what the store keeps, which it does while `keeps_any`.
    ///
    /// # Errors
    /// The store's; a target that says nothing now ([`is_silence`]).
    async fn settle(
        &mut self,
        taken: Vec<Taken>,
        (clearing, held): (&mut Clearing<'_>, &mut HeldMarks),
        keeps_any: &mut bool,
    ) -> std::result::Result<(), block::Error> {
        for taken in taken {
            if self.is_shared {
                // A store that keeps no lines has nothing to register.
                *keeps_any = *keeps_any && clearing.register(&taken).await?;
                if !*keeps_any && clearing.store.has_dirty() {
                    clearing.look_again(&taken).await?;
                }
                if clearing.store.delays_writes() {
                    // Data that a crash leaves dirty is written after this, and no other host could
                    // write before the crash: later changes in the mark are no reason to refuse it.
                    clearing.clear(&taken).await?;
                }
            } else if clearing.clear(&taken).await? {
                self.note_stage(taken.id, MarkStage::Owing, MarkStage::Cleared);
            }
            held.add(taken.id, taken.member);
        }
        Ok(())
    }

    /// Its LUNs with their marks as they are noted where the attach comes to nothing before these
    /// are cleared: nobody has written through the store, and what they told goes on to count. Not
    /// where the store's dirty data was taken although others may have written, and not where
    /// the mark may be empty while others were asked for the copies of this host.
    fn luns_if_unused(&self, store: &dyn Invalidate) -> Vec<LunRecord> {
        let goes_on = |mark: &MarkRecord| match mark.stage() {
            MarkStage::New => !self.was_marked,
            MarkStage::Cleared => !self.is_shared || !store.delays_writes(),
            MarkStage::TokenOwed | MarkStage::Owing => true,
        };
        let mut luns = self.luns.clone();
        for mark in luns.iter_mut().filter_map(|lun| lun.mark.as_mut()).filter(|mark| !goes_on(mark)) {
            *mark = mark.clone().with_stage(MarkStage::Owing);
        }
        luns
    }

    /// Bytes that are dirty in `store` where others have, or may have, written: the user wants them to
    /// be written over that. Also a setting that was left from another time says so.
    fn overwritten_bytes(&self, store: &dyn Invalidate) -> Option<u64> {
        let conflict = store.check_changes(self.changed()).err()?;
        let bytes = ConflictingChanges::of(&conflict)?.bytes;
        let others = if self.is_mark_lost { "may have written since" } else { "have written since" };
        let (what, place, why) = (self.store.as_str(), &self.place, &self.why);
        tracing::warn!(
            "overwrite-changes=on: {bytes} bytes of the {what} {place} are written over what others {others} ({why})"
        );
        Some(bytes)
    }

    /// Moves a mark from stage `from` to stage `to`.
    fn note_stage(&mut self, id: [u8; 16], from: MarkStage, to: MarkStage) {
        let marks = self.luns.iter_mut().filter_map(|lun| lun.mark.as_mut());
        for mark in marks.filter(|mark| mark.id() == id && mark.stage() == from) {
            *mark = mark.clone().with_stage(to);
        }
    }

    /// The error of a store that was given changes.
    pub(crate) fn refusal(&self, error: block::Error) -> Error {
        match ConflictingChanges::of(&error) {
            Some(conflicting) => self.conflict(conflicting.bytes),
            None => Error::from(error).context(format!("the {} {}", self.store.as_str(), self.place)),
        }
    }

    /// The error for dirty data where others have, or may have, written meanwhile: one of the two
    /// is lost in any case.
    fn conflict(&self, bytes: u64) -> Error {
        let (what, place) = (self.store.as_str(), &self.place);
        let (others, advice) = match self.is_mark_lost {
            false => ("where others have written since".to_owned(), "to write over what they wrote"),
            true => {
                let others = format!("and nobody can say what others wrote since ({})", self.why);
                (others, "if nobody else wrote to it, or to write over what they may have written")
            }
        };
        let message = format!(
            "the {what} {place} holds {bytes} bytes that the logical unit does not have, {others}: give \
             `--set overwrite-changes=on` (of `log replay`: --overwrite-changes) {advice}, or give up what the {what} \
             holds with `forebay {what} discard {}`",
            place.argument(what)
        );
        Error::new(Failure::WouldLoseData, message)
    }
}

/// The union of `ranges`, without overlaps.
fn joined(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.sort_by_key(|range| range.offset);
    let mut joined: Vec<ByteRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut().filter(|last| range.offset <= last.end()) {
            Some(last) => last.length = last.end().max(range.end()) - last.offset,
            None => joined.push(range),
        }
    }
    joined
}

impl MemberLun {
    /// The mark at the target of the LUN that equals the `remembered` one, and whether every path
    /// has it: paths may lead to targets that do not know of each other, and a change is only known
    /// to the target that carried it out.
    async fn find(&self, remembered: Option<&MarkRecord>) -> std::result::Result<(Option<Mark>, bool), block::Error> {
        let Some(remembered) = remembered else { return Ok((None, false)) };
        let (mut found, mut is_known) = (None, true);
        for path in &self.luns {
            let mark = path.marks().await?.into_iter().find(|mark| remembered.is(&mark.id, mark.token));
            is_known &= mark.is_some();
            found = found.or(mark);
        }
        Ok((found, is_known))
    }

    /// A range of this LUN as a range of the whole device, which for a stripe also covers units on
    /// other LUNs.
    pub(crate) fn in_whole(&self, range: ByteRange) -> Option<ByteRange> {
        let size_bytes = self.luns.first().expect("a member has a path").geometry().size_bytes;
        let end = range.offset.saturating_add(range.length).min(size_bytes);
        let length = end.checked_sub(range.offset).filter(|&length| length > 0)?;
        place_in_whole(self.stripe, ByteRange { offset: range.offset, length })
    }
}

/// Notes that a LUN is about to be changed without the stores at other places than `but`: their
/// clean lines are void, unless the target reports what changed. Durable before this returns, so
/// before the first write.
///
/// # Errors
/// Errors of this host's list.
pub fn note_writable_opening(caches: &Caches, identities: &[Identity], but: &[&Place]) -> Result<()> {
    caches.note_stale(identities, but)
}

#[cfg(test)]
mod steps;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Paths;

    fn identity(serial: &str) -> Identity {
        Identity { target: "t".into(), unit: "u".into(), serial: serial.into() }
    }

    #[test]
    fn what_two_targets_tell_is_joined() {
        let range = |offset, length| ByteRange { offset, length };
        assert_eq!(joined(vec![range(8, 4), range(0, 4), range(2, 2), range(4, 2)]), [range(0, 6), range(8, 4)]);
        assert_eq!(joined(vec![range(0, u64::MAX), range(4, 4)]), everything());
    }

    #[test]
    fn whoever_writes_makes_other_caches_of_the_lun_stale_and_those_alone() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path().join("run"), directory.path().join("state")).unwrap();
        let caches = Caches::open(&paths).unwrap();
        let place = |name: &str| Place { path: name.into(), offset: None };
        for (name, serial) in [("/a", "one"), ("/b", "one"), ("/c", "two")] {
            caches.note(&StoreRecord::new(&place(name), 4096, &identity(serial), "disk")).unwrap();
        }
        // The name of a stripe differs, and the LUN is one of its members.
        let mut stripe = StoreRecord::new(&place("/d"), 4096, &identity("stripe"), "disk");
        stripe.luns = vec![LunRecord::new(&identity("one"), None), LunRecord::new(&identity("three"), None)];
        caches.note(&stripe).unwrap();
        note_writable_opening(&caches, &[identity("one")], &[&place("/a")]).unwrap();
        let stale: Vec<bool> = caches.list().unwrap().iter().map(|record| record.is_stale).collect();
        assert_eq!(stale, [false, true, false, true]);
    }
}
