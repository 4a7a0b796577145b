//! The input and the output of the device server.

use block::Buffer;
use scsi::{Cdb, CdbError, Sense, Status, TaskAttribute};

use crate::failure::Failure;

/// A command with all that its execution needs.
#[derive(Debug)]
pub struct Command {
    /// Its parsed CDB, or the reason why it was not parsed.
    pub cdb: Result<Cdb, CdbError>,
    /// All its data-out. Of more than the CDB asks for, writes and lists use what they asked for.
    /// Of less, writes store what came, and all others are refused. COMPARE AND WRITE, whose halves
    /// would be misplaced, and WRITE SAME refuse more as well
    /// ([`DataOut::is_exact`](scsi::cdb::DataOut::is_exact)): for these the transport delivers all
    /// that was announced.
    pub data_out: Buffer,
    /// Bytes of data-in that the initiator expects at most. Data-in may be longer or shorter; the
    /// transport computes residuals. Reads of blocks read only the blocks that contain these bytes.
    pub data_in_bytes_max: u32,
    /// Its place in the order of the task set.
    pub attribute: TaskAttribute,
    /// The transport's tag for it, unique among the tasks of the nexus.
    pub task_tag: u64,
}

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    /// Its status.
    pub status: Status,
    /// The reason, with CHECK CONDITION.
    pub sense: Option<Sense>,
    /// The data-in to be sent, already cut at the CDB's own allocation length.
    pub data_in: Buffer,
    /// Bytes of data-in beyond these that were not read, because the initiator does not expect
    /// them.
    pub data_in_bytes_cut: u64,
    /// It was aborted by a task management function of its own nexus: no response is sent (SAM-5
    /// 5.6).
    pub is_silent: bool,
}

impl Outcome {
    /// A command that was carried out, with its data-in.
    pub fn good(data_in: Buffer) -> Self {
        Self { status: Status::Good, sense: None, data_in, data_in_bytes_cut: 0, is_silent: false }
    }

    /// A command that was not carried out.
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
