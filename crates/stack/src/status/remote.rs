//! A session with a remote LUN.

use ::target::{BusyPollStatus, NegotiatedStatus};
use base::sizes::SizeHistogram;
use serde::{Deserialize, Serialize};

use crate::segments::Segments;

/// A session with a remote LUN.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RemoteStatus {
    /// Its state, in a word.
    pub state: String,
    /// The portal.
    pub portal: String,
    /// Our part of the session's name.
    pub isid: Option<String>,
    /// The portal group that the target named.
    pub portal_group: Option<u16>,
    /// The last error.
    pub last_error: Option<String>,
    /// Sessions so far.
    pub sessions: u64,
    /// Attempts since the last session was lost.
    pub reconnect_attempts: u32,
    /// Milliseconds until the next attempt.
    pub reconnect_wait_ms: Option<u64>,
    /// PDUs sent.
    pub pdus_sent: u64,
    /// PDUs received.
    pub pdus_received: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// PDUs by size; `None` before the first session.
    pub pdu_sizes: Option<PduSizesStatus>,
    /// TCP segments; `None` where the kernel does not report them.
    pub tcp_segments: Option<Segments>,
    /// SCSI commands issued.
    pub commands_sent: u64,
    /// Of these, commands that were issued again.
    pub commands_retried: u64,
    /// Connections that were lost while their session went on.
    pub connections_recovered: u64,
    /// Writes issued again after a session was lost.
    pub writes_replayed: u64,
    /// TCP connections now.
    pub connections: usize,
    /// Of these, halves of pairs.
    pub split_connections: usize,
    /// Commands at the target.
    pub in_flight: usize,
    /// Requests that are not sent yet.
    pub waiting: usize,
    /// Bytes of copies of writes since the last flush.
    pub retained_bytes: usize,
    /// The status as one of several hosts that share the LUN.
    pub sharing: Option<Sharing>,
    /// The negotiated values, for people only.
    #[serde(skip_deserializing)]
    pub negotiated: Option<NegotiatedStatus>,
    /// Busy polling of its connections.
    pub busy_poll: BusyPollStatus,
}

/// PDUs by size on the wire, headers included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PduSizesStatus {
    /// Those that were sent.
    pub sent: Sizes,
    /// Those that were received.
    pub received: Sizes,
}

/// A histogram of sizes: a total, and counts by upper bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sizes {
    /// Count of all.
    pub count: u64,
    /// Counts by size, ascending.
    pub histogram: Vec<SizeBucket>,
}

/// The count of pieces up to a size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SizeBucket {
    /// The size.
    pub le_bytes: u64,
    /// Count of pieces up to it.
    pub count: u64,
}

impl From<&SizeHistogram> for Sizes {
    fn from(sizes: &SizeHistogram) -> Self {
        let bucket = |(le_bytes, count)| SizeBucket { le_bytes, count };
        Self { count: sizes.count(), histogram: sizes.classes().into_iter().map(bucket).collect() }
    }
}

/// The status of a session as that of one of several hosts that share the LUN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sharing {
    /// Its client id at the target.
    pub client: Option<String>,
    /// Whether its copies may be used.
    pub is_alive: bool,
    /// Milliseconds until its lease ends, unless it is renewed.
    pub lease_left_ms: u64,
    /// How often it was asked to drop copies.
    pub purges: u64,
    /// Ranges that it holds alone, of 1 MiB each; of a mount 1 while it has the lock.
    pub ranges_held: u64,
    /// How often it asked for such a range, or the lock.
    pub asks: u64,
    /// How often such a range that was in use, or the lock, was called back.
    pub callbacks: u64,
    /// How many lives it has had.
    pub lives: u64,
}
