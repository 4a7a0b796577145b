//! The logical units of a session, for its nexus.

use std::collections::BTreeMap;
use std::sync::Arc;

use iscsi::pdu::{TaskManagementFunction, TaskManagementOutcome};
use logical_unit::{LunMap, NexusId};

use crate::shared::Shared;
use crate::tally::Tally;
use crate::target::lun_number;

pub(super) struct Units {
    pub(super) target_name: String,
    pub(super) luns: LunMap,
    pub(super) nexus: NexusId,
    pub(super) tallies: BTreeMap<u64, Arc<Tally>>,
}

impl Units {
    /// The functions of RFC 7144 that concern the nexus as a whole, which logical units do not
    /// implement.
    pub(super) fn manage_nexus(&self, function: TaskManagementFunction, lun: u64) -> Option<TaskManagementOutcome> {
        match function {
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
