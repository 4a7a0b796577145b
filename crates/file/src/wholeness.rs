//! Whether a file is still what it was when it was opened, or somebody has cut it or taken blocks out of it meanwhile:
//! what is read there then are zeroes, and no error.
//!
//! Two things are looked at: its size, and, where all of it was allocated, its blocks; a file that was cut and became
//! as long again by a write lacks them. A look comes *behind* a read, so that a cut before the read is seen whenever it
//! came. It comes before what is durable as well: a superblock that is written to such a file would make one of it that
//! can be opened.
//!
//! Not noticed: a cut whose blocks are all back by the time of the look, and a hole that is smaller than what the file
//! system has of blocks for itself. Of a file that was not allocated as a whole, or whose owner discards in it, only
//! the size counts.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, ErrorKind};

/// Bytes in which the system counts a file's blocks, whatever the file system has.
const COUNTED_BYTES: i64 = 512;

/// What a file was like.
pub(crate) struct Wholeness {
    size_bytes: i64,
    /// Whether all of it has to be allocated.
    is_allocated: AtomicBool,
    /// Whether it was found cut, which it stays.
    is_cut: AtomicBool,
}

impl Wholeness {
    /// Of `file` as it is now; `None` where nobody can tell.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let status = rustix::fs::fstat(file).ok()?;
        Some(Self {
            size_bytes: status.st_size,
            is_allocated: AtomicBool::new(status.st_blocks.saturating_mul(COUNTED_BYTES) >= status.st_size),
            is_cut: AtomicBool::new(false),
        })
    }

    /// The owner itself gives blocks back.
    pub(crate) fn note_discard(&self) {
        self.is_allocated.store(false, Ordering::Relaxed);
    }

    /// # Errors
    /// `Media` once the file was cut.
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
