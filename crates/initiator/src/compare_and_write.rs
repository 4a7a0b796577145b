//! COMPARE AND WRITE (SBC-3 5.2): the atomic step that hosts which share a LUN build their locks from.
//!
//! It cannot be issued twice: if it was carried out the first time, the second finds other bytes.
//! So it is issued again only where the unit reports that it did not begin it. A lost session
//! leaves its outcome unknown; reading the blocks then shows the outcome, if no other host writes
//! the same bytes.
//!
//! It is carried out in order with overlapping requests, and durable when it is answered. Copies of older writes that
//! the LUN may still lose are flushed first, so that a replay never undoes it.

use block::{ByteRange, Device as _, Error, ErrorKind};
use scsi::{Cdb, Sense, SenseKey, Status};

use crate::error::sense_error;
use crate::raw_command::{RawCommand, Repeat};
use crate::remote_lun::RemoteLun;

/// The result of a COMPARE AND WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// The bytes were the expected ones, and were replaced.
    Written,
    /// They were not the expected ones, and nothing was changed.
    Different {
        /// Offset of the first byte that differs, from the beginning of the range; `None` where the LUN does not say.
        at: Option<u64>,
    },
}

impl RemoteLun {
    /// Replaces the bytes at `offset` by `new`, atomically and durably, if they are `expected`. Both are equally long:
    /// whole blocks, at most 255.
    ///
    /// # Errors
    /// `InvalidRange` for anything else, `Unsupported` where the LUN has no such command, `OutcomeUnknown` when the
    /// session was lost or the command was aborted, `ReservationConflict`, and what else writes end with.
    pub async fn compare_and_write(&self, offset: u64, expected: &[u8], new: &[u8]) -> Result<Compared, Error> {
        let geometry = self.geometry();
        let block_bytes = u64::from(geometry.logical_block_bytes);
        let length = expected.len() as u64;
        let block_count = u8::try_from(length / block_bytes).unwrap_or(0);
        let is_aligned = offset.is_multiple_of(block_bytes) && length.is_multiple_of(block_bytes);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= geometry.size_bytes);
        if !is_aligned || !is_inside || block_count == 0 || expected.len() != new.len() {
            let words = format!("compare and write takes 1 to 255 whole blocks of {block_bytes} bytes of the device");
            return Err(Error::new(ErrorKind::InvalidRange, words));
        }
        let cdb = Cdb::CompareAndWrite { lba: offset / block_bytes, block_count, is_dpo: false, is_fua: false };
        let range = ByteRange { offset, length };
        let raw = RawCommand { range, ..RawCommand::sending(Repeat::IfRefused, cdb, [expected, new].concat()) };
        let outcome = self.carry_out(raw).await?;
        match (Status::from_code(outcome.status), Sense::parse(&outcome.sense)) {
            (Some(Status::Good), _) => Ok(Compared::Written),
            (Some(Status::CheckCondition), Ok(sense)) if sense.key == SenseKey::Miscompare => {
                Ok(Compared::Different { at: sense.information })
            }
            // A task that was aborted may have been carried out before.
            (Some(Status::CheckCondition), Ok(sense)) if sense.key == SenseKey::AbortedCommand => {
                Err(Error::new(ErrorKind::OutcomeUnknown, format!("compare and write was aborted: {sense}")))
            }
            (Some(Status::CheckCondition), Ok(sense)) => Err(sense_error(&sense, "compare and write")),
            (Some(Status::ReservationConflict), _) => {
                Err(Error::new(ErrorKind::ReservationConflict, "another initiator holds a reservation"))
            }
            _ => {
                let words = format!("compare and write ended with status {:02x}h", outcome.status);
                Err(Error::new(ErrorKind::OutcomeUnknown, words))
            }
        }
    }
}
