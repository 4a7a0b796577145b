//! What happens when a device fails, and what must never happen then: old data in place of acknowledged data.

mod common;

use std::sync::Arc;
use std::time::Duration;

use base::buffer::Buffer;
use base::clock::Clock;
use base::executor::Executor;
use base::limits::REFUSALS_LOGGED_MAX;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, FlushEffect, Loss, Power, Reported, WriteEffect};
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::layer::stats::StatsLayer;
use block::memory::MemoryDevice;
use block::{
    Device, ErrorKind, Event, EventHub, EventReceiver, ExtentKind, Geometry, Identity, OperationKind, SharedDevice,
};
use cache::layout::Layout;
use cache::{Cache, CrashMode, DirtyLimits, FormatOptions, Mode, OpenOptions, Percent};
use common::lines::Lines;
use common::{format, format_options, memory, open, open_options, read, try_open, write};

const ORIGIN_BYTES: u64 = 64 * 4096;

/// A cache over two media that can be made to fail, with the counts of requests to the origin.
struct Bench {
    executor: Executor,
    cache_medium: CrashLayer,
    origin_medium: CrashLayer,
    origin: Arc<StatsLayer>,
    cache: Arc<Cache>,
}

impl Bench {
    fn new(mode: Mode) -> Self {
        let mut executor = Executor::in_order();
        let cache_medium = CrashLayer::new(1 << 20, 1);
        let geometry = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        let origin_medium = CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry);
        let origin = stats(&executor, Arc::new(origin_medium.clone()));
        let (device, shared): (SharedDevice, SharedDevice) = (Arc::new(cache_medium.clone()), origin.clone());
        format(&mut executor, &device, &shared, format_options());
        let cache = open(&mut executor, &device, &shared, mode);
        Self { executor, cache_medium, origin_medium, origin, cache }
    }

    fn write(&mut self, offset: u64, byte: u8, length: usize) -> Result<(), ErrorKind> {
        let writing = self.cache.write(offset, Buffer::copy_of(&vec![byte; length]), false);
        self.executor.block_on(writing).map(drop).map_err(|error| error.kind())
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, ErrorKind> {
        let reading = self.cache.read(offset, Buffer::zeroed(length));
        let result = self.executor.block_on(reading);
        // Insertions run on after the answer.
        self.executor.run();
        result.map(|buffer| buffer.to_vec()).map_err(|error| error.kind())
    }

    fn flush(&mut self) {
        let flushing = self.cache.flush();
        self.executor.block_on(flushing).unwrap();
    }

    fn clean(&mut self) -> Result<(), ErrorKind> {
        let cache = Arc::clone(&self.cache);
        self.executor.block_on(async move { cache.clean(|_| {}).await }).map_err(|error| error.kind())
    }

    fn close(&mut self, keep_dirty: bool) -> Result<(), ErrorKind> {
        let cache = Arc::clone(&self.cache);
        self.executor.block_on(async move { cache.close(keep_dirty).await }).map_err(|error| error.kind())
    }

    fn origin_count(&self, kind: OperationKind) -> u64 {
        self.origin.snapshot().of(kind).completed_count
    }

    /// Where the frames stand on the cache device.
    fn frames(&self) -> ByteRange {
        let layout = Layout::new(1 << 20, &format_options()).unwrap();
        ByteRange { offset: layout.frames_offset, length: layout.table_offset - layout.frames_offset }
    }

    fn fail_cache_reads(&self) {
        self.cache_medium.fail_reads_of(self.frames());
    }

    /// Opens what a crash of the cache device and the program leaves.
    fn reopen_after_crash(&mut self, mode: Mode) {
        self.cache_medium = self.cache_medium.after_power_loss();
        self.reopen(mode);
    }

    fn reopen(&mut self, mode: Mode) {
        self.try_reopen(mode).expect("a cache can be opened after any crash");
    }

    fn try_reopen(&mut self, mode: Mode) -> Result<(), ErrorKind> {
        self.executor = Executor::in_order();
        self.origin = stats(&self.executor, Arc::new(self.origin_medium.clone()));
        let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(self.cache_medium.clone()), self.origin.clone());
        let options = open_options(&self.executor, mode);
        self.cache = try_open(&mut self.executor, &device, &origin, options).map_err(|error| error.kind())?;
        Ok(())
    }

    fn reopen_closed(&mut self, mode: Mode) {
        let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(self.cache_medium.clone()), self.origin.clone());
        self.cache = open(&mut self.executor, &device, &origin, mode);
    }
}

fn stats(executor: &Executor, device: SharedDevice) -> Arc<StatsLayer> {
    Arc::new(StatsLayer::new(device, Arc::new(executor.clock()), &Workers::new()))
}

#[test]
fn a_write_that_misses_never_reads_the_origin() {
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        let mut bench = Bench::new(mode);
        for (index, length) in [512, 1024, 4096, 6144, 65536].into_iter().enumerate() {
            bench.write(index as u64 * 4096 + 512, 7, length).unwrap();
            bench.write(index as u64 * 4096 + 1024, 8, length).unwrap();
        }
        assert_eq!(bench.origin_count(OperationKind::Read), 0);
        assert_eq!(bench.cache.status().origin_reads_before_write_ack, 0);
    }
}

#[test]
fn a_warm_read_never_touches_the_origin_and_a_closed_cache_stays_warm() {
    let mut bench = Bench::new(Mode::WriteBack);
    write(&mut bench.executor, &bench.origin_medium, 0, &[3; 65536]);
    assert_eq!(bench.read(512, 40960).unwrap(), vec![3; 40960]);
    assert_eq!(bench.origin_count(OperationKind::Read), 1);
    assert_eq!(bench.read(1024, 8192).unwrap(), vec![3; 8192]);
    assert_eq!(bench.origin_count(OperationKind::Read), 1);
    bench.write(0, 4, 512).unwrap();
    bench.close(true).unwrap();
    assert_eq!(bench.read(0, 512).unwrap_err(), ErrorKind::Gone);
    bench.reopen_closed(Mode::WriteThrough);
    assert!(bench.cache.status().recovery.was_closed);
    assert_eq!(bench.cache.status().dirty_bytes, 512);
    assert_eq!(bench.read(0, 512).unwrap(), vec![4; 512]);
    assert_eq!(bench.read(512, 40960).unwrap(), vec![3; 40960]);
    assert_eq!(bench.origin_count(OperationKind::Read), 1, "everything was warm");
}

#[test]
fn a_crash_costs_clean_lines_and_nothing_else() {
    let mut bench = Bench::new(Mode::WriteBack);
    bench.read(0, 65536).unwrap();
    bench.write(4096, 5, 1536).unwrap();
    bench.reopen_after_crash(Mode::WriteBack);
    let status = bench.cache.status();
    assert!(!status.recovery.was_closed);
    assert_eq!((status.valid_bytes, status.dirty_bytes), (1536, 1536));
    assert_eq!(bench.read(4096, 1536).unwrap(), vec![5; 1536]);
    assert_eq!(bench.origin_count(OperationKind::Read), 0);
}

#[test]
fn clean_data_that_cannot_be_read_comes_from_the_origin() {
    let mut bench = Bench::new(Mode::WriteThrough);
    bench.write(0, 6, 8192).unwrap();
    bench.fail_cache_reads();
    assert_eq!(bench.read(0, 8192).unwrap(), vec![6; 8192]);
    assert_eq!(bench.cache.status().cache_read_errors, 1);
    bench.cache_medium.heal();
    assert_eq!(bench.read(0, 8192).unwrap(), vec![6; 8192]);
}

/// All that it holds may be out of reach, as in a file in which holes were made.
#[test]
fn a_cache_device_that_returns_nothing_is_a_few_lines_and_shown_at_once() {
    for (mode, expected) in [(Mode::WriteThrough, Ok(vec![6; 8192])), (Mode::WriteBack, Err(ErrorKind::Media))] {
        let mut bench = Bench::new(mode);
        bench.write(0, 6, 8192).unwrap();
        bench.fail_cache_reads();
        assert_eq!(bench.cache.status().failed_read, None);
        let lines = Lines::default();
        let _guard = lines.listen();
        for _ in 0..100 {
            assert_eq!(bench.read(0, 8192), expected);
            assert!(bench.cache.status().failed_read.is_some());
        }
        let errors = bench.cache.status().cache_read_errors;
        assert!(errors > 2 * u64::from(REFUSALS_LOGGED_MAX), "{errors}: what is not there any more is inserted again");
        assert_eq!(lines.count(), REFUSALS_LOGGED_MAX as usize, "{mode}");
    }
}

#[test]
fn dirty_data_that_cannot_be_read_is_an_error_and_never_the_origins() {
    let mut bench = Bench::new(Mode::WriteBack);
    bench.write(4096, 6, 4096).unwrap();
    bench.fail_cache_reads();
    assert_eq!(bench.read(4096, 512).unwrap_err(), ErrorKind::Media);
    assert_eq!(bench.read(0, 16384).unwrap_err(), ErrorKind::Media);
    assert_eq!(bench.clean().unwrap_err(), ErrorKind::Media);
    assert_eq!(bench.cache.status().dirty_bytes, 4096);
    // The rest of the line cannot be moved along, so the origin takes this part.
    assert_eq!(bench.write(4096, 7, 512), Ok(()));
    assert_eq!(bench.origin_medium.durable_bytes(4096, 512), vec![7; 512]);
    assert_eq!(bench.cache.status().dirty_bytes, 3584);
    assert_eq!(bench.read(4096, 512), Ok(vec![7; 512]));
    assert_eq!(bench.read(4608, 512), Err(ErrorKind::Media));
    assert_eq!(bench.write(4096, 8, 4096), Ok(()), "a whole line needs nothing of the old one");
    bench.cache_medium.heal();
    assert_eq!(bench.read(4096, 4096).unwrap(), vec![8; 4096]);
}

#[test]
fn data_the_cache_device_refuses_once_goes_to_the_origin() {
    let mut bench = Bench::new(Mode::WriteBack);
    bench.write(0, 1, 4096).unwrap();
    for (round, byte) in (2..6u8).enumerate() {
        // The first request of a write is its data, the second its record.
        bench.cache_medium.fail_write_once(bench.cache_medium.writes_seen(), ErrorKind::Media);
        bench.write(round as u64 * 512, byte, 1024).unwrap();
        assert_eq!(bench.read(round as u64 * 512, 1024).unwrap(), vec![byte; 1024]);
    }
    assert!(bench.cache.status().failure.is_none());
    assert_eq!(bench.cache.status().cache_write_errors, 4);
    assert!(bench.cache.status().refused_write.is_some(), "the status says why");
    bench.write(8192, 9, 512).unwrap();
    bench.reopen_after_crash(Mode::WriteBack);
    let expected: Vec<u8> = [2, 3, 4, 5, 5, 1, 1, 1].into_iter().flat_map(|byte| [byte; 512]).collect();
    assert_eq!(bench.read(0, 4096).unwrap(), expected);
    assert_eq!(bench.read(8192, 512).unwrap(), vec![9; 512]);
}

#[test]
fn a_cache_device_that_refuses_write_after_write_is_a_few_lines_of_the_log() {
    const REFUSED: u64 = 40;
    let mut bench = Bench::new(Mode::WriteBack);
    let lines = Lines::default();
    let _guard = lines.listen();
    for _ in 0..REFUSED {
        bench.cache_medium.fail_write_once(bench.cache_medium.writes_seen(), ErrorKind::NoSpace);
        bench.write(0, 1, 4096).unwrap();
    }
    assert_eq!(bench.cache.status().cache_write_errors, REFUSED);
    assert_eq!(lines.count(), REFUSALS_LOGGED_MAX as usize);
}

#[test]
fn a_cache_device_that_fails_for_good_turns_writes_through() {
    let mut bench = Bench::new(Mode::WriteBack);
    bench.write(0, 1, 4096).unwrap();
    bench.cache_medium.fail_writes_from(bench.cache_medium.writes_seen(), ErrorKind::Media);
    assert_eq!(bench.write(8192, 2, 512), Err(ErrorKind::OutcomeUnknown));
    assert!(bench.cache.status().failure.is_some());
    // Elsewhere the origin takes writes, durably, as write-back promised.
    bench.write(16384, 3, 4096).unwrap();
    assert_eq!(bench.origin_medium.durable_bytes(16384, 4096), vec![3; 4096]);
    assert_eq!(bench.read(16384, 4096).unwrap(), vec![3; 4096]);
    // What is dirty can be read, and not be replaced: after a restart it would come back.
    assert_eq!(bench.read(0, 4096).unwrap(), vec![1; 4096]);
    assert_eq!(bench.write(0, 4, 512), Err(ErrorKind::Media));
    assert_eq!(bench.clean().unwrap_err(), ErrorKind::Media);
    assert_eq!(bench.close(true).unwrap_err(), ErrorKind::Media);
    bench.cache_medium.heal();
    bench.reopen_after_crash(Mode::WriteBack);
    assert_eq!(bench.read(0, 4096).unwrap(), vec![1; 4096]);
    assert_eq!(bench.read(16384, 4096).unwrap(), vec![3; 4096]);
}

#[test]
fn a_write_that_waits_for_room_goes_to_the_origin_when_the_cache_device_fails() {
    let mut bench = Bench::new(Mode::WriteBack);
    bench.cache.set_dirty_limits(DirtyLimits { clean_above: Percent::ALL, max: Percent::new(0) });
    bench.write(0, 1, 4096).unwrap();
    // One line may be dirty. To make room, it is cleaned, and that cannot be recorded.
    bench.cache_medium.fail_writes_from(bench.cache_medium.writes_seen(), ErrorKind::Media);
    bench.write(8192, 2, 4096).unwrap();
    assert!(bench.cache.status().failure.is_some());
    assert_eq!(bench.origin_medium.durable_bytes(8192, 4096), vec![2; 4096]);
    assert_eq!(bench.read(8192, 4096).unwrap(), vec![2; 4096]);
    assert_eq!(bench.read(0, 4096).unwrap(), vec![1; 4096]);
}

#[test]
fn what_replaces_dirty_data_on_the_origin_is_durable_there() {
    let replacements: [fn(&mut Bench); 3] = [
        |bench| bench.write(0, 0, 512).unwrap(),
        |bench| bench.executor.block_on(bench.cache.write_zeroes(0, 512, false, true)).unwrap(),
        |bench| bench.executor.block_on(bench.cache.discard(0, 512)).unwrap(),
    ];
    for replace in replacements {
        let mut bench = Bench::new(Mode::WriteBack);
        write(&mut bench.executor, &bench.origin_medium, 0, &[9; 4096]);
        let flushing = bench.origin_medium.flush();
        bench.executor.block_on(flushing).unwrap();
        bench.write(0, 1, 4096).unwrap();
        bench.close(true).unwrap();
        bench.reopen_closed(Mode::WriteThrough);
        // Cleaning would flush the rest of the line, and so what this test is about.
        bench.cache.hold_cleaning();
        replace(&mut bench);
        bench.origin_medium = bench.origin_medium.after_power_loss_as(Loss::All, &Power::new());
        bench.reopen_after_crash(Mode::WriteBack);
        assert_eq!(bench.read(0, 1024).unwrap(), [[0; 512], [1; 512]].concat(), "never what was there before");
    }
}

/// Clients of write-back need not flush.
#[test]
fn what_is_discarded_or_zeroed_in_write_back_is_durable_when_it_is_acknowledged() {
    let changes: [fn(&mut Bench); 2] = [
        |bench| bench.executor.block_on(bench.cache.write_zeroes(0, 4096, false, true)).unwrap(),
        |bench| bench.executor.block_on(bench.cache.discard(0, 4096)).unwrap(),
    ];
    for change in changes {
        let mut bench = Bench::new(Mode::WriteBack);
        bench.executor.block_on(bench.origin_medium.write(0, Buffer::copy_of(&[9; 4096]), true)).unwrap();
        change(&mut bench);
        assert_eq!(bench.origin_medium.durable_bytes(0, 4096), vec![0; 4096]);
    }
}

/// The record may be on the device although it reported an error: after a restart it would come
/// back over newer data.
#[test]
fn what_may_have_landed_on_a_device_that_failed_is_not_replaced_on_the_origin() {
    let mut bench = Bench::new(Mode::WriteBack);
    // The first request of a write is its data, the second its record.
    let record = bench.cache_medium.writes_seen() + 1;
    bench.cache_medium.fail_write_as(record, ErrorKind::Media, WriteEffect::Whole, Reported::ForGood);
    assert_eq!(bench.write(8192, 2, 512), Err(ErrorKind::OutcomeUnknown));
    assert_eq!(bench.write(8192, 3, 512), Err(ErrorKind::Media));
    bench.cache_medium.heal();
    bench.reopen_after_crash(Mode::WriteBack);
    assert_eq!(bench.read(8192, 512), Ok(vec![2; 512]), "it has landed");
}

#[test]
fn a_line_lost_in_a_crash_is_an_error_until_it_is_replaced() {
    let mut bench = Bench::new(Mode::WriteBack);
    write(&mut bench.executor, &bench.origin_medium, 0, &[9; 8192]);
    bench.write(0, 1, 4096).unwrap();
    bench.cache_medium = bench.cache_medium.after_power_loss();
    // The last write is the one whose data is looked at, and the device cannot return it.
    bench.cache_medium.fail_reads_of(bench.frames());
    bench.reopen(Mode::WriteBack);
    assert_eq!(bench.cache.status().recovery.lost_lines, 1);
    bench.cache_medium.heal();
    assert_eq!(bench.read(0, 512), Err(ErrorKind::Media), "never the origin's old data");
    assert_eq!(bench.clean(), Err(ErrorKind::Media));
    assert_eq!(bench.write(0, 2, 512), Ok(()));
    assert_eq!(bench.read(0, 512), Ok(vec![2; 512]));
    assert_eq!(bench.read(512, 512), Err(ErrorKind::Media));
    bench.reopen_after_crash(Mode::WriteBack);
    assert_eq!(bench.read(512, 512), Err(ErrorKind::Media), "and it is remembered");
    assert_eq!(bench.write(512, 3, 3584), Ok(()));
    assert_eq!(bench.read(512, 3584), Ok(vec![3; 3584]));
    assert_eq!(bench.clean(), Ok(()));
}

#[test]
fn one_read_that_fails_in_a_recovery_loses_nothing() {
    let mut bench = Bench::new(Mode::WriteBack);
    bench.write(0, 1, 4096).unwrap();
    let found = bench.cache_medium.after_power_loss();
    bench.cache_medium = found.after_power_loss();
    bench.reopen(Mode::WriteBack);
    assert_eq!(bench.cache.status().recovery.writes_verified, 1);
    let reads = bench.cache_medium.reads_seen();
    assert!(reads > 2, "superblock, table, log and data");
    for nth in 0..reads {
        bench.cache_medium = found.after_power_loss();
        bench.cache_medium.fail_read_once(nth, ErrorKind::Media);
        if bench.try_reopen(Mode::WriteBack).is_ok() {
            assert_eq!(bench.read(0, 4096), Ok(vec![1; 4096]), "read {nth} of {reads}");
        }
    }
}

#[test]
fn an_origin_that_fails_keeps_lines_dirty_until_it_works() {
    let mut bench = Bench::new(Mode::WriteBack);
    bench.write(0, 1, 8192).unwrap();
    bench.origin_medium.fail_writes_from(0, ErrorKind::TimedOut);
    assert_eq!(bench.clean().unwrap_err(), ErrorKind::TimedOut);
    let said = bench.cache.status().cleaning_failure;
    assert!(said.is_some(), "whoever looks after the cleaning that failed is told of it");
    assert_eq!(bench.close(false).unwrap_err(), ErrorKind::TimedOut);
    assert_eq!(bench.read(0, 8192).unwrap(), vec![1; 8192], "it goes on");
    bench.origin_medium.heal();
    bench.origin_medium.fail_flush_once(bench.origin_medium.flushes_seen(), ErrorKind::TimedOut);
    assert_eq!(bench.clean().unwrap_err(), ErrorKind::TimedOut);
    assert_eq!(bench.cache.status().dirty_lines, 2, "sent and not flushed is still dirty");
    bench.clean().unwrap();
    assert_eq!(bench.cache.status().cleaning_failure, None);
    assert_eq!(bench.cache.status().dirty_lines, 0);
    assert_eq!(bench.origin_medium.durable_bytes(0, 8192), vec![1; 8192]);
}

#[test]
fn a_flush_goes_on_to_the_origin_only_when_it_has_to() {
    let mut bench = Bench::new(Mode::WriteBack);
    assert_eq!(bench.origin_count(OperationKind::Flush), 1, "nobody knows what it acknowledged before");
    bench.write(0, 1, 4096).unwrap();
    bench.flush();
    assert_eq!(bench.origin_count(OperationKind::Flush), 1);
    let cache = Arc::clone(&bench.cache);
    bench.executor.block_on(async move { cache.set_mode(Mode::WriteThrough).await.unwrap() });
    let before = bench.origin_count(OperationKind::Flush);
    bench.write(0, 2, 4096).unwrap();
    bench.flush();
    bench.flush();
    assert_eq!(bench.origin_count(OperationKind::Flush), before + 1);
    assert_eq!(bench.origin_medium.durable_bytes(0, 4096), vec![2; 4096]);
}

#[test]
fn extents_are_the_origins_with_dirty_data_on_top() {
    let mut executor = Executor::in_order();
    let cache_device = memory(1 << 20);
    let origin = memory(1 << 20);
    format(&mut executor, &cache_device, &origin, format_options());
    write(&mut executor, &origin, 256 << 10, &[1; 512]);
    let cache = open(&mut executor, &cache_device, &origin, Mode::WriteBack);
    write(&mut executor, &cache, 4096 - 512, &[2; 1024]);
    let extents = executor.block_on(cache.extents(0, 1 << 20)).unwrap();
    let found: Vec<(u64, u64, ExtentKind)> =
        extents.iter().map(|extent| (extent.range.offset, extent.range.length, extent.kind)).collect();
    use ExtentKind::{Data, Hole};
    let kib = |count: u64| count << 10;
    assert_eq!(
        found,
        [
            (0, 3584, Hole),
            (3584, 1024, Data),
            (4608, kib(256) - 4608, Hole),
            (kib(256), kib(256), Data),
            (kib(512), kib(512), Hole),
        ]
    );
}

/// A device that publishes events, also during a flush.
struct Talking {
    inner: SharedDevice,
    hub: EventHub,
    says_at_flush: std::sync::Mutex<Option<Event>>,
}

impl Device for Talking {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: block::Request) -> block::Completion {
        if matches!(request.operation, block::Operation::Flush)
            && let Some(event) = self.says_at_flush.lock().unwrap().take()
        {
            self.hub.publish(&event);
        }
        self.inner.submit(request)
    }

    fn subscribe(&self) -> EventReceiver {
        self.hub.subscribe()
    }
}

fn talking() -> (Executor, Arc<Talking>, Arc<Cache>) {
    let mut executor = Executor::in_order();
    let inner = memory(ORIGIN_BYTES);
    let talking = Arc::new(Talking { inner, hub: EventHub::new(), says_at_flush: std::sync::Mutex::new(None) });
    let cache_device = memory(1 << 20);
    let origin: SharedDevice = talking.clone();
    format(&mut executor, &cache_device, &origin, format_options());
    let cache = open(&mut executor, &cache_device, &origin, Mode::WriteBack);
    (executor, talking, cache)
}

#[test]
fn writes_lost_between_sending_and_flushing_stay_dirty() {
    let (mut executor, talking, cache) = talking();
    write(&mut executor, &cache, 0, &[1; 4096]);
    *talking.says_at_flush.lock().unwrap() = Some(Event::WritesLost);
    let cleaning = Arc::clone(&cache);
    let error = executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(cache.status().dirty_lines, 1);
    let cleaning = Arc::clone(&cache);
    executor.block_on(async move { cleaning.clean(|_| {}).await.unwrap() });
    assert_eq!(cache.status().dirty_lines, 0);
}

/// The dirty data there must not be forgotten.
#[test]
fn a_discard_that_the_origin_lost_before_it_was_flushed_is_not_acknowledged() {
    let (mut executor, talking, cache) = talking();
    cache.hold_cleaning();
    write(&mut executor, &cache, 0, &[1; 4096]);
    *talking.says_at_flush.lock().unwrap() = Some(Event::WritesLost);
    let error = executor.block_on(cache.discard(0, 4096)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(read(&mut executor, &cache, 0, 4096), [1; 4096]);
    executor.block_on(cache.discard(0, 4096)).unwrap();
    assert_eq!(read(&mut executor, &cache, 0, 4096), [0; 4096]);
}

/// An origin that carries out requests at once, and answers all but flushes 10 ms later; it can
/// publish events.
fn answering_later(executor: &mut Executor) -> (CrashLayer, SharedDevice) {
    let (workers, medium) = (Workers::new(), CrashLayer::new(ORIGIN_BYTES, 2));
    let later = Latency::Fixed(Duration::from_millis(10));
    let delays = Delays { flush: Latency::None, ..Delays::all(later) };
    let inner: SharedDevice = Arc::new(medium.clone());
    let origin = DelayLayer::new(inner, Arc::new(executor.clock()), &workers, delays, 1);
    executor.spawn(async move { workers.run().await });
    (medium, Arc::new(origin))
}

#[test]
fn writes_lost_while_they_are_sent_stay_dirty() {
    let mut executor = Executor::in_order();
    let (medium, origin) = answering_later(&mut executor);
    let device = memory(1 << 20);
    format(&mut executor, &device, &origin, format_options());
    let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
    write(&mut executor, &cache, 0, &[1; 4096]);
    let (clock, cleaning) = (executor.clock(), Arc::clone(&cache));
    let lost = async move {
        clock.sleep(Duration::from_millis(5)).await;
        medium.publish(&Event::WritesLost);
    };
    let (cleaned, ()) = executor
        .block_on(async move { futures_util::future::join(async { cleaning.clean(|_| {}).await }, lost).await });
    assert_eq!(cleaned.map_err(|error| error.kind()), Err(ErrorKind::OutcomeUnknown));
    assert_eq!(cache.status().dirty_lines, 1);
}

/// A batch has sent a line, and its flush is under way: a change that fails meanwhile, or when the line has become
/// clean, and that lands all the same must not leave older data than the origin has in the cache as clean.
#[test]
fn what_a_failed_change_may_have_replaced_stays_dirty_though_a_batch_has_sent_it() {
    let ten = Duration::from_millis(10);
    for (writing, begins) in [(Latency::None, ten / 2), (Latency::Fixed(ten), ten * 3 / 2)] {
        let mut executor = Executor::in_order();
        let (workers, medium) = (Workers::new(), CrashLayer::new(ORIGIN_BYTES, 2));
        let delays = Delays { flush: Latency::Fixed(ten), ..Delays::all(writing) };
        let inner: SharedDevice = Arc::new(medium.clone());
        let origin: SharedDevice = Arc::new(DelayLayer::new(inner, Arc::new(executor.clock()), &workers, delays, 1));
        executor.spawn(async move { workers.run().await });
        let device = memory(1 << 20);
        format(&mut executor, &device, &origin, format_options());
        let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
        write(&mut executor, &cache, 0, &[1; 4096]);
        let (clock, cleaning, changing) = (executor.clock(), Arc::clone(&cache), Arc::clone(&cache));
        let failing = medium.clone();
        let change = async move {
            clock.sleep(begins).await;
            failing.fail_write_as(failing.writes_seen(), ErrorKind::Media, WriteEffect::Whole, Reported::Once);
            changing.write_zeroes(0, 4096, true, false).await
        };
        let (_, changed) = executor
            .block_on(async move { futures_util::future::join(async { cleaning.clean(|_| {}).await }, change).await });
        assert_eq!(changed.map_err(|error| error.kind()), Err(ErrorKind::Media));
        executor.run_until_stalled();
        let (found, lun) = (read(&mut executor, &cache, 0, 4096), read(&mut executor, &medium, 0, 4096));
        let is_dirty = cache.status().dirty_lines == 1;
        assert!(found == lun || is_dirty, "{begins:?}: {} here, {} there, and clean", found[0], lun[0]);
    }
}

#[test]
fn a_read_behind_the_report_of_a_change_sees_it_before_anybody_has_handled_the_report() {
    let mut bench = Bench::new(Mode::WriteThrough);
    bench.write(0, 1, 4096).unwrap();
    for _ in 0..3 {
        bench.read(0, 4096).unwrap();
    }
    assert_eq!(bench.cache.status().valid_bytes, 4096, "it is clean in the cache");
    write(&mut bench.executor, &bench.origin_medium, 0, &[2; 4096]);
    bench.origin_medium.publish(&Event::Invalidated(ByteRange { offset: 0, length: 4096 }));
    let reading = bench.cache.read(0, Buffer::zeroed(4096));
    assert_eq!(bench.executor.block_on(reading).expect("nothing fails")[..], [2; 4096]);
}

/// An answer after the report of the loss does not prove that the discard was carried out after the
/// loss.
#[test]
fn a_discard_that_the_origin_may_have_lost_before_it_answered_is_not_acknowledged() {
    let mut executor = Executor::in_order();
    let (medium, origin) = answering_later(&mut executor);
    let device = memory(1 << 20);
    format(&mut executor, &device, &origin, format_options());
    let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
    let (clock, discarding) = (executor.clock(), cache.discard(0, 4096));
    let lost = async move {
        clock.sleep(Duration::from_millis(5)).await;
        medium.publish(&Event::WritesLost);
    };
    let (discarded, ()) = executor.block_on(async move { futures_util::future::join(discarding, lost).await });
    assert_eq!(discarded.map_err(|error| error.kind()), Err(ErrorKind::OutcomeUnknown));
}

#[test]
fn what_was_read_while_the_origin_lost_it_is_left_out() {
    let mut executor = Executor::in_order();
    let (medium, origin) = answering_later(&mut executor);
    let device = memory(1 << 20);
    format(&mut executor, &device, &origin, format_options());
    let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
    write(&mut executor, &medium, 0, &[1; 4096]);
    let (clock, reading) = (executor.clock(), cache.read(0, Buffer::zeroed(4096)));
    let lost = async move {
        clock.sleep(Duration::from_millis(5)).await;
        medium.write(0, Buffer::zeroed(4096), true).await.expect("nothing fails");
        medium.publish(&Event::WritesLost);
    };
    let (found, ()) = executor.block_on(async move { futures_util::future::join(reading, lost).await });
    assert_eq!(found.unwrap().to_vec(), vec![1; 4096], "it was there when the origin looked");
    executor.run_until_stalled();
    assert_eq!(read(&mut executor, &cache, 0, 4096), vec![0; 4096]);
}

/// A cache in write-through and crash mode warm, over an origin that reports its losses; its device
/// has this latency.
fn talking_through(latency: Duration) -> (Executor, Arc<Talking>, Arc<Cache>) {
    let mut executor = Executor::in_order();
    let inner = memory(ORIGIN_BYTES);
    let talking = Arc::new(Talking { inner, hub: EventHub::new(), says_at_flush: std::sync::Mutex::new(None) });
    let workers = Workers::new();
    let medium =
        CrashLayer::new(1 << 20, 1).with_latency(Arc::new(executor.clock()), Latency::Fixed(latency), &workers);
    executor.spawn(async move { workers.run().await });
    let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(medium), talking.clone());
    let options = FormatOptions { crash_mode: CrashMode::Warm, ..format_options() };
    format(&mut executor, &device, &origin, options);
    let lazy_interval = Duration::from_secs(3600);
    let options = OpenOptions { lazy_interval, ..open_options(&executor, Mode::WriteThrough) };
    let cache = try_open(&mut executor, &device, &origin, options).unwrap();
    (executor, talking, cache)
}

#[test]
fn what_the_origin_has_lost_before_it_was_flushed_is_forgotten() {
    let (mut executor, talking, cache) = talking_through(Duration::ZERO);
    write(&mut executor, &cache, 0, &[1; 4096]);
    executor.run_until_stalled();
    assert_eq!(cache.status().valid_bytes, 4096);
    write(&mut executor, &talking.inner, 0, &[0; 4096]);
    talking.hub.publish(&Event::WritesLost);
    executor.run_until_stalled();
    assert_eq!(cache.status().valid_bytes, 0);
    assert_eq!(read(&mut executor, &cache, 0, 4096), vec![0; 4096]);
}

#[test]
fn what_was_on_its_way_into_the_cache_when_the_origin_lost_writes_is_left_out() {
    for is_read in [true, false] {
        let (mut executor, talking, cache) = talking_through(Duration::from_millis(10));
        write(&mut executor, &talking.inner, 0, &[1; 4096]);
        match is_read {
            true => drop(read(&mut executor, &cache, 0, 4096)),
            false => write(&mut executor, &cache, 0, &[1; 4096]),
        }
        // Answered, and not yet in the cache.
        assert_eq!(cache.status().valid_bytes, 0);
        write(&mut executor, &talking.inner, 0, &[0; 4096]);
        talking.hub.publish(&Event::WritesLost);
        let clock = executor.clock();
        executor.block_on(async move { clock.sleep(Duration::from_millis(100)).await });
        assert_eq!(cache.status().valid_bytes, 0);
        assert_eq!(read(&mut executor, &cache, 0, 4096), vec![0; 4096]);
    }
}

/// A write moves the data to a fresh frame with the rest of its line: there it is no safer than
/// before.
#[test]
fn what_the_origin_loses_while_a_write_moves_it_or_later_is_left_out() {
    const HALF: u64 = 2048;
    for is_later in [false, true] {
        let mut executor = Executor::in_order();
        let volatile = Geometry { is_write_cache_volatile: true, ..Geometry::plain(ORIGIN_BYTES) };
        let geometry = Geometry { discard_granularity_bytes: Some(512), discard_reads_zeroes: true, ..volatile };
        let (cache_medium, medium) =
            (CrashLayer::new(1 << 20, 1), CrashLayer::new(ORIGIN_BYTES, 2).with_geometry(geometry));
        let (workers, latency) = (Workers::new(), Latency::Fixed(Duration::from_millis(10)));
        let slow = cache_medium.with_latency(Arc::new(executor.clock()), latency, &workers);
        executor.spawn(async move { workers.run().await });
        let (device, origin): (SharedDevice, SharedDevice) = (Arc::new(slow), Arc::new(medium.clone()));
        executor.block_on(medium.write(0, Buffer::copy_of(&[9; 4096]), true)).unwrap();
        format(&mut executor, &device, &origin, format_options());
        let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
        cache.hold_cleaning();
        medium.fail_flush_as(medium.flushes_seen(), ErrorKind::TimedOut, FlushEffect::None, Reported::Once);
        executor.block_on(cache.discard(0, HALF)).unwrap_err();
        assert!(read(&mut executor, &cache, 0, HALF) == [0; HALF as usize], "it was discarded, and not flushed");
        executor.run();
        write(&mut executor, &cache, HALF, &[7; HALF as usize]);
        // One sector that may be lost is written again.
        let kept = HALF - 512;
        let writing = cache.write(kept, Buffer::copy_of(&[8; HALF as usize + 512]), false);
        if is_later {
            executor.block_on(writing).unwrap();
            medium.lose_cache();
            executor.run_until_stalled();
        } else {
            executor.run_until_stalled();
            medium.lose_cache();
            executor.run_until_stalled();
            executor.block_on(writing).unwrap();
        }
        let there = read(&mut executor, &medium, 0, kept);
        assert!(there.contains(&9), "some of it is lost");
        assert!(read(&mut executor, &cache, 0, kept) == there, "later: {is_later}");
        assert!(read(&mut executor, &cache, kept, HALF + 512) == [8; HALF as usize + 512], "later: {is_later}");
    }
}

#[test]
fn what_somebody_else_changed_is_read_anew() {
    let (mut executor, talking, cache) = talking();
    read(&mut executor, &cache, 0, 8192);
    write(&mut executor, &cache, 4096, &[9; 512]);
    executor.run();
    write(&mut executor, &talking.inner, 0, &[5; 8192]);
    assert_eq!(read(&mut executor, &cache, 0, 4096), vec![0; 4096], "nobody said anything yet");
    talking.hub.publish(&Event::Invalidated(ByteRange { offset: 0, length: 8192 }));
    executor.run();
    assert_eq!(read(&mut executor, &cache, 0, 4096), vec![5; 4096]);
    assert_eq!(read(&mut executor, &cache, 4096, 1024), [vec![9; 512], vec![5; 512]].concat(), "dirty data stays");
}

#[test]
fn an_origin_that_became_another_disk_is_refused() {
    let (mut executor, talking, cache) = talking();
    write(&mut executor, &cache, 0, &[1; 4096]);
    talking.hub.publish(&Event::IdentityChanged);
    executor.run();
    let error = executor.block_on(cache.read(0, Buffer::zeroed(512))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    let closing = Arc::clone(&cache);
    let error = executor.block_on(async move { closing.close(false).await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::Gone, "what is dirty is not for this disk");
    executor.block_on(async move { cache.close(true).await.unwrap() });
    assert_eq!(read(&mut executor, &talking.inner, 0, 4096), vec![0; 4096]);
}

/// A cache whose devices take the times given.
fn slow(cache_ms: u64, origin_ms: u64, mode: Mode) -> (Executor, Arc<StatsLayer>, Arc<Cache>) {
    let mut executor = Executor::in_order();
    let workers = Workers::new();
    let clock = Arc::new(executor.clock());
    let layer = |bytes: u64, ms: u64| -> SharedDevice {
        let memory = memory(bytes);
        let delays = Delays::all(Latency::Fixed(Duration::from_millis(ms)));
        Arc::new(DelayLayer::new(memory, clock.clone(), &workers, delays, 1))
    };
    let cache_device = layer(1 << 20, cache_ms);
    let origin = stats(&executor, layer(ORIGIN_BYTES, origin_ms));
    let shared: SharedDevice = origin.clone();
    executor.spawn(async move { workers.run().await });
    format(&mut executor, &cache_device, &shared, format_options());
    let options = open_options(&executor, mode);
    let cache = try_open(&mut executor, &cache_device, &shared, options).unwrap();
    (executor, origin, cache)
}

fn time_of<T: 'static>(executor: &mut Executor, future: impl Future<Output = T> + 'static) -> Duration {
    use base::clock::Clock;
    let clock = executor.clock();
    let start = clock.now();
    executor.block_on(future);
    clock.now() - start
}

#[test]
fn nobody_waits_for_the_device_that_need_not_be_waited_for() {
    let ms = Duration::from_millis;
    let (mut executor, _, cache) = slow(50, 10, Mode::WriteThrough);
    assert_eq!(
        time_of(&mut executor, cache.read(0, Buffer::zeroed(65536))),
        ms(10),
        "a cold read takes the origin's time"
    );
    assert_eq!(time_of(&mut executor, cache.write(131072, Buffer::zeroed(4096), false)), ms(10));
    executor.run();
    let (mut executor, _, cache) = slow(1, 100, Mode::WriteBack);
    assert_eq!(time_of(&mut executor, cache.write(0, Buffer::zeroed(4096), false)), ms(1), "data and record at once");
    assert_eq!(
        time_of(&mut executor, cache.write(512, Buffer::zeroed(512), false)),
        ms(2),
        "what is kept is read first"
    );
    assert_eq!(time_of(&mut executor, cache.read(0, Buffer::zeroed(4096))), ms(1));
}

#[test]
fn two_misses_of_one_block_are_one_read_of_the_origin() {
    let (mut executor, origin, cache) = slow(1, 10, Mode::WriteThrough);
    let readers: Vec<_> = (0..8).map(|_| cache.read(8192, Buffer::zeroed(4096))).collect();
    let results = executor.block_on(futures_util::future::join_all(readers));
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(origin.snapshot().of(OperationKind::Read).completed_count, 1);
}

#[test]
fn what_is_cleaned_while_the_origin_answers_is_data() {
    let mut executor = Executor::in_order();
    let clock = executor.clock();
    let workers = Workers::new();
    let running = workers.clone();
    executor.spawn(async move { running.run().await });
    let cache_device = memory(1 << 20);
    let medium = Arc::new(MemoryDevice::new(1 << 20, Identity::default()));
    // The device carries out requests at once, and answers a second later.
    let delays = Delays { other: Latency::Fixed(Duration::from_secs(1)), ..Delays::default() };
    let origin: SharedDevice = Arc::new(DelayLayer::new(medium, Arc::new(clock.clone()), &workers, delays, 1));
    format(&mut executor, &cache_device, &origin, format_options());
    let cache = open(&mut executor, &cache_device, &origin, Mode::WriteBack);
    write(&mut executor, &cache, 4096, &[2; 4096]);
    let asking = cache.extents(0, 1 << 20);
    let cleaning = Arc::clone(&cache);
    let extents = executor.block_on(async move {
        clock.sleep(Duration::from_millis(1)).await;
        cleaning.clean(|_| {}).await.unwrap();
        assert_eq!(cleaning.status().dirty_lines, 0);
        asking.await.unwrap()
    });
    let data: Vec<ByteRange> =
        extents.iter().filter(|extent| extent.kind == ExtentKind::Data).map(|extent| extent.range).collect();
    assert_eq!(data, [ByteRange { offset: 4096, length: 4096 }]);
}
