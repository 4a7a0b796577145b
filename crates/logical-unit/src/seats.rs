//! The logical units of a map by LUN. Each arrival under a number has a number of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use scsi::Sense;

use crate::command::Outcome;
use crate::nexus::NexusId;
use crate::unit::LogicalUnit;

/// A logical unit under its LUN.
#[derive(Clone)]
pub struct Seat {
    pub(crate) unit: Arc<LogicalUnit>,
    arrival: u64,
}

impl Seat {
    /// Counts the arrivals in the map up to that of this unit under its number: another one, or the same once more, has
    /// another.
    pub fn arrival(&self) -> u64 {
        self.arrival
    }

    /// The answer to a command of `nexus` that was sent before its initiator could know of this unit: its power-on is
    /// reported, and nothing done.
    pub fn refuse(&self, nexus: &NexusId) -> Outcome {
        self.unit.attentions.forget(nexus, &Sense::POWER_ON_OR_RESET);
        Outcome::check_condition(Sense::POWER_ON_OR_RESET)
    }
}

/// The units of a map.
#[derive(Default)]
pub(crate) struct Seats {
    by_lun: BTreeMap<u64, Seat>,
    arrivals: u64,
}

impl Seats {
    pub(crate) fn get(&self, lun: u64) -> Option<&Seat> {
        self.by_lun.get(&lun)
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = &Arc<LogicalUnit>> {
        self.by_lun.values().map(|seat| &seat.unit)
    }

    /// Ascending by LUN.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Seat)> {
        self.by_lun.iter().map(|(lun, seat)| (*lun, seat))
    }

    /// How many units have come under a number so far.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// Puts a unit under a number. One that is there already stays; another one goes, and is returned.
    pub(crate) fn put(&mut self, lun: u64, unit: Arc<LogicalUnit>) -> Option<Arc<LogicalUnit>> {
        if self.by_lun.get(&lun).is_some_and(|seat| Arc::ptr_eq(&seat.unit, &unit)) {
            return None;
        }
        self.arrivals += 1;
        self.by_lun.insert(lun, Seat { unit, arrival: self.arrivals }).map(|seat| seat.unit)
    }

    pub(crate) fn take(&mut self, lun: u64) -> Option<Arc<LogicalUnit>> {
        self.by_lun.remove(&lun).map(|seat| seat.unit)
    }

    /// Keeps only the numbers of which `is_wanted` is true.
    pub(crate) fn keep(&mut self, is_wanted: impl Fn(u64) -> bool) {
        self.by_lun.retain(|lun, _| is_wanted(*lun));
    }
}
