//! A slow, obvious model beside a block device that must survive crashes.
//!
//! Overlapping requests are carried out in the order of their submission, so every sector has one history: the stamps
//! written to it, in order. What may be read follows from that history alone:
//!
//! - A read returns what was submitted last before it; where requests before it failed, that or any of those since the
//!   last acknowledged one.
//! - After a crash a sector holds what was last known durable or anything submitted later.

use std::sync::{Arc, Mutex, MutexGuard};

use base::buffer::Buffer;
use base::random::Random;
use base::range::ByteRange;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// Most sectors of a small request, where there are larger ones.
const SMALL_SECTORS_MAX: u64 = 64;

/// What became of a submitted change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    Acknowledged,
    Failed,
}

struct Change {
    stamp: u64,
    fate: Fate,
}

/// One sector's history. The first change is what it held at the start.
struct Sector {
    changes: Vec<Change>,
    /// Index of the last change known to survive a power loss of origin and cache device.
    durable: usize,
}

impl Sector {
    fn holding(stamp: u64) -> Self {
        Self { changes: vec![Change { stamp, fate: Fate::Acknowledged }], durable: 0 }
    }

    fn last(&self) -> usize {
        self.changes.len() - 1
    }

    fn last_acknowledged(&self, up_to: usize) -> usize {
        (0..=up_to).rev().find(|&index| self.changes[index].fate == Fate::Acknowledged).unwrap_or(0)
    }

    fn allows(&self, stamp: u64, indices: std::ops::RangeInclusive<usize>) -> bool {
        self.changes[indices].iter().any(|change| change.stamp == stamp)
    }
}

/// The model.
pub struct Model {
    sectors: Vec<Sector>,
    stamp_next: u64,
}

impl Model {
    pub fn new(size_bytes: u64) -> Arc<Mutex<Self>> {
        let sectors = (0..size_bytes / SECTOR).map(|_| Sector::holding(0)).collect();
        Arc::new(Mutex::new(Self { sectors, stamp_next: 1 }))
    }

    fn range(range: ByteRange) -> std::ops::Range<usize> {
        (range.offset / SECTOR) as usize..(range.end() / SECTOR) as usize
    }

    /// A change to all sectors of `range`: their new stamps begin with the returned one, or are all zero. Returns the
    /// indices.
    pub fn submit_change(&mut self, range: ByteRange, is_zero: bool) -> (u64, Vec<usize>) {
        let first = self.stamp_next;
        let mut indices = Vec::new();
        for sector in &mut self.sectors[Self::range(range)] {
            let stamp = if is_zero { 0 } else { self.stamp_next };
            self.stamp_next += 1;
            sector.changes.push(Change { stamp, fate: Fate::InFlight });
            indices.push(sector.last());
        }
        (first, indices)
    }

    pub fn finish_change(&mut self, range: ByteRange, indices: &[usize], is_ok: bool, is_durable: bool) {
        for (sector, &index) in self.sectors[Self::range(range)].iter_mut().zip(indices) {
            sector.changes[index].fate = if is_ok { Fate::Acknowledged } else { Fate::Failed };
            if is_ok && is_durable {
                sector.durable = sector.durable.max(index);
            }
        }
    }

    pub fn snapshot(&self, range: ByteRange) -> Vec<usize> {
        self.sectors[Self::range(range)].iter().map(Sector::last).collect()
    }

    pub fn acknowledged(&self) -> Vec<usize> {
        self.sectors.iter().map(|sector| sector.last_acknowledged(sector.last())).collect()
    }

    pub fn make_durable(&mut self, indices: &[usize]) {
        for (sector, &index) in self.sectors.iter_mut().zip(indices) {
            sector.durable = sector.durable.max(index);
        }
    }

    /// What is acknowledged of `range` now.
    pub fn acknowledged_in(&self, range: ByteRange) -> Vec<usize> {
        self.sectors[Self::range(range)].iter().map(|sector| sector.last_acknowledged(sector.last())).collect()
    }

    pub fn check_read(&self, range: ByteRange, snapshot: &[usize], bytes: &[u8], context: &str) {
        let sectors = self.sectors[Self::range(range)].iter().zip(snapshot);
        let first: Vec<usize> = sectors.map(|(sector, &last)| sector.last_acknowledged(last)).collect();
        self.check_read_since(range, &first, snapshot, bytes, context);
    }

    /// [`Model::check_read`] where a read need not wait for changes before it: from what was acknowledged when it was
    /// submitted on.
    pub fn check_read_since(&self, range: ByteRange, first: &[usize], snapshot: &[usize], bytes: &[u8], context: &str) {
        let sectors = self.sectors[Self::range(range)].iter().zip(first.iter().zip(snapshot)).zip(bytes.chunks(512));
        for (index, ((sector, (&first, &last)), bytes)) in sectors.enumerate() {
            let stamp = stamp_of(bytes);
            let number = range.offset / SECTOR + index as u64;
            assert!(
                sector.allows(stamp, first..=last),
                "{context}: sector {number} reads stamp {stamp}, not one of {:?}",
                sector.changes[first..=last].iter().map(|change| change.stamp).collect::<Vec<_>>()
            );
        }
    }

    /// Checks the content after a crash in which the origin kept all acknowledged data, and takes
    /// it as the new start.
    pub fn check_after_crash(&mut self, bytes: &[u8], context: &str) {
        for (number, (sector, bytes)) in self.sectors.iter_mut().zip(bytes.chunks(512)).enumerate() {
            let stamp = stamp_of(bytes);
            let last = sector.last();
            let first = sector.last_acknowledged(last);
            assert!(
                sector.allows(stamp, first..=last),
                "{context}: after the crash sector {number} holds stamp {stamp}, not one of {:?}",
                sector.changes[first..=last].iter().map(|change| (change.stamp, change.fate)).collect::<Vec<_>>()
            );
            *sector = Sector::holding(stamp);
        }
    }

    /// Checks that `bytes` are exactly what was acknowledged last.
    pub fn check_exact(&self, bytes: &[u8], context: &str) {
        let snapshot = self.snapshot(ByteRange { offset: 0, length: bytes.len() as u64 });
        self.check_read(ByteRange { offset: 0, length: bytes.len() as u64 }, &snapshot, bytes, context);
    }
}

/// The stamp of a sector, which must be whole.
pub fn stamp_of(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    // All words are the first one when each is the one before it, which takes one comparison of memory.
    assert!(bytes[8..] == bytes[..bytes.len() - 8], "a sector is torn");
    u64::from_le_bytes(words[0])
}

pub fn fill(buffer: &mut Buffer, first_stamp: u64) {
    for (index, sector) in buffer.chunks_mut(512).enumerate() {
        sector.as_chunks_mut::<8>().0.fill((first_stamp + index as u64).to_le_bytes());
    }
}

pub fn lock(model: &Mutex<Model>) -> MutexGuard<'_, Model> {
    model.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

pub fn random_range(random: &mut Random, size_bytes: u64, sectors_max: u64) -> ByteRange {
    let sectors = size_bytes / SECTOR;
    // Where lines are large, most requests are of a part of one: they find as many faults as large ones, and take far
    // less copying.
    let is_small = sectors_max > SMALL_SECTORS_MAX && random.chance(0.75);
    let sectors_max = if is_small { SMALL_SECTORS_MAX } else { sectors_max };
    let count = 1 + random.below(sectors_max.min(sectors));
    // Half of the requests go to a small hot region, so that lines are written again and again.
    let span = if random.chance(0.5) { (sectors / 8).max(count) } else { sectors };
    let first = random.below(span - count + 1);
    ByteRange { offset: first * SECTOR, length: count * SECTOR }
}
