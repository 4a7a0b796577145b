//! Write logs to be damaged, as [`crate::cache_image`] damages caches.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use block::device::DeviceExt;
use store::superblock::HeaderRaw;
use uuid::Uuid;
use writelog::format::{CheckpointRaw, ExtentRaw, ParametersRaw, SegmentRaw};
use writelog::layout::Layout;
use writelog::{FormatOptions, OpenOptions, WriteLog};
use zerocopy::FromBytes;

use crate::damage::{Damage, Image, content, device, overwrite, seal};

/// Bytes of the log device.
pub const LOG_BYTES: u64 = 512 << 10;
/// Bytes of the origin.
pub const ORIGIN_BYTES: u64 = 256 << 10;

/// Two valid logs: one whose program stopped without closing it, and one that was closed. Nothing was
/// destaged from either.
pub fn images() -> &'static [Image; 2] {
    static IMAGES: OnceLock<[Image; 2]> = OnceLock::new();
    IMAGES.get_or_init(make_images)
}

fn make_images() -> [Image; 2] {
    let mut executor = Executor::in_order();
    let origin: Vec<u8> = (0..ORIGIN_BYTES).map(|at| (at / 512) as u8 ^ 0x5a).collect();
    let (log_device, origin_device) = (device(&vec![0; LOG_BYTES as usize], "L"), device(&origin, "S1"));
    let (for_format, for_origin) = (Arc::clone(&log_device), Arc::clone(&origin_device));
    let options = FormatOptions { uuid: Some(Uuid::from_bytes([7; 16])), ..FormatOptions::paper() };
    let formatted = executor.block_on(async move { WriteLog::format(&for_format, &for_origin, options).await });
    formatted.expect("an empty device can be formatted");
    let mut expected = origin.clone();
    // The second opening begins with a checkpoint of what the first one left.
    for opening in 0..2 {
        let mut options = OpenOptions::new(Arc::new(executor.clock()));
        (options.level2.idle, options.level2.age_max) = (Duration::MAX, Duration::MAX);
        options.level2.share_start = 1.0;
        let opened = executor.block_on(WriteLog::open(Arc::clone(&log_device), Arc::clone(&origin_device), options));
        let log = opened.expect("it was just formatted");
        executor.spawn(log.run());
        for (index, offset) in [0, 4096, 8192 + 512, 64 << 10, 4096, (252 << 10) + 3584].into_iter().enumerate() {
            let offset = offset / (1 + opening);
            let bytes = vec![0xc0 + index as u8; 512 * (1 + index % 3).min((ORIGIN_BYTES as usize - offset) / 512)];
            let offset = offset / 512 * 512;
            expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
            executor.block_on(log.write(offset as u64, Buffer::copy_of(&bytes), false)).expect("memory takes writes");
        }
        let zeroed = log.write_zeroes(96 << 10, 8192, false, opening == 1);
        executor.block_on(zeroed).expect("memory takes writes");
        expected[96 << 10..104 << 10].fill(0);
        if opening == 0 {
            executor.block_on(async move { log.close(true).await }).expect("memory takes writes");
            continue;
        }
        let stopped = Image { store: content(&log_device), origin: origin.clone(), expected: expected.clone() };
        executor.block_on(async move { log.close(true).await }).expect("memory takes writes");
        let closed = Image { store: content(&log_device), origin: origin.clone(), expected };
        return [stopped, closed];
    }
    unreachable!("the second opening returns")
}

/// Changes the content of a log device. `layout` is that of the image before any damage.
pub fn apply(damage: &Damage, log: &mut [u8], layout: &Layout) {
    let start = layout.segments_offset as usize;
    let records = start..start + layout.segment_count as usize * layout.segment_bytes as usize;
    damage.apply(log, records, |log, index, at, bytes| {
        let start = layout.checkpoint_slot(index) as usize;
        let slot = &mut log[start..start + layout.checkpoint_bytes as usize];
        overwrite(slot, at % 512, bytes);
        seal_checkpoint(slot);
    });
}

/// The checksum of a checkpoint covers as much as its counts say.
fn seal_checkpoint(slot: &mut [u8]) {
    let Ok((head, _)) = CheckpointRaw::read_from_prefix(slot) else { return };
    let segments = (head.segment_count.get() as usize).saturating_mul(size_of::<SegmentRaw>());
    let extents = (head.extent_count.get() as usize).saturating_mul(size_of::<ExtentRaw>());
    let length = size_of::<CheckpointRaw>().saturating_add(segments).saturating_add(extents);
    seal(slot, length.min(slot.len()));
}

/// The layout of an undamaged image.
pub fn layout(log: &[u8]) -> Layout {
    let (raw, _) = ParametersRaw::read_from_prefix(&log[size_of::<HeaderRaw>()..]).expect("a superblock is longer");
    Layout::from_parameters(&raw, log.len() as u64).expect("the image is valid")
}
