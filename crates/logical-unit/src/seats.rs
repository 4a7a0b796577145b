//! What is under each number of a map. Each arrival under a number has a number of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A logical unit under its LUN.
pub struct Seat<T> {
    pub(crate) unit: Arc<T>,
    arrival: u64,
}

impl<T> Clone for Seat<T> {
    fn clone(&self) -> Self {
        Self { unit: Arc::clone(&self.unit), arrival: self.arrival }
    }
}

impl<T> Seat<T> {
    /// Counts the arrivals in the map up to that of this unit under its number: another one, or the same once more, has
    /// another.
    pub fn arrival(&self) -> u64 {
        self.arrival
    }
}

/// The units of a map by LUN.
pub(crate) struct Seats<T> {
    by_lun: BTreeMap<u64, Seat<T>>,
    arrivals: u64,
}

impl<T> Default for Seats<T> {
    fn default() -> Self {
        Self { by_lun: BTreeMap::new(), arrivals: 0 }
    }
}

impl<T> Seats<T> {
    pub(crate) fn get(&self, lun: u64) -> Option<&Seat<T>> {
        self.by_lun.get(&lun)
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = &Arc<T>> {
        self.by_lun.values().map(|seat| &seat.unit)
    }

    /// Ascending by LUN.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Seat<T>)> {
        self.by_lun.iter().map(|(lun, seat)| (*lun, seat))
    }

    /// How many units have come under a number so far.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// Puts a unit under a number. One that is there already stays; another one goes, and is returned.
    pub(crate) fn put(&mut self, lun: u64, unit: Arc<T>) -> Option<Arc<T>> {
        if self.by_lun.get(&lun).is_some_and(|seat| Arc::ptr_eq(&seat.unit, &unit)) {
            return None;
        }
        self.arrivals += 1;
        self.by_lun.insert(lun, Seat { unit, arrival: self.arrivals }).map(|seat| seat.unit)
    }

    pub(crate) fn take(&mut self, lun: u64) -> Option<Arc<T>> {
        self.by_lun.remove(&lun).map(|seat| seat.unit)
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
        let mut seats = Seats::default();
        let (first, second) = (Arc::new(1), Arc::new(2));
        seats.put(0, Arc::clone(&first));
        seats.put(5, Arc::clone(&second));
        assert!(seats.put(0, Arc::clone(&first)).is_none(), "it is there");
        let arrivals = |seats: &Seats<i32>| seats.iter().map(|(lun, seat)| (lun, seat.arrival())).collect::<Vec<_>>();
        assert_eq!(arrivals(&seats), [(0, 1), (5, 2)]);
        seats.keep(|lun| lun == 5);
        seats.put(0, Arc::clone(&first));
        assert_eq!(seats.put(5, first), Some(second), "it comes in its place");
        assert_eq!((arrivals(&seats), seats.arrivals()), (vec![(0, 3), (5, 4)], 4));
    }
}
