//! Extents by their first sector, in few bytes: rows of 20 bytes, in sorted *leaves* of fixed room, in a tree by the
//! first key of each leaf.
//!
//! | | bytes an extent |
//! |---|--:|
//! | loaded in order (a checkpoint), leaves full | 21 |
//! | after inserting in random order, leaves 70 % full | 29 |
//! | at worst, leaves a quarter full | 81 |
//!
//! A leaf that is full becomes two halves, but for the last one: what is appended in order fills leaf after leaf. A
//! leaf that becomes nearly empty joins a neighbour that has the room.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::numbers::Sector;
use crate::place::Place;
use crate::tag::Tag;

/// Rows of a leaf. An insertion moves at most some 2.5 KiB, and the tree above has one entry for
/// each leaf. Few in tests, so that all cases occur.
const ROWS_MAX: usize = if cfg!(test) { 8 } else { 128 };

/// Below this many rows a leaf looks for a neighbour to join.
const ROWS_FEW: usize = ROWS_MAX / 4;

/// An extent without its first sector.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) sectors: u32,
    pub(crate) place: Place,
    pub(crate) tag: Tag,
}

/// Alignment of 4, hence 20 bytes.
#[derive(Clone, Copy)]
struct Row {
    /// Lower half first.
    sector: [u32; 2],
    extent: Extent,
}
const _: () = assert!(size_of::<Row>() == 20);

impl Row {
    fn new(sector: Sector, extent: Extent) -> Self {
        Self { sector: [sector.0 as u32, (sector.0 >> 32) as u32], extent }
    }

    fn sector(&self) -> Sector {
        Sector(u64::from(self.sector[1]) << 32 | u64::from(self.sector[0]))
    }

    fn to_pair(self) -> (Sector, Extent) {
        (self.sector(), self.extent)
    }
}

/// Rows of one leaf. Never empty, ascending, of room for [`ROWS_MAX`].
type Leaf = Vec<Row>;

/// Extents by their first sector, which do not overlap.
#[derive(Default)]
pub(crate) struct SortedExtents {
    /// By a key that is at most the first row's sector, and above all rows of the leaf before.
    leaves: BTreeMap<Sector, Leaf>,
    len: usize,
}

impl SortedExtents {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The last extent that starts before `sector`.
    pub(crate) fn before(&self, sector: Sector) -> Option<(Sector, Extent)> {
        let mut leaves = self.leaves.range(..sector).rev();
        leaves.find_map(|(_, leaf)| Some(leaf[..position(leaf, sector)].last()?.to_pair()))
    }

    /// The extents that start at `sector` or later, ascending.
    pub(crate) fn from(&self, sector: Sector) -> impl Iterator<Item = (Sector, Extent)> + '_ {
        let first = self.leaves.range(..=sector).next_back();
        let rest = self.leaves.range(behind(sector));
        let first = first.map_or(&[][..], |(_, leaf)| &leaf[position(leaf, sector)..]);
        first.iter().chain(rest.flat_map(|(_, leaf)| leaf)).map(|row| row.to_pair())
    }

    /// Adds an extent; none starts at the same sector.
    pub(crate) fn insert(&mut self, sector: Sector, extent: Extent) {
        let row = Row::new(sector, extent);
        self.len += 1;
        let last = self.leaves.last_key_value().map(|(&last, _)| last);
        let Some((&key, leaf)) = self.leaves.range_mut(..=sector).next_back() else {
            // Before all others.
            return match self.leaves.pop_first() {
                Some((_, leaf)) => self.insert_first(row, leaf),
                None => self.add_leaf(&[row]),
            };
        };
        let at = position(leaf, sector);
        if leaf.len() < ROWS_MAX {
            return leaf.insert(at, row);
        }
        if at == ROWS_MAX && last == Some(key) {
            return self.add_leaf(&[row]);
        }
        let upper: Vec<Row> = leaf.drain(ROWS_MAX / 2..).collect();
        if at <= leaf.len() {
            leaf.insert(at, row);
        }
        self.add_leaf(&upper);
        if at > ROWS_MAX / 2 {
            let upper = self.leaves.get_mut(&upper[0].sector()).expect("it was added a line ago");
            upper.insert(at - ROWS_MAX / 2, row);
        }
    }

    fn insert_first(&mut self, row: Row, mut leaf: Leaf) {
        if leaf.len() == ROWS_MAX {
            let upper: Vec<Row> = leaf.drain(ROWS_MAX / 2..).collect();
            self.add_leaf(&upper);
        }
        leaf.insert(0, row);
        self.leaves.insert(row.sector(), leaf);
    }

    fn add_leaf(&mut self, rows: &[Row]) {
        let mut leaf = Leaf::with_capacity(ROWS_MAX);
        leaf.extend_from_slice(rows);
        self.leaves.insert(rows[0].sector(), leaf);
    }

    /// The extent that starts at `sector`, to be changed in place.
    pub(crate) fn get_mut(&mut self, sector: Sector) -> Option<&mut Extent> {
        let (_, leaf) = self.leaves.range_mut(..=sector).next_back()?;
        let at = position(leaf, sector);
        leaf.get_mut(at).filter(|row| row.sector() == sector).map(|row| &mut row.extent)
    }

    /// Removes the extent that starts at `sector`.
    pub(crate) fn remove(&mut self, sector: Sector) -> Option<Extent> {
        let (&key, leaf) = self.leaves.range_mut(..=sector).next_back()?;
        let at = position(leaf, sector);
        if leaf.get(at)?.sector() != sector {
            return None;
        }
        let row = leaf.remove(at);
        let count = leaf.len();
        self.len -= 1;
        if count < ROWS_FEW || count == 0 {
            self.join(key);
        }
        Some(row.extent)
    }

    /// Drops an empty leaf, or joins it and a neighbour when there is room to grow afterwards.
    fn join(&mut self, key: Sector) {
        let count = self.leaves.get(&key).map_or(0, Vec::len);
        if count == 0 {
            self.leaves.remove(&key);
            return;
        }
        let fits = |other: &Leaf| other.len() + count <= ROWS_MAX / 4 * 3;
        let before = self.leaves.range(..key).next_back().filter(|(_, leaf)| fits(leaf)).map(|(&before, _)| before);
        let next = self.leaves.range(behind(key)).next().filter(|(_, leaf)| fits(leaf));
        let next = next.map(|(&next, _)| next);
        let (lower, upper) = match (before, next) {
            (Some(before), _) => (before, key),
            (None, Some(next)) => (key, next),
            (None, None) => return,
        };
        let rows = self.leaves.remove(&upper).unwrap_or_default();
        if let Some(leaf) = self.leaves.get_mut(&lower) {
            leaf.extend_from_slice(&rows);
        }
    }

    /// Keeps the extents for which `is_wanted`, in full leaves.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(Sector, &Extent) -> bool) {
        let leaves = std::mem::take(self).leaves;
        for row in leaves.into_values().flatten() {
            if is_wanted(row.sector(), &row.extent) {
                self.insert(row.sector(), row.extent);
            }
        }
    }
}

/// The keys behind `sector`.
fn behind(sector: Sector) -> (Bound<Sector>, Bound<Sector>) {
    (Bound::Excluded(sector), Bound::Unbounded)
}

/// Count of rows that start before `sector`.
fn position(leaf: &Leaf, sector: Sector) -> usize {
    leaf.partition_point(|row| row.sector() < sector)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::LogUnit;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(Sector),
        Remove(Sector),
        Retain(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Also the upper half of a sector's number is used.
        let sector = (0..200u64).prop_map(|number| Sector(number << 28));
        let step = prop_oneof![
            6 => sector.clone().prop_map(Step::Insert),
            4 => sector.prop_map(Step::Remove),
            1 => (2..9u64).prop_map(Step::Retain),
        ];
        proptest::collection::vec(step, 1..600)
    }

    fn extent(unit: u32) -> Extent {
        Extent { sectors: 1, place: Place::segment(LogUnit(unit.into())), tag: Tag::dirty(unit) }
    }

    fn check_leaves(sorted: &SortedExtents) {
        let mut least = Sector::FIRST;
        for (&key, leaf) in &sorted.leaves {
            assert!(key >= least && !leaf.is_empty() && leaf.len() <= ROWS_MAX);
            assert!(leaf[0].sector() >= key && leaf.is_sorted_by_key(Row::sector));
            least = leaf[leaf.len() - 1].sector() + 1;
        }
    }

    proptest! {
        #[test]
        fn rows_in_leaves_equal_a_tree(steps in steps()) {
            let (mut sorted, mut twin) = (SortedExtents::default(), BTreeMap::new());
            for (index, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(sector) if !twin.contains_key(&sector) => {
                        sorted.insert(sector, extent(index as u32));
                        twin.insert(sector, index as u32);
                    }
                    Step::Insert(sector) | Step::Remove(sector) => {
                        let removed = sorted.remove(sector).map(|extent| extent.place.encode());
                        prop_assert_eq!(removed, twin.remove(&sector));
                        let before = twin.range(..sector).next_back().map(|(&sector, &place)| (sector, place));
                        let in_short = |(sector, extent): (Sector, Extent)| (sector, extent.place.encode());
                        prop_assert_eq!(sorted.before(sector).map(in_short), before);
                        let found: Vec<_> = sorted.from(sector).map(in_short).collect();
                        let expected: Vec<_> = twin.range(sector..).map(|(&sector, &place)| (sector, place)).collect();
                        prop_assert_eq!(found, expected);
                    }
                    Step::Retain(divisor) => {
                        sorted.retain(|sector, _| !(sector.0 >> 28).is_multiple_of(divisor));
                        twin.retain(|sector, _| !(sector.0 >> 28).is_multiple_of(divisor));
                    }
                }
                check_leaves(&sorted);
                prop_assert_eq!(sorted.len(), twin.len());
            }
            prop_assert!(sorted.from(Sector::FIRST).map(|(sector, _)| sector).eq(twin.into_keys()));
        }
    }

    #[test]
    fn what_comes_in_order_fills_the_leaves() {
        let mut sorted = SortedExtents::default();
        (0..10 * ROWS_MAX as u64).for_each(|sector| sorted.insert(Sector(sector), extent(0)));
        assert_eq!(sorted.leaves.len(), 10);
        sorted.retain(|sector, _| sector.0.is_multiple_of(2));
        assert_eq!(sorted.leaves.len(), 5, "and what is left of them");
        (0..10 * ROWS_MAX as u64).step_by(2).filter(|sector| sector % 32 != 0).for_each(|sector| {
            sorted.remove(Sector(sector)).expect("it was kept");
        });
        assert!(sorted.leaves.len() < 5, "leaves that are nearly empty are joined");
    }
}
