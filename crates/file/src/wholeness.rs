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

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{Error, ErrorKind};
use rustix::fs::{AtFlags, StatxFlags};

use crate::loss::FileLoss;

/// Bytes in which the system counts a file's blocks, whatever the file system has.
const COUNTED_BYTES: i64 = 512;

/// What the owner of a file notes, durably, once it is found cut. It blocks the thread that found
/// it, and is called before anything is refused: whoever is told of an error finds it noted. Two
/// threads that find it at once may both call it.
#[derive(Clone)]
pub struct CutNote(Arc<dyn Fn() + Send + Sync>);

impl CutNote {
    /// One that calls `note`.
    pub fn new(note: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(note))
    }
}

impl fmt::Debug for CutNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CutNote")
    }
}

/// Size and blocks of a file.
struct Extent {
    size_bytes: i64,
    allocated_bytes: i64,
}

impl Extent {
    /// `None` where they cannot be found out. The file's times are not asked for: a kernel with
    /// multigrain timestamps gives a file whose times were looked at a new one with the next write,
    /// and a sync then has to write the inode, too, as often as this looks.
    fn of(file: &File) -> Option<Self> {
        let asked = StatxFlags::SIZE | StatxFlags::BLOCKS;
        if let Ok(status) = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, asked) {
            return Some(Self::new(status.stx_size.cast_signed(), status.stx_blocks.cast_signed()));
        }
        // Kernels, and sandboxes, without statx.
        let status = rustix::fs::fstat(file).ok()?;
        Some(Self::new(status.st_size, status.st_blocks))
    }

    fn new(size_bytes: i64, blocks: i64) -> Self {
        Self { size_bytes, allocated_bytes: blocks.saturating_mul(COUNTED_BYTES) }
    }
}

/// The state of a file at opening.
pub(crate) struct Wholeness {
    size_bytes: i64,
    /// Whether all of its blocks have to be allocated.
    is_allocated: AtomicBool,
    /// Whether it was found cut; stays set.
    is_cut: AtomicBool,
    note: Option<CutNote>,
}

impl Wholeness {
    /// The state of `file` now; `None` where it cannot be found out. `note` for when it is cut.
    pub(crate) fn of(file: &File, note: Option<CutNote>) -> Option<Self> {
        let Extent { size_bytes, allocated_bytes } = Extent::of(file)?;
        Some(Self {
            size_bytes,
            is_allocated: AtomicBool::new(allocated_bytes >= size_bytes),
            is_cut: AtomicBool::new(false),
            note,
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
            let Some(now) = Extent::of(file) else { return Ok(()) };
            let is_short = now.size_bytes < self.size_bytes;
            let lacks_blocks = now.allocated_bytes < self.size_bytes;
            let is_punched = lacks_blocks && self.is_allocated.load(Ordering::Relaxed);
            if !is_short && !is_punched {
                return Ok(());
            }
            if let Some(CutNote(note)) = &self.note {
                note();
            }
            if !self.is_cut.swap(true, Ordering::Relaxed) {
                tracing::error!(
                    "{path} was cut, or holes made in it, while it is in use: what it held is lost, and nothing of it \
                     is used any more"
                );
            }
        }
        let context = format!("{path} was cut, or holes made in it, while it is in use: what it held is lost");
        Err(Error::with_source(ErrorKind::Media, context, FileLoss::Cut))
    }
}
