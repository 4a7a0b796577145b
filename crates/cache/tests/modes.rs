//! Which requests each mode caches, serves and refuses; cut-off, second use and reading ahead, seen
//! from outside.

mod common;

use std::sync::Arc;

use base::buffer::Buffer;
use base::executor::Executor;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::stats::StatsLayer;
use block::{Device, ErrorKind, OperationKind, SharedDevice};
use cache::{Admission, Alignment, Cache, FormatOptions, LineSize, Mode, OpenOptions, Tuning};
use common::{format, format_options, open_options, read, try_open};

const ORIGIN_BYTES: u64 = 4 << 20;
const LINE: u64 = 4096;

fn cache(executor: &mut Executor, mode: Mode, tuning: Tuning) -> (Arc<Cache>, SharedDevice) {
    let cache_device: SharedDevice = Arc::new(CrashLayer::new(4 << 20, 1));
    let origin: SharedDevice = Arc::new(CrashLayer::new(ORIGIN_BYTES, 2));
    format(executor, &cache_device, &origin, format_options());
    let options = OpenOptions { tuning, ..open_options(executor, mode) };
    let cache = try_open(executor, &cache_device, &origin, options).expect("it was just made");
    (cache, origin)
}

fn write(executor: &mut Executor, device: &impl Device, offset: u64, byte: u8) -> Result<(), ErrorKind> {
    let writing = device.write(offset, Buffer::copy_of(&[byte; LINE as usize]), false);
    executor.block_on(writing).map(drop).map_err(|error| error.kind())
}

fn is_resident(cache: &Cache, executor: &mut Executor, offset: u64) -> bool {
    let before = cache.status().reads.hits;
    read(executor, cache, offset, LINE);
    cache.status().reads.hits > before
}

#[test]
fn modes_differ_in_what_they_take_in() {
    //                      a read     a write    a write over what was read
    let rows = [
        (Mode::WriteThrough, true, true, true),
        (Mode::WriteBack, true, true, true),
        (Mode::WriteAround, true, false, false),
        (Mode::PassThrough, false, false, false),
    ];
    for (mode, keeps_read, keeps_written, keeps_overwritten) in rows {
        let mut executor = Executor::new(1);
        let (cache, _) = cache(&mut executor, mode, Tuning::default());
        read(&mut executor, &*cache, 0, LINE);
        assert_eq!(is_resident(&cache, &mut executor, 0), keeps_read, "{mode}: a read");
        write(&mut executor, &*cache, 8 * LINE, 3).unwrap();
        assert_eq!(is_resident(&cache, &mut executor, 8 * LINE), keeps_written, "{mode}: a write");
        write(&mut executor, &*cache, 0, 4).unwrap();
        let resident_lines = cache.status().resident_lines;
        assert_eq!(is_resident(&cache, &mut executor, 0), keeps_overwritten, "{mode}: a write over what was read");
        assert_eq!(read(&mut executor, &*cache, 0, LINE), vec![4; LINE as usize]);
        if !keeps_overwritten {
            assert!(resident_lines <= 1, "{mode}: a frame of nothing is given back");
        }
    }
}

#[test]
fn read_only_refuses_to_change_anything() {
    let mut executor = Executor::new(1);
    let (cache, origin) = cache(&mut executor, Mode::WriteBack, Tuning::default());
    write(&mut executor, &*cache, 0, 7).unwrap();
    let changing = Arc::clone(&cache);
    executor.block_on(async move { changing.set_mode(Mode::ReadOnly).await.unwrap() });
    assert_eq!(cache.status().dirty_lines, 0, "what was dirty is on the origin");
    assert_eq!(read(&mut executor, &origin, 0, LINE), vec![7; LINE as usize]);
    assert_eq!(write(&mut executor, &*cache, 0, 8), Err(ErrorKind::ReadOnly));
    assert_eq!(executor.block_on(cache.discard(0, LINE)).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(executor.block_on(cache.write_zeroes(0, LINE, false, false)).unwrap_err().kind(), ErrorKind::ReadOnly);
    executor.block_on(cache.flush()).unwrap();
    assert!(is_resident(&cache, &mut executor, 0), "reads go on from the cache");
}

#[test]
fn a_mode_that_forgets_serves_what_the_origin_does_not_have() {
    let mut executor = Executor::new(1);
    let (cache, origin) = cache(&mut executor, Mode::WriteBack, Tuning::default());
    write(&mut executor, &*cache, 0, 7).unwrap();
    assert_eq!(read(&mut executor, &origin, 0, LINE), vec![0; LINE as usize], "it is dirty");
    for mode in [Mode::PassThrough, Mode::WriteAround] {
        let changing = Arc::clone(&cache);
        executor.block_on(async move { changing.set_mode(mode).await.unwrap() });
        assert_eq!(read(&mut executor, &*cache, 0, LINE), vec![7; LINE as usize]);
    }
    assert_eq!(read(&mut executor, &origin, 0, LINE), vec![7; LINE as usize]);
}

#[test]
fn a_stream_past_the_cutoff_leaves_no_trace_in_any_mode() {
    for mode in [Mode::WriteThrough, Mode::WriteBack] {
        let mut executor = Executor::new(1);
        let tuning = Tuning { cutoff_bytes: Some(8 * LINE), ..Tuning::default() };
        let (cache, origin) = cache(&mut executor, mode, tuning);
        for line in 0..64 {
            read(&mut executor, &*cache, line * LINE, LINE);
            write(&mut executor, &*cache, (512 + line) * LINE, 9).unwrap();
        }
        assert_eq!(cache.status().resident_lines, 16, "{mode}: eight of each stream");
        let tail = read(&mut executor, &origin, (512 + 63) * LINE, LINE);
        assert_eq!(tail, vec![9; LINE as usize], "{mode}: what went past is on the origin");
    }
}

#[test]
fn second_use_admits_what_comes_again() {
    let mut executor = Executor::new(1);
    let tuning = Tuning { admission: Admission::SecondUse, ..Tuning::default() };
    let (cache, _) = cache(&mut executor, Mode::WriteThrough, tuning);
    read(&mut executor, &*cache, 0, LINE);
    assert_eq!(cache.status().resident_lines, 0);
    read(&mut executor, &*cache, 0, LINE);
    assert_eq!(cache.status().resident_lines, 1);
    assert!(is_resident(&cache, &mut executor, 0));
}

#[test]
fn a_stream_is_in_the_cache_before_it_is_asked_for() {
    let mut executor = Executor::new(1);
    let tuning = Tuning { prefetch_bytes: 64 * 1024, ..Tuning::default() };
    let (cache, origin) = cache(&mut executor, Mode::WriteThrough, tuning);
    for line in 0..256 {
        executor.block_on(origin.write(line * LINE, Buffer::copy_of(&[line as u8; LINE as usize]), false)).unwrap();
    }
    for line in 0..256 {
        assert_eq!(read(&mut executor, &*cache, line * LINE, LINE), vec![line as u8; LINE as usize]);
    }
    let status = cache.status();
    assert_eq!(status.reads.misses, 3, "those before the stream was one");
    assert!(status.aheads.misses >= 10 && status.origin_reads < 60, "few large reads: {status:?}");
}

/// A mode that takes nothing in has no frame to fetch ahead into.
#[test]
fn a_cache_that_takes_nothing_in_fetches_nothing_ahead() {
    let mut executor = Executor::new(1);
    let cache_device: SharedDevice = Arc::new(CrashLayer::new(4 << 20, 1));
    let medium: SharedDevice = Arc::new(CrashLayer::new(ORIGIN_BYTES, 2));
    let stats = Arc::new(StatsLayer::new(medium, Arc::new(executor.clock()), &Workers::new()));
    let origin: SharedDevice = stats.clone();
    format(&mut executor, &cache_device, &origin, format_options());
    let tuning = Tuning { prefetch_bytes: 64 * 1024, ..Tuning::default() };
    let options = OpenOptions { tuning, ..open_options(&executor, Mode::PassThrough) };
    let cache = try_open(&mut executor, &cache_device, &origin, options).expect("it was just made");
    let before = stats.snapshot().of(OperationKind::Read).completed_count;
    for line in 0..64 {
        read(&mut executor, &*cache, line * LINE, LINE);
    }
    executor.run();
    assert_eq!(stats.snapshot().of(OperationKind::Read).completed_count - before, 64, "what was asked for, once");
}

/// Paper 2.3: larger blocks read ahead more. The reader does not wait for the rest, and nothing is fetched twice.
#[test]
fn the_rest_of_a_large_line_comes_with_a_part_of_it() {
    let large = LineSize::new(32 << 10).unwrap();
    for prefetches_lines in [false, true] {
        let mut executor = Executor::new(1);
        let cache_device: SharedDevice = Arc::new(CrashLayer::new(4 << 20, 1));
        let size_bytes = ORIGIN_BYTES - 4096;
        let medium: SharedDevice = Arc::new(CrashLayer::new(size_bytes, 2));
        executor.block_on(medium.write(0, Buffer::copy_of(&vec![7; size_bytes as usize]), false)).unwrap();
        let stats = Arc::new(StatsLayer::new(medium, Arc::new(executor.clock()), &Workers::new()));
        let origin: SharedDevice = stats.clone();
        // The first line has only its end, and the last one only its beginning.
        let options = FormatOptions { line_size: large, alignment: Alignment::At(8192), ..format_options() };
        format(&mut executor, &cache_device, &origin, options);
        let tuning = Tuning { prefetches_lines, ..Tuning::default() };
        let options = OpenOptions { tuning, ..open_options(&executor, Mode::WriteBack) };
        let cache = try_open(&mut executor, &cache_device, &origin, options).expect("it was just made");
        stats.reset();
        for offset in [0, 8192 + (64 << 10) + 512, size_bytes - 512] {
            let _ = read(&mut executor, &*cache, offset, 512);
        }
        executor.run();
        let expected = if prefetches_lines { 8192 + (32 << 10) + ((size_bytes - 8192) % (32 << 10)) } else { 3 * 512 };
        assert_eq!(cache.status().valid_bytes, expected, "the lines that were read");
        // One request a line, also across a short stretch that is cached.
        let again = if prefetches_lines { 512 } else { 0 };
        assert_eq!(stats.snapshot().of(OperationKind::Read).bytes, expected + again);
        let hits = cache.status().reads.hits;
        assert_eq!(read(&mut executor, &*cache, 8192 + (72 << 10), 16 << 10), vec![7; 16 << 10]);
        assert_eq!(cache.status().reads.hits - hits, u64::from(prefetches_lines));
    }
}
