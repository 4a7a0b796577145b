//! Change marks: the ranges that other hosts have changed since the holder of a mark last used the
//! unit (`docs/protocol/change-marks.md`).
//!
//! Every command that changes the medium calls [`LogicalUnit::record_change`] for exactly its
//! range, **while it holds that range exclusively**, and executes when the record is durable. CLEAR
//! holds the whole unit exclusively for a moment, in which no command is between its recording and
//! its execution, and sets apart what is recorded by then. After that commands go on, and record
//! anew what they change. What was set apart is deleted when a flush of the unit that was sent
//! after that moment has ended. So everything deleted comes before all that is read afterwards.
//!
//! The *content id* names what is on the unit for all hosts alike: a mark that nobody holds and that
//! the first change removes. It is made as CLEAR empties a mark: while no command is between its
//! recording and its execution, and with everything before it on the medium.
//!
//! The cost for a command, the cheapest case first:
//!
//! | | costs |
//! |---|---|
//! | there is no mark, or every nexus holds all of them | one load |
//! | the range is recorded already | a test of bits |
//! | it is not | one durable write, shared with all that wait for one |
//!
//! The cost of marks for other hosts is limited ([`costs`]): TAKE and CLEAR end with BUSY beyond
//! the limit.
//!
//! For a command the marks count that its nexus held at arrival ([`Held`]): what a nexus sent while
//! it held a mark is the holder's own change, even if the nexus is gone when it executes.

mod bitmap;
mod costs;
mod store;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use base::clock::Clock;
use block::ByteRange;
use block::range_lock::RangeLock;
use scsi::Sense;
use scsi::change_mark::{Changes, ContentId, Mark, Parameters, Support, is_content_id};

use crate::failure::Failure;
use crate::limits::{CHANGE_MARKS_MAX, CHANGE_RANGES_MAX, MARK_PART_WORDS, MARK_PARTS};
use crate::nexus::NexusId;
pub use bitmap::PartWords;
use bitmap::{Bitmap, Span};
use costs::{Account, Costs, OpenCost, Purpose};
pub use store::{ChangeStore, MarkUpdate, MemoryChanges, SavedMark, SavedMarks, Saving};
use table::{CONTENT_OWNER, Entry, Place, Table};

/// The range of the turn locks: one range stands for all.
pub(crate) const TURN: ByteRange = ByteRange { offset: 0, length: 1 };

/// Bytes of a range in a unit of `size_bytes`: at least 1 MiB, and large enough that all ranges fit
/// in a mark.
pub fn range_bytes_for(size_bytes: u64) -> u32 {
    let fitting = size_bytes.div_ceil(CHANGE_RANGES_MAX as u64).max(1).next_power_of_two();
    // Beyond two pebibytes the last range stands for the rest.
    fitting.clamp(u64::from(scsi::change_mark::RANGE_BYTES_MIN), 1 << 31) as u32
}

/// The marks that a nexus held when its command arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    slots: u16,
    generation: u16,
}

/// The summary of all marks that commands need, packed in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Standing {
    /// Slots with a mark.
    occupied: u16,
    /// Slots whose mark at least one present nexus does not hold.
    concerned: u16,
    /// Slots whose mark at least one nexus holds.
    held: u16,
    /// Counts changes of the mark in any slot.
    generation: u16,
}

impl Standing {
    fn pack(self) -> u64 {
        u64::from(self.occupied)
            | u64::from(self.concerned) << 16
            | u64::from(self.held) << 32
            | u64::from(self.generation) << 48
    }

    fn unpack(word: u64) -> Self {
        let [occupied, concerned, held, generation] = [0, 16, 32, 48].map(|shift| (word >> shift) as u16);
        Self { occupied, concerned, held, generation }
    }
}

/// A recording that waits to be saved; it is withdrawn when its command ends. Left behind, it would
/// be recorded in a later mark that it does not concern.
struct Waiting<'a> {
    marks: &'a ChangeMarks,
    number: u64,
}

impl<'a> Waiting<'a> {
    fn new(marks: &'a ChangeMarks, changes: Vec<(u16, Span)>) -> Self {
        let number = marks.waiting_next.fetch_add(1, Ordering::Relaxed);
        marks.waiting().insert(number, changes);
        Self { marks, number }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.marks.waiting().remove(&self.number);
    }
}

/// The marks of one logical unit.
///
/// Locks, taken in this order: `clearing`, `saving`, `table`, `waiting`.
pub(crate) struct ChangeMarks {
    store: Arc<dyn ChangeStore>,
    range_bytes: u32,
    /// A [`Standing`]; changes only under `table`.
    standing: AtomicU64,
    /// The bits change only under `table`. A bit that is set here is also set in the store: it is
    /// set here after it is durable, and cleared here before the store is asked to clear it. Bits
    /// that a CLEAR has set apart are still set in the store ([`Entry::forgetting`](table::Entry)).
    bitmaps: [OnceLock<Bitmap>; CHANGE_MARKS_MAX],
    table: Mutex<Table>,
    /// The turn of CLEARs, in the order in which they arrived.
    pub(crate) clearing: RangeLock,
    /// The turn of saves, one at a time, in the order in which they were requested.
    saving: RangeLock,
    /// Recordings that wait, by arrival: each save takes all of them.
    waiting: Mutex<BTreeMap<u64, Vec<(u16, Span)>>>,
    waiting_next: AtomicU64,
    costs: Costs,
}

impl ChangeMarks {
    /// Restores the saved marks of a unit whose ranges have `range_bytes`. With a clock, their cost
    /// for others is limited.
    pub(crate) fn restored(
        store: Arc<dyn ChangeStore>,
        saved: &SavedMarks,
        range_bytes: u32,
        clock: Option<Arc<dyn Clock>>,
    ) -> Self {
        let marks = Self {
            store,
            range_bytes,
            standing: AtomicU64::new(0),
            bitmaps: [const { OnceLock::new() }; CHANGE_MARKS_MAX],
            table: Mutex::default(),
            clearing: RangeLock::new(),
            saving: RangeLock::new(),
            waiting: Mutex::default(),
            waiting_next: AtomicU64::new(0),
            costs: Costs::new(clock),
        };
        let mut table = marks.table();
        for (slot, mark, words) in &saved.marks {
            let slot = usize::from(*slot);
            if slot < CHANGE_MARKS_MAX && !is_void_content(mark, words) {
                marks.bitmap(slot).load(if mark.is_everything { &[] } else { words });
                table.restore(slot, mark.clone());
            }
        }
        marks.note_standing(&table);
        drop(table);
        marks
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<(u16, Span)>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bitmap(&self, slot: usize) -> &Bitmap {
        self.bitmaps[slot].get_or_init(Bitmap::new)
    }

    /// A part of a mark's bits as the store must have it: with those of `spans`, and those that a
    /// CLEAR has set apart.
    fn part_in_store(&self, (slot, entry): (usize, &Entry), part: usize, spans: &[Span]) -> Box<PartWords> {
        let mut words = self.bitmap(slot).part_with(part, spans);
        if let Some(forgetting) = &entry.forgetting {
            words.iter_mut().zip(*forgetting.part_with(part, &[])).for_each(|(word, bits)| *word |= bits);
        }
        words
    }

    fn note_standing(&self, table: &Table) {
        let standing = Standing {
            occupied: table.occupied(),
            concerned: table.concerned(),
            held: table.held_by_anyone(),
            generation: table.generation,
        };
        self.standing.store(standing.pack(), Ordering::Release);
    }

    fn standing(&self) -> Standing {
        Standing::unpack(self.standing.load(Ordering::Acquire))
    }

    /// Adds a nexus; one that exists comes back and holds nothing.
    pub(crate) fn add_nexus(&self, nexus: &NexusId) {
        let mut table = self.table();
        table.add(nexus);
        self.note_standing(&table);
    }

    /// Removes a nexus and what it held.
    pub(crate) fn remove_nexus(&self, nexus: &NexusId) {
        let mut table = self.table();
        table.remove(nexus);
        self.note_standing(&table);
    }

    /// The marks that a present nexus holds.
    pub(crate) fn held_by(&self, nexus: &NexusId) -> Held {
        let standing = self.standing();
        let slots = if standing.concerned == 0 {
            standing.occupied
        } else if standing.concerned & standing.held == 0 {
            // Marks that some nexus does not hold are held by none: no table lookup is needed.
            standing.occupied & !standing.concerned
        } else {
            self.table().held_by(nexus)
        };
        Held { slots, generation: standing.generation }
    }

    pub(crate) fn held_still_by(&self, nexus: &NexusId) -> Held {
        let table = self.table();
        Held { slots: table.held_by(nexus), generation: table.generation }
    }

    /// The slots of the marks in which a change must be recorded.
    fn needed(&self, held: Held) -> u16 {
        let standing = self.standing();
        // A slot that has another mark by now is not held by the nexus that held the former one.
        if held.generation == standing.generation { standing.occupied & !held.slots } else { standing.occupied }
    }

    fn span(&self, range: ByteRange) -> Span {
        let bytes = u64::from(self.range_bytes);
        let last = (range.offset + range.length - 1) / bytes;
        let clamp = |index: u64| index.min(CHANGE_RANGES_MAX as u64 - 1) as usize;
        Span { first: clamp(range.offset / bytes), end: clamp(last) + 1 }
    }

    fn is_recorded_in(&self, slots: u16, span: Span) -> bool {
        slots == 0 || each(slots).all(|slot| self.bitmap(slot).has(span))
    }

    /// Whether this range needs no recording before it is changed. The caller holds the range
    /// exclusively.
    pub(crate) fn is_recorded(&self, held: Held, range: ByteRange) -> bool {
        let needed = self.needed(held);
        needed == 0 || range.is_empty() || self.is_recorded_in(needed, self.span(range))
    }

    /// Records durably that these ranges change, together with all recordings that wait.
    pub(crate) async fn record(&self, held: Held, ranges: &[ByteRange]) -> Result<(), String> {
        let needed = self.needed(held);
        let spans: Vec<Span> = ranges.iter().filter(|range| !range.is_empty()).map(|&range| self.span(range)).collect();
        let is_there = || spans.iter().all(|&span| self.is_recorded_in(needed, span));
        if is_there() {
            return Ok(());
        }
        let own: Vec<(u16, Span)> = spans.iter().map(|&span| (needed, span)).collect();
        let _waiting = Waiting::new(self, own.clone());
        let _saving = self.saving.exclusive(TURN).await;
        // The save before this one may have included it.
        if is_there() {
            return Ok(());
        }
        let mut taken: Vec<(u16, Span)> = self.waiting().values().flatten().copied().collect();
        taken.extend(own);
        self.save_changes(&taken).await
    }

    /// Makes bits durable, then sets them in memory. If the store has no room for them, the mark is
    /// saved as "everything has changed", which takes no room. The caller holds `saving`.
    async fn save_changes(&self, changes: &[(u16, Span)]) -> Result<(), String> {
        self.void_content(changes).await?;
        let mut updates = Vec::new();
        let mut covered: Vec<(usize, Vec<Span>)> = Vec::new();
        let mut accounts = BTreeSet::new();
        for (slot, entry) in self.table().slots() {
            let of_slot = changes.iter().filter(|(slots, _)| slots & 1 << slot != 0);
            let spans: Vec<Span> = of_slot.map(|(_, span)| span.in_groups(entry.step())).collect();
            let spans: Vec<Span> = spans.into_iter().filter(|&span| !self.bitmap(slot).has(span)).collect();
            let parts: BTreeSet<usize> = spans.iter().flat_map(|span| span.parts()).collect();
            let part = |part: usize| MarkUpdate::Part {
                slot: slot as u16,
                id: entry.mark.id,
                part: part as u16,
                words: self.part_in_store((slot, entry), part, &spans),
            };
            updates.extend(parts.into_iter().map(part));
            if !spans.is_empty() {
                accounts.insert(Account::of(Purpose::Clear, &entry.mark));
                covered.push((slot, spans));
            }
        }
        if updates.is_empty() {
            return Ok(());
        }
        let _cost = self.costs.open(accounts);
        if let Err(error) = self.store.save(updates).await {
            for (slot, _) in covered {
                self.save_everything(slot, &error).await?;
            }
            return Ok(());
        }
        let mut table = self.table();
        for (slot, spans) in covered {
            spans.iter().for_each(|&span| self.bitmap(slot).set(span));
            if let Some(entry) = table.get_mut(slot) {
                entry.note_recording();
            }
        }
        Ok(())
    }

    /// Removes the content's id, if one of these changes is of what it names. The caller holds
    /// `saving`.
    async fn void_content(&self, changes: &[(u16, Span)]) -> Result<(), String> {
        let named = self.table().content_slot();
        let Some(slot) = named.filter(|slot| changes.iter().any(|(slots, _)| slots & 1 << slot != 0)) else {
            return Ok(());
        };
        let _cost = self.costs.open(BTreeSet::from([Account::of_content()]));
        self.store.save(vec![MarkUpdate::Mark { slot: slot as u16, mark: None }]).await?;
        let mut table = self.table();
        table.put_content(slot, None);
        self.note_standing(&table);
        Ok(())
    }

    /// Saves that every range has changed, for a mark whose bits cannot be saved. The caller holds
    /// `saving`; `why` is the error that the bits ended with.
    async fn save_everything(&self, slot: usize, why: &str) -> Result<(), String> {
        let Some(mark) = self.table().get(slot).map(|entry| entry.mark.clone()) else { return Ok(()) };
        let everything = SavedMark { sequence: mark.sequence + 1, is_everything: true, ..mark };
        let update = MarkUpdate::Mark { slot: slot as u16, mark: Some(everything) };
        self.store.save(vec![update]).await?;
        tracing::warn!(why, "a change mark cannot be kept, and says that everything has changed");
        let mut table = self.table();
        self.bitmap(slot).fill(true);
        if let Some(entry) = table.get_mut(slot) {
            entry.note_everything();
        }
        Ok(())
    }

    /// The contents of VPD page C0h.
    pub(crate) fn support(&self) -> Support {
        Support { marks_max: CHANGE_MARKS_MAX as u16, range_bytes: self.range_bytes }
    }

    /// REPORT MARKS: the marks of this nexus's initiator.
    pub(crate) fn report_marks(&self, nexus: &NexusId) -> Vec<Mark> {
        let table = self.table();
        let (here, elsewhere) = (table.held_by(nexus), table.held_by_others(nexus));
        let own = table.slots().filter(|(_, entry)| entry.mark.initiator == nexus.initiator_name());
        own.map(|(slot, entry)| Mark {
            id: entry.mark.id,
            token: entry.mark.token,
            sequence: entry.mark.sequence,
            slot: slot as u16,
            is_held_here: here & 1 << slot != 0,
            is_held_elsewhere: elsewhere & 1 << slot != 0,
        })
        .collect()
    }

    /// REPORT CHANGES of a mark of this nexus's initiator, in a unit of `size_bytes`.
    pub(crate) fn report_changes(
        &self,
        nexus: &NexusId,
        slot: u16,
        first: u32,
        (size_bytes, runs_max): (u64, usize),
    ) -> Option<Changes> {
        let table = self.table();
        let entry = table.get(usize::from(slot)).filter(|entry| entry.mark.initiator == nexus.initiator_name())?;
        let range_count = size_bytes.div_ceil(u64::from(self.range_bytes));
        let bits = self.bitmap(usize::from(slot));
        let with_forgetting = entry.forgetting.as_ref().map(|forgetting| bits.with(forgetting));
        let bits = with_forgetting.as_ref().unwrap_or(bits);
        let (runs, has_more) = bits.runs(u64::from(first), range_count, runs_max);
        let SavedMark { id, token, sequence, .. } = entry.mark;
        Some(Changes { id, token, sequence, range_count, has_more, runs })
    }

    /// REPORT CONTENT: the id of what the unit has now; `None` where it has none, or has lost it.
    pub(crate) fn content(&self) -> Option<ContentId> {
        let table = self.table();
        table.content_slot().and_then(|slot| table.get(slot)).map(|entry| entry.mark.id)
    }

    /// Whether NAME CONTENT may begin. Its cost counts from now on.
    pub(crate) fn open_naming(&self) -> Result<OpenCost<'_>, Failure> {
        let account = Account::of_content();
        self.costs.check(&account)?;
        Ok(self.costs.open(BTreeSet::from([account])))
    }

    /// NAME CONTENT, of a unit whose content has no id. The caller holds the whole unit exclusively, and
    /// everything before is on the medium.
    pub(crate) async fn name_content(&self, id: ContentId, is_reader: bool) -> Result<(), Failure> {
        let _saving = self.saving.exclusive(TURN).await;
        let slot = self.table().place_for_content(is_reader).ok_or(Sense::INSUFFICIENT_RESOURCES)?;
        let zeroes = || Box::new([0; MARK_PART_WORDS]);
        let part = |part: u16| MarkUpdate::Part { slot: slot as u16, id, part, words: zeroes() };
        let mark = SavedMark {
            id,
            token: 0,
            sequence: 0,
            initiator: CONTENT_OWNER.to_owned(),
            order: 0,
            is_everything: false,
            is_of_reader: false,
        };
        let parts = (0..MARK_PARTS as u16).map(part).collect();
        self.save_cleared(slot, parts, mark.clone()).await.map_err(|error| cannot_save(&error))?;
        let mut table = self.table();
        self.bitmap(slot).fill(false);
        table.put_content(slot, Some(mark));
        self.note_standing(&table);
        Ok(())
    }

    /// TAKE, by a nexus that may write the unit, or that may only read it.
    pub(crate) async fn take(&self, nexus: &NexusId, parameters: &Parameters, is_reader: bool) -> Result<(), Failure> {
        let initiator = nexus.initiator_name();
        let account = Account::new(Purpose::Take, initiator, is_reader);
        // Checked before the turn, so that no nexus waits there behind many; and after it, with the
        // cost of those before.
        self.costs.check(&account)?;
        let _saving = self.saving.exclusive(TURN).await;
        self.costs.check(&account)?;
        let _cost = self.costs.open(BTreeSet::from([account]));
        let (place, mark, incarnation) = {
            let mut table = self.table();
            let place = table.place(&parameters.id, initiator, is_reader).ok_or(Sense::INSUFFICIENT_RESOURCES)?;
            let order = table.next_order();
            let mark = match place {
                Place::Known(slot) => {
                    let known = table.get(slot).map(|entry| entry.mark.clone());
                    known.map(|known| SavedMark {
                        token: parameters.token,
                        order,
                        is_of_reader: is_reader && known.is_of_reader,
                        ..known
                    })
                }
                Place::New(_) => None,
            };
            let new = || SavedMark {
                id: parameters.id,
                token: parameters.token,
                sequence: 0,
                initiator: initiator.to_owned(),
                order,
                is_everything: true,
                is_of_reader: is_reader,
            };
            (place, mark.unwrap_or_else(new), table.incarnation(nexus))
        };
        let (Place::Known(slot) | Place::New(slot)) = place;
        let update = MarkUpdate::Mark { slot: slot as u16, mark: Some(mark.clone()) };
        self.store.save(vec![update]).await.map_err(|error| cannot_save(&error))?;
        let mut table = self.table();
        match place {
            Place::Known(slot) => {
                if let Some(entry) = table.get_mut(slot) {
                    entry.mark = mark;
                }
            }
            Place::New(slot) => {
                self.bitmap(slot).fill(true);
                table.put(slot, Some(mark));
            }
        }
        if let Some(incarnation) = incarnation {
            table.hold(nexus, incarnation, slot);
        }
        self.note_standing(&table);
        Ok(())
    }

    /// The mark that a CLEAR names, and its slot.
    fn clearable(&self, table: &Table, nexus: &NexusId, parameters: &Parameters) -> Result<(usize, SavedMark), Sense> {
        let slot = self.held_slot(table, nexus, &parameters.id)?.ok_or(Sense::COMMAND_SEQUENCE_ERROR)?;
        let mark = table.get(slot).map(|entry| entry.mark.clone()).ok_or(Sense::COMMAND_SEQUENCE_ERROR)?;
        Ok((slot, mark))
    }

    /// Whether a CLEAR names the present content of a mark.
    fn check_clear(&self, nexus: &NexusId, parameters: &Parameters) -> Result<(), Sense> {
        let (_, mark) = self.clearable(&self.table(), nexus, parameters)?;
        let is_as_told = mark.sequence == parameters.sequence;
        if is_as_told { Ok(()) } else { Err(Sense::INVALID_FIELD_IN_PARAMETER_LIST.at_parameter(24)) }
    }

    /// Whether a CLEAR may begin, checked without disturbing others. Its cost counts from now on.
    pub(crate) fn open_clear(&self, nexus: &NexusId, parameters: &Parameters) -> Result<OpenCost<'_>, Failure> {
        self.check_clear(nexus, parameters)?;
        let (_, mark) = self.clearable(&self.table(), nexus, parameters)?;
        let account = Account::of(Purpose::Clear, &mark);
        self.costs.check(&account)?;
        Ok(self.costs.open(BTreeSet::from([account])))
    }

    /// The first half of CLEAR: sets the recorded bits apart. The caller holds the whole unit
    /// exclusively.
    pub(crate) fn begin_clear(&self, nexus: &NexusId, parameters: &Parameters) -> Result<(), Sense> {
        self.check_clear(nexus, parameters)?;
        let mut table = self.table();
        let (slot, _) = self.clearable(&table, nexus, parameters)?;
        if let Some(entry) = table.get_mut(slot) {
            // An earlier CLEAR that failed may have left bits there.
            entry.forgetting.get_or_insert_with(Bitmap::new).take_over(self.bitmap(slot));
        }
        Ok(())
    }

    /// The second half: deletes what was set apart. All changes executed before are on the medium.
    pub(crate) async fn finish_clear(
        &self,
        nexus: &NexusId,
        parameters: &Parameters,
        size_bytes: u64,
    ) -> Result<(), Failure> {
        let _saving = self.saving.exclusive(TURN).await;
        let (slot, mark) = self.clearable(&self.table(), nexus, parameters)?;
        let range_count = size_bytes.div_ceil(u64::from(self.range_bytes)).clamp(1, CHANGE_RANGES_MAX as u64);
        let parts = Span { first: 0, end: range_count as usize }.parts();
        let part = |part: usize| MarkUpdate::Part {
            slot: slot as u16,
            id: mark.id,
            part: part as u16,
            words: self.bitmap(slot).part_with(part, &[]),
        };
        let updates = parts.map(part).collect();
        // Memory before the store: if this fails halfway, later changes are recorded anew, whatever
        // the store kept.
        {
            let mut table = self.table();
            if let Some(entry) = table.get_mut(slot) {
                entry.forgetting = None;
                entry.note_emptied();
            }
        }
        let cleared = SavedMark { sequence: mark.sequence + 1, is_everything: false, ..mark };
        if let Err(error) = self.save_cleared(slot, updates, cleared).await {
            // If this fails as well, every later change is recorded anew.
            let _ = self.save_everything(slot, &error).await;
            return Err(cannot_save(&error));
        }
        if let Some(entry) = self.table().get_mut(slot) {
            entry.mark.is_everything = false;
        }
        Ok(())
    }

    /// Parts are saved first: a mark that is not "everything" then has no part older than itself.
    async fn save_cleared(&self, slot: usize, parts: Vec<MarkUpdate>, mark: SavedMark) -> Result<(), String> {
        self.store.save(parts).await?;
        self.store.save(vec![MarkUpdate::Mark { slot: slot as u16, mark: Some(mark) }]).await
    }

    /// FORGET; nothing for a mark that does not exist.
    pub(crate) async fn forget(&self, nexus: &NexusId, parameters: &Parameters) -> Result<(), Failure> {
        let _saving = self.saving.exclusive(TURN).await;
        let Some(slot) = self.held_slot(&self.table(), nexus, &parameters.id)? else { return Ok(()) };
        let account = self.table().get(slot).map(|entry| Account::of(Purpose::Take, &entry.mark));
        let _cost = self.costs.open(account.into_iter().collect());
        let update = MarkUpdate::Mark { slot: slot as u16, mark: None };
        self.store.save(vec![update]).await.map_err(|error| cannot_save(&error))?;
        let mut table = self.table();
        table.put(slot, None);
        self.note_standing(&table);
        Ok(())
    }

    /// The slot of a mark, which this nexus must hold; `None` where it does not exist.
    fn held_slot(&self, table: &Table, nexus: &NexusId, id: &[u8; 16]) -> Result<Option<usize>, Sense> {
        let Some(slot) = table.find(id, nexus.initiator_name()) else { return Ok(None) };
        if table.held_by(nexus) & 1 << slot == 0 { Err(Sense::COMMAND_SEQUENCE_ERROR) } else { Ok(Some(slot)) }
    }
}

/// Whether it is the mark of a content id that counts no longer: a program that knows no such ids has
/// recorded changes in it, a part of it is damaged, or an initiator gave the id.
fn is_void_content(mark: &SavedMark, words: &[u64]) -> bool {
    let is_whole = words.len() >= CHANGE_RANGES_MAX / 64;
    let is_changed = mark.is_everything || !is_whole || words.iter().any(|&word| word != 0);
    mark.initiator == CONTENT_OWNER && (is_changed || !is_content_id(&mark.id))
}

/// The slots in a mask; takes one step for each set bit, since every write needs it.
fn each(mut slots: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let slot = slots.checked_ilog2()? as usize;
        slots &= !(1 << slot);
        Some(slot)
    })
}

pub(crate) fn cannot_save(error: &str) -> Failure {
    tracing::error!(error, "change marks cannot be saved");
    Sense::WRITE_ERROR.into()
}

#[cfg(test)]
mod tests;
