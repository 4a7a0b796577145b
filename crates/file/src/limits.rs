//! The bounds of this crate.

use std::time::Duration;

/// Requests of one device that the kernel works on at once. NVMe disks are saturated below this;
/// further requests are queued.
pub const IN_FLIGHT_MAX: usize = 256;
const _: () = assert!(IN_FLIGHT_MAX.is_power_of_two(), "it is the size of the ring, too");

/// Requests that are entered with one system call, where that many come in one turn of the runtime: the disk begins
/// with them while the thread makes the next ones. Fewer cost the thread more, more keep the disk waiting.
pub const ENTERED_TOGETHER_MAX: usize = 8;

/// Requests of one device that wait for a place among [`IN_FLIGHT_MAX`]. Callers bound their
/// requests (command windows, pools) far below; those of a caller that does not fail as *busy*.
pub const QUEUE_MAX: usize = 16_384;

/// Blocking calls of one device at once where io_uring is not permitted: enough to keep a disk busy, few enough to
/// leave tokio's 512 blocking threads to others.
pub const BLOCKING_MAX: usize = 16;

/// Largest cached read or write that is copied on the spot: about 10 us of copying, more than which would hold up the
/// other tasks of a thread. Larger ones go to the engine.
pub const INLINE_BYTES_MAX: usize = 128 << 10;

/// A durable write is waited for on the spot, where the device was asked to, as long as such writes take less than this
/// on average, in microseconds. Through io_uring a durable write passes a kernel thread and the reactor: with idle
/// processors that added 130 us to the 40 us of a virtual disk in a cloud, and with busy ones the kernel thread got its
/// turn at the next tick only, after up to 4 ms. Other tasks of the thread wait as long, so this is no more than a
/// request over a network takes.
pub const WAIT_US_MAX: u32 = 1000;

/// Largest durable write that is waited for on the spot: the largest record of a log.
pub const WAIT_BYTES_MAX: usize = 256 << 10;

/// Durable writes that go to the engine after they became slow, before one is tried on the spot again. Doubled each
/// time it is slow still.
pub const WAIT_PAUSE_WRITES_MIN: u32 = 64;

/// The most of these: on a slow disk one write in so many holds its thread.
pub const WAIT_PAUSE_WRITES_MAX: u32 = 1 << 16;
const _: () = assert!(WAIT_PAUSE_WRITES_MIN <= WAIT_PAUSE_WRITES_MAX);

/// Bytes written at once where zeroes cannot be had otherwise, and when a new file is written out.
pub const ZERO_CHUNK_BYTES: usize = 1 << 20;

/// Times one system call is repeated after an answer that says "again" before the request fails as busy.
pub const REPEATS_MAX: u32 = 1000;

/// Largest read or write a file device takes at once.
pub const TRANSFER_BYTES_MAX: u32 = 16 << 20;

/// Longest wait for the lock on a file: writes in the ring of a process that was killed end within this on any disk
/// that works; a living holder is reported after it.
pub const LOCK_WAIT_MAX: Duration = Duration::from_millis(1500);

/// Pause between two checks whether a file without users is closed: its ring ends within a few
/// turns of the runtime.
pub const CLOSED_INTERVAL: Duration = Duration::from_millis(2);

/// Pause between two attempts to lock.
pub const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Pause between two attempts to become the keeper of a block device, parts of which are claimed,
/// after the process that kept it has ended: for this long it could be mounted.
pub const KEEPER_INTERVAL: Duration = Duration::from_millis(500);
