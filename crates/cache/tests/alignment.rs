//! Lines that begin where a misaligned partition begins.

mod common;

use std::sync::Arc;

use base::executor::Executor;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::stats::StatsLayer;
use block::{Device, ErrorKind, ExtentKind, Geometry, OperationKind, SharedDevice};
use cache::{Alignment, Cache, FormatOptions, Mode};
use common::{format, format_options, memory, open, read, write};

const ORIGIN_BYTES: u64 = 1 << 20;
/// Where DOS put the first partition: 63 sectors in.
const PARTITION: u64 = 63 * 512;

struct Bench {
    executor: Executor,
    device: SharedDevice,
    medium: SharedDevice,
    origin: Arc<StatsLayer>,
    cache: Arc<Cache>,
}

/// A cache in write-back over an origin with an MBR whose first partition is misaligned, or without one.
fn bench(alignment: Alignment, has_mbr: bool) -> Bench {
    let mut executor = Executor::in_order();
    let medium = memory(ORIGIN_BYTES);
    if has_mbr {
        let mut sector = [0; 512];
        (sector[450], sector[454], sector[510], sector[511]) = (0x83, 63, 0x55, 0xaa);
        write(&mut executor, &medium, 0, &sector);
    }
    let origin = Arc::new(StatsLayer::new(Arc::clone(&medium), Arc::new(executor.clock()), &Workers::new()));
    let device = memory(1 << 20);
    let shared: SharedDevice = origin.clone();
    format(&mut executor, &device, &shared, FormatOptions { alignment, ..format_options() });
    let cache = open(&mut executor, &device, &shared, Mode::WriteBack);
    Bench { executor, device, medium, origin, cache }
}

#[test]
fn a_block_of_a_misaligned_partition_is_one_line() {
    for (alignment, has_mbr, lines) in [
        (Alignment::Found, true, 1),
        (Alignment::At(PARTITION), false, 1),
        (Alignment::Found, false, 2),
        (Alignment::At(0), true, 2),
    ] {
        let Bench { mut executor, device, medium, origin, cache } = bench(alignment, has_mbr);
        write(&mut executor, &cache, PARTITION + 4096, &[7; 4096]);
        assert_eq!(cache.status().dirty_lines, lines, "{alignment:?}");
        assert_eq!(cache.status().alignment_bytes, if lines == 1 { PARTITION % 4096 } else { 0 });
        assert_eq!(cache.geometry().size_bytes, ORIGIN_BYTES);
        let writes_before = origin.snapshot().of(OperationKind::Write).completed_count;
        let cleaning = Arc::clone(&cache);
        executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap() });
        assert_eq!(origin.snapshot().of(OperationKind::Write).completed_count, writes_before + 1);
        assert_eq!(read(&mut executor, &medium, PARTITION + 4096, 4096), vec![7; 4096]);
        executor.block_on(async move { cache.close(true).await.unwrap() });
        let inspection = executor.block_on(async move { cache::inspect(&device).await.unwrap() });
        assert_eq!(inspection.alignment_bytes, if lines == 1 { PARTITION % 4096 } else { 0 });
    }
}

#[test]
fn the_first_and_the_last_bytes_belong_to_short_lines() {
    let Bench { mut executor, medium, cache, .. } = bench(Alignment::At(512), false);
    write(&mut executor, &cache, 0, &[1; 512]);
    write(&mut executor, &cache, ORIGIN_BYTES - 3584, &[2; 3584]);
    assert_eq!(cache.status().dirty_lines, 2);
    assert_eq!(read(&mut executor, &cache, 0, 1024), [vec![1; 512], vec![0; 512]].concat());
    let beyond = cache.read(ORIGIN_BYTES, base::buffer::Buffer::zeroed(512));
    assert_eq!(executor.block_on(beyond).unwrap_err().kind(), ErrorKind::InvalidRange);
    let extents = executor.block_on(cache.extents(0, ORIGIN_BYTES)).unwrap();
    let data: Vec<ByteRange> =
        extents.iter().filter(|extent| extent.kind == ExtentKind::Data).map(|extent| extent.range).collect();
    let last = ByteRange { offset: ORIGIN_BYTES - 3584, length: 3584 };
    assert_eq!(data, [ByteRange { offset: 0, length: 512 }, last]);
    executor.block_on(cache.discard(0, 512)).unwrap();
    executor.block_on(async move { cache.close(false).await.unwrap() });
    assert_eq!(read(&mut executor, &medium, ORIGIN_BYTES - 3584, 3584), vec![2; 3584]);
    assert_eq!(read(&mut executor, &medium, 0, 512), vec![0; 512]);
}

#[test]
fn lines_do_not_begin_within_a_block() {
    let mut executor = Executor::in_order();
    let device = memory(1 << 20);
    let geometry = Geometry { logical_block_bytes: 4096, ..Geometry::plain(ORIGIN_BYTES) };
    let origin: SharedDevice = Arc::new(block::layer::crash::CrashLayer::new(ORIGIN_BYTES, 1).with_geometry(geometry));
    for (at, is_possible) in [(512, false), (4096, true), (100, false)] {
        let options = FormatOptions { alignment: Alignment::At(at), ..format_options() };
        let (device, origin) = (Arc::clone(&device), Arc::clone(&origin));
        let made = executor.block_on(async move { Cache::format(&device, &origin, options).await });
        assert_eq!(made.err().map(|error| error.kind()), (!is_possible).then_some(ErrorKind::InvalidRange), "{at}");
    }
}
