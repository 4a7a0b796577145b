//! Formats a device as a cache.
//!
//! The old superblocks are erased before anything else is touched and the new ones are written last, so a power loss in
//! the middle leaves a device that is no cache, never half of one. The log and the table are made zeroes, not
//! discarded: a file then keeps its blocks, and the cache can be opened on a disk that became full. The zeroes of the
//! log are written as data: a file system commits its journal for each append to blocks that it has only reserved.

use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Device, Error, ErrorKind, SharedDevice};
use store::{Binding, LogPosition, Sequence, Superblock, new_device, superblock};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};

use crate::crash_mode::CrashMode;
use crate::format::{CHECKSUMS_NONE, CHECKSUMS_OF_LINES, KIND, PAGE_BYTES, ParametersRaw, STATE_CLOSED, entry_bytes};
use crate::layout::Layout;
use crate::limits::{ORIGIN_BYTES_MAX, SECTOR_BYTES};
use crate::line_size::LineSize;
use crate::options::FormatOptions;

/// A cache in errors.
const WORDS: new_device::Words = new_device::Words { device: "the cache device", store: "a cache", done: "cached" };

pub(crate) async fn format(
    cache_device: &SharedDevice,
    origin: &SharedDevice,
    options: FormatOptions,
) -> Result<(), Error> {
    check_devices(cache_device, origin)?;
    if options.has_checksums && options.line_size != LineSize::default() {
        let context = format!("only lines of {} bytes have checksums", LineSize::default().bytes());
        return Err(Error::new(ErrorKind::InvalidRange, context));
    }
    let layout = Layout::new(cache_device.geometry().size_bytes, &options)?;
    let alignment = options.alignment.resolve(layout.line_size, origin).await?;
    let parameters = ParametersRaw {
        crash_mode: options.crash_mode as u8,
        alignment_bytes: alignment.into(),
        checksums: if options.has_checksums { CHECKSUMS_OF_LINES } else { CHECKSUMS_NONE },
        ..parameters(&layout, &Binding::of(origin))?
    };
    let uuid = options.uuid.unwrap_or_else(Uuid::new_v4);
    superblock::erase(cache_device).await?;
    let table = ByteRange { offset: layout.table_offset, length: layout.page_count * 2 * PAGE_BYTES as u64 };
    new_device::write_zeroes(cache_device, layout.log).await?;
    clear(cache_device, table).await?;
    cache_device.flush().await?;
    Superblock::create(cache_device, KIND, uuid, parameters).await?;
    Ok(())
}

/// Refuses devices that no cache can be made of.
pub(crate) fn check_devices(cache_device: &SharedDevice, origin: &SharedDevice) -> Result<(), Error> {
    new_device::check(cache_device, origin, WORDS)?;
    let origin = origin.geometry();
    if origin.size_bytes > ORIGIN_BYTES_MAX {
        let context = format!("a LUN of {} bytes cannot be cached, of more than {ORIGIN_BYTES_MAX}", origin.size_bytes);
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    Ok(())
}

fn parameters(layout: &Layout, binding: &Binding) -> Result<ParametersRaw, Error> {
    let first = LogPosition { offset: 0, epoch: 0, sequence: Sequence::FIRST, link: 0 };
    Ok(ParametersRaw {
        binding: binding.to_raw()?,
        line_bytes: (layout.line_size.bytes() as u32).into(),
        sector_bytes: (SECTOR_BYTES as u32).into(),
        entry_bytes: U32::new(entry_bytes(layout.line_size) as u32),
        ways: layout.ways.into(),
        run_lines: layout.run_lines.into(),
        crash_mode: CrashMode::default() as u8,
        state: STATE_CLOSED,
        checksums: CHECKSUMS_NONE,
        reserved_1: 0,
        set_count: u64::from(layout.set_count).into(),
        log_offset: layout.log.offset.into(),
        log_bytes: layout.log.length.into(),
        frames_offset: layout.frames_offset.into(),
        table_offset: layout.table_offset.into(),
        page_count: layout.page_count.into(),
        alignment_bytes: U64::ZERO,
        table_sequence: U64::ZERO,
        log_position: first.into(),
        dirty_lines: U64::ZERO,
        clean_at: U64::ZERO,
        generation: U64::ZERO,
        frames_max: layout.frames_max.unwrap_or(0).into(),
        table_digest: U64::ZERO,
        log_end: U64::ZERO,
    })
}

/// Makes a range zero, which keeps its space: a hole could not be filled on a disk that became full since.
async fn clear(device: &SharedDevice, range: ByteRange) -> Result<(), Error> {
    let may_discard = false;
    match device.write_zeroes(range.offset, range.length, false, may_discard).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => new_device::write_zeroes(device, range).await,
        result => result,
    }
}
