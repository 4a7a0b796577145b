//! What the log keeps until a checkpoint has stored it, and which records it refuses as not its
//! own.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use base::buffer::Buffer;
use base::executor::Executor;
use base::range::ByteRange;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::layer::stats::StatsLayer;
use block::{Completion, Device, Geometry, Identity, Operation, OperationKind, Request, SharedDevice};
use cache::format::{KIND, ParametersRaw};
use cache::layout::Layout;
use cache::numbers::{BlockNumber, FrameNumber};
use cache::{Associativity, FormatOptions, Mode};
use common::{format, format_options, memory, open, read, write};
use store::{LogPosition, Superblock};

const LINE: u64 = 4096;
const CACHE_BYTES: u64 = 1 << 20;

/// A device that keeps writes to given ranges without carrying them out or answering.
struct Holding {
    inner: SharedDevice,
    held: Mutex<Vec<ByteRange>>,
}

impl Holding {
    fn over(inner: SharedDevice) -> Arc<Self> {
        Arc::new(Self { inner, held: Mutex::default() })
    }

    fn hold(&self, ranges: &[ByteRange]) {
        self.held.lock().unwrap().extend(ranges);
    }
}

impl Device for Holding {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let is_write = matches!(request.operation, Operation::Write { .. });
        let is_held = |range: ByteRange| self.held.lock().unwrap().iter().any(|held| held.overlaps(&range));
        if is_write && request.range().is_some_and(is_held) {
            return Completion::task(&Workers::new(), std::future::pending());
        }
        self.inner.submit(request)
    }
}

/// Records stay needed as long as the superblock needs them, however far the checkpoint is that
/// will release them.
#[test]
fn records_stay_until_the_superblock_is_durable_that_does_not_need_them() {
    const LINES: u64 = 12;
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(CACHE_BYTES, 1);
    let origin = memory(1 << 20);
    let holding = Holding::over(Arc::new(medium.clone()));
    let device: SharedDevice = holding.clone();
    format(&mut executor, &device, &origin, FormatOptions { log_bytes: Some(16 << 10), ..format_options() });
    let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
    let superblocks = [0, CACHE_BYTES - LINE].map(|offset| ByteRange { offset, length: LINE });
    holding.hold(&superblocks);
    let acknowledged = Rc::new(RefCell::new([0; LINES as usize]));
    let (writing, noted) = (Arc::clone(&cache), Rc::clone(&acknowledged));
    executor.spawn(async move {
        // Many more records than the log has room for.
        for nth in 0..500 {
            let (line, byte) = (nth % LINES, (1 + nth / LINES) as u8);
            writing.write(line * LINE, Buffer::copy_of(&[byte; LINE as usize]), false).await.expect("nothing fails");
            noted.borrow_mut()[line as usize] = byte;
        }
    });
    executor.run_until_stalled();
    assert!(cache.status().log_full > 0, "the log was never full");
    drop((cache, executor));
    let medium = medium.after_power_loss_as(Loss::InFlightOnly, &Power::new());
    let mut executor = Executor::in_order();
    let cache = open(&mut executor, &(Arc::new(medium) as SharedDevice), &origin, Mode::WriteBack);
    for (line, &byte) in acknowledged.borrow().iter().enumerate() {
        let found = read(&mut executor, &cache, line as u64 * LINE, LINE)[0];
        // The next write of this line may have landed without being acknowledged.
        assert!(found == byte || found == byte + 1, "line {line} holds {found} and not {byte}");
    }
}

/// Records of an earlier life that were on their way when it ended could otherwise be taken for the next of this one.
#[test]
fn each_open_begins_a_new_epoch_of_the_log() {
    let mut executor = Executor::in_order();
    let (device, origin) = (memory(CACHE_BYTES), memory(CACHE_BYTES));
    format(&mut executor, &device, &origin, format_options());
    let mut last = None;
    for is_closed in [true, false, false, true, true] {
        let mut executor = Executor::in_order();
        let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
        write(&mut executor, &cache, 0, &[1; LINE as usize]);
        let reading = Arc::clone(&device);
        let superblock: Superblock<ParametersRaw> =
            executor.block_on(async move { Superblock::read(&reading, KIND).await.unwrap() });
        let epoch = LogPosition::from(superblock.payload.log_position).epoch;
        assert!(last.is_none_or(|last| last < epoch), "{last:?} and then {epoch}");
        last = Some(epoch);
        if is_closed {
            executor.block_on(async move { cache.close(true).await.unwrap() });
        }
    }
}

/// The frame on `device` that begins with a sector of `byte`.
fn frame_with(executor: &mut Executor, device: &SharedDevice, layout: &Layout, byte: u8) -> FrameNumber {
    let begins_so =
        |&frame: &FrameNumber| read(executor, device, layout.frame_offset(frame), 512).iter().all(|&it| it == byte);
    layout.frames().find(begins_so).expect("it is in a frame")
}

/// Part of a dirty line is written, so it moves; the power fails between the first sector of its
/// new frame and the next, after the record. The rest of the line was acknowledged long before.
#[test]
fn a_line_whose_move_was_torn_is_what_it_was() {
    let (device, origin) = (memory(CACHE_BYTES), memory(1 << 20));
    let layout = Layout::new(CACHE_BYTES, &format_options()).unwrap();
    let mut executor = Executor::in_order();
    format(&mut executor, &device, &origin, format_options());
    let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
    write(&mut executor, &cache, 0, &[1; LINE as usize]);
    let before = read(&mut executor, &device, 0, CACHE_BYTES);
    write(&mut executor, &cache, 0, &[2; 512]);
    drop((cache, executor));
    let mut executor = Executor::in_order();
    let frame = frame_with(&mut executor, &device, &layout, 2);
    let torn = layout.frame_offset(frame) + 512..layout.frame_offset(frame) + LINE;
    write(&mut executor, &device, torn.start, &before[torn.start as usize..torn.end as usize]);
    let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
    assert_eq!(cache.status().recovery.writes_taken_back, 1);
    assert_eq!(read(&mut executor, &cache, 0, LINE), [1; LINE as usize]);
}

/// Block `a` moves, and block `b` comes into the frame that it left, while an older write is under
/// way, so that no record calls the move settled. Then the device damages the data of `a`: that
/// must not undo the move, and with it the acknowledged data of `b`.
#[test]
fn a_write_into_a_frame_that_a_move_freed_proves_the_move() {
    let options = FormatOptions { associativity: Associativity::Ways(2), ..format_options() };
    let layout = Layout::new(CACHE_BYTES, &options).unwrap();
    let a = 0;
    let set_of = |block: u64| layout.set_of(BlockNumber(block));
    let is_beside_a = |&block: &u64| set_of(block) == set_of(a);
    let b = (1..).find(is_beside_a).expect("sets have many blocks");
    let slow = (1..).find(|block| !is_beside_a(block)).expect("there are many sets");
    let (device, origin) = (memory(CACHE_BYTES), memory(64 << 20));
    let holding = Holding::over(Arc::clone(&device));
    let mut executor = Executor::in_order();
    format(&mut executor, &device, &origin, options);
    let cache = open(&mut executor, &(holding.clone() as SharedDevice), &origin, Mode::WriteBack);
    write(&mut executor, &cache, a * LINE, &[1; LINE as usize]);
    let frames = layout.frames_of(set_of(slow));
    let length = u64::from(frames.end - frames.start) * LINE;
    holding.hold(&[ByteRange { offset: layout.frame_offset(frames.start), length }]);
    let unfinished = cache.write(slow * LINE, Buffer::copy_of(&[9; LINE as usize]), false);
    executor.spawn(async move { drop(unfinished.await) });
    executor.run_until_stalled();
    write(&mut executor, &cache, a * LINE, &[2; LINE as usize]);
    write(&mut executor, &cache, b * LINE, &[3; LINE as usize]);
    drop((cache, executor));
    let mut executor = Executor::in_order();
    let frame = frame_with(&mut executor, &device, &layout, 2);
    write(&mut executor, &device, layout.frame_offset(frame) + 1024, &[0xff; 512]);
    let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
    assert_eq!(read(&mut executor, &cache, b * LINE, LINE), [3; LINE as usize]);
}

/// A start has replayed from the log that lines became dirty, or clean; after another crash the
/// next start no longer has that log.
#[test]
fn what_a_log_said_counts_after_a_second_crash() {
    let (device, origin) = (memory(CACHE_BYTES), memory(1 << 20));
    format(&mut Executor::in_order(), &device, &origin, format_options());
    let start = || {
        let mut executor = Executor::in_order();
        let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
        (executor, cache)
    };
    let (mut executor, cache) = start();
    write(&mut executor, &cache, 0, &[1; LINE as usize]);
    drop((cache, executor));
    drop(start());
    let (mut executor, cache) = start();
    assert_eq!(read(&mut executor, &cache, 0, LINE), [1; LINE as usize]);
    let cleaning = Arc::clone(&cache);
    executor.block_on(async move { cleaning.clean(|_| {}).await }).expect("nothing fails");
    drop((cache, executor));
    drop(start());
    // Another host writes the line once it is clean.
    write(&mut Executor::in_order(), &origin, 0, &[5; LINE as usize]);
    let (mut executor, cache) = start();
    assert_eq!(read(&mut executor, &cache, 0, LINE), [5; LINE as usize]);
}

/// A file system commits its journal for each append to blocks that it has only reserved.
#[test]
fn a_log_is_made_of_data() {
    const LOG_BYTES: u64 = 64 << 10;
    let mut executor = Executor::in_order();
    let (medium, origin) = (memory(CACHE_BYTES), memory(CACHE_BYTES));
    let stats = Arc::new(StatsLayer::new(medium, Arc::new(executor.clock()), &Workers::default()));
    let device: SharedDevice = Arc::clone(&stats) as SharedDevice;
    format(&mut executor, &device, &origin, FormatOptions { log_bytes: Some(LOG_BYTES), ..format_options() });
    assert!(stats.snapshot().of(OperationKind::Write).bytes >= LOG_BYTES);
}
