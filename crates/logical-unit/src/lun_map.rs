//! The view of an I_T nexus: logical units by LUN, and answers for LUNs without a unit.
//!
//! A clone is the same map. Units can be added and removed while it serves; every nexus gets a unit
//! attention (REPORTED LUNS DATA HAS CHANGED). Locks, taken in this order: `nexuses`, `read_only`,
//! `units`.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard, PoisonError, RwLockReadGuard, Weak};
use std::task::Waker;

use scsi::{Cdb, Sense, TaskManagementFunction, TaskManagementOutcome};

use crate::command::{Command, Outcome};
use crate::commands::inquiry;
use crate::data_in::{cut, sense_bytes};
use crate::execution::Execution;
use crate::management::Management;
use crate::mapped_units;
use crate::nexus::NexusId;
use crate::sharing::Addressed;
use crate::task_set::Aborted;
use crate::unit::{LogicalUnit, LunTable};

/// The logical units of a target.
#[derive(Clone, Default)]
pub struct LunMap {
    shared: Arc<LunTable>,
}

/// A weak reference to a [`LunMap`]: it keeps no logical unit in use.
#[derive(Clone)]
pub struct WeakLunMap(Weak<LunTable>);

impl WeakLunMap {
    /// The map, if it still exists.
    pub fn upgrade(&self) -> Option<LunMap> {
        self.0.upgrade().map(|shared| LunMap { shared })
    }
}

/// A logical unit of a map, and which arrival under its number it is.
pub type MappedUnit = mapped_units::MappedUnit<LogicalUnit>;

/// The unit at a LUN, for one initiator.
#[derive(Clone)]
pub struct Mapping {
    /// The number.
    pub lun: u64,
    /// The unit there.
    pub unit: Arc<LogicalUnit>,
    /// Whether nexuses of the map may only read it.
    pub is_read_only: bool,
}

impl LunMap {
    /// A map without logical units.
    pub fn new() -> Self {
        Self::default()
    }

    /// A weak reference to the map.
    pub fn downgrade(&self) -> WeakLunMap {
        WeakLunMap(Arc::downgrade(&self.shared))
    }

    /// Puts a logical unit at `lun`, in place of the former one.
    pub fn insert(&self, lun: u64, unit: Arc<LogicalUnit>) {
        let nexuses = self.nexuses();
        nexuses.iter().for_each(|nexus| unit.add_nexus(nexus));
        unit.maps.join(&self.shared);
        let previous = self.shared.units.write().unwrap_or_else(PoisonError::into_inner).put(lun, unit);
        if let Some(previous) = previous {
            nexuses.iter().for_each(|nexus| previous.remove_nexus(nexus));
        }
        self.tell_of_change(&nexuses, Some(lun));
    }

    /// Removes the logical unit at `lun`. Commands under way finish.
    pub fn remove(&self, lun: u64) -> Option<Arc<LogicalUnit>> {
        let nexuses = self.nexuses();
        let removed = self.shared.units.write().unwrap_or_else(PoisonError::into_inner).take(lun)?;
        nexuses.iter().for_each(|nexus| removed.remove_nexus(nexus));
        self.tell_of_change(&nexuses, None);
        Some(removed)
    }

    /// Makes the map exactly this. Units that stay are not disturbed. Nexuses get unit attentions:
    /// the power-on of units that are new, REPORTED LUNS DATA HAS CHANGED for others that came,
    /// went or have another number, MODE PARAMETERS CHANGED for changed protection (SPC-4 5.9,
    /// 6.11). Commands under way of units that go finish.
    pub fn replace(&self, wanted: &[Mapping]) {
        let nexuses = self.nexuses();
        let old: Vec<(u64, Arc<LogicalUnit>)> =
            self.units().iter().map(|(lun, mapped)| (lun, Arc::clone(&mapped.unit))).collect();
        let is_known = |unit: &Arc<LogicalUnit>| old.iter().any(|(_, other)| Arc::ptr_eq(other, unit));
        let is_wanted = |unit: &Arc<LogicalUnit>| wanted.iter().any(|mapping| Arc::ptr_eq(&mapping.unit, unit));
        for mapping in wanted {
            mapping.unit.maps.join(&self.shared);
            let is_known = is_known(&mapping.unit);
            for nexus in nexuses.iter() {
                if !is_known {
                    mapping.unit.add_nexus(nexus);
                }
                if mapping.unit.protection.set(nexus, mapping.is_read_only) && is_known {
                    mapping.unit.attentions.establish_for(nexus, Sense::MODE_PARAMETERS_CHANGED);
                }
            }
        }
        *self.shared.read_only.lock().unwrap_or_else(PoisonError::into_inner) =
            wanted.iter().filter(|mapping| mapping.is_read_only).map(|mapping| mapping.lun).collect();
        let is_same = {
            let mut units = self.shared.units.write().unwrap_or_else(PoisonError::into_inner);
            let arrivals = units.arrivals();
            units.keep(|lun| wanted.iter().any(|mapping| mapping.lun == lun));
            let has_kept_all = units.iter().count() == old.len();
            wanted.iter().for_each(|mapping| drop(units.put(mapping.lun, Arc::clone(&mapping.unit))));
            has_kept_all && units.arrivals() == arrivals
        };
        for (_, gone) in old.iter().filter(|(_, unit)| !is_wanted(unit)) {
            nexuses.iter().for_each(|nexus| gone.remove_nexus(nexus));
        }
        if !is_same {
            for Mapping { unit, .. } in wanted.iter().filter(|mapping| is_known(&mapping.unit)) {
                nexuses.iter().for_each(|nexus| unit.attentions.establish_for(nexus, Sense::REPORTED_LUNS_CHANGED));
            }
        }
    }

    /// The logical unit at `lun`.
    pub fn get(&self, lun: u64) -> Option<Arc<LogicalUnit>> {
        self.units().get(lun).map(|mapped| mapped.unit)
    }

    /// The logical unit at `lun`, for [`execute_at`](Self::execute_at).
    pub fn mapped(&self, lun: u64) -> Option<MappedUnit> {
        self.units().get(lun)
    }

    /// How many units have come under a number so far ([`MappedUnit::arrival`]).
    pub fn arrivals(&self) -> u64 {
        self.units().arrivals()
    }

    /// The arrivals of all units that are there.
    pub fn arrivals_here(&self) -> Vec<u64> {
        self.units().iter().map(|(_, mapped)| mapped.arrival()).collect()
    }

    /// The LUNs that have a unit, ascending.
    pub fn luns(&self) -> Vec<u64> {
        self.units().iter().map(|(lun, _)| lun).collect()
    }

    /// Adds an I_T nexus: every logical unit will report the power-on (29h/00h) to it. Also for one
    /// that is already known.
    pub fn add_nexus(&self, nexus: &NexusId) {
        let mut nexuses = self.nexuses();
        nexuses.insert(nexus.clone());
        let read_only = self.shared.read_only.lock().unwrap_or_else(PoisonError::into_inner);
        for (lun, mapped_units::MappedUnit { unit, .. }) in self.units().iter() {
            unit.add_nexus(nexus);
            unit.protection.set(nexus, read_only.contains(&lun));
        }
    }

    /// Removes an I_T nexus with its tasks (SAM-5 6.3.4): requests at a device run to their end,
    /// but no more begin. The transport has dropped or drops their executions.
    pub fn remove_nexus(&self, nexus: &NexusId) {
        let mut nexuses = self.nexuses();
        nexuses.remove(nexus);
        for unit in self.units().units() {
            unit.tasks.abort(nexus, |owner, _| owner == nexus);
            unit.remove_nexus(nexus);
        }
    }

    /// Whether a nexus may only read some unit: task management of such a nexus affects only its
    /// own tasks there.
    pub fn is_confined(&self, nexus: &NexusId) -> bool {
        self.units().units().any(|unit| unit.protection.covers(nexus))
    }

    /// Establishes a unit attention: the transport ended commands of a nexus without a response,
    /// and the nexus goes on (RFC 7143 11.14.5).
    pub fn tell_of_cleared_commands(&self, nexus: &NexusId, lun: u64) {
        if let Some(unit) = self.get(lun) {
            unit.attentions.establish_for(nexus, Sense::COMMANDS_CLEARED_BY_TRANSPORT);
        }
    }

    /// Runs one command. It is under way when this returns.
    pub fn execute(&self, nexus: &NexusId, lun: u64, command: Command) -> Execution {
        self.execute_at(nexus, self.mapped(lun).as_ref(), command)
    }

    /// Runs one command for the unit that is at its LUN by now, or was a moment ago.
    pub fn execute_at(&self, nexus: &NexusId, mapped: Option<&MappedUnit>, command: Command) -> Execution {
        if let Ok(Cdb::ReportLuns { select_report, allocation_length }) = command.cdb {
            return Execution::ready(self.report_luns(nexus, select_report, allocation_length));
        }
        match mapped {
            Some(mapped) => mapped.unit.execute(nexus, command, mapped.arrivals_then),
            None => Execution::ready(absent(&command)),
        }
    }

    /// The answer to a command of `nexus` that was sent before its initiator could know of the unit there: its power-on
    /// is reported, and nothing done.
    pub fn refuse_at(&self, nexus: &NexusId, mapped: &MappedUnit) -> Outcome {
        mapped.unit.attentions.forget(nexus, &Sense::POWER_ON_OR_RESET);
        Outcome::check_condition(Sense::POWER_ON_OR_RESET)
    }

    /// Takes the next message of a shared unit for a nexus, with its LUN. `waker` is woken when
    /// there is one later, if the nexus belongs to a client.
    pub fn poll_message(&self, nexus: &NexusId, waker: &Waker) -> Option<(u64, Addressed)> {
        let shared = |unit: &LogicalUnit| unit.access.sharing()?.poll_message(nexus, waker);
        self.units().iter().find_map(|(lun, mapped)| Some((lun, shared(&mapped.unit)?)))
    }

    /// Sends messages again that were not acknowledged: a connection of a nexus is lost, perhaps
    /// with messages on their way.
    pub fn rewind_messages(&self, nexus: &NexusId) {
        self.units()
            .units()
            .filter_map(|unit| unit.access.sharing())
            .for_each(|sharing| sharing.rewind_messages(nexus));
    }

    /// Sense data of a command to `lun`, in the format its unit is set to.
    pub fn sense_bytes(&self, lun: u64, sense: &Sense) -> Vec<u8> {
        match self.get(lun) {
            Some(unit) => unit.sense_bytes(sense),
            None => sense_bytes(sense, false),
        }
    }

    /// Carries out a task management function. It takes effect at the call; the future waits until
    /// the aborted tasks have ended.
    pub fn task_management(
        &self,
        nexus: &NexusId,
        function: TaskManagementFunction,
        lun: Option<u64>,
        task_tag: Option<u64>,
    ) -> Management {
        let (outcome, aborted) = self.manage(nexus, function, lun, task_tag);
        Management::new(outcome, aborted)
    }

    fn manage(
        &self,
        nexus: &NexusId,
        function: TaskManagementFunction,
        lun: Option<u64>,
        task_tag: Option<u64>,
    ) -> (TaskManagementOutcome, Vec<Aborted>) {
        use TaskManagementFunction as Function;
        use TaskManagementOutcome as Answer;
        let whole_target = matches!(function, Function::TargetWarmReset | Function::TargetColdReset);
        let units = match (whole_target, lun) {
            (true, _) => self.units().units().cloned().collect(),
            (false, None) => return (Answer::FunctionRejected, Vec::new()),
            (false, Some(lun)) => match self.get(lun) {
                None => return (Answer::LunDoesNotExist, Vec::new()),
                Some(unit) => vec![unit],
            },
        };
        match function {
            Function::AbortTask => {
                let Some(task_tag) = task_tag else { return (Answer::FunctionRejected, Vec::new()) };
                let aborted = abort(&units, nexus, |owner, tag| owner == nexus && tag == task_tag);
                let is_there = !aborted.is_empty();
                (if is_there { Answer::FunctionComplete } else { Answer::TaskDoesNotExist }, aborted)
            }
            Function::AbortTaskSet => (Answer::FunctionComplete, abort(&units, nexus, |owner, _| owner == nexus)),
            Function::ClearTaskSet
            | Function::LogicalUnitReset
            | Function::TargetWarmReset
            | Function::TargetColdReset => {
                // A read-only nexus aborts its own tasks only; those of others go on.
                let (own, whole): (Vec<_>, Vec<_>) = units.into_iter().partition(|unit| unit.protection.covers(nexus));
                let mut aborted = abort(&own, nexus, |owner, _| owner == nexus);
                aborted.append(&mut abort(&whole, nexus, |_, _| true));
                if function != Function::ClearTaskSet {
                    whole.iter().for_each(|unit| unit.reset());
                }
                (Answer::FunctionComplete, aborted)
            }
            // The transport carries out those that concern the nexus as a whole, or what only it knows.
            Function::ClearAca
            | Function::TaskReassign
            | Function::QueryTask
            | Function::QueryTaskSet
            | Function::NexusReset
            | Function::QueryAsynchronousEvent => (Answer::FunctionNotSupported, Vec::new()),
        }
    }

    /// REPORT LUNS is answered at any LUN (SPC-4 6.33).
    fn report_luns(&self, nexus: &NexusId, select_report: u8, allocation_length: u32) -> Outcome {
        let luns = match select_report {
            0x00 | 0x02 => self.luns(),
            // Well-known logical units only: there are none.
            0x01 => Vec::new(),
            _ => return Outcome::check_condition(Sense::INVALID_FIELD_IN_CDB.at_byte(2)),
        };
        if allocation_length < 16 {
            return Outcome::check_condition(Sense::INVALID_FIELD_IN_CDB.at_byte(6));
        }
        self.units().units().for_each(|unit| unit.attentions.forget(nexus, &Sense::REPORTED_LUNS_CHANGED));
        Outcome::good(cut(&scsi::report_luns::emit(&luns), allocation_length))
    }

    fn tell_of_change(&self, nexuses: &BTreeSet<NexusId>, new: Option<u64>) {
        for (lun, mapped_units::MappedUnit { unit, .. }) in self.units().iter().filter(|(lun, _)| Some(*lun) != new) {
            tracing::debug!(lun, "reported LUNs data has changed");
            nexuses.iter().for_each(|nexus| unit.attentions.establish_for(nexus, Sense::REPORTED_LUNS_CHANGED));
        }
    }

    fn nexuses(&self) -> MutexGuard<'_, BTreeSet<NexusId>> {
        self.shared.nexuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn units(&self) -> RwLockReadGuard<'_, mapped_units::MappedUnits<LogicalUnit>> {
        self.shared.units.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn abort(units: &[Arc<LogicalUnit>], by: &NexusId, matches: impl Fn(&NexusId, u64) -> bool) -> Vec<Aborted> {
    units.iter().filter_map(|unit| unit.tasks.abort(by, &matches)).collect()
}

/// The answer where there is no logical unit (SPC-4 5.9, 6.6.2, 6.39): INQUIRY reports that in its
/// first byte, REQUEST SENSE in its data.
fn absent(command: &Command) -> Outcome {
    match command.cdb {
        Ok(Cdb::Inquiry { is_vpd: false, page: 0, allocation_length }) => {
            Outcome::good(cut(&inquiry::absent(), u32::from(allocation_length)))
        }
        Ok(Cdb::RequestSense { is_descriptor, allocation_length }) => {
            let bytes = sense_bytes(&Sense::LOGICAL_UNIT_NOT_SUPPORTED, is_descriptor);
            Outcome::good(cut(&bytes, u32::from(allocation_length)))
        }
        _ => Outcome::check_condition(Sense::LOGICAL_UNIT_NOT_SUPPORTED),
    }
}
