//! The report of a mark: the changes by others.

use block::ByteRange;
use initiator::{ChangeReport, RemoteLun};

/// The range that covers a whole device.
pub(crate) fn everything() -> Vec<ByteRange> {
    vec![ByteRange { offset: 0, length: u64::MAX }]
}

/// Reads the report of the held mark `id`.
pub(crate) async fn report_of(lun: &RemoteLun, id: [u8; 16]) -> std::result::Result<ChangeReport, block::Error> {
    let marks = lun.marks().await?;
    let lost = || block::Error::new(block::ErrorKind::NotFound, "the target forgot a mark as soon as it was made");
    let mark = marks.iter().find(|mark| mark.id == id).ok_or_else(lost)?;
    lun.changes(mark.slot).await
}
