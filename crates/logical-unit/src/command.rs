//! What goes into the device server and what comes out.

use block::Buffer;
use scsi::{Cdb, CdbError, Sense, Status, TaskAttribute};

use crate::failure::Failure;

/// One command with everything it needs.
#[derive(Debug)]
pub struct Command {
    /// What its CDB was parsed to, or why it was not.
    pub cdb: Result<Cdb, CdbError>,
    /// All its data-out. Of more than the CDB asks for, writes and lists take what they asked for; of less, writes
    /// store what came and everything else is refused. COMPARE AND WRITE, whose halves would not be where they seem,
    /// and WRITE SAME refuse more as well ([`DataOut::is_exact`](scsi::cdb::DataOut::is_exact)): for these the
    /// transport delivers all that was announced.
    pub data_out: Buffer,
    /// Bytes of data-in the initiator expects at most. Data-in may come out longer or shorter; the transport computes
    /// residuals. Reads of blocks read no more than the blocks in which these bytes are.
    pub data_in_bytes_max: u32,
    /// Its place in the order of the task set.
    pub attribute: TaskAttribute,
    /// The transport's name for it, unique among the nexus's tasks under way.
    pub task_tag: u64,
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its status.
    pub status: Status,
    /// With CHECK CONDITION, why.
    pub sense: Option<Sense>,
    /// What the device server has to send, already cut at the CDB's own allocation length.
    pub data_in: Buffer,
    /// Bytes of data-in that it would have had behind these, and that the initiator does not expect.
    pub data_in_bytes_cut: u64,
    /// It was aborted by a task management function of its own nexus: nothing is sent for it (SAM-5 5.6).
    pub is_silent: bool,
}

impl Outcome {
    /// Carried out, with data-in.
    pub fn good(data_in: Buffer) -> Self {
        Self { status: Status::Good, sense: None, data_in, data_in_bytes_cut: 0, is_silent: false }
    }

    /// Not carried out.
    pub fn check_condition(sense: Sense) -> Self {
        Self { sense: Some(sense), ..Self::status(Status::CheckCondition) }
    }

    /// A status without sense data.
    pub fn status(status: Status) -> Self {
        Self { status, sense: None, data_in: Buffer::empty(), data_in_bytes_cut: 0, is_silent: false }
    }

    pub(crate) fn aborted(is_silent: bool) -> Self {
        Self { is_silent, ..Self::status(Status::TaskAborted) }
    }
}

impl From<Result<Buffer, Failure>> for Outcome {
    fn from(result: Result<Buffer, Failure>) -> Self {
        match result {
            Ok(data_in) => Self::good(data_in),
            Err(Failure::Sense(sense)) => Self::check_condition(sense),
            Err(Failure::Status(status)) => Self::status(status),
        }
    }
}
