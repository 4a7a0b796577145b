//! Whether a file is still whole, or another process has cut it or taken blocks out of it while it
//! was open: such parts read as zeroes, without an error.
//!
//! Two things are checked: its size, and, where all of it was allocated, its blocks; a file that
//! was cut and then extended by a write lacks them. The check comes *after* a read, so that any cut
//! before the read is seen. It also comes before something is made durable: a superblock written to
//! such a file would make it a store again that can be opened.
//!
//! Not noticed: a cut whose blocks are all back by the time of the check, and a hole that is
//! smaller than the blocks that the file system uses for itself. Of a file that was not allocated
//! as a whole, or in which the owner discards, only the size is checked.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, ErrorKind};

/// Bytes in which the system counts a file's blocks, whatever the file system has.
const COUNTED_BYTES: i64 = 512;

/// The state of a file at opening.
pub(crate) struct Wholeness {
    size_bytes: i64,
    /// Whether all of its blocks have to be allocated.
    is_allocated: AtomicBool,
    /// Whether it was found cut; stays set.
    is_cut: AtomicBool,
}

impl Wholeness {
    /// The state of `file` now; `None` where it cannot be found out.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let status = rustix::fs::fstat(file).ok()?;
        Some(Self {
            size_bytes: status.st_size,
            is_allocated: AtomicBool::new(status.st_blocks.saturating_mul(COUNTED_BYTES) >= status.st_size),
            is_cut: AtomicBool::new(false),
        })
    }

    /// Notes that the owner itself gives blocks back.
    pub(crate) fn note_discard(&self) {
        self.is_allocated.store(false, Ordering::Relaxed);
    }

    /// # Errors
    /// `Media` once the file was found cut.
    pub(crate) fn check(&self, file: &File, path: &str) -> Result<(), Error> {
        if !self.is_cut.load(Ordering::Relaxed) {
            let Ok(status) = rustix::fs::fstat(file) else { return Ok(()) };
            let is_short = status.st_size < self.size_bytes;
            let lacks_blocks = status.st_blocks.saturating_mul(COUNTED_BYTES) < self.size_bytes;
            let is_punched = lacks_blocks && self.is_allocated.load(Ordering::Relaxed);
            if !is_short && !is_punched {
                return Ok(());
            }
            if !self.is_cut.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    "{path} was cut, or holes made in it, while it is in use: what it held is lost, and nothing of it \
                     is used any more"
                );
            }
        }
        let context = format!("{path} was cut, or holes made in it, while it is in use: what it held is lost");
        Err(Error::new(ErrorKind::Media, context))
    }
}
