//! Slots of RAM or NVRAM, where writes are acknowledged before they are in the log.
//!
//! ```text
//!   free ──write──► live ──level 1──► moving ──record durable──► free
//!    ▲               │ every sector of it was written again (absorbed)
//!    └───────────────┘
//! ```
//! - A write goes to free slots, never over a slot in use: data and header first, durably, then
//!   slots that it supersedes are cleared. So at every moment of a power loss the newest
//!   acknowledged data of each sector is in the slot with the largest sequence.
//! - Data in a slot is newer than anything in the log for the same sectors. Slots leave in the
//!   order of their sequences, and an older slot is cleared before a newer one leaves, so this
//!   stays true.
//! - Where destaging keeps the order, slots of a round that began are moved even when their sectors are written again
//!   meanwhile: at the end of the round the log holds exactly what was acknowledged when it began.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::checksum::Crc32c;
use base::clock::Instant;
use block::{Error, ErrorKind};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use crate::format::{NVRAM_MAGIC, NvramRaw, SlotRaw};
use crate::limits::{SLOTS_TORN_MAX, UNIT_BYTES};
use crate::numbers::{Sector, SlotNumber};
use crate::nvram::PersistentRegion;
use crate::place::{Place, SLOT_UNITS_MAX};
use crate::tag::Tag;
use crate::unit::SlotUnit;

const HEADER_BYTES: usize = size_of::<NvramRaw>();
const SLOT_HEADER_BYTES: usize = size_of::<SlotRaw>();
const PAGE_BYTES: usize = 4096;

/// The tag of an extent whose segment is not known yet.
pub(crate) fn stage_tag() -> Tag {
    Tag::dirty(0)
}

/// The order in which slots were written; unrelated to sequences of records. 0 in a free slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SlotSequence(u64);

impl SlotSequence {
    fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A slot in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) sector: Sector,
    pub(crate) sectors: u32,
    sequence: SlotSequence,
    /// Sectors that were not written again since.
    live_sectors: u32,
    is_moving: bool,
    written_at: Instant,
}

impl Slot {
    const FREE: Self = Self {
        sector: Sector::FIRST,
        sectors: 0,
        sequence: SlotSequence(0),
        live_sectors: 0,
        is_moving: false,
        written_at: Instant::START,
    };
}

/// The slots of one region, and the state of each.
pub(crate) struct Stage {
    region: Arc<dyn PersistentRegion>,
    slot_bytes: usize,
    data_offset: usize,
    slots: Vec<Slot>,
    free: Vec<SlotNumber>,
    by_sequence: BTreeMap<SlotSequence, SlotNumber>,
    sequence_next: SlotSequence,
    /// Slots up to this sequence belong to the round under way.
    cut: Option<SlotSequence>,
    keeps_order: bool,
}

impl Stage {
    /// Opens the slots in `region`, with their contents, oldest first, if it is this log's; makes
    /// empty ones if it has no valid header.
    pub(crate) fn open(
        region: Arc<dyn PersistentRegion>,
        log_id: Uuid,
        slot_bytes: u64,
        keeps_order: bool,
        must_be_ours: bool,
        now: Instant,
    ) -> Result<Self, Error> {
        let slot_bytes = slot_bytes as usize;
        let header = header_of(region.as_ref(), log_id, slot_bytes)?;
        let slot_count = header.slot_count.get() as usize;
        let mut stage = Self {
            data_offset: data_offset(slot_count),
            region,
            slot_bytes,
            slots: vec![Slot::FREE; slot_count],
            free: (0..slot_count as u32).rev().map(SlotNumber).collect(),
            by_sequence: BTreeMap::new(),
            sequence_next: SlotSequence(1),
            cut: None,
            keeps_order,
        };
        if is_ours(stage.region.as_ref(), &header, must_be_ours)? {
            let torn_count = stage.restore(now);
            if torn_count > SLOTS_TORN_MAX {
                let context = format!(
                    "{torn_count} slots of the NVRAM are damaged, and a power loss damages {SLOTS_TORN_MAX} at most: \
                     what was acknowledged from them is lost. `forebay log check` names it"
                );
                return Err(Error::new(ErrorKind::Corrupt, context));
            }
            return Ok(stage);
        }
        let headers = vec![0; slot_count * SLOT_HEADER_BYTES];
        stage.region.store(HEADER_BYTES, &headers);
        stage.region.persist(HEADER_BYTES, headers.len());
        stage.region.store(0, header.as_bytes());
        stage.region.persist(0, HEADER_BYTES);
        Ok(stage)
    }

    /// Restores the contents of whole slots. Returns the count of slots that are neither whole nor
    /// free.
    fn restore(&mut self, now: Instant) -> u64 {
        let mut torn = Vec::new();
        for slot in (0..self.slots.len() as u32).map(SlotNumber) {
            let found = look_at(self.region.as_ref(), slot, self.slot_bytes, self.data_offset);
            if matches!(found, SlotFound::Torn(_)) {
                torn.push(slot);
            }
            let SlotFound::Whole(raw) = found else { continue };
            let sectors = raw.sectors.get();
            let sequence = SlotSequence(raw.sequence.get());
            self.slots[slot.index()] = Slot {
                sector: raw.sector.into(),
                sectors,
                sequence,
                live_sectors: sectors,
                is_moving: false,
                written_at: now,
            };
            self.by_sequence.insert(sequence, slot);
            self.sequence_next = self.sequence_next.max(sequence.next());
        }
        let by_sequence = &self.by_sequence;
        let used: std::collections::BTreeSet<SlotNumber> = by_sequence.values().copied().collect();
        self.free.retain(|slot| !used.contains(slot));
        if torn.len() as u64 <= SLOTS_TORN_MAX {
            // Cleared, so that the next power loss leaves one torn slot again.
            torn.iter().for_each(|&slot| self.clear_header(slot));
        }
        torn.len() as u64
    }

    /// Sectors that one slot holds.
    pub(crate) fn slot_sectors(&self) -> u64 {
        self.slot_bytes as u64 / UNIT_BYTES
    }

    /// Bytes of data that all slots hold.
    pub(crate) fn size_bytes(&self) -> u64 {
        (self.slots.len() * self.slot_bytes) as u64
    }

    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn used_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Share of the slots in use (0.0 to 1.0).
    pub(crate) fn share_used(&self) -> f64 {
        self.used_count() as f64 / self.slot_count() as f64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_sequence.is_empty()
    }

    /// When the oldest slot in use was written; for slots found by the opening, the time of the
    /// opening.
    pub(crate) fn oldest_at(&self) -> Option<Instant> {
        self.by_sequence.values().next().map(|&slot| self.slots[slot.index()].written_at)
    }

    /// Writes up to a slot's worth of sectors into a free slot, durably. Returns the unit where it
    /// begins.
    pub(crate) fn write(&mut self, sector: Sector, data: &[u8], now: Instant) -> Option<SlotUnit> {
        let slot = self.free.pop()?;
        let sectors = (data.len() as u64 / UNIT_BYTES) as u32;
        let sequence = self.sequence_next;
        self.sequence_next = sequence.next();
        let mut raw = SlotRaw {
            checksum: U32::ZERO,
            sectors: sectors.into(),
            sequence: sequence.0.into(),
            sector: sector.into(),
            reserved: U64::ZERO,
        };
        raw.checksum = checksum(&raw, data).into();
        let (at, header_at) = (self.slot_offset(slot), header_offset(slot));
        self.region.store(at, data);
        self.region.persist(at, data.len());
        self.region.store(header_at, raw.as_bytes());
        self.region.persist(header_at, SLOT_HEADER_BYTES);
        self.slots[slot.index()] =
            Slot { sector, sectors, sequence, live_sectors: sectors, is_moving: false, written_at: now };
        self.by_sequence.insert(sequence, slot);
        Some(self.unit(slot))
    }

    /// Copies the bytes from a unit on into `bytes`.
    pub(crate) fn load(&self, unit: SlotUnit, bytes: &mut [u8]) {
        self.region.load(self.data_offset + (unit.0 * UNIT_BYTES) as usize, bytes);
    }

    /// Notes that sectors from a unit on were written again, and frees slots that hold nothing else.
    pub(crate) fn supersede(&mut self, unit: SlotUnit, sectors: u64) {
        let (mut at, end) = (unit.0, unit.0 + sectors);
        while at < end {
            let slot = SlotNumber((at / self.slot_sectors()) as u32);
            let part = end.min(self.unit(slot).0 + self.slot_sectors()) - at;
            self.supersede_in(slot, part);
            at += part;
        }
    }

    fn supersede_in(&mut self, slot: SlotNumber, sectors: u64) {
        let entry = &mut self.slots[slot.index()];
        entry.live_sectors -= sectors as u32;
        let is_kept = self.keeps_order && self.cut.is_some_and(|cut| entry.sequence <= cut);
        if entry.live_sectors == 0 && !entry.is_moving && !is_kept {
            self.clear(slot);
        }
    }

    /// Begins a round over the older `share` of the slots in use, or over all where the order is kept.
    pub(crate) fn begin_round(&mut self, share: f64) {
        let count = ((self.by_sequence.len() as f64 * share).ceil() as usize).max(1);
        let cut =
            if self.keeps_order { self.by_sequence.keys().next_back() } else { self.by_sequence.keys().nth(count - 1) };
        self.cut = cut.or_else(|| self.by_sequence.keys().next_back()).copied();
    }

    /// Ends the round.
    pub(crate) fn end_round(&mut self) {
        self.cut = None;
    }

    /// Takes the next slots of the round, up to `bytes`; they are moving from now on.
    pub(crate) fn take_moving(&mut self, bytes: u64) -> Vec<SlotNumber> {
        let Some(cut) = self.cut else { return Vec::new() };
        let (mut taken, mut taken_bytes) = (Vec::new(), 0);
        for &slot in self.by_sequence.range(..=cut).map(|(_, slot)| slot) {
            let entry = &mut self.slots[slot.index()];
            let entry_bytes = u64::from(entry.sectors) * UNIT_BYTES;
            if entry.is_moving {
                continue;
            }
            if taken_bytes + entry_bytes > bytes && !taken.is_empty() {
                break;
            }
            entry.is_moving = true;
            taken_bytes += entry_bytes;
            taken.push(slot);
        }
        taken
    }

    /// Whether the log, with what is moving now, holds all that was acknowledged at some moment.
    pub(crate) fn is_at_cut(&self) -> bool {
        match self.cut {
            Some(cut) => self.by_sequence.range(..=cut).all(|(_, &slot)| self.slots[slot.index()].is_moving),
            None => self.by_sequence.is_empty(),
        }
    }

    /// Frees a slot whose data is durable in the log.
    pub(crate) fn finish_move(&mut self, slot: SlotNumber) {
        self.clear(slot);
    }

    /// Takes back the move of a slot.
    pub(crate) fn cancel_move(&mut self, slot: SlotNumber) {
        self.slots[slot.index()].is_moving = false;
        if self.slots[slot.index()].live_sectors == 0 {
            self.clear(slot);
        }
    }

    pub(crate) fn slot(&self, slot: SlotNumber) -> &Slot {
        &self.slots[slot.index()]
    }

    /// Slots in use, oldest first, with their places.
    pub(crate) fn slots_by_age(&self) -> impl Iterator<Item = (SlotNumber, Place, &Slot)> + '_ {
        self.by_sequence.values().map(|&slot| (slot, self.place(slot), &self.slots[slot.index()]))
    }

    /// The unit where a slot begins.
    pub(crate) fn unit(&self, slot: SlotNumber) -> SlotUnit {
        SlotUnit(u64::from(slot.0) * self.slot_sectors())
    }

    /// The place of a slot, for the map.
    pub(crate) fn place(&self, slot: SlotNumber) -> Place {
        Place::slot(self.unit(slot))
    }

    fn clear(&mut self, slot: SlotNumber) {
        let entry = std::mem::replace(&mut self.slots[slot.index()], Slot::FREE);
        self.clear_header(slot);
        self.by_sequence.remove(&entry.sequence);
        self.free.push(slot);
    }

    fn clear_header(&self, slot: SlotNumber) {
        let at = header_offset(slot);
        self.region.store(at, &[0; SLOT_HEADER_BYTES]);
        self.region.persist(at, SLOT_HEADER_BYTES);
    }

    fn slot_offset(&self, slot: SlotNumber) -> usize {
        self.data_offset + slot.index() * self.slot_bytes
    }
}

/// The contents of a slot.
pub(crate) enum SlotFound {
    /// Nothing.
    Free,
    /// A write as it was acknowledged.
    Whole(SlotRaw),
    /// Neither: a write, or the clearing of the slot, was cut off by a power loss, or it is
    /// damaged.
    Torn(SlotRaw),
}

impl SlotFound {
    /// The sectors of a header, if a slot can have them.
    pub(crate) fn sectors_of(raw: &SlotRaw, slot_bytes: usize) -> Option<(Sector, u64)> {
        let sectors = u64::from(raw.sectors.get());
        let is_sane = sectors > 0
            && sectors * UNIT_BYTES <= slot_bytes as u64
            && raw.sequence.get() < u64::MAX >> 1
            && Sector::from(raw.sector) < Sector::END;
        is_sane.then_some((raw.sector.into(), sectors))
    }
}

/// All slots of the NVRAM of a log, in any order; none when it has no valid header, which is an
/// error when it `must_be_ours`.
///
/// # Errors
/// As [`Stage::open`].
pub(crate) fn slots_in(
    region: &dyn PersistentRegion,
    log_id: Uuid,
    slot_bytes: u64,
    must_be_ours: bool,
) -> Result<Vec<SlotFound>, Error> {
    let slot_bytes = slot_bytes as usize;
    let header = header_of(region, log_id, slot_bytes)?;
    if !is_ours(region, &header, must_be_ours)? {
        return Ok(Vec::new());
    }
    let count = header.slot_count.get() as usize;
    Ok((0..count as u32).map(SlotNumber).map(|slot| look_at(region, slot, slot_bytes, data_offset(count))).collect())
}

/// The header that the NVRAM of this log has.
fn header_of(region: &dyn PersistentRegion, log_id: Uuid, slot_bytes: usize) -> Result<NvramRaw, Error> {
    let slot_count = slot_count(region.size_bytes(), slot_bytes).ok_or_else(|| {
        Error::new(ErrorKind::NoSpace, format!("NVRAM of {} bytes has no room for slots", region.size_bytes()))
    })?;
    let mut header = NvramRaw {
        checksum: U32::ZERO,
        magic: NVRAM_MAGIC.into(),
        log_id: log_id.into_bytes(),
        slot_bytes: (slot_bytes as u32).into(),
        slot_count: (slot_count as u32).into(),
    };
    header.checksum = base::checksum::crc32c(&header.as_bytes()[4..]).into();
    Ok(header)
}

/// Whether a region has this header; `false` when it has no valid one.
fn is_ours(region: &dyn PersistentRegion, header: &NvramRaw, must_be_ours: bool) -> Result<bool, Error> {
    let mut found = NvramRaw::new_zeroed();
    region.load(0, found.as_mut_bytes());
    if found == *header {
        return Ok(true);
    }
    // Without a valid header no write was ever acknowledged from here.
    let is_anothers =
        found.magic.get() == NVRAM_MAGIC && found.checksum.get() == base::checksum::crc32c(&found.as_bytes()[4..]);
    if must_be_ours || is_anothers {
        let context = "the NVRAM is not the one of this write log: it holds another log's data or none; give the right \
                       one, or discard the log (and clear the NVRAM)";
        return Err(Error::new(ErrorKind::Corrupt, context));
    }
    Ok(false)
}

fn look_at(region: &dyn PersistentRegion, slot: SlotNumber, slot_bytes: usize, data_offset: usize) -> SlotFound {
    let mut raw = SlotRaw::new_zeroed();
    region.load(header_offset(slot), raw.as_mut_bytes());
    if raw.as_bytes().iter().all(|&byte| byte == 0) {
        return SlotFound::Free;
    }
    let Some((_, sectors)) = SlotFound::sectors_of(&raw, slot_bytes) else { return SlotFound::Torn(raw) };
    let mut data = vec![0; (sectors * UNIT_BYTES) as usize];
    region.load(data_offset + slot.index() * slot_bytes, &mut data);
    if raw.checksum.get() == checksum(&raw, &data) { SlotFound::Whole(raw) } else { SlotFound::Torn(raw) }
}

fn checksum(raw: &SlotRaw, data: &[u8]) -> u32 {
    Crc32c::new().update(&raw.as_bytes()[4..]).update(data).finish()
}

fn header_offset(slot: SlotNumber) -> usize {
    HEADER_BYTES + slot.index() * SLOT_HEADER_BYTES
}

fn data_offset(slot_count: usize) -> usize {
    (HEADER_BYTES + slot_count * SLOT_HEADER_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Most slots that fit; `None` when these are too few.
fn slot_count(region_bytes: usize, slot_bytes: usize) -> Option<usize> {
    let places_max = SLOT_UNITS_MAX as usize / (slot_bytes / UNIT_BYTES as usize);
    let room = region_bytes.checked_sub(HEADER_BYTES + PAGE_BYTES)?;
    let count = (room / (slot_bytes + SLOT_HEADER_BYTES)).min(places_max);
    (count >= 16).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvram::VolatileRegion;

    const ID: Uuid = Uuid::from_bytes([7; 16]);

    fn open(region: &Arc<VolatileRegion>, keeps_order: bool) -> Stage {
        let region: Arc<dyn PersistentRegion> = region.clone();
        Stage::open(region, ID, 1024, keeps_order, false, Instant::START).unwrap()
    }

    #[test]
    fn the_bytes_are_what_the_format_page_says() {
        let region = Arc::new(VolatileRegion::new(64 << 10));
        let mut stage = open(&region, false);
        let unit = stage.write(Sector(0x1122), &[0xa5; 512], Instant::START).unwrap();
        assert_eq!(unit, SlotUnit(0));
        let mut bytes = [0; 64];
        region.load(0, &mut bytes);
        assert_eq!(&bytes[4..8], b"wnvr");
        assert_eq!(bytes[8..24], [7; 16]);
        assert_eq!(bytes[24..32], [0, 4, 0, 0, 58, 0, 0, 0]);
        assert_eq!(bytes[36..56], [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0]);
        let mut data = [0; 512];
        region.load(4096, &mut data);
        assert_eq!(data, [0xa5; 512]);
    }

    #[test]
    fn what_was_written_is_found_again_and_what_was_torn_is_not() {
        let region = Arc::new(VolatileRegion::new(64 << 10));
        let mut stage = open(&region, false);
        let first = stage.write(Sector(8), &[1; 1024], Instant::START).unwrap();
        stage.write(Sector(16), &[2; 512], Instant::START).unwrap();
        region.store(4096 + 1024, &[9]);
        let stage = open(&region, false);
        let found: Vec<Sector> = stage.slots_by_age().map(|(_, _, slot)| slot.sector).collect();
        assert_eq!(found, [Sector(8)]);
        let mut bytes = [0; 512];
        stage.load(SlotUnit(first.0 + 1), &mut bytes);
        assert_eq!(bytes, [1; 512]);
        assert_eq!(stage.used_count(), 1);
    }

    #[test]
    fn another_logs_nvram_is_refused() {
        let region = Arc::new(VolatileRegion::new(64 << 10));
        open(&region, false);
        let other: Arc<dyn PersistentRegion> = region;
        assert!(Stage::open(other, Uuid::from_bytes([8; 16]), 1024, false, false, Instant::START).is_err());
        let blank: Arc<dyn PersistentRegion> = Arc::new(VolatileRegion::new(64 << 10));
        assert!(Stage::open(blank, ID, 1024, false, true, Instant::START).is_err());
    }

    #[test]
    fn overwrites_are_absorbed_unless_a_round_keeps_the_order() {
        for keeps_order in [false, true] {
            let region = Arc::new(VolatileRegion::new(64 << 10));
            let mut stage = open(&region, keeps_order);
            let unit = stage.write(Sector(8), &[1; 512], Instant::START).unwrap();
            stage.begin_round(1.0);
            assert!(!stage.is_at_cut());
            stage.write(Sector(8), &[2; 512], Instant::START).unwrap();
            stage.supersede(unit, 1);
            assert_eq!(stage.used_count(), if keeps_order { 2 } else { 1 });
            let moving = stage.take_moving(1 << 20);
            assert_eq!(moving.len(), usize::from(keeps_order));
            assert!(stage.is_at_cut());
            moving.into_iter().for_each(|slot| stage.finish_move(slot));
            stage.end_round();
            assert_eq!(stage.used_count(), 1);
        }
    }
}
