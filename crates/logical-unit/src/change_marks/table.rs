//! The marks of a unit and their holders, as a value: without lock, store or bitmap.

use std::cmp::Reverse;

use crate::change_marks::SavedMark;
use crate::change_marks::bitmap::Bitmap;
use crate::limits::{CHANGE_MARKS_MAX, CHANGE_MARKS_OF_READERS, CHANGE_MARKS_PER_NAME, CHANGE_MARKS_PER_READER};
use crate::nexus::NexusId;

/// Added to the sequence of every mark that is restored. Only some values are made durable; the
/// values counted after the last durable one, before a crash, were far fewer than this and are not
/// used twice.
const SEQUENCE_STEP: u64 = 1 << 32;

/// The owner of the mark that stands for the content's id: no initiator's name has these characters
/// (see [`NexusId::initiator_name`]).
pub(super) const CONTENT_OWNER: &str = ",i,";

/// A mark in its slot.
pub(super) struct Entry {
    pub(super) mark: SavedMark,
    /// Bits that a CLEAR is deleting. They are still reported, and stay in the store, until it has
    /// ended. A change of such a range is recorded anew.
    pub(super) forgetting: Option<Bitmap>,
    /// Durable recordings since the mark was last empty, in this process.
    recordings: u32,
}

/// Recordings after which each covers twice as much.
const RECORDINGS_PER_STEP: u32 = 64;

impl Entry {
    fn new(mark: SavedMark) -> Self {
        Self { mark, forgetting: None, recordings: 0 }
    }

    /// Whether it stands for the content's id. Nobody holds it, and it has no bits: the first change
    /// removes it.
    pub(super) fn is_content(&self) -> bool {
        self.mark.initiator == CONTENT_OWNER
    }

    /// How much one recording covers: `1 << step` ranges.
    pub(super) fn step(&self) -> u32 {
        (self.recordings / RECORDINGS_PER_STEP).min(CHANGE_RANGES_LOG)
    }

    pub(super) fn note_recording(&mut self) {
        self.recordings = self.recordings.saturating_add(1);
        self.mark.sequence += 1;
    }

    /// Notes that the mark is empty in memory. Whether the store still has bits, or the note that
    /// everything has changed, is not certain yet.
    pub(super) fn note_emptied(&mut self) {
        self.recordings = 0;
        self.mark.sequence += 1;
    }

    pub(super) fn note_everything(&mut self) {
        self.mark.sequence += 1;
        self.mark.is_everything = true;
    }
}

const CHANGE_RANGES_LOG: u32 = crate::limits::CHANGE_RANGES_MAX.trailing_zeros();

/// A nexus that exists.
#[derive(Clone, Debug)]
struct Present {
    nexus: NexusId,
    /// Differs each time the nexus is added.
    incarnation: u64,
    /// The slots of the marks it holds.
    held: u16,
}

/// The slot that a TAKE uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Known(usize),
    New(usize),
}

/// All marks of a unit.
#[derive(Default)]
pub(super) struct Table {
    slots: [Option<Entry>; CHANGE_MARKS_MAX],
    present: Vec<Present>,
    incarnation_next: u64,
    /// The next number in the order of holding, given at each TAKE and end of holding: the smallest
    /// was held longest ago.
    order_next: u64,
    /// Counts changes of the mark in any slot.
    pub(super) generation: u16,
}

impl Table {
    /// Restores a durable mark.
    pub(super) fn restore(&mut self, slot: usize, mut mark: SavedMark) {
        mark.sequence = mark.sequence.saturating_add(SEQUENCE_STEP);
        self.order_next = self.order_next.max(mark.order.saturating_add(1));
        self.slots[slot] = Some(Entry::new(mark));
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.slots.iter().enumerate().filter_map(|(slot, entry)| Some((slot, entry.as_ref()?)))
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Entry> {
        self.slots.get(slot)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Entry> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// The slot of a mark of this initiator name.
    pub(super) fn find(&self, id: &[u8; 16], initiator: &str) -> Option<usize> {
        self.slots().find(|(_, entry)| entry.mark.id == *id && entry.mark.initiator == initiator).map(|(slot, _)| slot)
    }

    /// The slot for a mark of `initiator`: its own, a free one, or that of a mark that no nexus
    /// holds. A name that has its full share replaces one of its own; a read-only nexus replaces no
    /// mark of a writer. `None` where there is no such slot.
    pub(super) fn place(&self, id: &[u8; 16], initiator: &str, is_reader: bool) -> Option<Place> {
        if let Some(slot) = self.find(id, initiator) {
            return Some(Place::Known(slot));
        }
        let share = if is_reader { CHANGE_MARKS_PER_READER } else { CHANGE_MARKS_PER_NAME };
        if self.count_of(initiator) >= share {
            return self.evicted(|entry| entry.mark.initiator == initiator && (!is_reader || entry.mark.is_of_reader));
        }
        let readers_count = self.slots().filter(|(_, entry)| entry.mark.is_of_reader).count();
        let free = self.slots.iter().position(Option::is_none);
        match free.filter(|_| !is_reader || readers_count < CHANGE_MARKS_OF_READERS) {
            Some(free) => Some(Place::New(free)),
            None => self.evicted(|entry| !is_reader || entry.mark.is_of_reader),
        }
    }

    fn count_of(&self, initiator: &str) -> usize {
        self.slots().filter(|(_, entry)| entry.mark.initiator == initiator).count()
    }

    /// The slot of a mark that may be replaced and that no nexus holds: marks of read-only nexuses
    /// first, then those of the name with most marks, then the one that was held longest ago.
    fn evicted(&self, may_give_way: impl Fn(&Entry) -> bool) -> Option<Place> {
        let held = self.held_by_anyone();
        let may_give_way = |entry: &Entry| !entry.is_content() && may_give_way(entry);
        let candidates = self.slots().filter(|(slot, entry)| held & 1 << slot == 0 && may_give_way(entry));
        let key =
            |entry: &Entry| (!entry.mark.is_of_reader, Reverse(self.count_of(&entry.mark.initiator)), entry.mark.order);
        candidates.min_by_key(|(_, entry)| key(entry)).map(|(slot, _)| Place::New(slot))
    }

    /// The slot of the content's id.
    pub(super) fn content_slot(&self) -> Option<usize> {
        self.slots().find(|(_, entry)| entry.is_content()).map(|(slot, _)| slot)
    }

    /// The slot for the content's id: a free one, or that of a mark that no nexus holds. A read-only
    /// nexus replaces no mark of a writer. `None` where there is no such slot.
    pub(super) fn place_for_content(&self, is_reader: bool) -> Option<usize> {
        let evicted = || match self.evicted(|entry| !is_reader || entry.mark.is_of_reader)? {
            Place::Known(slot) | Place::New(slot) => Some(slot),
        };
        self.slots.iter().position(Option::is_none).or_else(evicted)
    }

    /// Puts the content's id in a slot, or removes it from there. Commands on their way stay holders
    /// of what they held: none of them held a mark in a slot that was free.
    pub(super) fn put_content(&mut self, slot: usize, mark: Option<SavedMark>) {
        if self.get(slot).is_some_and(|entry| !entry.is_content()) {
            self.put(slot, None);
        }
        self.slots[slot] = mark.map(Entry::new);
    }

    /// The next number in the order of holding.
    pub(super) fn next_order(&mut self) -> u64 {
        self.order_next += 1;
        self.order_next
    }

    /// Puts a mark, which no nexus holds, in a slot.
    pub(super) fn put(&mut self, slot: usize, mark: Option<SavedMark>) {
        self.slots[slot] = mark.map(Entry::new);
        self.generation = self.generation.wrapping_add(1);
        self.present.iter_mut().for_each(|present| present.held &= !(1 << slot));
    }

    /// Adds a nexus; one that exists comes back and holds nothing.
    pub(super) fn add(&mut self, nexus: &NexusId) {
        self.remove(nexus);
        self.incarnation_next += 1;
        self.present.push(Present { nexus: nexus.clone(), incarnation: self.incarnation_next, held: 0 });
    }

    /// Removes a nexus, which then holds nothing.
    pub(super) fn remove(&mut self, nexus: &NexusId) {
        let Some(index) = self.present.iter().position(|present| present.nexus == *nexus) else { return };
        let gone = self.present.swap_remove(index);
        let still_held = self.held_by_anyone();
        for slot in 0..CHANGE_MARKS_MAX {
            let order = self.order_next + 1;
            if gone.held & !still_held & 1 << slot != 0
                && let Some(entry) = self.get_mut(slot)
            {
                entry.mark.order = order;
                self.order_next = order;
            }
        }
    }

    fn find_present(&self, nexus: &NexusId) -> Option<&Present> {
        self.present.iter().find(|present| present.nexus == *nexus)
    }

    /// The incarnation of a nexus.
    pub(super) fn incarnation(&self, nexus: &NexusId) -> Option<u64> {
        self.find_present(nexus).map(|present| present.incarnation)
    }

    /// Notes that the nexus holds a mark, if its incarnation is still the one that asked.
    pub(super) fn hold(&mut self, nexus: &NexusId, incarnation: u64, slot: usize) {
        let asked = |present: &&mut Present| present.nexus == *nexus && present.incarnation == incarnation;
        if let Some(present) = self.present.iter_mut().find(asked) {
            present.held |= 1 << slot;
        }
    }

    /// The slots of the marks that a nexus holds.
    pub(super) fn held_by(&self, nexus: &NexusId) -> u16 {
        self.find_present(nexus).map_or(0, |present| present.held)
    }

    pub(super) fn held_by_others(&self, nexus: &NexusId) -> u16 {
        self.present.iter().filter(|present| present.nexus != *nexus).fold(0, |held, present| held | present.held)
    }

    pub(super) fn held_by_anyone(&self) -> u16 {
        self.present.iter().fold(0, |held, present| held | present.held)
    }

    pub(super) fn occupied(&self) -> u16 {
        self.slots().fold(0, |occupied, (slot, _)| occupied | 1 << slot)
    }

    /// The marks that at least one present nexus does not hold; all marks if there is no nexus.
    pub(super) fn concerned(&self) -> u16 {
        let held_by_all = self.present.iter().fold(u16::MAX, |held, present| held & present.held);
        if self.present.is_empty() { self.occupied() } else { self.occupied() & !held_by_all }
    }
}

const _: () = assert!(CHANGE_MARKS_MAX == u16::BITS as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(id: u8, initiator: &str, order: u64) -> SavedMark {
        SavedMark {
            id: [id; 16],
            token: 1,
            sequence: 0,
            initiator: initiator.into(),
            order,
            is_everything: true,
            is_of_reader: false,
        }
    }

    #[test]
    fn a_full_table_gives_up_what_was_held_longest_ago_of_the_name_with_most_and_a_names_own_above_its_share() {
        let mut table = Table::default();
        let owners = ["a", "a", "a", "a", "b", "b", "b", "c", "c", "c", "d", "d", "e", "e", "f", "g"];
        for (slot, owner) in owners.into_iter().enumerate() {
            table.restore(slot, mark(slot as u8, owner, 100 - slot as u64));
        }
        let place = |table: &Table, id: u8, initiator| table.place(&[id; 16], initiator, false);
        assert_eq!(place(&table, 3, "a"), Some(Place::Known(3)));
        assert_eq!(place(&table, 99, "h"), Some(Place::New(3)), "the oldest of who has most, not the oldest of all");
        assert_eq!(place(&table, 99, "a"), Some(Place::New(3)), "of its own, which are its share");
        let nexus = NexusId::new("a,i,0x1");
        table.add(&nexus);
        let incarnation = table.incarnation(&nexus).unwrap();
        (0..4).for_each(|slot| table.hold(&nexus, incarnation, slot));
        assert_eq!(place(&table, 99, "a"), None, "all of its share are held, and it takes no other's");
        assert_eq!(place(&table, 99, "h"), Some(Place::New(9)), "the next name with most");
        (4..CHANGE_MARKS_MAX).for_each(|slot| table.hold(&nexus, incarnation, slot));
        assert_eq!(place(&table, 99, "h"), None, "all are held");
        table.remove(&nexus);
        assert_eq!(place(&table, 99, "h"), Some(Place::New(0)), "all were held until now, in the order of slots");
    }

    #[test]
    fn who_may_only_read_has_a_small_share_and_takes_no_mark_of_who_may_write() {
        let mut table = Table::default();
        let reader = |id: u8, initiator| SavedMark { is_of_reader: true, ..mark(id, initiator, 50 + u64::from(id)) };
        table.restore(0, mark(0, "owner", 0));
        table.restore(1, reader(1, "guest"));
        table.restore(2, reader(2, "guest"));
        assert_eq!(table.place(&[9; 16], "guest", true), Some(Place::New(1)), "its own oldest, though slots are free");
        assert_eq!(table.place(&[9; 16], "another", true), Some(Place::New(3)));
        table.restore(3, reader(3, "another"));
        table.restore(4, reader(4, "another"));
        assert_eq!(table.place(&[9; 16], "third", true), Some(Place::New(1)), "readers have their share together");
        (5..CHANGE_MARKS_MAX).for_each(|slot| table.restore(slot, mark(slot as u8, "owner", 0)));
        assert_eq!(table.place(&[9; 16], "writer", false), Some(Place::New(1)), "theirs give way first");
        (1..5).for_each(|slot| table.put(slot, Some(mark(slot as u8, "owner", 0))));
        assert_eq!(table.place(&[9; 16], "guest", true), None);
    }

    #[test]
    fn a_nexus_that_came_again_does_not_hold_what_the_one_before_asked_for() {
        let mut table = Table::default();
        let nexus = NexusId::new("a");
        table.restore(0, mark(1, "a", 0));
        assert_eq!(table.concerned(), 1, "whoever comes without being told of is no holder");
        table.add(&nexus);
        let before = table.incarnation(&nexus).unwrap();
        table.add(&nexus);
        table.hold(&nexus, before, 0);
        assert_eq!((table.held_by(&nexus), table.concerned()), (0, 1));
        table.hold(&nexus, table.incarnation(&nexus).unwrap(), 0);
        assert_eq!((table.held_by(&nexus), table.concerned()), (1, 0));
        table.add(&NexusId::new("b"));
        assert_eq!((table.concerned(), table.held_by_others(&NexusId::new("b"))), (1, 1));
    }

    #[test]
    fn what_one_recording_covers_doubles_so_that_about_a_thousand_cover_any_unit() {
        let mut entry = Entry::new(mark(1, "a", 0));
        let (mut covered, mut recordings) = (0_u64, 0);
        while covered < crate::limits::CHANGE_RANGES_MAX as u64 {
            covered += 1 << entry.step();
            entry.note_recording();
            recordings += 1;
        }
        assert!(recordings < 1000, "{recordings}");
    }
}
