//! The end of a file, as another process may have moved it: what lies behind reads as zeroes, or as
//! a hole, once the file is long again.
//!
//! It is looked at where that costs nothing: after a read that failed, with the extents, before a
//! change of the size, and when the owner asks ([`FileDevice::cut_bytes`](crate::FileDevice)), which
//! it does from time to time. A cut that was seen stays known, whatever the length of the file is
//! then. From there on requests behind it fail.
//!
//! Not noticed: a cut after which the file is as long as before when it is looked at, for example by
//! a write to its last block.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use base::range::ByteRange;
use block::{Error, ErrorKind};

/// No cut was seen.
const WHOLE: u64 = u64::MAX;

/// How far a file was cut.
pub(crate) struct FileEnd {
    /// Bytes that are still what was written; [`WHOLE`] before a cut.
    kept_bytes: AtomicU64,
    /// The file's length when the cut was seen.
    seen_bytes: AtomicU64,
    /// The furthest end of a write since the file was last looked at.
    written_end: AtomicU64,
    /// The same for the time between the last look and the one before: its writes may have been
    /// under way at the last one.
    written_end_before: AtomicU64,
}

impl FileEnd {
    pub(crate) fn new() -> Self {
        Self {
            kept_bytes: AtomicU64::new(WHOLE),
            seen_bytes: AtomicU64::new(WHOLE),
            written_end: AtomicU64::new(0),
            written_end_before: AtomicU64::new(0),
        }
    }

    /// Notes that something is written up to `end`, before it is.
    pub(crate) fn note_write(&self, end: u64) {
        if self.written_end.load(Ordering::Relaxed) < end {
            self.written_end.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// Looks at `file`, of which `size_bytes` are served. Returns whether it is shorter than it was
    /// known to be.
    pub(crate) fn look(&self, file: &File, size_bytes: u64) -> bool {
        let Ok(status) = rustix::fs::fstat(file) else { return false };
        let found = u64::try_from(status.st_size).unwrap_or(0);
        // After the look: a write that lengthened the file before it is among them.
        let written = self.written_end.swap(0, Ordering::Relaxed);
        let before = self.written_end_before.swap(written, Ordering::Relaxed);
        if found >= size_bytes {
            return false;
        }
        // A write that reached this end may have made it, and then a hole lies before it, of which
        // nobody knows where it begins.
        let kept = if written.max(before) >= found { 0 } else { found };
        self.seen_bytes.fetch_min(found, Ordering::Relaxed);
        kept < self.kept_bytes.fetch_min(kept, Ordering::AcqRel)
    }

    /// The file's length when it was seen to be cut.
    pub(crate) fn cut_bytes(&self) -> Option<u64> {
        let is_cut = self.kept_bytes.load(Ordering::Acquire) != WHOLE;
        is_cut.then(|| self.seen_bytes.load(Ordering::Relaxed))
    }

    /// # Errors
    /// `Media` for a range of which a part is lost.
    pub(crate) fn check(&self, range: ByteRange, path: &str) -> Result<(), Error> {
        if range.end() <= self.kept_bytes.load(Ordering::Acquire) {
            return Ok(());
        }
        let seen_bytes = self.seen_bytes.load(Ordering::Relaxed);
        let context = match range.end() <= seen_bytes {
            true => format!("{range} of {path}: the file was cut, and written behind its end, while it is in use"),
            false => format!("{range} of {path}: the file was cut to {seen_bytes} bytes while it is in use"),
        };
        Err(Error::new(ErrorKind::Media, context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    fn is_kept(end: &FileEnd, offset: u64) -> bool {
        end.check(ByteRange { offset, length: 4096 }, "/p").is_ok()
    }

    #[test]
    fn what_a_write_made_long_again_is_lost_as_a_whole() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(SIZE).unwrap();
        let end = FileEnd::new();
        end.note_write(SIZE);
        assert!(!end.look(&file, SIZE) && is_kept(&end, SIZE - 4096));
        // What was written long before says nothing.
        assert!(!end.look(&file, SIZE));
        file.set_len(SIZE / 2).unwrap();
        assert!(end.look(&file, SIZE) && !end.look(&file, SIZE), "it is told once");
        assert!(is_kept(&end, SIZE / 2 - 4096) && !is_kept(&end, SIZE / 2) && end.cut_bytes() == Some(SIZE / 2));
        file.set_len(SIZE).unwrap();
        assert!(!end.look(&file, SIZE) && !is_kept(&end, SIZE / 2), "the rest is zeroes");
        let end = FileEnd::new();
        end.note_write(SIZE / 2);
        file.set_len(SIZE / 2).unwrap();
        assert!(end.look(&file, SIZE) && !is_kept(&end, 0), "it may have been cut before that write");
    }
}
