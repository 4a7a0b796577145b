//! What the data path counts over all sessions of a LUN.

use crate::link::Link;
use crate::status::Status;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) commands_sent: u64,
    pub(super) commands_retried: u64,
    pub(super) writes_replayed: u64,
    /// PDUs and bytes of sessions that are over.
    pdus_sent: u64,
    pdus_received: u64,
    bytes_sent: u64,
    bytes_received: u64,
    connections_recovered: u64,
}

impl Counts {
    /// Adds what a session counted that is over.
    pub(super) fn end_session(&mut self, link: &Link) {
        let (pdus_sent, pdus_received) = link.pdu_counts();
        self.pdus_sent += pdus_sent;
        self.pdus_received += pdus_received;
        self.bytes_sent += link.counters.bytes_sent;
        self.bytes_received += link.counters.bytes_received;
        self.connections_recovered += link.recovered_count();
    }

    /// Publishes what has a meaning without a session.
    pub(super) fn publish(&self, status: &mut Status) {
        status.commands_sent = self.commands_sent;
        status.commands_retried = self.commands_retried;
        status.writes_replayed = self.writes_replayed;
    }

    /// Publishes what the connections carried, up to and with those of the present session.
    pub(super) fn publish_traffic(&self, link: &Link, status: &mut Status) {
        let mut all = *self;
        all.end_session(link);
        status.pdus_sent = all.pdus_sent;
        status.pdus_received = all.pdus_received;
        status.bytes_sent = all.bytes_sent;
        status.bytes_received = all.bytes_received;
        status.connections_recovered = all.connections_recovered;
        (status.connections, status.split_connections) = link.connection_counts();
    }
}
