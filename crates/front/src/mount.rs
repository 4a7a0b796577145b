//! A file system mounted in a directory: an ext2 carries out what programs do there.
//!
//! The kernel caches names, attributes and pages as long as it likes where one mount has the file
//! system alone; where hosts share it, it keeps attributes as long as this host has the lock, and asks
//! for the rest each time. Writes arrive here at once, so that the writing
//! program gets the error of a full file system, and holes are where the file has them. They are
//! durable after `fsync`, or after the next commit, at most
//! [`COMMIT_INTERVAL`](crate::limits::COMMIT_INTERVAL) later.
//!
//! | module | holds |
//! |---|---|
//! | `volume` | [`Volume`]: from the mount to the unmount |
//! | `commits` | the commits that no program asks for |
//! | `requests` | requests of the kernel, and their answers |
//! | `tree` | file system operations for them |
//! | `listings` | open directories, each as it was when it was read from its beginning |
//! | `references` | inodes that the kernel knows: those without a name stay until it forgets them |
//! | `kept_attributes` | attributes that the kernel keeps where hosts share |
//! | `attributes` | attributes of an inode in the kernel's form |
//! | `view` | what the kernel is told, and may keep |
//! | `errors` | error numbers for programs |

mod attributes;
mod commits;
mod errors;
mod kept_attributes;
mod listings;
mod references;
mod requests;
mod tree;
mod view;
mod volume;

pub use volume::{Volume, VolumeOptions, make_mountable};
