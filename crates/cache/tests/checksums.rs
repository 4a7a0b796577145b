//! A cache device that returns other bytes than were written, without an error: clean data comes from the origin, and
//! dirty data is an error.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::executor::Executor;
use base::limits::REFUSALS_LOGGED_MAX;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::Latency;
use block::memory::MemoryDevice;
use block::{ErrorKind, Identity, SharedDevice};
use cache::{Cache, DirtyLimits, FormatOptions, LineSize, Mode, OpenOptions, Percent, check};
use common::lines::Lines;
use common::{format, format_options, memory, open, open_options, read, try_open, write};

const LINE: usize = 4096;
const CACHE_BYTES: u64 = 1 << 20;

/// A cache with checksums over two devices in memory.
struct Bench {
    executor: Executor,
    device: SharedDevice,
    origin: SharedDevice,
    cache: Arc<Cache>,
}

impl Bench {
    fn new(mode: Mode) -> Self {
        let mut executor = Executor::in_order();
        let (device, origin) = (memory(CACHE_BYTES), memory(64 * LINE as u64));
        format(&mut executor, &device, &origin, FormatOptions { has_checksums: true, ..format_options() });
        let cache = open(&mut executor, &device, &origin, mode);
        assert!(cache.status().has_checksums);
        Self { executor, device, origin, cache }
    }

    fn write(&mut self, offset: usize, byte: u8, length: usize) {
        write(&mut self.executor, &self.cache, offset as u64, &vec![byte; length]);
        self.executor.run();
    }

    fn read(&mut self, offset: usize, length: usize) -> Result<Vec<u8>, ErrorKind> {
        let reading = self.cache.read(offset as u64, Buffer::zeroed(length));
        let result = self.executor.block_on(reading);
        self.executor.run();
        result.map(|buffer| buffer.to_vec()).map_err(|error| error.kind())
    }

    /// Changes one byte of the only line on the cache device that is filled with `byte`.
    fn damage(&mut self, byte: u8) {
        let bytes = read(&mut self.executor, &self.device, 0, CACHE_BYTES);
        let is_it = |line: &&[u8]| line.iter().all(|other| *other == byte);
        assert_eq!(bytes.chunks(LINE).filter(is_it).count(), 1);
        let at = bytes.chunks(LINE).position(|line| is_it(&line)).unwrap() * LINE + 1000;
        write(&mut self.executor, &self.device, at as u64 / 512 * 512, &{
            let mut sector = [byte; 512];
            sector[at % 512] ^= 1;
            sector
        });
    }

    fn reopen(&mut self, mode: Mode) {
        let cache = Arc::clone(&self.cache);
        self.executor.block_on(async move { cache.close(true).await.unwrap() });
        self.cache = open(&mut self.executor, &self.device, &self.origin, mode);
    }

    /// The program stops without closing the cache.
    fn crash(&mut self, mode: Mode) {
        self.executor = Executor::in_order();
        self.cache = open(&mut self.executor, &self.device, &self.origin, mode);
    }
}

#[test]
fn damaged_data_is_a_few_lines() {
    let count = 3 * REFUSALS_LOGGED_MAX as usize;
    let mut bench = Bench::new(Mode::WriteThrough);
    for line in 0..count {
        bench.write(line * LINE, 1 + line as u8, LINE);
        bench.damage(1 + line as u8);
    }
    let lines = Lines::default();
    let _guard = lines.listen();
    for line in 0..count {
        assert_eq!(bench.read(line * LINE, LINE), Ok(vec![1 + line as u8; LINE]));
    }
    assert_eq!((bench.cache.status().checksum_errors, lines.count()), (count as u64, REFUSALS_LOGGED_MAX as usize));
}

#[test]
fn damaged_clean_data_comes_from_the_origin_and_is_counted() {
    let mut bench = Bench::new(Mode::WriteThrough);
    for (line, byte) in [(0, 1), (1, 2), (2, 3)] {
        bench.write(line * LINE, byte, LINE);
    }
    for byte in 1..=3 {
        bench.damage(byte);
    }
    // A whole line, part of one, and several at once.
    assert_eq!(bench.read(0, LINE), Ok(vec![1; LINE]));
    assert_eq!(bench.read(LINE + 512, 512), Ok(vec![2; 512]));
    assert_eq!(bench.read(0, 3 * LINE), Ok([vec![1; LINE], vec![2; LINE], vec![3; LINE]].concat()));
    let status = bench.cache.status();
    assert_eq!((status.checksum_errors, status.cache_read_errors), (3, 0));
    // The line that the origin served is in the cache again.
    let origin_reads = bench.cache.status().origin_reads;
    assert_eq!(bench.read(0, LINE), Ok(vec![1; LINE]));
    assert_eq!((bench.cache.status().origin_reads, bench.cache.status().checksum_errors), (origin_reads, 3));
}

#[test]
fn damaged_dirty_data_is_an_error_and_never_reaches_the_origin() {
    for has_crashed in [false, true] {
        let mut bench = Bench::new(Mode::WriteBack);
        bench.write(0, 1, LINE);
        bench.write(LINE, 2, LINE);
        bench.write(2 * LINE, 3, LINE);
        if has_crashed {
            bench.crash(Mode::WriteBack);
        } else {
            bench.reopen(Mode::WriteBack);
        }
        bench.damage(1);
        bench.damage(2);
        assert_eq!(bench.read(0, 512), Err(ErrorKind::Media), "part of a line is checked as well");
        assert_eq!(bench.read(0, LINE), Err(ErrorKind::Media), "and it stays so");
        let cache = Arc::clone(&bench.cache);
        let cleaned = bench.executor.block_on(async move { cache.clean(|_| {}).await });
        assert_eq!(cleaned.unwrap_err().kind(), ErrorKind::Media);
        let origin = read(&mut bench.executor, &bench.origin, 0, 2 * LINE as u64);
        assert!(origin.iter().all(|&byte| byte == 0), "it is not what was written");
        assert_eq!(bench.cache.status().checksum_errors, 2);
        // A line that is written again is whole.
        bench.write(0, 4, 2 * LINE);
        assert_eq!(bench.read(0, 3 * LINE), Ok([vec![4; 2 * LINE], vec![3; LINE]].concat()));
        let cache = Arc::clone(&bench.cache);
        bench.executor.block_on(async move { cache.clean(|_| {}).await.unwrap() });
        assert_eq!(read(&mut bench.executor, &bench.origin, 0, 2 * LINE as u64), vec![4; 2 * LINE]);
    }
}

/// The write overwrites a dirty sector, so the others move along to another frame.
#[test]
fn a_write_to_part_of_a_damaged_dirty_line_makes_the_rest_of_it_no_good_again() {
    let mut bench = Bench::new(Mode::WriteBack);
    bench.write(0, 1, LINE);
    bench.damage(1);
    bench.write(0, 4, 512);
    assert_eq!(bench.read(0, 512), Ok(vec![4; 512]));
    assert_eq!(bench.read(512, LINE - 512).map(drop), Err(ErrorKind::Media), "it is not what was written");
    assert_eq!(bench.cache.status().checksum_errors, 1);
    let cache = Arc::clone(&bench.cache);
    drop(bench.executor.block_on(async move { cache.clean(|_| {}).await }));
    let origin = read(&mut bench.executor, &bench.origin, 512, (LINE - 512) as u64);
    assert!(origin.iter().all(|&byte| byte == 0), "nor comes to the origin");
}

#[test]
fn a_check_finds_damaged_dirty_lines() {
    let mut bench = Bench::new(Mode::WriteBack);
    bench.write(0, 1, LINE);
    bench.write(LINE, 2, LINE);
    bench.reopen(Mode::WriteBack);
    let unreadable = |bench: &mut Bench| {
        let device = Arc::clone(&bench.device);
        bench.executor.block_on(async move { check(&device).await.unwrap().unreadable_lines })
    };
    assert_eq!(unreadable(&mut bench), 0);
    bench.damage(2);
    assert_eq!(unreadable(&mut bench), 1);
}

#[test]
fn what_changes_part_of_a_line_forgets_its_checksum() {
    let mut bench = Bench::new(Mode::WriteThrough);
    bench.write(0, 1, LINE);
    bench.write(512, 2, 512);
    let expected = [vec![1; 512], vec![2; 512], vec![1; LINE - 1024]].concat();
    assert_eq!(bench.read(0, LINE), Ok(expected));
    assert_eq!(bench.cache.status().checksum_errors, 0);
}

#[test]
fn only_small_lines_have_checksums() {
    let mut executor = Executor::in_order();
    let line_size = LineSize::new(64 << 10).unwrap();
    let options = FormatOptions { has_checksums: true, line_size, ..format_options() };
    let (device, origin) = (memory(4 << 20), memory(4 << 20));
    let formatted = executor.block_on(async move { Cache::format(&device, &origin, options).await });
    assert_eq!(formatted.unwrap_err().kind(), ErrorKind::InvalidRange);
}

/// Cleaning compares lines with their checksums while writes in place to clean sectors of them go on.
#[test]
fn a_write_beside_cleaning_is_no_damage() {
    const LINES: u64 = 24;
    let mut executor = Executor::in_order();
    let workers = Workers::new();
    let latency = Latency::Fixed(Duration::from_millis(1));
    let medium = CrashLayer::new(4 << 20, 1).with_latency(Arc::new(executor.clock()), latency, &workers);
    executor.spawn(async move { workers.run().await });
    let (device, origin): (SharedDevice, SharedDevice) =
        (Arc::new(medium), Arc::new(MemoryDevice::new(1 << 20, Identity::default())));
    format(&mut executor, &device, &origin, FormatOptions { has_checksums: true, ..format_options() });
    let options = OpenOptions {
        dirty: DirtyLimits { clean_above: Percent::ALL, max: Percent::ALL },
        ..open_options(&executor, Mode::WriteBack)
    };
    let cache = try_open(&mut executor, &device, &origin, options).unwrap();
    read(&mut executor, &cache, 0, LINES * LINE as u64);
    executor.run();
    for line in 0..LINES {
        // First in place; then over a dirty sector, so into another frame: whole, with a checksum,
        // partly clean.
        write(&mut executor, &cache, line * LINE as u64, &[1; 1024]);
        write(&mut executor, &cache, line * LINE as u64 + 512, &[2; 1024]);
    }
    assert_eq!(cache.status().dirty_lines, LINES);
    let asked = Arc::clone(&cache);
    executor.spawn(async move { drop(asked.clean(|_| {}).await) });
    executor.run_until_stalled();
    // Eight lines are being compared; the last one is picked and waits.
    let last = (LINES - 1) * LINE as u64;
    write(&mut executor, &cache, last + 5 * 512, &[3; 512]);
    executor.run();
    assert_eq!(cache.status().checksum_errors, 0);
    let mut expected = vec![0; LINE];
    expected[..512].fill(1);
    expected[512..1536].fill(2);
    expected[2560..3072].fill(3);
    assert_eq!(read(&mut executor, &cache, last, LINE as u64), expected);
}
