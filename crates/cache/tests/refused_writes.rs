//! A refused write leaves the former content, and a write over lost data mends it.

mod common;

use std::sync::Arc;

use base::buffer::Buffer;
use base::executor::Executor;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::CrashLayer;
use block::layer::delay::{DelayLayer, Delays, Latency};
use block::{ErrorKind, SharedDevice};
use cache::layout::Layout;
use cache::{Cache, CrashMode, DirtyLimits, FormatOptions, Mode, OpenOptions, Percent};
use common::{format, format_options, made, open, open_options, read, try_open, write};
use std::time::Duration;

const LINE: u64 = 4096;

/// Write-through: the copy and the origin's write are under way together, and the origin refuses.
#[test]
fn a_write_that_the_origin_refuses_leaves_no_copy() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(1 << 20, 2);
    let origin: SharedDevice = Arc::new(medium.clone());
    let device = made(&mut executor, &origin, CrashMode::default());
    let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
    write(&mut executor, &cache, 0, &[1; LINE as usize]);
    executor.run();
    medium.fail_write_once(medium.writes_seen(), ErrorKind::Media);
    let writing = cache.write(0, Buffer::copy_of(&[2; LINE as usize]), false);
    assert!(executor.block_on(writing).is_err());
    executor.run();
    assert_eq!(read(&mut executor, &cache, 0, LINE), vec![1; LINE as usize], "what the origin has");
}

/// A write whose data goes into the log may not make the rest of a lost line readable.
#[test]
fn a_deferred_write_of_part_of_a_lost_line_leaves_the_rest_lost() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(1 << 20, 1);
    let origin = common::memory(64 * LINE);
    let options = FormatOptions { log_bytes: Some(256 << 10), ..format_options() };
    format(&mut executor, &(Arc::new(medium.clone()) as SharedDevice), &origin, options);
    let reopen = |executor: &mut Executor, medium: &CrashLayer, deferred_max: u64| -> Arc<Cache> {
        let dirty = DirtyLimits { clean_above: Percent::ALL, max: Percent::ALL };
        let options = OpenOptions { deferred_max, dirty, ..open_options(executor, Mode::WriteBack) };
        try_open(executor, &(Arc::new(medium.clone()) as SharedDevice), &origin, options).expect("it opens")
    };
    let cache = reopen(&mut executor, &medium, 0);
    write(&mut executor, &cache, 0, &[1; LINE as usize]);
    drop((cache, executor));
    let medium = medium.after_power_loss();
    let mut executor = Executor::in_order();
    // All reads of frames: behind the log.
    let layout = Layout::new(1 << 20, &options).unwrap();
    medium
        .fail_reads_of(ByteRange { offset: layout.frames_offset, length: layout.table_offset - layout.frames_offset });
    let cache = reopen(&mut executor, &medium, LINE);
    medium.heal();
    assert_eq!(cache.status().recovery.lost_lines, 1);
    write(&mut executor, &cache, 0, &[2; 512]);
    let reading = cache.read(512, Buffer::zeroed(512));
    assert_eq!(executor.block_on(reading).map_err(|error| error.kind()).map(|b| b.to_vec()), Err(ErrorKind::Media));
    drop((cache, executor));
    let mut executor = Executor::in_order();
    let cache = reopen(&mut executor, &medium.after_power_loss(), LINE);
    let reading = cache.read(512, Buffer::zeroed(512));
    let read = executor.block_on(reading).map_err(|error| error.kind()).map(|buffer| buffer.to_vec());
    assert_eq!(read, Err(ErrorKind::Media), "and it is remembered");
}

/// A write of all of a lost line mends it, although its data goes into the log.
#[test]
fn a_lost_line_that_is_written_again_whole_and_deferred_is_lost_no_more() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(1 << 20, 1);
    let origin = common::memory(64 * LINE);
    let options = FormatOptions { log_bytes: Some(256 << 10), ..format_options() };
    format(&mut executor, &(Arc::new(medium.clone()) as SharedDevice), &origin, options);
    let reopen = |executor: &mut Executor, medium: &CrashLayer, deferred_max: u64| -> Arc<Cache> {
        let dirty = DirtyLimits { clean_above: Percent::ALL, max: Percent::ALL };
        let options = OpenOptions { deferred_max, dirty, ..open_options(executor, Mode::WriteBack) };
        try_open(executor, &(Arc::new(medium.clone()) as SharedDevice), &origin, options).expect("it opens")
    };
    let cache = reopen(&mut executor, &medium, 0);
    write(&mut executor, &cache, 0, &[1; LINE as usize]);
    drop((cache, executor));
    let medium = medium.after_power_loss();
    let mut executor = Executor::in_order();
    // All reads of frames: behind the log.
    let layout = Layout::new(1 << 20, &options).unwrap();
    medium
        .fail_reads_of(ByteRange { offset: layout.frames_offset, length: layout.table_offset - layout.frames_offset });
    let cache = reopen(&mut executor, &medium, LINE);
    medium.heal();
    assert_eq!(cache.status().recovery.lost_lines, 1);
    write(&mut executor, &cache, 0, &[2; LINE as usize]);
    let reading = cache.read(512, Buffer::zeroed(512));
    let read = executor.block_on(reading).map_err(|error| error.kind()).map(|buffer| buffer.to_vec());
    assert_eq!(read, Ok(vec![2; 512]));
}

/// The same, where the copy is written before the origin refuses.
#[test]
fn a_write_that_a_slow_origin_refuses_leaves_no_copy() {
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(1 << 20, 2);
    let (clock, workers) = (Arc::new(executor.clock()), Workers::new());
    let delays = Delays { write: Latency::Fixed(Duration::from_millis(1)), ..Delays::default() };
    let origin: SharedDevice = Arc::new(DelayLayer::new(Arc::new(medium.clone()), clock, &workers, delays, 1));
    executor.spawn(async move { workers.run().await });
    let device = made(&mut executor, &origin, CrashMode::default());
    let cache = open(&mut executor, &device, &origin, Mode::WriteThrough);
    write(&mut executor, &cache, 0, &[1; LINE as usize]);
    medium.fail_write_once(medium.writes_seen(), ErrorKind::Media);
    let writing = cache.write(0, Buffer::copy_of(&[2; LINE as usize]), false);
    assert!(executor.block_on(writing).is_err());
    assert_eq!(read(&mut executor, &cache, 0, LINE), vec![1; LINE as usize], "what the origin has");
}
