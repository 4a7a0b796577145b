//! SHARING IN, REPORT: the clients of the unit, the locks they hold and wait for. For
//! administrators.

use base::clock::Instant;
use locks::identity::GrantNumber;
use scsi::sharing::{Report, ReportRecord};

use super::site::Sharing;
use super::state::State;
use super::wire::{self, milliseconds};
use crate::limits::SHARING_REPORT_RECORDS_MAX;

impl Sharing {
    /// The records from `first` on, at most `records_max`.
    pub(crate) fn report(&self, first: u64, records_max: usize) -> Report {
        let count = records_max.min(SHARING_REPORT_RECORDS_MAX);
        self.with(|state, now| {
            let skipped = usize::try_from(first).unwrap_or(usize::MAX);
            let mut all = state.records(now).skip(skipped);
            let records: Vec<ReportRecord> = all.by_ref().take(count).collect();
            let next = all.next().map(|_| first.saturating_add(records.len() as u64));
            Report { records, next }
        })
    }
}

impl State {
    fn records(&self, now: Instant) -> impl Iterator<Item = ReportRecord> {
        let manager = &self.manager;
        let registrations =
            |client| manager.gate().registrations().all().filter(|(of, _)| *of == client).count() as u64;
        let clients = manager.clients().all().map(move |(id, client)| ReportRecord::Client {
            client: id.bits(),
            is_being_fenced: client.is_being_fenced,
            lease_left_ms: milliseconds(client.lease_until.since(now)),
            registrations: registrations(id),
            untaken: self.members.get(&id).map_or(0, |member| member.outbox.untaken_count() as u64),
        });
        let before = manager.clients_before().map(|client| ReportRecord::Client {
            client: client.bits(),
            is_being_fenced: false,
            lease_left_ms: manager.grace_left(now).map_or(0, milliseconds),
            registrations: 0,
            untaken: 0,
        });
        let clients = clients.chain(before);
        let grants = manager.table().all_grants().map(|(owner, resource, grant)| ReportRecord::Grant {
            client: owner.client.bits(),
            transaction: owner.transaction.0,
            lock: wire::lock(resource, Some(grant.mode), grant.number),
        });
        let waiting = manager.table().tickets().flat_map(|(_, ticket)| {
            ticket.wanted.iter().map(|(resource, mode)| ReportRecord::Waiting {
                client: ticket.owner.client.bits(),
                request: ticket.request.0,
                lock: wire::lock(*resource, Some(*mode), GrantNumber(0)),
            })
        });
        let callbacks = manager.callbacks().open().map(move |(client, number, callback)| ReportRecord::Callback {
            client: client.bits(),
            callback: number.0,
            deadline_left_ms: milliseconds(callback.deadline.since(now)),
        });
        let fenced = manager.clients().fenced().map(|client| ReportRecord::Fenced { client: client.bits() });
        // Fenced clients are named, too, while their sessions exist.
        let names = self.bound.iter();
        let names = names.flat_map(|(nexus, client)| ReportRecord::name_lines(client.bits(), nexus.initiator_port()));
        clients.chain(grants).chain(waiting).chain(callbacks).chain(fenced).chain(names)
    }
}
