//! Inspection of a cache without opening it, and its removal from a device.

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Device, Error, Identity, SharedDevice};
use serde::Serialize;
use store::superblock::{self, Copies};
use store::{Binding, Superblock};

use crate::alignment::padding_of;
use crate::crash_mode::CrashMode;
use crate::format::{KIND, ParametersRaw};
use crate::frames::Frames;
use crate::layout::Layout;
use crate::limits::SECTOR_BYTES;
use crate::line_checksum::LineChecksum;
use crate::numbers::BlockNumber;
use crate::recovery::{Clean, recover, with_checksums};
use crate::recovery_report::RecoveryReport;
use crate::replacement::Replacement;
use crate::sectors::SectorRun;
use crate::stranded::Stranded;

/// What a cache device holds.
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
    /// Size of the origin when the cache was last opened, in bytes.
    pub origin_bytes: u64,
    /// Format version.
    pub version: u32,
    /// Bytes of a line.
    pub line_bytes: u64,
    /// Frames.
    pub lines: u64,
    /// Most frames, as the user limited them; `None` for as many as fit.
    pub lines_max: Option<u64>,
    /// Frames of a set.
    pub ways: u64,
    /// The crash mode.
    pub crash_mode: CrashMode,
    /// Generation of the origin's content, as the user gave it; `None` when none was given.
    pub generation: Option<u64>,
    /// First byte of the origin at which a line begins.
    pub alignment_bytes: u64,
    /// Whether whole lines have checksums.
    pub has_checksums: bool,
    /// State of the two copies of the superblock.
    pub superblock: Copies,
    /// Whether it was closed in order.
    pub was_closed: bool,
    /// Lines with a valid sector that the next open will find.
    pub valid_lines: u64,
    /// Lines that the origin does not have yet.
    pub dirty_lines: u64,
    /// Bytes that the origin does not have yet.
    pub dirty_bytes: u64,
    /// The part of that beyond the end of the origin, which has the size it had when the cache was
    /// last opened.
    #[serde(flatten)]
    pub stranded: Stranded,
    /// When nothing was dirty last, in seconds since 1970, if the device records it: all dirty data
    /// has been written since.
    pub clean_at: Option<u64>,
    /// Dirty lines that [`check`] could not read, or whose data was not what was written; 0 without
    /// it.
    pub unreadable_lines: u64,
    /// The result of a recovery as the next open would do it.
    pub recovery: RecoveryReport,
}

/// Reads what a cache device holds, and writes nothing.
///
/// # Errors
/// `Corrupt` when it is no cache or is damaged, and the message says how; the device's own.
pub async fn inspect(cache_device: &SharedDevice) -> Result<Inspection, Error> {
    look(cache_device).await.map(|(inspection, _)| inspection)
}

/// Like [`inspect`], and reads every dirty line from the device, and compares it with its checksum if it has one.
///
/// # Errors
/// See [`inspect`]. Lines that cannot be read are counted and are no error.
pub async fn check(cache_device: &SharedDevice) -> Result<Inspection, Error> {
    let (mut inspection, dirty) = look(cache_device).await?;
    for DirtyLine { ranges, checksum, deferred } in dirty {
        let mut is_readable = true;
        for range in &ranges {
            let read = cache_device.read(range.offset, Buffer::zeroed(range.length as usize)).await;
            // With a checksum and all of it dirty, the line is one range.
            let is_whole = ranges.len() == 1 && range.length == inspection.line_bytes;
            let read = read.map(|data| with_deferred(data, range.offset, &deferred));
            is_readable &= read.is_ok_and(|data| !is_whole || checksum.matches(&data));
        }
        inspection.unreadable_lines += u64::from(!is_readable);
    }
    Ok(inspection)
}

/// Whether the superblock names the device a cache, in whatever version and however damaged.
pub async fn is_cache(cache_device: &SharedDevice) -> bool {
    superblock::is_named(cache_device, KIND).await
}

/// Erases a cache, so that its device is a plain one again. Dirty data in it is gone: the caller
/// asks first.
///
/// # Errors
/// The device's own.
pub async fn discard(cache_device: &SharedDevice) -> Result<(), Error> {
    superblock::erase(cache_device).await
}

/// Where the dirty sectors of a line stand on the cache device, and the line's checksum.
struct DirtyLine {
    ranges: Vec<ByteRange>,
    checksum: LineChecksum,
    /// Deferred data of the line from the log: offsets on the device, and bytes; what comes later
    /// is newer.
    deferred: Vec<(u64, Vec<u8>)>,
}

/// `data`, read from `offset` on, with the deferred data laid over it.
fn with_deferred(mut data: Buffer, offset: u64, deferred: &[(u64, Vec<u8>)]) -> Buffer {
    for (part_offset, bytes) in deferred {
        let start = part_offset.checked_sub(offset).and_then(|start| usize::try_from(start).ok());
        if let Some(place) = start.and_then(|start| data.get_mut(start..start + bytes.len())) {
            place.copy_from_slice(bytes);
        }
    }
    data
}

/// The inspection, and the dirty lines.
async fn look(cache_device: &SharedDevice) -> Result<(Inspection, Vec<DirtyLine>), Error> {
    let superblock: Superblock<ParametersRaw> = Superblock::read(cache_device, KIND).await?;
    let layout = Layout::from_parameters(&superblock.payload, cache_device.geometry().size_bytes)?;
    let binding = Binding::from_raw(&superblock.payload.binding)?;
    let frames = with_checksums(Frames::to_restore(layout, Replacement::default(), false), &superblock.payload)?;
    let recovered = recover(cache_device, frames, i64::MAX as u64, &superblock, Clean::Keep).await?;
    let frames = &recovered.frames;
    let counts = frames.counts();
    let padding = padding_of(layout.line_size, superblock.payload.alignment_bytes.get());
    let end = binding.size_bytes.saturating_add(padding);
    let beyond = frames.dirty_in(layout.line_size.block_at(end)..BlockNumber::END).into_iter();
    let beyond = beyond.filter_map(|block| frames.find(block).map(|(_, line)| (block, line.dirty)));
    let stranded = Stranded::of(beyond, layout.line_size, end, padding);
    let dirty_frames = layout.frames().filter(|&frame| !frames.line(frame).dirty.is_empty());
    let dirty = dirty_frames.map(|frame| {
        let offset = layout.frame_offset(frame);
        let line = frames.line(frame);
        let range = |run: SectorRun| ByteRange { offset: offset + run.offset(), length: run.length() };
        let mut deferred = Vec::new();
        recovered.deferred.visit(frame, line.dirty, |run, bytes| deferred.push((range(run).offset, bytes.to_vec())));
        DirtyLine { ranges: line.dirty.runs().map(range).collect(), checksum: line.checksum, deferred }
    });
    let dirty = dirty.collect();
    let inspection = Inspection {
        uuid: superblock.uuid().to_string(),
        origin_target: binding.identity.target.clone(),
        origin_unit: binding.identity.unit.clone(),
        origin_serial: binding.identity.serial.clone(),
        identity: binding.identity,
        origin_bytes: binding.size_bytes,
        version: superblock.version(),
        line_bytes: layout.line_size.bytes(),
        lines: u64::from(layout.frame_count()),
        lines_max: layout.frames_max,
        ways: u64::from(layout.ways),
        crash_mode: CrashMode::from_raw(superblock.payload.crash_mode)?,
        generation: Some(superblock.payload.generation.get()).filter(|&generation| generation != 0),
        alignment_bytes: superblock.payload.alignment_bytes.get(),
        has_checksums: frames.has_checksums(),
        superblock: superblock.copies(),
        was_closed: recovered.report.was_closed,
        valid_lines: counts.resident_lines,
        dirty_lines: counts.dirty_lines,
        dirty_bytes: counts.dirty_sectors * SECTOR_BYTES,
        stranded,
        clean_at: Some(superblock.payload.clean_at.get()).filter(|&seconds| seconds != 0),
        unreadable_lines: 0,
        recovery: recovered.report,
    };
    Ok((inspection, dirty))
}
