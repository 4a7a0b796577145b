//! Looks at a write log without opening it, and makes it a plain device again.

use base::clock::Clock;
use block::{Error, Identity, SharedDevice};
use serde::Serialize;
use store::{Binding, superblock};

use crate::format::{KIND, STATE_FAILED};
use crate::limits::UNIT_BYTES;
use crate::map::Piece;
use crate::open::{is_readable, look};
use crate::read::range_of;
use crate::segments::SegmentState;
use crate::status::RecoveryReport;

/// What a log device holds.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// Made when it was formatted.
    pub uuid: String,
    /// The origin it belongs to.
    #[serde(skip)]
    pub identity: Identity,
    /// The origin's target name.
    pub origin_target: String,
    /// The origin's logical unit.
    pub origin_unit: String,
    /// The origin's serial number.
    pub origin_serial: String,
    /// Size of the origin when the log was last opened, in bytes.
    pub origin_bytes: u64,
    /// Format version.
    pub version: u32,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments.
    pub segments: u32,
    /// Of these in use.
    pub segments_used: u32,
    /// Bytes of an NVRAM slot.
    pub slot_bytes: u64,
    /// Whether it was closed in order.
    pub was_closed: bool,
    /// Whether its device failed in use, so that the origin has newer data than the log.
    pub has_failed: bool,
    /// Whether acknowledged data may be in NVRAM, which is not counted here.
    pub has_nvram: bool,
    /// Bytes that the origin does not have.
    pub dirty_bytes: u64,
    /// Runs of these.
    pub dirty_extents: u64,
    /// Ranges that could not be read when [`check`] tried, in words; none without it.
    pub unreadable: Vec<String>,
    /// What opening it would do.
    pub recovery: RecoveryReport,
}

/// Reads what a log device holds, and writes nothing.
///
/// # Errors
/// `Corrupt` when it is no write log or is damaged, and the message says how; the device's own.
pub async fn inspect(log_device: &SharedDevice, clock: &dyn Clock) -> Result<Inspection, Error> {
    inspect_pieces(log_device, clock).await.map(|(inspection, _)| inspection)
}

/// Like [`inspect`], and reads everything dirty from the device.
///
/// # Errors
/// See [`inspect`]. What cannot be read is named and is no error.
pub async fn check(log_device: &SharedDevice, clock: &dyn Clock) -> Result<Inspection, Error> {
    let (mut inspection, pieces) = inspect_pieces(log_device, clock).await?;
    let (_, layout, _) = look(log_device, clock).await?;
    for piece in pieces.iter().filter(|piece| piece.is_in_segment()) {
        if !is_readable(log_device, &layout, piece).await {
            inspection.unreadable.push(range_of(piece).to_string());
        }
    }
    Ok(inspection)
}

/// Makes a log a plain device again. What was dirty in it is gone: the caller asks first.
///
/// # Errors
/// The device's own.
pub async fn discard(log_device: &SharedDevice) -> Result<(), Error> {
    superblock::erase(log_device).await
}

async fn inspect_pieces(log_device: &SharedDevice, clock: &dyn Clock) -> Result<(Inspection, Vec<Piece>), Error> {
    let (superblock, layout, recovered) = look(log_device, clock).await?;
    let binding = Binding::from_raw(&superblock.payload.binding)?;
    let inspection = Inspection {
        uuid: superblock.uuid().to_string(),
        origin_target: binding.identity.target.clone(),
        origin_unit: binding.identity.unit.clone(),
        origin_serial: binding.identity.serial.clone(),
        identity: binding.identity,
        origin_bytes: binding.size_bytes,
        version: KIND.version,
        segment_bytes: layout.segment_bytes,
        segments: layout.segment_count,
        segments_used: recovered.segments.count_of(SegmentState::Used),
        slot_bytes: layout.slot_bytes,
        was_closed: recovered.report.was_closed,
        has_failed: superblock.payload.state == STATE_FAILED,
        has_nvram: superblock.payload.has_nvram != 0,
        dirty_bytes: recovered.map.dirty_sectors() * UNIT_BYTES,
        dirty_extents: recovered.map.dirty_extents() as u64,
        unreadable: Vec::new(),
        recovery: recovered.report,
    };
    let pieces = recovered.map.dirty_from(0).collect();
    Ok((inspection, pieces))
}
