//! A block device as a file: reads and writes of a FUSE file that is mounted over an empty one.
//!
//! `losetup` makes a disk of it on kernels that have neither ublk nor nbd; most programs need no disk and take the
//! file.
//!
//! | module | holds |
//! |---|---|
//! | [`mountpoint`] | [`Mountpoint`]: the path, and what is there before and afterwards |
//! | [`file`] | [`FuseFile`]: serves a device there |
//! | `requests` | what the kernel asks for, and what it is told |
//! | `work` | how the device carries it out |
//! | `session` | the thread that serves it, and its end |
//! | [`counters`] | [`FuseCounters`]: what was asked for |

pub mod counters;
pub mod file;
pub mod mountpoint;
mod requests;
pub(crate) mod session;
mod work;

pub use counters::FuseCounters;
pub use file::{FuseFile, FuseOptions};
pub use mountpoint::{Mountpoint, check_fuse};
pub(crate) use mountpoint::{check_kernel, detach, is_left_behind};
pub(crate) use work::to_errno;
