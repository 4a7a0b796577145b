//! The options of an attachment to a remote LUN.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::clock::Clock;
use block::{Error, ErrorKind};
use clock::TokioClock;
use iscsi::chap::{Challenge, Credentials};
use iscsi::framing::PduSizes;
use iscsi::initiator::{ChapLogin, LoginConfig, Timing};
use iscsi::limits::CHAP_CHALLENGE_BYTES;
use iscsi::negotiation::{Digest, Offer};
use iscsi::pdu::Isid;
use iscsi::sharing;
use iscsi::split::private_offer;
use iscsi::url::{Portal, Url};

use crate::limits::{CONNECTIONS_MAX, RECONNECT_WAIT_MAX, RECONNECT_WAIT_MIN, RETAIN_SECONDS};
use crate::sharing::SharingClient;

/// CHAP names and secrets of both ends.
#[derive(Clone, Debug)]
pub struct ChapCredentials {
    /// The initiator's name and secret, proved to the target.
    pub own: Credentials,
    /// The target's name and secret, which the target must prove, for mutual authentication.
    pub target: Option<Credentials>,
}

/// All options of an attachment. [`InitiatorOptions::for_url`] fills in sensible values.
#[derive(Clone)]
pub struct InitiatorOptions {
    /// The portal of the target.
    pub portal: Portal,
    /// Its iSCSI name.
    pub target: String,
    /// Which of its logical units.
    pub lun: u16,
    /// Our iSCSI name.
    pub initiator_name: String,
    /// Our part of the session's name, the same over reconnects. `None` draws a random one.
    pub isid: Option<Isid>,
    /// Credentials.
    pub chap: Option<ChapCredentials>,
    /// CRC32C over headers.
    pub header_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
    /// What else is proposed at login.
    pub offer: Offer,
    /// Connections of the session, or pairs when they are split; fewer where the target allows no more.
    pub connections: u16,
    /// ErrorRecoveryLevel that is proposed for a session of several connections: from 1 on it outlives the loss of one
    /// of them, at 2 commands that were under way there go on. A session of one connection has level 0.
    pub error_recovery_level: u8,
    /// Whether requests and responses go over connections of their own, where the target can do that.
    pub split: bool,
    /// Whether other sessions lead to the LUN through other target ports. A request that this
    /// session's port refuses because it is in standby or unavailable then fails with `NoAccess` at
    /// once, to be tried on another path; one that finds no unit there fails with `Gone`.
    pub has_other_paths: bool,
    /// Whether it is one of several hosts that use the LUN at once, and caches what it reads: see
    /// [`Device::copies`](block::Device::copies). Then no write is issued again after a lost
    /// session: its outcome is unknown.
    pub is_shared: bool,
    /// Whether it uses a shared LUN only while it holds all of it alone: its one grant is of the
    /// whole LUN, and its reads register no copies.
    pub holds_whole: bool,
    /// The client of a shared LUN that this session is one more path of; `None` makes another client. From
    /// [`RemoteLun::sharing_client`](crate::RemoteLun::sharing_client) of a session through another portal. While this
    /// session is lost and another one of the client is there, requests that wait here end with `NoAccess`, to be tried
    /// there.
    pub joins: Option<SharingClient>,
    /// How long a command may take before it is aborted.
    pub command_timeout: Duration,
    /// How long an abort or a reset may take before the next step; no longer than a command in any case.
    pub task_management_timeout: Duration,
    /// How long a connection may take to open.
    pub connect_timeout: Duration,
    /// How long a login may take.
    pub login_timeout: Duration,
    /// Silence after which the target is pinged; zero never pings.
    pub keepalive_interval: Duration,
    /// Silence after a ping that means the target is gone.
    pub keepalive_timeout: Duration,
    /// How long the LUN may be unreachable before requests fail. Reconnecting is tried beyond that.
    pub replacement_timeout: Duration,
    /// Wait before the second attempt to reconnect; doubled with each further one. The first is made at once.
    pub reconnect_wait_min: Duration,
    /// Longest wait between attempts.
    pub reconnect_wait_max: Duration,
    /// Commands on their way at once.
    pub queue_depth: usize,
    /// Bytes of copies kept of writes that the LUN has not made durable yet.
    pub retained_bytes_max: usize,
    /// How long streams are polled, at most, instead of sleeping while few commands are under way: about what a wake-up
    /// takes. Zero for never.
    pub busy_poll: Duration,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Counts the sizes of PDUs of all connections together. Keep a clone of it to read the counts.
    pub pdu_sizes: Arc<PduSizes>,
}

impl InitiatorOptions {
    /// The options for a LUN of a target.
    pub fn new(portal: Portal, target: impl Into<String>, lun: u16) -> Self {
        Self {
            portal,
            target: target.into(),
            lun,
            initiator_name: default_initiator_name(),
            isid: None,
            chap: None,
            header_digest: false,
            data_digest: false,
            offer: Offer::initiator(),
            connections: 1,
            error_recovery_level: 2,
            split: false,
            has_other_paths: false,
            is_shared: false,
            holds_whole: false,
            joins: None,
            command_timeout: Duration::from_secs(30),
            task_management_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            login_timeout: Duration::from_secs(15),
            keepalive_interval: Duration::from_secs(5),
            keepalive_timeout: Duration::from_secs(5),
            replacement_timeout: Duration::from_secs(120),
            reconnect_wait_min: RECONNECT_WAIT_MIN,
            reconnect_wait_max: RECONNECT_WAIT_MAX,
            queue_depth: 128,
            retained_bytes_max: 64 << 20,
            busy_poll: Duration::ZERO,
            clock: Arc::new(TokioClock::new()),
            pdu_sizes: Arc::default(),
        }
    }

    /// The options for a URL.
    pub fn for_url(url: &Url) -> Self {
        Self::new(url.portal.clone(), url.target.clone(), url.lun)
    }

    /// The options for a discovery, which has neither target nor LUN.
    pub fn for_discovery(portal: &Portal) -> Self {
        Self::new(portal.clone(), "", 0)
    }

    /// `iscsi://...` of the LUN, for messages.
    pub fn place(&self) -> String {
        format!("iscsi://{}/{}/{}", self.portal, self.target, self.lun)
    }

    pub(crate) fn timing(&self) -> Timing {
        Timing {
            login_timeout: self.login_timeout,
            keepalive_interval: self.keepalive_interval,
            keepalive_timeout: self.keepalive_timeout,
            // A user who wants short command timeouts does not want longer ones for aborts.
            task_management_timeout: self.task_management_timeout.min(self.command_timeout),
        }
    }

    /// The parameters of one login. Challenges are drawn anew for each.
    pub(crate) fn login(&self, isid: Isid, is_discovery: bool) -> Result<LoginConfig, Error> {
        let digests = |is_wanted: bool| match is_wanted {
            true => vec![Digest::Crc32c],
            false => vec![Digest::None, Digest::Crc32c],
        };
        let chap = match &self.chap {
            None => None,
            Some(chap) => {
                let target = chap.target.clone().map(|target| Ok::<_, Error>((target, challenge()?))).transpose()?;
                Some(ChapLogin { own: chap.own.clone(), target })
            }
        };
        let has_several = self.connections > 1 || self.split;
        Ok(LoginConfig {
            initiator_name: self.initiator_name.clone(),
            target_name: (!is_discovery).then(|| self.target.clone()),
            isid,
            tsih: 0,
            cid: 0,
            answers_for: None,
            offer: Offer {
                // Connections that may be added while the session runs count, too.
                max_connections: CONNECTIONS_MAX * if self.split { 2 } else { 1 },
                private: self.private_offers(is_discovery),
                header_digest: digests(self.header_digest),
                data_digest: digests(self.data_digest),
                error_recovery_level: if has_several { self.error_recovery_level } else { 0 },
                default_time2retain: if has_several { RETAIN_SECONDS } else { 0 },
                ..self.offer.clone()
            },
            chap,
        })
    }

    fn private_offers(&self, is_discovery: bool) -> Vec<(String, Vec<String>)> {
        let split = self.split.then(private_offer);
        split.into_iter().chain((self.is_shared && !is_discovery).then(sharing::private_offer)).collect()
    }

    /// The random key that shows that two sessions belong to one client.
    pub(crate) fn sharing_key() -> Result<[u8; 16], Error> {
        let mut key = [0; 16];
        fill_random(&mut key)?;
        Ok(key)
    }

    /// The ISID of this attachment.
    pub(crate) fn isid_or_random(&self) -> Result<Isid, Error> {
        match self.isid {
            Some(isid) => Ok(isid),
            None => {
                let mut bytes = [0; 4];
                fill_random(&mut bytes)?;
                Ok(Isid::random_format(u32::from_be_bytes(bytes), 0))
            }
        }
    }
}

impl fmt::Debug for InitiatorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InitiatorOptions")
            .field("place", &self.place())
            .field("initiator_name", &self.initiator_name)
            .field("chap", &self.chap)
            .finish_non_exhaustive()
    }
}

fn challenge() -> Result<Challenge, Error> {
    let mut identifier = [0; 1];
    let mut bytes = [0; CHAP_CHALLENGE_BYTES];
    fill_random(&mut identifier)?;
    fill_random(&mut bytes)?;
    Ok(Challenge { identifier: identifier[0], bytes })
}

fn fill_random(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes)
        .map_err(|error| Error::new(ErrorKind::Unsupported, format!("the system gives no random bytes: {error}")))
}

/// A name that differs from host to host, where the host has a name.
fn default_initiator_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let is_name = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host: String = host.trim().chars().filter(is_name).take(64).collect();
    let host = if host.is_empty() { "initiator".to_owned() } else { host.to_ascii_lowercase() };
    format!("iqn.2026-01.io.forebay:{host}")
}
