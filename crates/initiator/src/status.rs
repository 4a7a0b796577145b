//! The status of an attachment.

use std::time::Duration;

use base::busy_poll::BusyPollCounts;
use iscsi::negotiation::Negotiated;
use iscsi::pdu::Isid;

use crate::sharing::SharingStatus;

/// The state of an attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The session carries requests.
    #[default]
    Online,
    /// The session is back; what was not durable is being written again, and requests wait.
    Replaying,
    /// There is no session; requests wait while reconnecting is tried.
    Reconnecting,
    /// There has been no session for longer than the replacement timeout; requests fail while
    /// reconnecting is tried.
    Failing,
    /// Another device answers in the LUN's place. No more commands are sent there.
    Replaced,
    /// This host shared the LUN with others and was fenced. No more commands are sent there.
    Fenced,
    /// It was closed.
    Closed,
}

/// A moment's view of an attachment. Counts are since it was attached, over all its sessions.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Its state.
    pub state: State,
    /// The portal of the session, or the one that is tried.
    pub portal: String,
    /// Our part of the session's name (RFC 7143 4.4.3.1): with the initiator's name and the portal group it is the
    /// initiator port, the same in every session.
    pub isid: Option<Isid>,
    /// Its portal group, where the target said it: sessions by the same name through portals of one group are one
    /// session.
    pub portal_group_tag: Option<u16>,
    /// The last error: of a session, of an attempt to get one, or of a request that the LUN failed.
    /// It stays after recovery.
    pub last_error: Option<String>,
    /// Sessions so far.
    pub session_count: u64,
    /// Attempts to reconnect since the last session.
    pub reconnect_attempts: u32,
    /// The wait before the next attempt, while one is waited for.
    pub reconnect_wait: Option<Duration>,
    /// PDUs sent.
    pub pdus_sent: u64,
    /// PDUs received.
    pub pdus_received: u64,
    /// Bytes sent, headers included.
    pub bytes_sent: u64,
    /// Bytes received, headers included.
    pub bytes_received: u64,
    /// SCSI commands issued, retries included.
    pub commands_sent: u64,
    /// SCSI commands issued once more.
    pub commands_retried: u64,
    /// Retained writes issued again after a reconnect or power-on.
    pub writes_replayed: u64,
    /// Commands under way.
    pub in_flight: usize,
    /// Requests that wait to be issued.
    pub waiting: usize,
    /// Memory held by copies of writes that are not durable yet.
    pub retained_bytes: usize,
    /// Changes that are not durable yet; zeroes and discards hold no bytes.
    pub retained_changes: usize,
    /// Connections that were lost while their session went on.
    pub connections_recovered: u64,
    /// Bytes that other hosts changed while there was no session, where the target records that;
    /// copies above were dropped.
    pub changed_by_others_bytes: u64,
    /// TCP connections of the session.
    pub connections: usize,
    /// Of these, halves of split pairs.
    pub split_connections: usize,
    /// The status as one of several hosts that share the LUN; `None` where it is not shared.
    pub sharing: Option<SharingStatus>,
    /// The values in force.
    pub negotiated: Option<Negotiated>,
    /// Busy polling of streams.
    pub busy_poll: BusyPollCounts,
}
