//! What goes into the device server and what comes out.

use block::Buffer;
use scsi::cdb::Blocks;
use scsi::{Cdb, CdbBytes, Sense, Status, TaskAttribute};

use crate::failure::Failure;

/// One command with everything it needs.
#[derive(Debug)]
pub struct Command {
    /// The CDB.
    pub cdb: CdbBytes,
    /// All its data-out. Of more than [`data_out_bytes`], writes and lists take what they asked for; of less, writes store what came and
    /// everything else is refused. COMPARE AND WRITE, whose halves would not be where they seem, and WRITE SAME refuse more as well: for
    /// these the transport delivers all that was announced.
    pub data_out: Buffer,
    /// Bytes of data-in the initiator expects at most. Data-in may come out longer or shorter; the transport computes residuals. Reads of blocks
    /// read no more than the blocks in which these bytes are.
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

/// Bytes of data-out that a CDB asks for; zero for one that is not understood, which ends in CHECK CONDITION anyway.
pub fn data_out_bytes(cdb: &[u8], block_bytes: u32) -> u64 {
    let of_blocks = |blocks: &Blocks| u64::from(blocks.count) * u64::from(block_bytes);
    match Cdb::parse(cdb) {
        Ok(Cdb::Write(transfer)) => of_blocks(&transfer.blocks),
        Ok(Cdb::WriteAndVerify(verification)) => of_blocks(&verification.blocks),
        Ok(Cdb::Verify(verification)) => match verification.byte_check {
            1 => of_blocks(&verification.blocks),
            3 if verification.blocks.count > 0 => u64::from(block_bytes),
            _ => 0,
        },
        Ok(Cdb::WriteSame(same)) if !same.has_no_data_out => u64::from(block_bytes),
        Ok(Cdb::CompareAndWrite { block_count, .. }) => 2 * u64::from(block_count) * u64::from(block_bytes),
        Ok(Cdb::OrWrite(transfer)) => of_blocks(&transfer.blocks),
        Ok(Cdb::WriteAtomic(write)) => u64::from(write.block_count) * u64::from(block_bytes),
        Ok(Cdb::Sanitize(sanitize)) => u64::from(sanitize.parameter_list_length),
        Ok(Cdb::ExtendedCopy { parameter_list_length }) => u64::from(parameter_list_length),
        Ok(Cdb::Unmap { parameter_list_length, .. }) => u64::from(parameter_list_length),
        Ok(Cdb::ModeSelect(select)) => u64::from(select.parameter_list_length),
        Ok(Cdb::PersistentReserveOut { parameter_list_length, .. }) => u64::from(parameter_list_length),
        Ok(Cdb::ChangeMarkOut { parameter_list_length, .. }) => u64::from(parameter_list_length),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scsi::cdb::{Transfer, Verification};

    #[test]
    fn data_out_follows_the_cdb() {
        let bytes = |cdb: Cdb| data_out_bytes(&cdb.emit(), 512);
        let blocks = Blocks::new(7, 3);
        assert_eq!(bytes(Cdb::Write(Transfer { blocks, is_dpo: false, is_fua: false })), 1536);
        assert_eq!(bytes(Cdb::Read(Transfer { blocks, is_dpo: false, is_fua: false })), 0);
        for (byte_check, expected) in [(0, 0), (1, 1536), (3, 512)] {
            assert_eq!(bytes(Cdb::Verify(Verification { blocks, is_dpo: false, byte_check })), expected);
        }
        assert_eq!(bytes(Cdb::CompareAndWrite { lba: 0, block_count: 2, is_dpo: false, is_fua: false }), 2048);
        assert_eq!(bytes(Cdb::Unmap { is_anchor: false, parameter_list_length: 24 }), 24);
        assert_eq!(bytes(Cdb::ChangeMarkOut { service_action: 0, parameter_list_length: 40 }), 40);
        assert_eq!(data_out_bytes(&[0xff; 16], 512), 0);
        assert_eq!(data_out_bytes(&[], 512), 0);
    }
}
