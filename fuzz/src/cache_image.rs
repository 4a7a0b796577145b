//! Caches to be damaged.

use std::sync::{Arc, OnceLock};

use base::buffer::Buffer;
use base::executor::Executor;
use block::device::DeviceExt;
use cache::format::{PAGE_BYTES, ParametersRaw};
use cache::layout::Layout;
use cache::numbers::PageNumber;
use cache::{Associativity, Cache, FormatOptions, Mode, OpenOptions};
use store::limits::LOG_BYTES_MIN;
use store::superblock::HeaderRaw;
use uuid::Uuid;
use zerocopy::FromBytes;

use crate::damage::{Damage, Image, content, device, overwrite, seal};

/// Bytes of the cache device.
pub const CACHE_BYTES: u64 = 192 << 10;
/// Bytes of the origin.
pub const ORIGIN_BYTES: u64 = 256 << 10;

/// Two valid caches: one whose program stopped without closing it, and one that was closed.
pub fn images() -> &'static [Image; 2] {
    static IMAGES: OnceLock<[Image; 2]> = OnceLock::new();
    IMAGES.get_or_init(make_images)
}

fn make_images() -> [Image; 2] {
    let mut executor = Executor::in_order();
    let origin: Vec<u8> = (0..ORIGIN_BYTES).map(|at| (at / 512) as u8 ^ 0x5a).collect();
    let (cache_device, origin_device) = (device(&vec![0; CACHE_BYTES as usize], "C"), device(&origin, "S1"));
    let (for_format, for_origin) = (Arc::clone(&cache_device), Arc::clone(&origin_device));
    let cache = executor.block_on(async move {
        let format = FormatOptions {
            associativity: Associativity::Ways(8),
            log_bytes: Some(LOG_BYTES_MIN),
            uuid: Some(Uuid::from_bytes([7; 16])),
            ..FormatOptions::default()
        };
        Cache::format(&for_format, &for_origin, format).await
    });
    cache.expect("an empty device can be formatted");
    let options = OpenOptions::new(Mode::WriteBack, Arc::new(executor.clock()));
    let opening = Cache::open(Arc::clone(&cache_device), Arc::clone(&origin_device), options);
    let cache = executor.block_on(opening).expect("it was just formatted");
    executor.spawn(cache.run());
    let mut expected = origin.clone();
    for (index, offset) in [0, 4096, 8192 + 512, 64 << 10, 4096, (252 << 10) + 3584].into_iter().enumerate() {
        let bytes = vec![0xc0 + index as u8; 512 * (1 + index % 3).min((ORIGIN_BYTES as usize - offset) / 512)];
        expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
        executor.block_on(cache.write(offset as u64, Buffer::copy_of(&bytes), false)).expect("memory takes writes");
    }
    executor.block_on(cache.read(32 << 10, Buffer::zeroed(16 << 10))).expect("memory gives reads");
    executor.run_until_stalled();
    let stopped = Image { store: content(&cache_device), origin: content(&origin_device), expected: expected.clone() };
    executor.block_on(async move { cache.close(true).await }).expect("memory takes writes");
    let closed = Image { store: content(&cache_device), origin: content(&origin_device), expected };
    [stopped, closed]
}

/// Changes the content of a cache device. `layout` is that of the image before any damage.
pub fn apply(damage: &Damage, cache: &mut [u8], layout: &Layout) {
    let log = layout.log.offset as usize..layout.log.end() as usize;
    damage.apply(cache, log, |cache, index, at, bytes| {
        let slot = u64::from(index) % (2 * layout.page_count);
        let start = layout.slot_offset(PageNumber(slot / 2), (slot % 2) as usize) as usize;
        let page = &mut cache[start..start + PAGE_BYTES];
        overwrite(page, at % PAGE_BYTES, bytes);
        seal(page, PAGE_BYTES);
    });
}

/// The layout of an undamaged image.
pub fn layout(cache: &[u8]) -> Layout {
    let (raw, _) = ParametersRaw::read_from_prefix(&cache[size_of::<HeaderRaw>()..]).expect("a superblock is longer");
    Layout::from_parameters(&raw, cache.len() as u64).expect("the image is valid")
}
