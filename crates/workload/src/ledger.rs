//! The expected content of a device: the version of each 512-byte unit.
//!
//! A write takes the next version number. It is *committed* when the device acknowledged it, and
//! *doubted* when its outcome is unknown: then the old content or the new is right, unit by unit,
//! until a later write is committed. Units never written read as zero or, when the device was not
//! empty at the start, as anything.
//!
//! Versions are kept eight to a 4 KiB block in an ordered map: 40 bytes for each block touched, wherever it lies, so a
//! trace that touches 1 GiB of a 32 GiB address space needs some 16 MiB.

use std::collections::BTreeMap;
use std::fmt;

use base::range::ByteRange;

use crate::content::{self, Stamp, Unit};
use crate::limits::UNIT_BYTES;

const UNITS_PER_BLOCK: u64 = 8;
const UNIT: u64 = UNIT_BYTES as u64;

/// The number of a write. Zero and the two largest have other meanings.
pub type Version = u32;

const NEVER_WRITTEN: Version = 0;
const KNOWN_ZERO: Version = Version::MAX;
const ANYTHING: Version = Version::MAX - 1;
const VERSION_MAX: Version = Version::MAX - 2;

/// The content of units that were never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialContent {
    /// Zeroes.
    Zero,
    /// Not known; reads of them are not checked.
    Unknown,
}

/// The expected versions.
#[derive(Clone, Debug)]
pub struct Ledger {
    seed: u64,
    initial: InitialContent,
    version_last: Version,
    blocks: BTreeMap<u64, [Version; UNITS_PER_BLOCK as usize]>,
    /// Versions that may be stored as well, by unit.
    doubts: BTreeMap<u64, Vec<Version>>,
}

/// A unit with wrong content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Byte offset of the unit on the device.
    pub offset: u64,
    /// The kind of fault.
    pub kind: MismatchKind,
    /// The content that was found.
    pub found: Unit,
    /// The expected content, for people.
    pub expected: String,
}

/// The kind of fault of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MismatchKind {
    /// An earlier content of this unit: an acknowledged write is lost.
    Stale,
    /// A write that is not expected here: a newer one, or one with an unknown number.
    Unexpected,
    /// Content made for another place.
    WrongPlace,
    /// Content of another run.
    OtherRun,
    /// Parts of two writes.
    Torn,
    /// Zeroes in place of written content.
    Lost,
    /// Content of no run.
    Garbage,
}

impl Ledger {
    /// A ledger of a run of `seed`, before its first write.
    pub fn new(seed: u64, initial: InitialContent) -> Self {
        Self { seed, initial, version_last: 0, blocks: BTreeMap::new(), doubts: BTreeMap::new() }
    }

    /// The number of the next write, or `None` after four billion of them.
    pub fn next_version(&mut self) -> Option<Version> {
        self.version_last = self.version_last.checked_add(1).filter(|&version| version <= VERSION_MAX)?;
        Some(self.version_last)
    }

    /// Fills `bytes` with the content of write `version` at byte `offset`.
    ///
    /// # Panics
    /// When offset or length are not whole units.
    pub fn fill(&self, offset: u64, version: Version, bytes: &mut [u8]) {
        assert!(offset.is_multiple_of(UNIT), "content begins at a whole unit");
        content::fill(self.seed, offset / UNIT, u64::from(version), bytes);
    }

    /// Notes that write `version` of `range` was acknowledged.
    pub fn commit(&mut self, range: ByteRange, version: Version) {
        self.set(range, version);
    }

    /// Notes that `range` reads as zeroes from now on.
    pub fn commit_zeroes(&mut self, range: ByteRange) {
        self.set(range, KNOWN_ZERO);
    }

    /// Notes that `range` may hold anything from now on (a discard that promises nothing).
    pub fn forget(&mut self, range: ByteRange) {
        self.set(range, ANYTHING);
    }

    /// Notes that write `version` of `range` may or may not have been carried out, in each unit.
    pub fn doubt(&mut self, range: ByteRange, version: Version) {
        for unit in units(range) {
            let versions = self.doubts.entry(unit).or_default();
            if !versions.contains(&version) {
                versions.push(version);
            }
        }
    }

    /// Checks `bytes`, read at `offset`, against the expected content.
    ///
    /// # Errors
    /// The first unit that is wrong.
    ///
    /// # Panics
    /// When offset or length are not whole units.
    pub fn check(&self, offset: u64, bytes: &[u8]) -> Result<(), Box<Mismatch>> {
        self.check_each(offset, bytes, |mismatch| Err(Box::new(mismatch)))
    }

    /// Like [`Ledger::check`], but calls `report` with every wrong unit.
    ///
    /// # Errors
    /// The first error of `report`.
    pub fn check_each<E>(
        &self,
        offset: u64,
        bytes: &[u8],
        mut report: impl FnMut(Mismatch) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(offset.is_multiple_of(UNIT) && bytes.len().is_multiple_of(UNIT_BYTES), "checks are in whole units");
        let mut block_cached = None;
        for (unit, unit_bytes) in (offset / UNIT..).zip(bytes.chunks_exact(UNIT_BYTES)) {
            let block = unit / UNITS_PER_BLOCK;
            let versions = match block_cached {
                Some((cached, versions)) if cached == block => versions,
                _ => self.blocks.get(&block),
            };
            block_cached = Some((block, versions));
            let committed = versions.map_or(NEVER_WRITTEN, |versions| versions[(unit % UNITS_PER_BLOCK) as usize]);
            if !self.is_admissible(unit, committed, unit_bytes) {
                report(self.explain(unit, committed, unit_bytes))?;
            }
        }
        Ok(())
    }

    /// Runs of bytes with expected content, ascending: [`verify_all`](crate::verify::verify_all)
    /// reads these. Runs do not cross multiples of `window_bytes`; they may include units never
    /// written between two written ones of a window.
    pub fn written_windows(&self, window_bytes: u64) -> impl Iterator<Item = ByteRange> {
        let mut units = self.written_units().peekable();
        std::iter::from_fn(move || {
            let first = units.next()? * UNIT;
            let window = first / window_bytes;
            let mut end = first + UNIT;
            while let Some(unit) = units.next_if(|unit| unit * UNIT / window_bytes == window) {
                end = unit * UNIT + UNIT;
            }
            Some(ByteRange { offset: first, length: end - first })
        })
    }

    /// Bytes of `range` whose content is known.
    pub fn known_bytes(&self, range: ByteRange) -> u64 {
        let is_known = |unit: &u64| {
            let versions = self.blocks.get(&(unit / UNITS_PER_BLOCK));
            match versions.map_or(NEVER_WRITTEN, |versions| versions[(unit % UNITS_PER_BLOCK) as usize]) {
                ANYTHING => false,
                NEVER_WRITTEN => self.initial == InitialContent::Zero,
                _ => true,
            }
        };
        units(range).filter(is_known).count() as u64 * UNIT
    }

    /// Bytes that were written, or made zeroes, and whose content is known.
    pub fn written_bytes(&self) -> u64 {
        let versions = self.blocks.values().flatten();
        versions.filter(|&&version| version != NEVER_WRITTEN && version != ANYTHING).count() as u64 * UNIT
    }

    /// Units with an expected or a doubted content.
    pub fn written_unit_count(&self) -> u64 {
        self.written_units().count() as u64
    }

    /// Units whose content is in doubt.
    pub fn doubted_unit_count(&self) -> u64 {
        self.doubts.len() as u64
    }

    fn written_units(&self) -> impl Iterator<Item = u64> {
        let committed = self.blocks.iter().flat_map(|(block, versions)| {
            let first = block * UNITS_PER_BLOCK;
            (first..).zip(versions).filter(|(_, version)| **version != NEVER_WRITTEN).map(|(unit, _)| unit)
        });
        merge_ascending(committed, self.doubts.keys().copied())
    }

    fn set(&mut self, range: ByteRange, version: Version) {
        for unit in units(range) {
            let versions = self.blocks.entry(unit / UNITS_PER_BLOCK).or_default();
            versions[(unit % UNITS_PER_BLOCK) as usize] = version;
        }
        if !self.doubts.is_empty() {
            units(range).for_each(|unit| drop(self.doubts.remove(&unit)));
        }
    }

    fn is_admissible(&self, unit: u64, committed: Version, bytes: &[u8]) -> bool {
        self.is_version(unit, committed, bytes)
            || self.doubts.get(&unit).is_some_and(|doubts| doubts.iter().any(|&v| self.is_version(unit, v, bytes)))
    }

    fn is_version(&self, unit: u64, version: Version, bytes: &[u8]) -> bool {
        match version {
            ANYTHING => true,
            NEVER_WRITTEN if self.initial == InitialContent::Unknown => true,
            NEVER_WRITTEN | KNOWN_ZERO => bytes.iter().all(|&byte| byte == 0),
            _ => content::is_exactly(Stamp { seed: self.seed, unit, version: u64::from(version) }, bytes),
        }
    }

    fn explain(&self, unit: u64, committed: Version, bytes: &[u8]) -> Mismatch {
        let found = content::identify(bytes);
        let kind = match found {
            Unit::Torn { .. } => MismatchKind::Torn,
            Unit::Zero => MismatchKind::Lost,
            Unit::Garbage => MismatchKind::Garbage,
            Unit::Whole(stamp) if stamp.seed != self.seed => MismatchKind::OtherRun,
            Unit::Whole(stamp) if stamp.unit != unit => MismatchKind::WrongPlace,
            Unit::Whole(stamp) if is_number(committed) && stamp.version < u64::from(committed) => MismatchKind::Stale,
            Unit::Whole(_) => MismatchKind::Unexpected,
        };
        Mismatch { offset: unit * UNIT, kind, found, expected: self.expectation(unit, committed) }
    }

    fn expectation(&self, unit: u64, committed: Version) -> String {
        let mut words = match committed {
            NEVER_WRITTEN | KNOWN_ZERO => "zeroes".to_owned(),
            version => format!("write {version}"),
        };
        for doubt in self.doubts.get(&unit).into_iter().flatten() {
            words.push_str(&format!(" or write {doubt}"));
        }
        words
    }
}

const fn is_number(version: Version) -> bool {
    version != NEVER_WRITTEN && version <= VERSION_MAX
}

fn units(range: ByteRange) -> std::ops::Range<u64> {
    assert!(range.offset.is_multiple_of(UNIT) && range.length.is_multiple_of(UNIT), "{range} are not whole units");
    range.offset / UNIT..range.end() / UNIT
}

/// Merges two ascending sequences, without duplicates.
fn merge_ascending(first: impl Iterator<Item = u64>, second: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    let (mut first, mut second) = (first.peekable(), second.peekable());
    std::iter::from_fn(move || match (first.peek().copied(), second.peek().copied()) {
        (Some(one), Some(other)) => {
            if other <= one {
                second.next();
            }
            if one <= other {
                first.next();
            }
            Some(one.min(other))
        }
        (Some(_), None) => first.next(),
        (None, _) => second.next(),
    })
}

impl fmt::Display for MismatchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stale => "stale",
            Self::Unexpected => "not the write expected",
            Self::WrongPlace => "content of another place",
            Self::OtherRun => "content of another run",
            Self::Torn => "torn",
            Self::Lost => "lost",
            Self::Garbage => "garbage",
        })
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}: expected {}, found {}", self.offset, self.kind, self.expected, self.found)
    }
}

impl std::error::Error for Mismatch {}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(unit: u64, count: u64) -> ByteRange {
        ByteRange { offset: unit * UNIT, length: count * UNIT }
    }

    fn kind_of(ledger: &Ledger, unit: u64, bytes: &[u8]) -> Option<MismatchKind> {
        ledger.check(unit * UNIT, bytes).err().map(|mismatch| mismatch.kind)
    }

    fn content_of(seed: u64, unit: u64, version: u64) -> Vec<u8> {
        let mut bytes = vec![0xa5; UNIT_BYTES];
        content::fill(seed, unit, version, &mut bytes);
        bytes
    }

    #[test]
    fn each_wound_has_its_name() {
        let mut ledger = Ledger::new(1, InitialContent::Zero);
        let (old, new) = (ledger.next_version().unwrap(), ledger.next_version().unwrap());
        ledger.commit(range(4, 2), old);
        ledger.commit(range(4, 1), new);
        assert_eq!(kind_of(&ledger, 4, &content_of(1, 4, 2)), None);
        assert_eq!(kind_of(&ledger, 5, &content_of(1, 5, 1)), None);
        assert_eq!(kind_of(&ledger, 4, &content_of(1, 4, 1)), Some(MismatchKind::Stale));
        assert_eq!(kind_of(&ledger, 5, &content_of(1, 5, 2)), Some(MismatchKind::Unexpected));
        assert_eq!(kind_of(&ledger, 4, &content_of(1, 5, 2)), Some(MismatchKind::WrongPlace));
        assert_eq!(kind_of(&ledger, 4, &content_of(2, 4, 2)), Some(MismatchKind::OtherRun));
        assert_eq!(kind_of(&ledger, 4, &[0; UNIT_BYTES]), Some(MismatchKind::Lost));
        assert_eq!(kind_of(&ledger, 4, &[9; UNIT_BYTES]), Some(MismatchKind::Garbage));
        let mut torn = content_of(1, 4, 2);
        torn[400..].copy_from_slice(&content_of(1, 4, 1)[400..]);
        assert_eq!(kind_of(&ledger, 4, &torn), Some(MismatchKind::Torn));
        let text = ledger.check(4 * UNIT, &content_of(1, 4, 1)).unwrap_err().to_string();
        assert_eq!(text, "byte 2048: stale: expected write 2, found the whole of write 1 for byte 2048 (seed 1)");
    }

    #[test]
    fn a_doubted_write_may_have_happened_or_not_until_it_is_repeated() {
        let mut ledger = Ledger::new(1, InitialContent::Zero);
        ledger.commit(range(0, 2), 1);
        ledger.doubt(range(1, 2), 2);
        assert_eq!(ledger.doubted_unit_count(), 2);
        for (unit, version, is_right) in [(0, 1, true), (0, 2, false), (1, 1, true), (1, 2, true), (2, 2, true)] {
            assert_eq!(kind_of(&ledger, unit, &content_of(1, unit, version)).is_none(), is_right, "{unit} {version}");
        }
        assert_eq!(kind_of(&ledger, 2, &[0; UNIT_BYTES]), None);
        ledger.commit(range(1, 2), 2);
        assert_eq!(kind_of(&ledger, 1, &content_of(1, 1, 1)), Some(MismatchKind::Stale));
        assert_eq!(ledger.doubted_unit_count(), 0);
    }

    #[test]
    fn initial_content_zeroes_and_discards() {
        let mut ledger = Ledger::new(1, InitialContent::Unknown);
        assert_eq!(kind_of(&ledger, 3, &[9; UNIT_BYTES]), None);
        ledger.commit_zeroes(range(3, 1));
        assert_eq!(kind_of(&ledger, 3, &[9; UNIT_BYTES]), Some(MismatchKind::Garbage));
        ledger.forget(range(3, 1));
        assert_eq!(kind_of(&ledger, 3, &[9; UNIT_BYTES]), None);
    }

    #[test]
    fn written_windows_cover_what_was_written() {
        let mut ledger = Ledger::new(1, InitialContent::Zero);
        ledger.commit(range(1, 2), 1);
        ledger.commit(range(6, 4), 1);
        ledger.doubt(range(30, 1), 2);
        let windows: Vec<ByteRange> = ledger.written_windows(8 * UNIT).collect();
        assert_eq!(windows, [range(1, 7), range(8, 2), range(30, 1)]);
        assert_eq!(ledger.written_unit_count(), 7);
    }
}
