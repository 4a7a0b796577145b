//! Units that have come under their number during a session.
//!
//! A command is for the unit that was there when its initiator sent it, and a number does not say which that was. A
//! unit that comes during the session refuses every command whose initiator may not know of it yet: all that was sent
//! before the initiator had a response that reports its power-on, even if the number had no unit then. Units that were
//! there when the session began are known: its initiator had no commands under way before that.

use std::collections::BTreeMap;

use iscsi::target as protocol;
use iscsi::target::TaskId;
use logical_unit::{LunMap, MappedUnit, NexusId, Outcome};
use scsi::sharing::action_out;
use scsi::{Cdb, CdbError, Sense};

/// What the initiator of a session knows of the units that came.
pub(super) struct NewUnits {
    /// The arrivals before the session.
    arrivals_before: u64,
    /// Arrivals of which all commands know by now, by LUN.
    met: BTreeMap<u64, u64>,
    /// The arrivals up to which the last copy that was refused told that the list of units has changed.
    told_by_copy: Option<u64>,
}

/// Marks news as those of a copy: that the list of units has changed up to an arrival, and not that one unit came. One
/// number stands for all, so that units without end cost no more than one.
const OF_COPIES: u64 = 1 << 63;

/// The answer to a command that was not sent to the unit that is there, and of which units it tells.
pub(super) struct Refusal {
    pub(super) outcome: Outcome,
    pub(super) news: Vec<u64>,
}

impl NewUnits {
    pub(super) fn new(luns: &LunMap) -> Self {
        Self { arrivals_before: luns.arrivals(), met: BTreeMap::new(), told_by_copy: None }
    }

    /// Refuses a command for a unit that came after it was sent. Those that a unit attention lets pass as well only
    /// look. A copy names its units itself: it is refused while any of them is new.
    pub(super) fn refuse(
        &mut self,
        (luns, nexus): (&LunMap, &NexusId),
        (lun, mapped): (u64, &MappedUnit),
        (task, cdb): (TaskId, &Result<Cdb, CdbError>),
        protocol: &mut protocol::Session,
    ) -> Option<Refusal> {
        // Almost every session sees the same units from its beginning to its end.
        let is_copy = matches!(cdb, Ok(Cdb::ExtendedCopy { .. })) && luns.arrivals() > self.arrivals_before;
        if mapped.arrival() <= self.arrivals_before && !is_copy {
            return None;
        }
        let refusal = || self.refuse_unknown((luns, nexus), (lun, mapped), task, protocol);
        if let Some(refusal) = (!passes(cdb)).then(refusal).flatten() {
            return Some(refusal);
        }
        if !is_copy || !self.may_name_unknown(luns, task, protocol) {
            return None;
        }
        let arrivals = luns.arrivals();
        self.told_by_copy = Some(arrivals);
        let outcome = Outcome::check_condition(Sense::REPORTED_LUNS_CHANGED);
        Some(Refusal { outcome, news: vec![OF_COPIES | arrivals] })
    }

    /// Refuses a command whose initiator may not have known of this unit when it sent it.
    pub(super) fn refuse_unknown(
        &mut self,
        (luns, nexus): (&LunMap, &NexusId),
        (lun, mapped): (u64, &MappedUnit),
        task: TaskId,
        protocol: &mut protocol::Session,
    ) -> Option<Refusal> {
        let is_unknown = self.is_unknown(lun, mapped, task, protocol);
        is_unknown.then(|| Refusal { outcome: luns.refuse_at(nexus, mapped), news: vec![mapped.arrival()] })
    }

    /// Whether a copy may have been sent before its initiator knew of all units that are here.
    fn may_name_unknown(&mut self, luns: &LunMap, task: TaskId, protocol: &protocol::Session) -> bool {
        let told = self.told_by_copy.filter(|told| protocol.knows(task, OF_COPIES | told));
        let known_through = told.unwrap_or(0).max(self.arrivals_before);
        let is_new = |arrival: &u64| {
            *arrival > known_through && !self.met.values().any(|met| met == arrival) && !protocol.knows(task, *arrival)
        };
        luns.arrivals_here().iter().any(is_new)
    }

    /// Whether the initiator may not have known of this unit when it sent a task.
    pub(super) fn is_unknown(
        &mut self,
        lun: u64,
        mapped: &MappedUnit,
        task: TaskId,
        protocol: &mut protocol::Session,
    ) -> bool {
        let arrival = mapped.arrival();
        if arrival <= self.arrivals_before || self.met.get(&lun) == Some(&arrival) {
            return false;
        }
        if !protocol.knows(task, arrival) {
            return true;
        }
        if protocol.forget_news(arrival) {
            self.met.insert(lun, arrival);
        }
        false
    }

    /// Whether the initiator has not said yet that it knows of the unit at a LUN.
    pub(super) fn is_unheard_of(&self, lun: u64, mapped: &MappedUnit, protocol: &protocol::Session) -> bool {
        let arrival = mapped.arrival();
        arrival > self.arrivals_before && self.met.get(&lun) != Some(&arrival) && !protocol.has_acknowledged(arrival)
    }
}

/// Whether a command is carried out at a unit of which its initiator may not know, as those are that a unit attention
/// lets pass: they look, or are of a client that registered at this unit, and concern that alone. To fence anybody's
/// client takes no more than its number, which another client of the unit before may have had.
fn passes(cdb: &Result<Cdb, CdbError>) -> bool {
    let fences = matches!(cdb, Ok(Cdb::SharingOut { service_action: action_out::FENCE, .. }));
    !fences && cdb.is_ok_and(|cdb| cdb.exemption().from_attention)
}
