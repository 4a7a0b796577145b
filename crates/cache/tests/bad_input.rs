//! A cache that cannot be used says in one line why, and nothing is changed.

mod common;

use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use block::device::DeviceExt;
use block::memory::MemoryDevice;
use block::{Completion, Device, Error, ErrorKind, Geometry, Identity, Request, SharedDevice};
use cache::format::{ParametersRaw, STATE_CLOSED, STATE_IN_USE};
use cache::{Cache, CrashMode, FormatOptions, Mode, OpenOptions, check, discard, inspect};
use common::{format, format_options, open, open_options, read, try_open, write};

/// Offset of the state in a superblock.
const STATE_AT: usize = 128 + offset_of!(ParametersRaw, state);

fn named(size_bytes: u64, serial: &str) -> SharedDevice {
    let identity = Identity { target: "iqn.2026-01.test:disk".into(), unit: "naa.1".into(), serial: serial.into() };
    Arc::new(MemoryDevice::new(size_bytes, identity))
}

fn refusal(executor: &mut Executor, cache_device: &SharedDevice, origin: &SharedDevice) -> Error {
    let options = open_options(executor, Mode::WriteBack);
    try_open(executor, cache_device, origin, options).err().expect("it must be refused")
}

/// A copy of a device with another size.
fn resized(executor: &mut Executor, device: &SharedDevice, size_bytes: u64, serial: &str) -> SharedDevice {
    let copy = named(size_bytes, serial);
    let length = size_bytes.min(device.geometry().size_bytes);
    let bytes = read(executor, device, 0, length);
    write(executor, &copy, 0, &bytes);
    copy
}

/// A device of more than 2^48 blocks of 4 KiB.
struct Vast;

impl Device for Vast {
    fn geometry(&self) -> Geometry {
        Geometry::plain((1 << 60) + 4096)
    }

    fn identity(&self) -> Identity {
        Identity::default()
    }

    fn submit(&self, request: Request) -> Completion {
        Completion::ready(request.fail(ErrorKind::Gone))
    }
}

/// A closed cache with one dirty line at the end of its origin.
fn prepared(executor: &mut Executor) -> (SharedDevice, SharedDevice) {
    let (cache_device, origin) = (named(1 << 20, "C"), named(1 << 20, "S1"));
    format(executor, &cache_device, &origin, format_options());
    let cache = open(executor, &cache_device, &origin, Mode::WriteBack);
    write(executor, &cache, (1 << 20) - 512, &[7; 512]);
    read(executor, &cache, 0, 8192);
    executor.run();
    executor.block_on(async move { cache.close(true).await.unwrap() });
    (cache_device, origin)
}

#[test]
fn a_cache_of_another_disk_is_refused_by_both_names() {
    let mut executor = Executor::in_order();
    let (cache_device, _) = prepared(&mut executor);
    let error = refusal(&mut executor, &cache_device, &named(1 << 20, "S2"));
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let message = error.to_string();
    assert!(message.contains("serial S1") && message.contains("serial S2"), "{message}");
    assert!(!message.contains('\n'));
}

#[test]
fn a_device_that_is_no_cache_or_was_cut_is_refused() {
    let mut executor = Executor::in_order();
    let (cache_device, origin) = prepared(&mut executor);
    let blank = named(1 << 20, "C");
    assert!(refusal(&mut executor, &blank, &origin).to_string().contains("not a forebay cache"));
    for size_bytes in [1 << 19, 8192, 4096, 2 << 20] {
        let other = resized(&mut executor, &cache_device, size_bytes, "C");
        let error = refusal(&mut executor, &other, &origin);
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NoSpace), "{size_bytes}: {error:?}");
    }
    let cut = resized(&mut executor, &cache_device, 1 << 19, "C");
    assert!(refusal(&mut executor, &cut, &origin).to_string().contains("was cut"));
}

#[test]
fn another_version_is_refused_by_number() {
    let mut executor = Executor::in_order();
    let (cache_device, origin) = prepared(&mut executor);
    for place in [0, (1 << 20) - 4096] {
        let mut bytes = read(&mut executor, &cache_device, place, 4096);
        bytes[24] = 9;
        let checksum = base::checksum::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        write(&mut executor, &cache_device, place, &bytes);
    }
    let message = refusal(&mut executor, &cache_device, &origin).to_string();
    assert!(message.contains("version 9") && message.contains("versions 1 to 2"), "{message}");
}

#[test]
fn too_small_a_device_is_refused_when_it_is_formatted() {
    let mut executor = Executor::in_order();
    let (cache_device, origin) = (named(32 << 10, "C"), named(1 << 20, "S1"));
    let error = executor
        .block_on(async move { Cache::format(&cache_device, &origin, FormatOptions::default()).await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::InvalidRange);
}

#[test]
fn block_sizes_that_cannot_be_cached_are_refused() {
    let mut executor = Executor::in_order();
    let blocks = |bytes| {
        let geometry = Geometry { logical_block_bytes: bytes, ..Geometry::plain(1 << 20) };
        let device: SharedDevice = Arc::new(MemoryDevice::with_geometry(geometry, Identity::default()));
        device
    };
    for (cache_block, origin_block) in [(4096, 512), (512, 8192)] {
        let (cache_device, origin) = (blocks(cache_block), blocks(origin_block));
        let formatted = async move { Cache::format(&cache_device, &origin, FormatOptions::default()).await };
        assert_eq!(executor.block_on(formatted).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    let (cache_device, origin) = (blocks(512), blocks(4096));
    format(&mut executor, &cache_device, &origin, format_options());
    let cache = open(&mut executor, &cache_device, &origin, Mode::WriteBack);
    let error = executor.block_on(cache.write(512, Buffer::zeroed(512), false)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRange);
}

#[test]
fn an_origin_whose_blocks_cannot_be_numbered_is_refused() {
    let mut executor = Executor::in_order();
    let (cache_device, origin) = (named(1 << 20, "C"), Arc::new(Vast) as SharedDevice);
    let formatted = async move { Cache::format(&cache_device, &origin, FormatOptions::default()).await };
    assert_eq!(executor.block_on(formatted).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn an_origin_may_grow_and_may_shrink() {
    let mut executor = Executor::in_order();
    let (cache_device, origin) = prepared(&mut executor);
    let smaller = resized(&mut executor, &origin, (1 << 20) - 512, "S1");
    let cache = open(&mut executor, &cache_device, &smaller, Mode::WriteBack);
    assert_eq!((cache.geometry().size_bytes, cache.status().stranded.bytes), ((1 << 20) - 512, 512));
    executor.block_on(async move { cache.close(true).await.unwrap() });
    let larger = resized(&mut executor, &origin, 2 << 20, "S1");
    let cache = open(&mut executor, &cache_device, &larger, Mode::WriteBack);
    assert_eq!(cache.geometry().size_bytes, 2 << 20);
    assert_eq!(read(&mut executor, &cache, (1 << 20) - 512, 1024), [[7; 512], [0; 512]].concat());
    write(&mut executor, &cache, (2 << 20) - 512, &[8; 512]);
    executor.block_on(async move { cache.close(false).await.unwrap() });
    let inspecting = Arc::clone(&cache_device);
    let inspection = executor.block_on(async move { inspect(&inspecting).await.unwrap() });
    assert_eq!(inspection.origin_bytes, 2 << 20);
    // A clean cache allows the origin to shrink: copies beyond its end are forgotten.
    let smaller = resized(&mut executor, &larger, 1 << 20, "S1");
    let cache = open(&mut executor, &cache_device, &smaller, Mode::WriteBack);
    assert_eq!(cache.geometry().size_bytes, 1 << 20);
    let error = executor.block_on(cache.read(1 << 20, Buffer::zeroed(512))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRange);
}

#[test]
fn an_inspection_tells_what_is_dirty_and_changes_nothing() {
    let mut executor = Executor::in_order();
    let (cache_device, _) = prepared(&mut executor);
    let before = read(&mut executor, &cache_device, 0, 1 << 20);
    let device = Arc::clone(&cache_device);
    let inspection = executor.block_on(async move { check(&device).await.unwrap() });
    assert_eq!((inspection.dirty_lines, inspection.dirty_bytes, inspection.valid_lines), (1, 512, 3));
    assert!(inspection.was_closed && inspection.unreadable_lines == 0);
    assert_eq!(inspection.identity.serial, "S1");
    assert_eq!(read(&mut executor, &cache_device, 0, 1 << 20), before);
    let device = Arc::clone(&cache_device);
    executor.block_on(async move { discard(&device).await.unwrap() });
    let device = Arc::clone(&cache_device);
    let error = executor.block_on(async move { inspect(&device).await.unwrap_err() });
    assert!(error.to_string().contains("no superblock"), "{error}");
}

/// Makes the newest slot of a table's only page read as zeroes.
fn zero_newest_slot(executor: &mut Executor, cache_device: &SharedDevice) {
    let bytes = read(executor, cache_device, 0, cache_device.geometry().size_bytes);
    let slots: Vec<usize> = (0..bytes.len()).step_by(512).filter(|&at| bytes[at + 4..].starts_with(b"ftab")).collect();
    assert_eq!(slots.len(), 2, "the older slot is whole");
    let sequence = |&at: &usize| u64::from_le_bytes(bytes[at + 16..at + 24].try_into().unwrap());
    let newest = slots.into_iter().max_by_key(sequence).unwrap();
    write(executor, cache_device, newest as u64, &[0; 4096]);
}

#[test]
fn a_closed_cache_of_which_the_table_has_not_the_dirty_lines_is_refused() {
    let mut executor = Executor::in_order();
    let (cache_device, origin) = prepared(&mut executor);
    let cache = open(&mut executor, &cache_device, &origin, Mode::WriteBack);
    write(&mut executor, &cache, 65536, &[8; 4096]);
    executor.block_on(async move { cache.close(true).await.unwrap() });
    zero_newest_slot(&mut executor, &cache_device);
    let before = read(&mut executor, &cache_device, 0, 1 << 20);
    let error = refusal(&mut executor, &cache_device, &origin);
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let message = error.to_string();
    assert!(message.contains("closed with 2 dirty lines, and its table has 1"), "{message}");
    let device = Arc::clone(&cache_device);
    let inspected = executor.block_on(async move { (inspect(&device).await, check(&device).await) });
    assert_eq!(inspected.0.unwrap_err().to_string(), message);
    assert_eq!(inspected.1.unwrap_err().to_string(), message);
    assert_eq!(read(&mut executor, &cache_device, 0, 1 << 20), before);
}

/// Says that a cache in use was closed, in both copies of its superblock.
fn call_closed(executor: &mut Executor, cache_device: &SharedDevice) {
    for place in [0, cache_device.geometry().size_bytes - 4096] {
        let mut bytes = read(executor, cache_device, place, 4096);
        assert_eq!(bytes[STATE_AT], STATE_IN_USE);
        bytes[STATE_AT] = STATE_CLOSED;
        let checksum = base::checksum::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        write(executor, cache_device, place, &bytes);
    }
}

/// Earlier programs that closed a cache while it was cleaned went on after that. Its table is older than what the
/// frames hold.
#[test]
fn a_closed_cache_that_has_gone_on_since_keeps_what_is_dirty_alone() {
    const LINES: u64 = 16;
    let (cache_device, origin) = (named(1 << 20, "C"), named(1 << 20, "S1"));
    let mut executor = Executor::in_order();
    let all: Vec<u8> = (0..4 * LINES).flat_map(|line| [1 + line as u8; 4096]).collect();
    write(&mut executor, &origin, 0, &all);
    let crash_mode = CrashMode::DirtySynchronous;
    let options = FormatOptions { crash_mode, frames_max: Some(LINES), ..format_options() };
    format(&mut executor, &cache_device, &origin, options);
    let cache = open(&mut executor, &cache_device, &origin, Mode::WriteBack);
    read(&mut executor, &cache, 0, LINES * 4096);
    executor.run();
    executor.block_on(async move { cache.close(true).await.unwrap() });
    let options = OpenOptions { lazy_interval: Duration::from_secs(3600), ..open_options(&executor, Mode::WriteBack) };
    let cache = try_open(&mut executor, &cache_device, &origin, options).unwrap();
    assert!(cache.status().recovery.was_closed);
    // Other lines take the place of those in the table.
    for line in LINES..3 * LINES {
        read(&mut executor, &cache, line * 4096, 4096);
        executor.run_until_stalled();
    }
    assert!(cache.status().evictions >= LINES);
    write(&mut executor, &cache, 3 * LINES * 4096, &[99; 4096]);
    drop((cache, executor));

    let mut executor = Executor::in_order();
    call_closed(&mut executor, &cache_device);
    let cache = open(&mut executor, &cache_device, &origin, Mode::WriteBack);
    let recovery = cache.status().recovery;
    assert_eq!((recovery.was_closed, recovery.dirty_lines), (false, 1));
    assert_eq!(read(&mut executor, &cache, 3 * LINES * 4096, 4096), [99; 4096]);
    // Those first that would be evicted last.
    for line in (0..LINES).rev() {
        let bytes = read(&mut executor, &cache, line * 4096, 4096);
        assert_eq!(bytes[0], 1 + line as u8, "its frame has another line by now");
    }
}

#[test]
fn whatever_is_overwritten_with_garbage_opening_ends_in_a_value() {
    let mut random = base::random::Random::new(5);
    for round in 0..60u64 {
        let mut executor = Executor::in_order();
        let (cache_device, origin) = prepared(&mut executor);
        for _ in 0..=random.below(4) {
            let mut garbage = vec![0; 512 * (1 + random.below(8) as usize)];
            random.fill(&mut garbage);
            let offset = random.below((1 << 11) - 8) * 512;
            write(&mut executor, &cache_device, offset, &garbage);
        }
        let options = open_options(&executor, Mode::WriteBack);
        if let Ok(cache) = try_open(&mut executor, &cache_device, &origin, options) {
            read(&mut executor, &cache, 0, 1 << 20);
        }
        assert!(round < 60);
    }
}
