//! Files and local block devices as [`block::Device`]s.
//!
//! | module | holds |
//! |---|---|
//! | `device` | [`FileDevice`]: what is answered on the spot, what goes to an engine, and the order of overlapping requests |
//! | `options` | [`FileOptions`]: how to open |
//! | `open` | opening: size, lock, preallocation, geometry; a message for each way in which it fails |
//! | `claim` | how others are kept from a file or device, or a part of one; with `unsafe`, for the address of a lock |
//! | `topology` | properties of a block device in sysfs: granularities, alignments, whether and how it discards |
//! | `job` | one request as the system calls it takes, without making them |
//! | `ring` | the io_uring engine; with `unsafe`, for the addresses of buffers |
//! | `block_ioctl` | `BLKDISCARD`; with `unsafe`, for the address of its range |
//! | `persistent_memory` | [`PersistentMemory`]: a mapped file or device; with `unsafe`, for its address |
//! | `dax_device` | persistent memory that is a character device |
//! | `pool` | the engine where io_uring is not permitted: blocking calls on tokio's threads |
//! | `patience` | whether durable writes are carried out on the spot |
//! | `promises` | whether the promises of durability still hold |
//! | `file_end` | where an open file ends, and that it was cut |
//! | `wholeness` | whether an open file that no one else changes was cut, or lost blocks |
//! | `name` | whether a name leads to an open file yet |
//! | [`FileLoss`] | that a file was cut or removed, as the source of errors |
//! | `sync_files` | a descriptor for each durable write under way, so that each gets the errors |
//! | `failure` | errno to [`block::ErrorKind`] |
//! | [`limits`] | the bounds |
//!
//! A device belongs to the tokio runtime it was opened in, whose reactor reports completions, and
//! may be used from any thread.

mod block_ioctl;
mod claim;
mod dax_device;
mod device;
mod durable_call;
mod failure;
mod file_end;
mod job;
pub mod limits;
#[cfg(test)]
#[path = "../tests/loop_device/mod.rs"]
#[expect(dead_code, reason = "the tests of this crate beside use more of it")]
mod loop_device;
mod loss;
mod name;
mod open;
mod options;
mod patience;
mod persistent_memory;
mod pool;
mod promises;
mod ring;
mod shared;
mod sync_files;
mod topology;
mod wholeness;
mod work;

pub use device::FileDevice;
pub use loss::FileLoss;
pub use options::FileOptions;
pub use persistent_memory::PersistentMemory;
pub use wholeness::CutNote;
