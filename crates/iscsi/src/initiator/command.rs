//! SCSI commands as the initiator's caller sees them: what to send, and what came of it.

use std::ops::Range;
use std::time::Duration;

use base::buffer::Buffer;

use crate::pdu::{Residual, TaskAttribute};

/// A command to be carried out.
#[derive(Debug)]
pub struct Command {
    /// The caller's name for it; comes back with the outcome.
    pub token: u64,
    /// LUN field, its eight bytes as one big-endian number.
    pub lun: u64,
    /// The CDB, zero after its end.
    pub cdb: [u8; 16],
    /// How it is ordered among others.
    pub attribute: TaskAttribute,
    /// What it moves.
    pub data: Data,
    /// How long it may take before it is aborted, from when it is submitted.
    pub timeout: Duration,
}

/// What a command moves. The range lies in the buffer.
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

/// A command that is over.
#[derive(Debug)]
pub struct Completed {
    /// The caller's name for it.
    pub token: u64,
    /// The command's buffer.
    pub buffer: Buffer,
    /// What came of it.
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
    /// The target answered that it failed, refused the PDU, or said GOOD and sent less than it should. Whether anything
    /// was carried out is unknown.
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
