//! A snapshot of sessions, connections and logical units, for the status and the metrics.
//!
//! A session reports its own state when it is asked, so the status costs its I/O nothing. A session
//! that does not answer in time is listed without its report.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use base::busy_poll::BusyPollCounts;
use base::histogram::LatencyHistogram;
use iscsi::negotiation::{NamedValue, Negotiated};
use iscsi::target::LinkReport;
use serde::Deserialize;
use serde::ser::{Serialize, SerializeMap, Serializer};

/// The status at one moment.
#[derive(Clone, Debug, Default, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Sessions, by TSIH.
    pub sessions: Vec<SessionStatus>,
    /// Connections, those still logging in included, oldest first.
    pub connections: Vec<ConnectionStatus>,
    /// Logical units that were used, by target name and LUN.
    pub luns: Vec<LunStatus>,
    /// Tasks of the threads that serve connections: one a connection.
    pub tasks: usize,
    /// PDUs received since the start.
    pub pdus_received: u64,
    /// PDUs sent since the start.
    pub pdus_sent: u64,
    /// Connections accepted since the start.
    pub connections_accepted: u64,
    /// Connections closed at once, for a bound, since the start.
    pub connections_refused: u64,
    /// Logins that were refused since the start.
    pub logins_refused: u64,
    /// Logins that were refused, by status code in hexadecimal digits.
    pub logins_refused_by_status: BTreeMap<String, u64>,
    /// Digests that did not match since the start.
    pub digest_errors: u64,
    /// Busy polling of sockets, of all sessions.
    pub busy_poll: BusyPollStatus,
}

/// Busy polling of sockets instead of sleeping, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct BusyPollStatus {
    /// Pauses in which a session polled instead of sleeping.
    pub begun: u64,
    /// Of these, those that ended with traffic.
    pub paid: u64,
    /// Time spent polling, seconds.
    pub seconds: f64,
    /// Of this, in pauses that did not end with traffic.
    pub seconds_in_vain: f64,
}

impl From<BusyPollCounts> for BusyPollStatus {
    fn from(counts: BusyPollCounts) -> Self {
        Self {
            begun: counts.begun,
            paid: counts.paid,
            seconds: counts.time.as_secs_f64(),
            seconds_in_vain: counts.time_in_vain.as_secs_f64(),
        }
    }
}

/// One session.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct SessionStatus {
    /// Its handle.
    pub tsih: u16,
    /// The initiator port's part of the session's name, twelve hexadecimal digits.
    pub isid: String,
    /// InitiatorName.
    pub initiator_name: String,
    /// The authenticated CHAP name, if any.
    pub authenticated_name: Option<String>,
    /// TargetName; `None` for a discovery session.
    pub target_name: Option<String>,
    /// `Normal` or `Discovery`.
    pub session_type: Cow<'static, str>,
    /// Recovery level agreed on.
    pub error_recovery_level: u8,
    /// The values in force.
    #[serde(skip_deserializing)]
    pub negotiated: NegotiatedStatus,
    /// Its present activity; `None` when it did not answer in time.
    #[serde(flatten)]
    pub activity: Option<SessionActivity>,
}

/// The activity of a session at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct SessionActivity {
    /// Commands at the logical units.
    pub commands_under_way: usize,
    /// Age of the oldest of them, milliseconds.
    pub oldest_command_ms: Option<u64>,
    /// Tasks that have not ended, those that wait for data or their turn included.
    pub tasks: usize,
    /// Bytes of data-in queued, or that commands under way may bring.
    pub outstanding_data_in_bytes: usize,
}

/// A session's answer to an inquiry.
pub(crate) struct SessionReport {
    pub(crate) activity: SessionActivity,
    pub(crate) connections: Vec<(u64, ConnectionReport)>,
}

/// A session's report about a connection.
pub(crate) struct ConnectionReport {
    pub(crate) link: LinkReport,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_sent: u64,
}

/// The values in force, each under the name of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NegotiatedStatus(pub Negotiated);

impl Serialize for NegotiatedStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, value) in self.0.named() {
            match value {
                NamedValue::Name(name) => map.serialize_entry(key, name)?,
                NamedValue::Number(number) => map.serialize_entry(key, &number)?,
                NamedValue::Boolean(flag) => map.serialize_entry(key, &flag)?,
                NamedValue::Declared { initiator, target } => {
                    map.serialize_entry(key, &BTreeMap::from([("initiator", initiator), ("target", target)]))?;
                }
            }
        }
        map.end()
    }
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionState {
    /// It has not logged in yet, or its session did not answer.
    #[default]
    Login,
    /// It carries commands, or discovery.
    FullFeature,
    /// Nothing more is received; the last bytes are sent.
    Closing,
}

impl ConnectionState {
    /// The name in the status.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::FullFeature => "full-feature",
            Self::Closing => "closing",
        }
    }
}

/// One connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionStatus {
    /// TSIH of its session, once it has one.
    pub tsih: Option<u16>,
    /// Connection ID, once it has one.
    pub cid: Option<u16>,
    /// The initiator's address.
    pub peer: String,
    /// The local address.
    pub local: String,
    /// Portal group of that address.
    pub portal_group_tag: u16,
    /// Its state.
    pub state: ConnectionState,
    /// Digest of headers in force.
    pub header_digest: Option<Cow<'static, str>>,
    /// Digest of data in force.
    pub data_digest: Option<Cow<'static, str>>,
    /// PDUs received; known in the full feature phase, like the fields below.
    pub pdus_received: u64,
    /// PDUs queued to be sent.
    pub pdus_sent: u64,
    /// Bytes received, since the login ended.
    pub bytes_received: u64,
    /// Bytes sent, since the login ended.
    pub bytes_sent: u64,
    /// Digests that did not match.
    pub digest_errors: u64,
    /// Milliseconds since it was accepted.
    pub age_ms: u64,
}

impl ConnectionStatus {
    /// Adds the session's report about the connection.
    pub(crate) fn learn(&mut self, tsih: u16, report: &ConnectionReport, negotiated: &Negotiated) {
        let ConnectionReport { link, bytes_received, bytes_sent } = report;
        self.tsih = Some(tsih);
        self.cid = Some(link.cid);
        self.state = if link.is_closed { ConnectionState::Closing } else { ConnectionState::FullFeature };
        self.header_digest = Some(negotiated.header_digest.as_str().into());
        self.data_digest = Some(negotiated.data_digest.as_str().into());
        (self.pdus_received, self.pdus_sent) = (link.pdus_received, link.pdus_sent);
        (self.bytes_received, self.bytes_sent) = (*bytes_received, *bytes_sent);
        self.digest_errors = link.digest_errors;
    }
}

/// The use of one logical unit.
#[derive(Clone, Debug, Default, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct LunStatus {
    /// TargetName.
    pub target_name: String,
    /// LUN.
    pub lun: u64,
    /// READ commands completed.
    pub reads: u64,
    /// Bytes they returned.
    pub read_bytes: u64,
    /// WRITE commands completed.
    pub writes: u64,
    /// Bytes they brought.
    pub written_bytes: u64,
    /// Other commands completed.
    pub others: u64,
    /// Commands that did not end with GOOD.
    pub failures: u64,
    /// Failures by kind: the sense key of a CHECK CONDITION, or the status.
    pub errors: BTreeMap<Cow<'static, str>, u64>,
    /// Its recent rates; `None` without sampling.
    pub rates: Option<RateStatus>,
    /// Latencies of READ commands; `None` before the first.
    pub read_latency: Option<LatencyStatus>,
    /// Latencies of WRITE commands, from the arrival of their last byte.
    pub write_latency: Option<LatencyStatus>,
    /// Latencies of other commands.
    pub other_latency: Option<LatencyStatus>,
}

/// The rates of a logical unit over a short window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct RateStatus {
    /// The window, milliseconds.
    pub window_ms: u64,
    /// Commands a second.
    pub operations_per_second: u64,
    /// Bytes of data a second, both ways.
    pub bytes_per_second: u64,
}

/// Latencies, from the arrival of a command with its data to its end, without the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyStatus {
    /// Samples.
    pub count: u64,
    /// Mean, nanoseconds.
    pub mean_ns: u64,
    /// Median; a percentile is given where ten samples lie beyond it.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile.
    pub p999_ns: Option<u64>,
    /// Largest.
    pub max_ns: u64,
    /// Counts of samples up to each bound.
    pub histogram: Vec<LatencyBucket>,
}

/// The count of samples up to a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyBucket {
    /// The bound, nanoseconds.
    pub le_ns: u64,
    /// Samples up to it.
    pub count: u64,
}

/// Bounds of the buckets, microseconds: three a decade, from a RAM disk's latency to that of a
/// failing disk.
pub const LATENCY_BOUNDS_US: [u64; 19] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    2_000_000, 5_000_000, 10_000_000,
];

impl LatencyStatus {
    pub(crate) fn of(latencies: &LatencyHistogram) -> Self {
        let nanoseconds = |latency: Duration| u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let quantile = |quantile: f64| latencies.quantile(quantile).map(nanoseconds);
        let bucket =
            |us: u64| LatencyBucket { le_ns: us * 1000, count: latencies.count_within(Duration::from_micros(us)) };
        Self {
            count: latencies.count(),
            mean_ns: latencies.mean().map_or(0, nanoseconds),
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: latencies.max().map_or(0, nanoseconds),
            histogram: LATENCY_BOUNDS_US.iter().map(|&us| bucket(us)).collect(),
        }
    }
}
