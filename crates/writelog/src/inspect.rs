//! Inspection of a write log without opening it, and its removal from a device.

use std::fmt;

use base::clock::Clock;
use base::range::ByteRange;
use block::{Error, Identity, SharedDevice};
use serde::Serialize;
use store::superblock::{self, Copies};
use store::{Binding, Superblock};

use crate::format::{KIND, ParametersRaw, STATE_FAILED};
use crate::layout::Layout;
use crate::limits::{SLOTS_TORN_MAX, UNIT_BYTES};
use crate::map::Piece;
use crate::numbers::Sector;
use crate::nvram::PersistentRegion;
use crate::open::look;
use crate::recovery::Recovered;
use crate::segments::SegmentState;
use crate::stage::{SlotFound, slots_in};
use crate::status::RecoveryReport;
use crate::verify::damaged_ranges;

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
    /// Segments of these in use.
    pub segments_used: u32,
    /// Bytes of an NVRAM slot.
    pub slot_bytes: u64,
    /// State of the two copies of the superblock.
    pub superblock: Copies,
    /// Whether it was closed in order.
    pub was_closed: bool,
    /// Whether its device failed in use, so that the origin has newer data than the log.
    pub has_failed: bool,
    /// Whether acknowledged data may be in NVRAM, which is not counted here.
    pub has_nvram: bool,
    /// What [`check`] found in the NVRAM, if it was given one.
    pub nvram: Option<NvramInspection>,
    /// Bytes that the origin does not have.
    pub dirty_bytes: u64,
    /// Count of runs of these bytes.
    pub dirty_extents: u64,
    /// Ranges of the origin whose newest data [`check`] did not find as it was written; empty
    /// without it.
    pub damaged: Vec<DamagedRange>,
    /// The result of a recovery as the next open would do it.
    pub recovery: RecoveryReport,
}

/// The contents of the slots of an NVRAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NvramInspection {
    /// Slots.
    pub slots: u64,
    /// Slots of these with a write as it was acknowledged.
    pub slots_whole: u64,
    /// Bytes in these.
    pub bytes: u64,
    /// Slots that are neither free nor whole. A power loss leaves at most one, of a write that was
    /// not acknowledged or of a slot that was being cleared; more are damage.
    pub slots_torn: u64,
}

impl NvramInspection {
    /// Whether there are more torn slots than a power loss leaves.
    pub fn is_damaged(&self) -> bool {
        self.slots_torn > SLOTS_TORN_MAX
    }
}

/// A range of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedRange {
    /// Offset of the first byte.
    pub offset_bytes: u64,
    /// Count of bytes.
    pub length_bytes: u64,
}

impl From<ByteRange> for DamagedRange {
    fn from(range: ByteRange) -> Self {
        Self { offset_bytes: range.offset, length_bytes: range.length }
    }
}

impl fmt::Display for DamagedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes {}..{}", self.offset_bytes, self.offset_bytes + self.length_bytes)
    }
}

/// Reads what a log device holds, and writes nothing.
///
/// # Errors
/// `Corrupt` when it is no write log or is damaged, and the message says how; the device's own.
pub async fn inspect(log_device: &SharedDevice, clock: &dyn Clock) -> Result<Inspection, Error> {
    let (superblock, layout, recovered) = look(log_device, clock).await?;
    inspection(&superblock, &layout, &recovered)
}

/// Like [`inspect`], and compares all dirty data on the device with the checksums of its records,
/// and the data in `nvram`, if given, with those of its slots.
///
/// # Errors
/// See [`inspect`]; `Corrupt` when the NVRAM is another log's. Damage of dirty data is listed and
/// is no error.
pub async fn check(
    log_device: &SharedDevice,
    nvram: Option<&dyn PersistentRegion>,
    clock: &dyn Clock,
) -> Result<Inspection, Error> {
    let (superblock, layout, mut recovered) = look(log_device, clock).await?;
    let inspection = inspection(&superblock, &layout, &recovered)?;
    let slots = match nvram {
        Some(region) => Some(slots_in(region, superblock.uuid(), layout.slot_bytes, inspection.has_nvram)?),
        None => None,
    };
    let slot_bytes = layout.slot_bytes as usize;
    let mut damaged = Vec::new();
    let mut found = NvramInspection::default();
    for slot in slots.iter().flatten() {
        found.slots += 1;
        match slot {
            SlotFound::Free => {}
            SlotFound::Whole(raw) => {
                let (sector, sectors) = (Sector::from(raw.sector), u64::from(raw.sectors.get()));
                found.slots_whole += 1;
                found.bytes += sectors * UNIT_BYTES;
                // A slot is newer than the log.
                recovered.map.remove(sector, sectors, |_| {});
            }
            SlotFound::Torn(raw) => {
                found.slots_torn += 1;
                let said = SlotFound::sectors_of(raw, slot_bytes);
                let range = |(sector, sectors): (Sector, u64)| ByteRange {
                    offset: sector.offset(),
                    length: sectors * UNIT_BYTES,
                };
                damaged.extend(said.map(range).map(DamagedRange::from));
            }
        }
    }
    if !found.is_damaged() {
        damaged.clear();
    }
    let dirty: Vec<Piece> = recovered.map.dirty_from(Sector::FIRST).collect();
    let in_log = damaged_ranges(log_device, &layout, superblock.uuid(), &recovered.segments, &dirty).await;
    damaged.extend(in_log.into_iter().map(DamagedRange::from));
    Ok(Inspection { damaged, nvram: slots.map(|_| found), ..inspection })
}

/// Whether the superblock names the device a write log, in whatever version and however damaged.
pub async fn is_log(log_device: &SharedDevice) -> bool {
    superblock::is_named(log_device, KIND).await
}

/// Erases a log, so that its device is a plain one again. Dirty data in it is gone: the caller asks
/// first.
///
/// # Errors
/// The device's own.
pub async fn discard(log_device: &SharedDevice) -> Result<(), Error> {
    superblock::erase(log_device).await
}

fn inspection(
    superblock: &Superblock<ParametersRaw>,
    layout: &Layout,
    recovered: &Recovered,
) -> Result<Inspection, Error> {
    let binding = Binding::from_raw(&superblock.payload.binding)?;
    Ok(Inspection {
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
        superblock: superblock.copies(),
        was_closed: recovered.report.was_closed,
        has_failed: superblock.payload.state == STATE_FAILED,
        has_nvram: superblock.payload.has_nvram != 0,
        dirty_bytes: recovered.map.dirty_sectors() * UNIT_BYTES,
        dirty_extents: recovered.map.dirty_extents() as u64,
        nvram: None,
        damaged: Vec::new(),
        recovery: recovered.report,
    })
}
