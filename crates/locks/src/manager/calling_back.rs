//! Calls back holders that have to give up what others wait for, not before they have held it for long enough.

use std::collections::BTreeSet;

use base::clock::Instant;

use super::LockManager;
use crate::callbacks::Subject;
use crate::grants::PendingCallback;
use crate::identity::Owner;
use crate::lock_table::Touched;
use crate::message::{ToClient, Wanted};

impl LockManager {
    /// Calls back the holders in the way of the tickets that are first where something has changed.
    pub(super) fn call_back(&mut self, now: Instant, changed: &Touched) {
        let changed_at = changed.freed.union(&changed.taken).copied();
        let held_at = changed_at.filter(|resource| self.table.has_somebody_to_call(*resource));
        let everybody = held_at.flat_map(|resource| self.table.first_at(resource));
        let everybody = everybody.map(|(_, owner, wanted)| (owner, wanted));
        let themselves = changed.tickets.iter().flat_map(|number| self.table.first_places(*number));
        for (owner, wanted) in everybody.chain(themselves).collect::<BTreeSet<_>>() {
            for holder in self.table.conflicting_clients(owner, wanted).collect::<Vec<_>>() {
                self.call_back_from(now, holder, wanted);
            }
        }
    }

    pub(super) fn call_back_from(&mut self, now: Instant, holder: Owner, (resource, requested): Wanted) {
        let Some(grant) = self.table.grant(holder, resource).copied() else { return };
        if !holder.is_own() || grant.callback.is_some() || !self.clients.is_served(holder.client) {
            return;
        }
        let until = grant.since + self.settings.hold_time_min;
        if until > now {
            self.looks.insert((until, resource));
            return;
        }
        let to = grant.mode.strongest_beside(requested);
        let number = self.callbacks.send(now, holder.client, Subject::Lock(resource, to), &self.settings);
        self.table.set_callback(holder, resource, PendingCallback { number, to, is_deferred: false });
        self.post(holder.client, ToClient::Callback { number, resource, grant: grant.number, to });
    }

    /// Examines again the holders of resources that have been held for long enough.
    pub(super) fn look_at_long_held(&mut self, now: Instant) {
        while let Some((_, resource)) = self.looks.first().copied().filter(|(at, _)| *at <= now) {
            self.looks.pop_first();
            self.table.touch(resource);
        }
    }
}
