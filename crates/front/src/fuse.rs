//! A block device as a file: reads and writes of a FUSE file that is mounted over an empty one.
//!
//! `losetup` makes a disk of it on kernels with neither ublk nor nbd; most programs need no disk
//! and use the file.
//!
//! | module | holds |
//! |---|---|
//! | [`mountpoint`] | [`Mountpoint`]: the path, and the file below the mount |
//! | [`file`] | [`FuseFile`]: serves a device there |
//! | `openers` | the openers, and the losses of which each has been told |
//! | `requests` | requests of the kernel, and their answers |
//! | `work` | device requests for them |
//! | `session` | the thread that serves it, and its end |
//! | [`counters`] | [`FuseCounters`]: counts of requests |

pub mod counters;
pub mod file;
pub mod mountpoint;
mod openers;
mod requests;
pub(crate) mod session;
mod work;

pub use counters::FuseCounters;
pub use file::{FuseFile, FuseOptions};
pub use mountpoint::{Mountpoint, check_fuse};
pub(crate) use mountpoint::{check_kernel, detach, is_left_behind};
pub(crate) use work::to_errno;
