//! The values in force by the names of their keys (RFC 7143 13, RFC 7144 7.1), for people and their tools.

use super::{Digest, Negotiated, TaskReporting};

/// A value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedValue {
    /// A name of the standard.
    Name(&'static str),
    /// A number.
    Number(u32),
    /// Yes or No.
    Boolean(bool),
    /// A number that each end declares for itself.
    Declared {
        /// The initiator's.
        initiator: u32,
        /// The target's.
        target: u32,
    },
}

impl Negotiated {
    /// All values, in the order of the standard.
    pub fn named(&self) -> [(&'static str, NamedValue); 17] {
        use NamedValue::{Boolean, Declared, Name, Number};
        [
            ("HeaderDigest", Name(self.header_digest.as_str())),
            ("DataDigest", Name(self.data_digest.as_str())),
            ("MaxConnections", Number(self.max_connections.into())),
            ("InitialR2T", Boolean(self.initial_r2t)),
            ("ImmediateData", Boolean(self.immediate_data)),
            (
                "MaxRecvDataSegmentLength",
                Declared {
                    initiator: self.initiator_max_recv_data_segment_length,
                    target: self.target_max_recv_data_segment_length,
                },
            ),
            ("MaxBurstLength", Number(self.max_burst_length)),
            ("FirstBurstLength", Number(self.first_burst_length)),
            ("DefaultTime2Wait", Number(self.default_time2wait.into())),
            ("DefaultTime2Retain", Number(self.default_time2retain.into())),
            ("MaxOutstandingR2T", Number(self.max_outstanding_r2t.into())),
            ("DataPDUInOrder", Boolean(self.data_pdu_in_order)),
            ("DataSequenceInOrder", Boolean(self.data_sequence_in_order)),
            ("ErrorRecoveryLevel", Number(self.error_recovery_level.into())),
            ("SessionType", Name(self.session_type.as_str())),
            ("TaskReporting", Name(self.task_reporting.as_str())),
            ("iSCSIProtocolLevel", Number(self.protocol_level.into())),
        ]
    }
}

impl Digest {
    /// Its name on the wire (RFC 7143 13.1).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Crc32c => "CRC32C",
        }
    }
}

impl TaskReporting {
    /// Its name on the wire (RFC 7143 13.23).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rfc3720 => "RFC3720",
            Self::ResponseFence => "ResponseFence",
            Self::FastAbort => "FastAbort",
        }
    }
}
