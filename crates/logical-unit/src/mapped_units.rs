//! What is under each number of a map. Each arrival under a number has a number of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A logical unit under its LUN.
pub struct MappedUnit<T> {
    pub(crate) unit: Arc<T>,
    arrival: u64,
    /// How many had come under a number of the map when this was looked up.
    pub(crate) arrivals_then: u64,
}

impl<T> Clone for MappedUnit<T> {
    fn clone(&self) -> Self {
        Self { unit: Arc::clone(&self.unit), ..*self }
    }
}

impl<T> MappedUnit<T> {
    /// Counts the arrivals in the map up to that of this unit under its number: another one, or the same once more, has
    /// another.
    pub fn arrival(&self) -> u64 {
        self.arrival
    }
}

/// The units of a map by LUN.
pub(crate) struct MappedUnits<T> {
    by_lun: BTreeMap<u64, MappedUnit<T>>,
    arrivals: u64,
}

impl<T> Default for MappedUnits<T> {
    fn default() -> Self {
        Self { by_lun: BTreeMap::new(), arrivals: 0 }
    }
}

impl<T> MappedUnits<T> {
    pub(crate) fn get(&self, lun: u64) -> Option<MappedUnit<T>> {
        let mapped = self.by_lun.get(&lun)?;
        Some(MappedUnit { arrivals_then: self.arrivals, ..mapped.clone() })
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = &Arc<T>> {
        self.units_until(self.arrivals)
    }

    /// Those that are there since one of the first `arrivals`.
    pub(crate) fn units_until(&self, arrivals: u64) -> impl Iterator<Item = &Arc<T>> {
        self.by_lun.values().filter(move |mapped| mapped.arrival <= arrivals).map(|mapped| &mapped.unit)
    }

    /// Ascending by LUN.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &MappedUnit<T>)> {
        self.by_lun.iter().map(|(lun, mapped)| (*lun, mapped))
    }

    /// How many units have come under a number so far.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// Puts a unit under a number. One that is there already stays; another one goes, and is returned.
    pub(crate) fn put(&mut self, lun: u64, unit: Arc<T>) -> Option<Arc<T>> {
        if self.by_lun.get(&lun).is_some_and(|mapped| Arc::ptr_eq(&mapped.unit, &unit)) {
            return None;
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        self.by_lun.insert(lun, MappedUnit { unit, arrival, arrivals_then: arrival }).map(|mapped| mapped.unit)
    }

    pub(crate) fn take(&mut self, lun: u64) -> Option<Arc<T>> {
        self.by_lun.remove(&lun).map(|mapped| mapped.unit)
    }

    /// Keeps only the numbers of which `is_wanted` is true.
    pub(crate) fn keep(&mut self, is_wanted: impl Fn(u64) -> bool) {
        self.by_lun.retain(|lun, _| is_wanted(*lun));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_arrival_has_a_number_and_who_stays_keeps_it() {
        let mut units = MappedUnits::default();
        let (first, second) = (Arc::new(1), Arc::new(2));
        units.put(0, Arc::clone(&first));
        units.put(5, Arc::clone(&second));
        assert!(units.put(0, Arc::clone(&first)).is_none(), "it is there");
        let arrivals =
            |units: &MappedUnits<i32>| units.iter().map(|(lun, mapped)| (lun, mapped.arrival())).collect::<Vec<_>>();
        assert_eq!(arrivals(&units), [(0, 1), (5, 2)]);
        units.keep(|lun| lun == 5);
        units.put(0, Arc::clone(&first));
        assert_eq!(units.put(5, first), Some(second), "it comes in its place");
        assert_eq!((arrivals(&units), units.arrivals()), (vec![(0, 3), (5, 4)], 4));
        assert_eq!(units.get(0).map(|mapped| (mapped.arrival(), mapped.arrivals_then)), Some((3, 4)));
        assert_eq!(units.units_until(3).count(), 1);
    }
}
