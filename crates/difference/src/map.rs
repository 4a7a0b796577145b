//! The map: which chunks differ from the base, and in which slots they are.
//!
//! What it keeps true:
//! - a slot holds at most one chunk;
//! - a slot that a chunk left is given to another only after the map without it is durable: until
//!   then a power loss brings back the map that names it.

use std::collections::BTreeSet;

use block::{Error, ErrorKind};
use uuid::Uuid;

use crate::format::{ENTRIES_PER_SECTOR, Entries, Layout, SECTOR_BYTES, emit_sector};

/// The place of a chunk's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Base,
    Zeroes,
    Slot(u32),
}

impl Place {
    fn entry(self) -> u32 {
        match self {
            Self::Base => 0,
            Self::Zeroes => u32::MAX,
            Self::Slot(slot) => slot + 1,
        }
    }

    fn of(entry: u32) -> Self {
        match entry {
            0 => Self::Base,
            u32::MAX => Self::Zeroes,
            number => Self::Slot(number - 1),
        }
    }
}

/// The map.
pub(crate) struct Map {
    uuid: Uuid,
    /// Sectors in memory; `None` for those with only entries of the base.
    sectors: Vec<Option<Box<Entries>>>,
    /// Sectors that differ from those on the device.
    changed: BTreeSet<usize>,
    /// One bit a slot: whether it is taken.
    taken: Vec<u64>,
    slot_count: u64,
    used_count: u64,
    /// No slot below this one is free.
    cursor: u64,
    /// Slots that chunks left since the map was last stored.
    left: Vec<u32>,
}

/// Changes of a map that have to be stored.
pub(crate) struct Changes {
    /// Sectors and their bytes.
    pub(crate) sectors: Vec<(usize, [u8; SECTOR_BYTES])>,
    /// Slots that become free once these are durable.
    left: Vec<u32>,
}

impl Map {
    /// A map in which all chunks are the base's.
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            uuid: layout.uuid,
            sectors: vec![None; layout.sector_count()],
            changed: BTreeSet::new(),
            taken: vec![0; layout.slot_count.div_ceil(64) as usize],
            slot_count: layout.slot_count,
            used_count: 0,
            cursor: 0,
            left: Vec::new(),
        }
    }

    /// Puts a sector from the device into the map.
    ///
    /// # Errors
    /// `Corrupt` when it names a slot that does not exist, or that another chunk has.
    pub(crate) fn load(&mut self, sector: usize, entries: &Entries) -> Result<(), Error> {
        for &entry in entries {
            if let Place::Slot(slot) = Place::of(entry)
                && (u64::from(slot) >= self.slot_count || !self.take(slot))
            {
                let context =
                    format!("the map of the difference is damaged: two chunks in slot {slot}, or no such slot");
                return Err(Error::new(ErrorKind::Corrupt, context));
            }
        }
        self.sectors[sector] = Some(Box::new(*entries));
        Ok(())
    }

    pub(crate) fn get(&self, chunk: u64) -> Place {
        let (sector, at) = place_in_map(chunk);
        self.sectors[sector].as_ref().map_or(Place::Base, |entries| Place::of(entries[at]))
    }

    /// Sets the place of a chunk.
    pub(crate) fn set(&mut self, chunk: u64, place: Place) {
        let (sector, at) = place_in_map(chunk);
        let entries = self.sectors[sector].get_or_insert_with(|| Box::new([0; ENTRIES_PER_SECTOR]));
        let before = std::mem::replace(&mut entries[at], place.entry());
        self.changed.insert(sector);
        if let Place::Slot(slot) = Place::of(before) {
            self.left.push(slot);
        }
    }

    /// Takes a free slot, if there is one.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let mut words = self.taken.iter().enumerate().skip((self.cursor / 64) as usize);
        let (index, word) = words.find(|(_, word)| **word != u64::MAX)?;
        let slot = Some(index as u64 * 64 + u64::from(word.trailing_ones())).filter(|&slot| slot < self.slot_count)?;
        self.cursor = slot;
        let slot = u32::try_from(slot).ok()?;
        self.take(slot);
        Some(slot)
    }

    /// Gives back a slot that was allocated and never named for a chunk.
    pub(crate) fn give_back(&mut self, slot: u32) {
        self.taken[slot as usize / 64] &= !(1 << (slot % 64));
        self.used_count -= 1;
        self.cursor = self.cursor.min(u64::from(slot));
    }

    /// Slots in use, with those that are free only after the next store.
    pub(crate) fn used_count(&self) -> u64 {
        self.used_count
    }

    /// Takes the changes that have to be stored; they count as stored from now on.
    pub(crate) fn take_changes(&mut self) -> Changes {
        let changed = std::mem::take(&mut self.changed);
        let image = |sector: usize| {
            let entries = self.sectors[sector].as_deref().expect("a sector that changed says something");
            (sector, emit_sector(self.uuid, sector, entries))
        };
        Changes { sectors: changed.into_iter().map(image).collect(), left: std::mem::take(&mut self.left) }
    }

    /// Notes that these changes are durable: the slots that chunks left are free.
    pub(crate) fn finish(&mut self, changes: Changes) {
        changes.left.into_iter().for_each(|slot| self.give_back(slot));
    }

    /// Puts changes back that may or may not be durable: they have to be stored again.
    pub(crate) fn put_back(&mut self, changes: Changes) {
        self.changed.extend(changes.sectors.into_iter().map(|(sector, _)| sector));
        self.left.extend(changes.left);
    }

    fn is_free(&self, slot: u64) -> bool {
        self.taken[slot as usize / 64] >> (slot % 64) & 1 == 0
    }

    /// Marks a slot taken. Returns whether it was free.
    fn take(&mut self, slot: u32) -> bool {
        let is_free = self.is_free(u64::from(slot));
        if is_free {
            self.taken[slot as usize / 64] |= 1 << (slot % 64);
            self.used_count += 1;
        }
        is_free
    }
}

fn place_in_map(chunk: u64) -> (usize, usize) {
    ((chunk / ENTRIES_PER_SECTOR as u64) as usize, (chunk % ENTRIES_PER_SECTOR as u64) as usize)
}
