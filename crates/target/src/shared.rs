//! The state that all connections of a server share, and its options.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use base::buffer::BufferPool;
use base::clock::Clock;
use base::refusals::Refusals;
use iscsi::chap::Challenge;
use iscsi::limits::CHAP_CHALLENGE_BYTES;
use iscsi::target::{Authentication, RetainedData, TargetParameters, TargetPortal};

use crate::connections::Connections;
use crate::counters::Counters;
use crate::data_in::DataIn;
use crate::limits::DRAIN_SECONDS;
use crate::portals::{PORTAL_GROUP_DEFAULT, Portals};
use crate::quota::Quota;
use crate::sessions::Sessions;
use crate::target::Target;
use crate::turns::Turns;

/// The options of a server.
#[derive(Clone, Debug)]
pub struct TargetServerOptions {
    /// Addresses to listen on; port 0 takes a free one.
    pub portals: Vec<TargetPortal>,
    /// Threads that serve connections; zero for one per processor.
    pub shards: usize,
    /// Authentication of discovery sessions.
    pub discovery_authentication: Authentication,
    /// This end's offer in negotiation; `None` for the default.
    pub offer: Option<iscsi::negotiation::Offer>,
    /// The limits for peers.
    pub quota: Quota,
    /// How long a session polls its sockets, at most, before it sleeps, where that pays: about the
    /// duration of a wake-up. Zero for never.
    pub busy_poll: Duration,
    /// Seconds that initiators have to log out when the server stops (RFC 7143 11.9.1, event 1).
    pub drain_seconds: u16,
}

impl Default for TargetServerOptions {
    fn default() -> Self {
        Self {
            portals: Vec::new(),
            shards: 0,
            discovery_authentication: Authentication::default(),
            offer: None,
            quota: Quota::default(),
            busy_poll: Duration::ZERO,
            drain_seconds: DRAIN_SECONDS,
        }
    }
}

/// The state that all connections share.
pub(crate) struct Shared {
    pub(crate) options: TargetServerOptions,
    /// The present limits for peers; those that each command checks are in `data_in`, too.
    pub(crate) quota: RwLock<Quota>,
    pub(crate) data_in: DataIn,
    /// Limits log lines about connections and logins that were refused.
    pub(crate) refusals: Refusals,
    /// Limits log lines about commands that a disk failed.
    pub(crate) failures: Refusals,
    /// Limits log lines about digests that did not match.
    pub(crate) digests: Refusals,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sessions: Sessions,
    pub(crate) counters: Counters,
    /// How long sessions poll their sockets before they sleep: zero when the shards would take
    /// processors from each other.
    pub(crate) busy_poll: Duration,
    /// The turns of connections that are not on one of the server's threads.
    pub(crate) turns: Arc<Turns>,
    pub(crate) pool: BufferPool,
    /// Buffers for data of requests that are not commands.
    pub(crate) request_data: BufferPool,
    /// What all sessions keep for recovery.
    pub(crate) retained: Arc<RetainedData>,
    pub(crate) targets: RwLock<Vec<Target>>,
    /// By portal group tag; rebuilt when targets, accounts or portals change.
    pub(crate) parameters: RwLock<BTreeMap<u16, Arc<TargetParameters>>>,
    pub(crate) portals: Portals,
    pub(crate) discovery_authentication: RwLock<Authentication>,
    pub(crate) connections: Arc<Connections>,
    /// The shards' runtimes, once the server runs.
    pub(crate) runtimes: OnceLock<Vec<tokio::runtime::Handle>>,
}

impl Shared {
    /// The present limits for peers.
    pub(crate) fn quota(&self) -> Quota {
        *self.quota.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn parameters(&self, portal_group_tag: u16) -> Arc<TargetParameters> {
        let parameters = self.parameters.read().unwrap_or_else(PoisonError::into_inner);
        let of_none = || Arc::new(TargetParameters::new(Vec::new(), self.pool.clone()));
        parameters.get(&portal_group_tag).map_or_else(of_none, Arc::clone)
    }

    pub(crate) fn target(&self, name: &str) -> Option<Target> {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        targets.iter().find(|target| target.name.eq_ignore_ascii_case(name)).cloned()
    }

    /// Fresh randomness for one connection.
    pub(crate) fn challenge(&self) -> Challenge {
        let mut bytes = [0; CHAP_CHALLENGE_BYTES + 1];
        getrandom::fill(&mut bytes).expect("the operating system has randomness");
        let (identifier, challenge) = bytes.split_first().expect("the array is not empty");
        Challenge { identifier: *identifier, bytes: challenge.try_into().expect("the array is one longer") }
    }

    /// Rebuilds the parameters of each portal group.
    pub(crate) fn rebuild(&self) {
        let targets = self.targets.read().unwrap_or_else(PoisonError::into_inner);
        let portals = self.portals.bound();
        let described = targets.iter().map(|target| target.describe(&portals)).collect();
        let mut parameters = TargetParameters::new(described, self.pool.clone());
        parameters.discovery_authentication =
            self.discovery_authentication.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(offer) = &self.options.offer {
            parameters.offer = offer.clone();
        }
        let quota = self.quota();
        parameters.offer.max_connections = parameters.offer.max_connections.min(quota.connections_per_session).max(1);
        parameters.command_window = quota.session_commands.clamp(1, parameters.command_window);
        parameters.retained = Arc::clone(&self.retained);
        parameters.request_data = self.request_data.clone();
        parameters.session_data_out_bytes = quota.session_data_out_bytes;
        parameters.login_timeout = quota.login_time;
        parameters.login_idle_timeout = quota.login_idle;
        let tags = portals.iter().map(|portal| portal.group).chain([PORTAL_GROUP_DEFAULT]);
        let of_group = |tag| (tag, Arc::new(TargetParameters { portal_group_tag: tag, ..parameters.clone() }));
        *self.parameters.write().unwrap_or_else(PoisonError::into_inner) = tags.map(of_group).collect();
    }
}
