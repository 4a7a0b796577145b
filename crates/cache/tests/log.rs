//! What the log keeps until a checkpoint has taken it over, and what it never takes for its own.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::buffer::Buffer;
use base::executor::Executor;
use block::completion::Workers;
use block::device::DeviceExt;
use block::layer::crash::{CrashLayer, Loss, Power};
use block::memory::MemoryDevice;
use block::{Completion, Device, Geometry, Identity, Operation, Request, SharedDevice};
use cache::format::{KIND, ParametersRaw};
use cache::{FormatOptions, Mode};
use common::{format, format_options, open, read, write};
use store::{LogPosition, Superblock};

const LINE: u64 = 4096;
const CACHE_BYTES: u64 = 1 << 20;

/// A device that does not answer writes of its superblock when told to hold them.
struct Holding {
    inner: SharedDevice,
    is_holding: AtomicBool,
}

impl Device for Holding {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn identity(&self) -> Identity {
        self.inner.identity()
    }

    fn submit(&self, request: Request) -> Completion {
        let is_superblock = request.offset < LINE || request.offset >= CACHE_BYTES - LINE;
        let is_write = matches!(request.operation, Operation::Write { .. });
        if is_superblock && is_write && self.is_holding.load(Ordering::Relaxed) {
            return Completion::task(&Workers::new(), std::future::pending());
        }
        self.inner.submit(request)
    }
}

/// The log is needed as long as the superblock says so, however far the checkpoint is that says otherwise.
#[test]
fn records_stay_until_the_superblock_is_durable_that_does_not_need_them() {
    const LINES: u64 = 12;
    let mut executor = Executor::in_order();
    let medium = CrashLayer::new(CACHE_BYTES, 1);
    let origin: SharedDevice = Arc::new(MemoryDevice::new(1 << 20, Identity::default()));
    let holding = Arc::new(Holding { inner: Arc::new(medium.clone()), is_holding: AtomicBool::new(false) });
    let device: SharedDevice = holding.clone();
    format(&mut executor, &device, &origin, FormatOptions { log_bytes: Some(16 << 10), ..format_options() });
    let cache = open(&mut executor, &device, &origin, Mode::WriteBack);
    holding.is_holding.store(true, Ordering::Relaxed);
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
        // The next one of this line may have landed, and was not acknowledged.
        assert!(found == byte || found == byte + 1, "line {line} holds {found} and not {byte}");
    }
}

/// Records of an earlier life that were on their way when it ended could otherwise be taken for the next of this one.
#[test]
fn each_open_begins_a_new_epoch_of_the_log() {
    let mut executor = Executor::in_order();
    let memory = || -> SharedDevice { Arc::new(MemoryDevice::new(CACHE_BYTES, Identity::default())) };
    let (device, origin) = (memory(), memory());
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
