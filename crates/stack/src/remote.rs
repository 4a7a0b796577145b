//! How a remote LUN is reached: URL, login, link.

use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use initiator::{
    BoxedStream, ChapCredentials, Connecting, Connector, DiscoveredTarget, InitiatorOptions, RemoteLun, SharingClient,
    SharingStatus, State, Status, TcpConnector,
};
use iscsi::chap::Credentials;
use iscsi::framing::PduSizes;
use iscsi::pdu::Isid;
use iscsi::url::{Portal, Url};
use target::NegotiatedStatus;

use crate::busy_polling::BusyPolling;
use crate::error::{Error, Failure, Result};
use crate::limits::{KEEPALIVE, KEEPALIVE_SHARED, NOTICE_PERCENT_OF_LEASE};
use crate::link::{DelayedStream, LinkModel};
use crate::login::Account;
use crate::segments::SegmentMeter;
use crate::settings::Settings;
use crate::status::remote::{self, RemoteStatus, Sharing};

/// How long to wait for a target.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// For a connection, and for a login.
    pub login: Duration,
    /// For the answer to a command, before it is aborted.
    pub command: Duration,
    /// Silence before a ping, and again before the target counts as lost; zero for no pings. `None` for what suits the
    /// LUN: [`KEEPALIVE`], or [`KEEPALIVE_SHARED`].
    pub keepalive: Option<Duration>,
    /// For a target that is away, before I/O fails.
    pub replacement: Duration,
}

/// The default waits. A measurement waits long enough for a restart.
const WAITS_DEFAULT: Waits = Waits {
    login: Duration::from_secs(15),
    command: Duration::from_secs(30),
    keepalive: None,
    replacement: Duration::from_secs(30),
};

impl Waits {
    /// The waits in `settings`.
    pub fn of(settings: &Settings) -> Self {
        Self {
            login: settings.time("timeout.login").unwrap_or(WAITS_DEFAULT.login),
            command: settings.time("timeout.command").unwrap_or(WAITS_DEFAULT.command),
            keepalive: settings.time("timeout.keepalive").or(WAITS_DEFAULT.keepalive),
            replacement: settings.time("timeout.replacement").unwrap_or(WAITS_DEFAULT.replacement),
        }
    }
}

/// A remote LUN and the login to it.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// Its URL.
    pub url: Url,
    /// The initiator name of this host.
    pub initiator_name: String,
    /// The credentials of this host.
    pub credentials: Option<Credentials>,
    /// The credentials by which the target must authenticate.
    pub target_credentials: Option<Credentials>,
    /// Whether header and data digests are asked for.
    pub with_digests: bool,
    /// How long its connections poll for answers before they sleep.
    pub busy_polling: BusyPolling,
    /// Round-trip time added to the link, for trials.
    pub link_round_trip: Option<Duration>,
    /// This host's part of the session's name; random where there is none.
    pub isid: Option<Isid>,
    /// How long to wait for the target.
    pub waits: Waits,
    /// Connections of the session, or pairs of them.
    pub connections: u16,
    /// Whether requests and responses use separate connections.
    pub split_connections: bool,
    /// Whether other hosts use it at the same time.
    pub is_shared: bool,
    /// Whether it is then used only while it is locked as a whole.
    pub holds_whole: bool,
}

impl RemoteConfig {
    /// The LUN at `url`, with the login in `settings`.
    ///
    /// # Errors
    /// A bad URL or bad credentials.
    pub fn of(url: &str, settings: &Settings) -> Result<Self> {
        let url: Url = url.parse().map_err(|error| Error::new(Failure::Usage, format!("{error}")))?;
        let account = Account::of(settings, url.user.as_deref())?;
        Ok(Self {
            initiator_name: account.initiator_name,
            credentials: account.credentials,
            target_credentials: account.target_credentials,
            with_digests: settings.is_on("digests"),
            busy_polling: settings.parsed("busy-poll")?.unwrap_or_default(),
            link_round_trip: settings.time("link.round-trip"),
            isid: settings.parsed("isid")?,
            waits: Waits::of(settings),
            connections: connections(settings),
            split_connections: settings.is_on("split-connections"),
            is_shared: settings.is_on("shared"),
            holds_whole: false,
            url,
        })
    }

    /// Logs in. The session is maintained on the current runtime until the LUN is closed.
    ///
    /// # Errors
    /// An unreachable portal, a missing target or LUN, refused credentials.
    pub async fn connect(&self, clock: &Arc<dyn Clock>) -> Result<Arc<RemoteLun>> {
        self.connect_by(clock, (false, None), &Traffic::default(), |connector| connector).await
    }

    /// Like [`RemoteConfig::connect`], over a connector that is made from the one of this link,
    /// with its traffic counted in `traffic`. `has_other_paths` and `joins` as in [`InitiatorOptions`].
    pub(crate) async fn connect_by(
        &self,
        clock: &Arc<dyn Clock>,
        (has_other_paths, joins): (bool, Option<SharingClient>),
        traffic: &Traffic,
        over: impl FnOnce(Arc<dyn Connector>) -> Arc<dyn Connector>,
    ) -> Result<Arc<RemoteLun>> {
        let keepalive = self.waits.keepalive.unwrap_or(if self.is_shared { KEEPALIVE_SHARED } else { KEEPALIVE });
        let options = InitiatorOptions {
            initiator_name: self.initiator_name.clone(),
            chap: self.credentials.clone().map(|own| ChapCredentials { own, target: self.target_credentials.clone() }),
            header_digest: self.with_digests,
            data_digest: self.with_digests,
            isid: self.isid,
            command_timeout: self.waits.command,
            connect_timeout: self.waits.login,
            login_timeout: self.waits.login,
            keepalive_interval: keepalive,
            keepalive_timeout: keepalive,
            replacement_timeout: self.waits.replacement,
            connections: self.connections,
            split: self.split_connections,
            is_shared: self.is_shared,
            holds_whole: self.holds_whole,
            busy_poll: self.busy_polling.longest(),
            clock: Arc::clone(clock),
            has_other_paths,
            joins,
            pdu_sizes: Arc::clone(&traffic.pdus),
            ..InitiatorOptions::for_url(&self.url)
        };
        let connector: Arc<dyn Connector> = match self.link_round_trip {
            Some(round_trip) => {
                let inner = traffic.segments.connector();
                Arc::new(DelayedConnector { inner, clock: Arc::clone(clock), model: LinkModel::round_trip(round_trip) })
            }
            None => traffic.segments.connector(),
        };
        let (lun, driver) = initiator::connect(options, over(connector)).await?;
        tokio::spawn(base::background::named("session", driver));
        let lease = lun.sharing_support().filter(|_| self.is_shared).map(|support| support.lease_ms);
        if let Some(lease_ms) = lease.filter(|lease_ms| is_noticed_late(keepalive, *lease_ms)) {
            tracing::warn!(
                place = lun.place(),
                "timeout.keepalive is {keepalive:?}, and the lease of this host as one that shares the logical unit is \
                 {lease_ms} ms: it may be over, and this host fenced, before it is noticed that a connection carries \
                 nothing any more; {:?} would do",
                keepalive_for(lease_ms)
            );
        }
        Ok(lun)
    }
}

/// Whether a connection that carries nothing any more may be found out only when the lease of a host is over.
fn is_noticed_late(keepalive: Duration, lease_ms: u32) -> bool {
    keepalive.is_zero() || keepalive > keepalive_for(lease_ms)
}

/// The longest keepalive that finds such a connection out in time: after one of silence and one without an answer.
fn keepalive_for(lease_ms: u32) -> Duration {
    Duration::from_millis(lease_ms.into()) * NOTICE_PERCENT_OF_LEASE / 100 / 2
}

/// The wanted number of connections, or of pairs, of a session.
pub(crate) fn connections(settings: &Settings) -> u16 {
    settings.number("connections").and_then(|count| u16::try_from(count).ok()).unwrap_or(1)
}

/// The targets that `portal` offers, with the login in `settings`.
///
/// # Errors
/// An unreachable portal, refused credentials.
pub async fn discover(portal: &Portal, settings: &Settings) -> Result<Vec<DiscoveredTarget>> {
    let account = Account::of(settings, None)?;
    let login_timeout = Waits::of(settings).login;
    let options = InitiatorOptions {
        initiator_name: account.initiator_name,
        isid: settings.parsed("isid")?,
        chap: account.credentials.map(|own| ChapCredentials { own, target: account.target_credentials }),
        connect_timeout: login_timeout,
        login_timeout,
        ..InitiatorOptions::for_discovery(portal)
    };
    Ok(initiator::discover(options, Arc::new(TcpConnector)).await?)
}

/// A TCP connector with an added delay.
struct DelayedConnector {
    inner: Arc<dyn Connector>,
    clock: Arc<dyn Clock>,
    model: LinkModel,
}

impl Connector for DelayedConnector {
    fn connect(&self, portal: &Portal) -> Connecting<'_> {
        let portal = portal.clone();
        Box::pin(async move {
            let stream = self.inner.connect(&portal).await?;
            let (stream, pump) = DelayedStream::over(stream, Arc::clone(&self.clock), self.model);
            tokio::spawn(base::background::named("link", pump));
            Ok(Box::new(stream) as BoxedStream)
        })
    }
}

/// The traffic of a remote LUN in sizes of PDUs and segments. Counts are since it was attached,
/// over all its connections.
#[derive(Clone, Default)]
pub(crate) struct Traffic {
    pdus: Arc<PduSizes>,
    segments: Arc<SegmentMeter>,
}

/// The status as one of several hosts.
fn sharing(sharing: &SharingStatus) -> Sharing {
    Sharing {
        client: sharing.client.map(client_name),
        is_alive: sharing.is_alive,
        lease_left_ms: sharing.lease_left.as_millis() as u64,
        purges: sharing.purges,
        ranges_held: sharing.ranges_held,
        asks: sharing.asks,
        callbacks: sharing.callbacks,
        lives: sharing.lives,
    }
}

/// A client's id in the form for users: the target's start, and the registration in it.
pub fn client_name(client: u64) -> String {
    format!("{}.{}", client >> 32, client & u64::from(u32::MAX))
}

/// The state of a session in a word.
pub(crate) fn in_a_word(state: State) -> String {
    format!("{state:?}").to_lowercase()
}

/// The state of a remote LUN as `forebay status` shows it.
pub(crate) fn remote_status(status: &Status, traffic: &Traffic) -> RemoteStatus {
    let pdus = &traffic.pdus;
    let pdu_sizes = remote::PduSizesStatus { sent: (&pdus.sent()).into(), received: (&pdus.received()).into() };
    RemoteStatus {
        state: in_a_word(status.state),
        portal: status.portal.clone(),
        isid: status.isid.map(|isid| isid.to_string()),
        portal_group: status.portal_group_tag,
        last_error: status.last_error.clone(),
        sessions: status.session_count,
        reconnect_attempts: status.reconnect_attempts,
        reconnect_wait_ms: status.reconnect_wait.map(|wait| wait.as_millis() as u64),
        pdus_sent: status.pdus_sent,
        pdus_received: status.pdus_received,
        bytes_sent: status.bytes_sent,
        bytes_received: status.bytes_received,
        pdu_sizes: Some(pdu_sizes),
        tcp_segments: traffic.segments.read(),
        commands_sent: status.commands_sent,
        commands_retried: status.commands_retried,
        connections_recovered: status.connections_recovered,
        writes_replayed: status.writes_replayed,
        connections: status.connections,
        split_connections: status.split_connections,
        in_flight: status.in_flight,
        waiting: status.waiting,
        retained_bytes: status.retained_bytes,
        sharing: status.sharing.as_ref().map(sharing),
        negotiated: status.negotiated.map(NegotiatedStatus),
        busy_poll: status.busy_poll.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keepalive_that_notices_a_dead_connection_behind_the_lease_is_told_from_one_that_does_not() {
        let seconds = Duration::from_secs;
        assert!(is_noticed_late(KEEPALIVE, 10_000) && is_noticed_late(Duration::ZERO, 10_000));
        assert!(!is_noticed_late(KEEPALIVE_SHARED, 10_000) && !is_noticed_late(seconds(3), 10_000));
        assert!(is_noticed_late(KEEPALIVE_SHARED, 5_000) && !is_noticed_late(keepalive_for(5_000), 5_000));
        assert!(!is_noticed_late(seconds(60), u32::MAX));
    }
}
