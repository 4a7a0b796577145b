//! The logical units of a session, for its nexus.

use std::collections::BTreeMap;
use std::sync::Arc;

use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};
use iscsi::target as protocol;
use iscsi::target::TaskId;
use logical_unit::{LunMap, MappedUnit, NexusId, Outcome};
use scsi::{Cdb, CdbError, Sense};

use crate::shared::Shared;
use crate::tally::Tally;
use crate::target::lun_number;

use super::new_units::{NewUnits, Refusal};

pub(super) struct Units {
    pub(super) target_name: String,
    pub(super) luns: LunMap,
    pub(super) nexus: NexusId,
    pub(super) tallies: BTreeMap<u64, Arc<Tally>>,
    pub(super) new_units: NewUnits,
}

impl Units {
    /// The units that a map has at the beginning of a session.
    pub(super) fn new(target_name: String, luns: LunMap, nexus: NexusId) -> Self {
        let new_units = NewUnits::new(&luns);
        Self { target_name, luns, nexus, tallies: BTreeMap::new(), new_units }
    }

    /// Refuses a command for a unit that came after it was sent.
    pub(super) fn refuse(
        &mut self,
        (lun, mapped): (u64, Option<&MappedUnit>),
        command: (TaskId, &Result<Cdb, CdbError>),
        protocol: &mut protocol::Session,
    ) -> Option<Refusal> {
        self.new_units.refuse((&self.luns, &self.nexus), (lun, mapped?), command, protocol)
    }

    /// The answer to a command whose unit went while it waited there, in place of that outcome: what those are told
    /// that come for its number now.
    pub(super) fn refuse_left_behind(
        &mut self,
        (lun, task): (u64, TaskId),
        outcome: &Outcome,
        protocol: &mut protocol::Session,
    ) -> Option<Refusal> {
        if outcome.sense != Some(Sense::LOGICAL_UNIT_NOT_SUPPORTED) {
            return None;
        }
        let mapped = self.luns.mapped(lun)?;
        self.new_units.refuse_unknown((&self.luns, &self.nexus), (lun, &mapped), task, protocol)
    }

    /// The functions of RFC 7144 that concern the nexus as a whole, which logical units do not
    /// implement; and those that are for all tasks of a unit, where another unit has come meanwhile.
    pub(super) fn manage(
        &self,
        function: TaskManagementFunction,
        lun: u64,
        protocol: &protocol::Session,
    ) -> Option<TaskManagementOutcome> {
        match function {
            TaskManagementFunction::ClearTaskSet | TaskManagementFunction::LogicalUnitReset => {
                let lun = lun_number(lun);
                let is_new = |mapped: &MappedUnit| self.new_units.is_unheard_of(lun, mapped, protocol);
                let is_another = self.luns.mapped(lun).is_some_and(|mapped| is_new(&mapped));
                is_another.then_some(TaskManagementOutcome::LunDoesNotExist)
            }
            TaskManagementFunction::NexusReset => {
                // The loss of the nexus and its return (SAM-5 6.3.3, 7.6).
                self.luns.remove_nexus(&self.nexus);
                self.luns.add_nexus(&self.nexus);
                Some(TaskManagementOutcome::FunctionComplete)
            }
            TaskManagementFunction::QueryAsynchronousEvent => {
                let Some(unit) = self.luns.get(lun_number(lun)) else {
                    return Some(TaskManagementOutcome::LunDoesNotExist);
                };
                let is_pending = unit.has_attention(&self.nexus);
                Some(if is_pending {
                    TaskManagementOutcome::FunctionSucceeded
                } else {
                    TaskManagementOutcome::FunctionComplete
                })
            }
            _ => None,
        }
    }

    pub(super) fn tally(&mut self, lun: u64, server: &Shared) -> Arc<Tally> {
        if let Some(tally) = self.tallies.get(&lun) {
            return Arc::clone(tally);
        }
        let tally = if self.luns.get(lun).is_some() {
            server.counters.lun(&self.target_name, lun)
        } else {
            // An initiator may ask for any LUN; only those that exist get a lasting entry.
            return Arc::default();
        };
        self.tallies.insert(lun, Arc::clone(&tally));
        tally
    }
}
