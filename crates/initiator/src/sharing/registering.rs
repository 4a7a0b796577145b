//! Registers copies of a shared LUN that this host has from an earlier life.

use block::{ByteRange, Device, Error, ErrorKind};
use scsi::cdb::{Blocks, CacheRange};
use scsi::{Cdb, Sense, Status};

use crate::error::sense_error;
use crate::raw_command::RawCommand;
use crate::remote_lun::RemoteLun;

impl RemoteLun {
    /// Whether the target registers copies that a client has from before.
    pub fn registers_copies(&self) -> bool {
        self.copies().is_some() && self.sharing_support().is_some_and(|support| support.prefetch_registers)
    }

    /// Registers these bytes at the target: this host may have copies of them from before. Changes
    /// after this returns are reported as if the bytes had been read; earlier ones are not. Bytes
    /// beyond the end have no copies.
    ///
    /// # Errors
    /// `Unsupported` where the target cannot do this; else those of commands. The copies must not
    /// be used then.
    pub async fn register_copies(&self, range: ByteRange) -> Result<(), Error> {
        if !self.registers_copies() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} registers no copies from before", self.place()),
            ));
        }
        let geometry = self.geometry();
        let block_bytes = u64::from(geometry.logical_block_bytes);
        let end = range.offset.saturating_add(range.length).min(geometry.size_bytes).div_ceil(block_bytes);
        let mut lba = range.offset / block_bytes;
        while lba < end {
            let count = u32::try_from(end - lba).unwrap_or(u32::MAX);
            self.prefetch(Blocks::new(lba, count)).await?;
            lba += u64::from(count);
        }
        Ok(())
    }

    async fn prefetch(&self, blocks: Blocks) -> Result<(), Error> {
        let cdb = Cdb::Prefetch(CacheRange { blocks, is_immediate: false });
        let outcome = self.carry_out(RawCommand::reading(cdb)).await?;
        match (Status::from_code(outcome.status), Sense::parse(&outcome.sense)) {
            (Some(Status::Good | Status::ConditionMet), _) => Ok(()),
            (_, Ok(sense)) => Err(sense_error(&sense, "registering copies")),
            _ => {
                let words = format!("registering copies ended with status {:02x}h", outcome.status);
                Err(Error::new(ErrorKind::OutcomeUnknown, words))
            }
        }
    }
}
