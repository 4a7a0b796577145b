//! Files and local block devices as [`block::Device`]s.
//!
//! | module | holds |
//! |---|---|
//! | `device` | [`FileDevice`]: what is answered on the spot, what goes to an engine, and the order of overlapping requests |
//! | `options` | [`FileOptions`]: how to open |
//! | `open` | opening: size, lock, preallocation, geometry; every way in which it can fail, in words |
//! | `job` | one request as the system calls it takes, without making them |
//! | `ring` | the io_uring engine; the one module with `unsafe` |
//! | `pool` | the engine where io_uring is not permitted: blocking calls on tokio's threads |
//! | `failure` | errno to [`block::ErrorKind`] |
//! | [`limits`] | the bounds |
//!
//! A device belongs to the tokio runtime it was opened in, whose reactor tells it of completions, and may be used from
//! any thread.

mod device;
mod failure;
mod job;
pub mod limits;
mod open;
mod options;
mod pool;
mod ring;

pub use device::FileDevice;
pub use options::FileOptions;
