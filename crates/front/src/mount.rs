//! A file system mounted in a directory: what programs do there is done in an ext2.
//!
//! The kernel keeps names, attributes and pages as long as it likes: nobody else changes them while one mount has the
//! file system for itself. Writes come here as they are made, so that a full file system is told to whoever writes, and
//! holes are where the file has them; they are durable by `fsync`, or when the next commit comes, after
//! [`COMMIT_INTERVAL`](crate::limits::COMMIT_INTERVAL) at most.
//!
//! | module | holds |
//! |---|---|
//! | `volume` | [`Volume`]: from the mount to the unmount |
//! | `requests` | what the kernel asks for, and what it is told |
//! | `tree` | how the file system carries it out |
//! | `references` | which inodes the kernel knows: those without a name stay until it forgets them |
//! | `attributes` | what is known of an inode, as the kernel takes it |
//! | `errors` | errors as programs are told them |

mod attributes;
mod errors;
mod references;
mod requests;
mod tree;
mod volume;

pub use volume::{Volume, VolumeOptions};
