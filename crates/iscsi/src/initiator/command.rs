//! SCSI commands at the initiator's interface: what to send, and the outcome.

use std::ops::Range;
use std::time::Duration;

use base::buffer::Buffer;

use crate::pdu::{Residual, TaskAttribute};

/// A command to be carried out.
#[derive(Debug)]
pub struct Command {
    /// The caller's name for it, returned with the outcome.
    pub token: u64,
    /// LUN field, its eight bytes as one big-endian number.
    pub lun: u64,
    /// The CDB, zero after its end.
    pub cdb: [u8; 16],
    /// Its order among other tasks.
    pub attribute: TaskAttribute,
    /// The data that it transfers.
    pub data: Data,
    /// How long it may take before it is aborted, from when it is submitted.
    pub timeout: Duration,
}

/// The data that a command transfers. The range lies in the buffer.
#[derive(Debug)]
pub enum Data {
    /// Nothing.
    None,
    /// Into the range of the buffer.
    Read(Buffer, Range<usize>),
    /// From the range of the buffer.
    Write(Buffer, Range<usize>),
}

impl Data {
    /// Bytes to be moved.
    pub fn length(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Read(_, range) | Self::Write(_, range) => range.len(),
        }
    }

    /// The buffer, or an empty one.
    pub fn into_buffer(self) -> Buffer {
        match self {
            Self::None => Buffer::empty(),
            Self::Read(buffer, _) | Self::Write(buffer, _) => buffer,
        }
    }
}

/// A command that has ended.
#[derive(Debug)]
pub struct Completed {
    /// The caller's name for it.
    pub token: u64,
    /// The command's buffer.
    pub buffer: Buffer,
    /// Its outcome.
    pub outcome: Outcome,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target answered.
    Status {
        /// SCSI status code.
        status: u8,
        /// Sense data, empty where there is none.
        sense: Vec<u8>,
        /// Residual.
        residual: Residual,
        /// Bytes that came in, for a command that reads.
        received_bytes: usize,
    },
    /// The target reported a failure, rejected the PDU, or returned GOOD with too little data. It
    /// is unknown whether anything was carried out.
    Failed(String),
    /// It did not end in time and was aborted, by ABORT TASK or LOGICAL UNIT RESET.
    Aborted,
    /// It did not end in time and was never sent: the target's window stayed closed.
    NotSent,
}

impl Outcome {
    /// Whether the status is GOOD.
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Status { status: 0, .. })
    }
}
