//! The proposals of one end, and the values agreed by both.

use super::Negotiator;
use super::rules::Key;
use crate::limits::RECV_DATA_SEGMENT_BYTES;
use crate::sharing;
use crate::split;

/// Digest of headers or of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Digest {
    /// No digest.
    #[default]
    None,
    /// CRC32C.
    Crc32c,
}

/// The purpose of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SessionType {
    /// SCSI commands.
    #[default]
    Normal,
    /// SendTargets only.
    Discovery,
}

impl SessionType {
    /// Its name on the wire (RFC 7143 13.21).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Discovery => "Discovery",
        }
    }
}

/// Task completion reporting semantics (RFC 7143 13.23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskReporting {
    /// As RFC 3720 had it.
    #[default]
    Rfc3720,
    /// Responses are fenced.
    ResponseFence,
    /// Fast completion of multi-task aborts.
    FastAbort,
}

/// The proposals of one end. Lists are in order of preference.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Header digests that are accepted, best first.
    pub header_digest: Vec<Digest>,
    /// Data digests that are accepted, best first.
    pub data_digest: Vec<Digest>,
    /// Connections of the session.
    pub max_connections: u16,
    /// Whether every write should wait for an R2T.
    pub initial_r2t: bool,
    /// Whether data inside the command PDU is wanted.
    pub immediate_data: bool,
    /// Bytes of one data segment that this end receives.
    pub max_recv_data_segment_length: u32,
    /// Bytes of one solicited burst.
    pub max_burst_length: u32,
    /// Bytes sent unsolicited.
    pub first_burst_length: u32,
    /// Seconds before a reconnect.
    pub default_time2wait: u16,
    /// Seconds tasks are kept after a lost connection.
    pub default_time2retain: u16,
    /// R2Ts outstanding per task.
    pub max_outstanding_r2t: u16,
    /// Whether the PDUs of a sequence must be in order.
    pub data_pdu_in_order: bool,
    /// Whether sequences must be in order.
    pub data_sequence_in_order: bool,
    /// Recovery level.
    pub error_recovery_level: u8,
    /// Task reporting semantics that are accepted, best first.
    pub task_reporting: Vec<TaskReporting>,
    /// iSCSIProtocolLevel: 2 for the features of RFC 7144.
    pub protocol_level: u8,
    /// Supported private keys (`X-...`), each with the list of accepted values, best first.
    pub private: Vec<(String, Vec<String>)>,
}

impl Offer {
    /// An initiator's proposals: few round trips, no digests unless the target insists.
    pub fn initiator() -> Self {
        Self {
            header_digest: vec![Digest::None, Digest::Crc32c],
            data_digest: vec![Digest::None, Digest::Crc32c],
            max_connections: 1,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: RECV_DATA_SEGMENT_BYTES,
            max_burst_length: 1 << 20,
            first_burst_length: 256 << 10,
            default_time2wait: 0,
            default_time2retain: 0,
            max_outstanding_r2t: 16,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            task_reporting: vec![TaskReporting::ResponseFence, TaskReporting::Rfc3720],
            protocol_level: 2,
            private: Vec::new(),
        }
    }

    /// A target's proposals: the initiator's preference wins wherever it is admissible.
    pub fn target() -> Self {
        Self {
            default_time2retain: 20,
            private: vec![split::private_offer(), sharing::private_offer()],
            ..Self::initiator()
        }
    }

    /// The proposed number for a key that is not a list.
    pub(super) fn number(&self, key: Key) -> u32 {
        match key {
            Key::MaxConnections => self.max_connections.into(),
            Key::InitialR2T => self.initial_r2t.into(),
            Key::ImmediateData => self.immediate_data.into(),
            Key::MaxRecvDataSegmentLength => self.max_recv_data_segment_length,
            Key::MaxBurstLength => self.max_burst_length,
            Key::FirstBurstLength => self.first_burst_length.min(self.max_burst_length),
            Key::DefaultTime2Wait => self.default_time2wait.into(),
            Key::DefaultTime2Retain => self.default_time2retain.into(),
            Key::ErrorRecoveryLevel => self.error_recovery_level.into(),
            Key::DataPDUInOrder => self.data_pdu_in_order.into(),
            Key::DataSequenceInOrder => self.data_sequence_in_order.into(),
            Key::MaxOutstandingR2T => self.max_outstanding_r2t.into(),
            Key::ProtocolLevel => self.protocol_level.into(),
            Key::SessionType | Key::HeaderDigest | Key::DataDigest | Key::TaskReporting => 0,
        }
    }

    /// The proposed values for a list key, as indices into its names.
    pub(super) fn list(&self, key: Key) -> Vec<u32> {
        match key {
            Key::HeaderDigest => self.header_digest.iter().map(|&digest| digest as u32).collect(),
            Key::DataDigest => self.data_digest.iter().map(|&digest| digest as u32).collect(),
            Key::TaskReporting => self.task_reporting.iter().map(|&reporting| reporting as u32).collect(),
            _ => Vec::new(),
        }
    }
}

/// The values in force on a connection and its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The purpose of the session.
    pub session_type: SessionType,
    /// Digest of every header, from the full feature phase on.
    pub header_digest: Digest,
    /// Digest of every data segment, from the full feature phase on.
    pub data_digest: Digest,
    /// Connections of the session.
    pub max_connections: u16,
    /// Whether every write waits for an R2T.
    pub initial_r2t: bool,
    /// Whether a command may carry data.
    pub immediate_data: bool,
    /// Bytes of one data segment the initiator receives.
    pub initiator_max_recv_data_segment_length: u32,
    /// Bytes of one data segment the target receives.
    pub target_max_recv_data_segment_length: u32,
    /// Bytes of one solicited burst.
    pub max_burst_length: u32,
    /// Bytes sent unsolicited for one command, immediate data included.
    pub first_burst_length: u32,
    /// Seconds before a reconnect.
    pub default_time2wait: u16,
    /// Seconds tasks are kept after a lost connection.
    pub default_time2retain: u16,
    /// R2Ts outstanding per task.
    pub max_outstanding_r2t: u16,
    /// Whether the PDUs of a sequence come in order.
    pub data_pdu_in_order: bool,
    /// Whether sequences come in order.
    pub data_sequence_in_order: bool,
    /// Recovery level.
    pub error_recovery_level: u8,
    /// Task reporting semantics.
    pub task_reporting: TaskReporting,
    /// iSCSIProtocolLevel.
    pub protocol_level: u8,
}

impl Default for Negotiated {
    /// The defaults of the standard.
    fn default() -> Self {
        Negotiator::target(Offer::target()).negotiated()
    }
}
