//! What the clients of a unit hold in all, and how much of it a host may have: it is known by its initiator name, and
//! may be several clients.

use std::collections::BTreeMap;

use locks::identity::ClientId;
use locks::limits::HOLDINGS_OF_HOST_MIN;
use scsi::sharing::{Lock, MessageBody};

use super::settings::SharingOptions;
use crate::nexus::NexusId;

/// The bounds, and the hosts.
pub(super) struct Shares {
    untaken_bytes_max: usize,
    holdings_max: usize,
    /// A nexus by which each client came, also of those that are being fenced.
    hosts: BTreeMap<ClientId, NexusId>,
    /// Bytes of the messages of all clients that were not taken.
    untaken_bytes: usize,
}

impl Shares {
    pub(super) fn new(options: &SharingOptions) -> Self {
        let SharingOptions { untaken_bytes_max, holdings_max, .. } = *options;
        Self { untaken_bytes_max, holdings_max, hosts: BTreeMap::new(), untaken_bytes: 0 }
    }

    /// Notes by which nexus a client came, and forgets those that hold nothing any more.
    pub(super) fn note(&mut self, client: ClientId, nexus: &NexusId, is_registered: impl Fn(ClientId) -> bool) {
        self.hosts.retain(|client, _| is_registered(*client));
        self.hosts.entry(client).or_insert_with(|| nexus.clone());
    }

    fn host(&self, client: ClientId) -> &str {
        self.hosts.get(&client).map_or("", NexusId::initiator_name)
    }

    /// Whether a client may have so many locks and open files more, where all have `all` and each what `holdings` says.
    /// What is reclaimed was there before the start: others that come first then must not keep it from its owner.
    pub(super) fn may_hold(
        &self,
        client: ClientId,
        (more, is_reclaim): (usize, bool),
        all: usize,
        holdings: impl Fn(ClientId) -> usize,
    ) -> bool {
        let all = all + more;
        if all <= self.holdings_max / 2 {
            return true;
        }
        let host = self.host(client);
        let its = self.hosts.keys().filter(|other| self.host(**other) == host);
        let own = its.map(|client| holdings(*client)).sum::<usize>() + more;
        let max = if is_reclaim { self.holdings_max * 3 / 2 } else { self.holdings_max };
        own <= HOLDINGS_OF_HOST_MIN || all + own <= max
    }

    /// Counts bytes of messages: those that were untaken before something happened, and after it.
    pub(super) fn count(&mut self, before: usize, after: usize) {
        self.untaken_bytes = self.untaken_bytes + after - before;
    }

    /// Whether all leave too much untaken.
    pub(super) fn is_over(&self) -> bool {
        self.untaken_bytes > self.untaken_bytes_max
    }

    /// Of the host that leaves most untaken the client that does.
    pub(super) fn laziest(&self, untaken: impl Iterator<Item = (ClientId, usize)> + Clone) -> Option<ClientId> {
        let mut of_host = BTreeMap::<&str, usize>::new();
        for (client, bytes) in untaken.clone() {
            *of_host.entry(self.host(client)).or_default() += bytes;
        }
        untaken
            .max_by_key(|(client, bytes)| (of_host.get(self.host(*client)).copied(), *bytes))
            .map(|(client, _)| client)
    }
}

/// What a message takes in memory, in a queue that may have twice the room it needs.
pub(super) fn bytes_of(message: &MessageBody) -> usize {
    let locks = match message {
        MessageBody::Granted { locks, .. } => locks.capacity(),
        _ => 0,
    };
    2 * (size_of::<MessageBody>() + size_of::<usize>()) + locks * size_of::<Lock>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first had 400 when the second came, who then got 300.
    #[test]
    fn what_two_hosts_had_before_a_start_they_may_reclaim_in_any_order() {
        let mut shares = Shares::new(&SharingOptions { holdings_max: 1000, ..SharingOptions::default() });
        let [first, second] = [1, 2].map(ClientId::from_bits);
        for (client, name) in [(first, "first"), (second, "second")] {
            shares.note(client, &NexusId::new(name), |_| true);
        }
        let may_hold = |client, is_reclaim, [of_first, of_second]: [usize; 2]| {
            let holdings = |of| if of == first { of_first } else { of_second };
            shares.may_hold(client, (50, is_reclaim), of_first + of_second, holdings)
        };
        assert!(may_hold(first, false, [350, 0]) && may_hold(second, false, [400, 250]));
        assert!(!may_hold(first, false, [350, 300]), "as others come later");
        assert!(may_hold(first, true, [350, 300]), "and so did not before the start");
        assert!(!may_hold(first, true, [600, 300]));
    }
}
