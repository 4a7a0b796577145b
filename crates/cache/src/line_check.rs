//! The check for damaged data: lines are compared with their checksums, in caches that keep these.
//!
//! A checksum is known of a line that was written or inserted whole, as long as all of it stays
//! valid; a change of part of it forgets the checksum until one request makes the line whole again.
//! So a checksum on the device is true whenever it is true that all of the line is valid, and needs
//! no records of its own.
//!
//! | the line is | damaged data |
//! |---|---|
//! | clean | is forgotten, and the origin serves it |
//! | dirty | is an error, now and until it is written again; it is never sent to the origin |

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::buffer::Buffer;
use base::range::ByteRange;
use block::device::DeviceExt;
use block::{Error, ErrorKind, Response};

use crate::core::Core;
use crate::counters::RequestKind;
use crate::line_checksum::LineChecksum;
use crate::line_size::LineSize;
use crate::numbers::{BlockNumber, FrameNumber};

/// A line that a read concerns, and its checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineCheck {
    pub(crate) block: BlockNumber,
    pub(crate) frame: FrameNumber,
    pub(crate) checksum: LineChecksum,
    /// Offset of the whole line in the buffer; `None` when the read has only part of it.
    pub(crate) at: Option<usize>,
    /// Whether something of what is read is dirty.
    pub(crate) is_dirty: bool,
}

impl Core {
    /// Compares the data read from `range` with checksums. A damaged clean line is read from the
    /// origin instead.
    pub(crate) async fn check_lines(
        self: &Arc<Self>,
        checks: &[LineCheck],
        range: ByteRange,
        mut buffer: Buffer,
    ) -> Response {
        let counters = self.counters.of(RequestKind::Read);
        for check in checks {
            let line_bytes = self.line_size().bytes() as usize;
            let whole = check.at.and_then(|at| buffer.get(at..at + line_bytes));
            let is_intact = match whole {
                Some(line) => check.checksum.matches(line),
                None => self.is_line_intact(check.block, check.frame, check.checksum).await,
            };
            if is_intact {
                continue;
            }
            self.note_damage(&[(check.block, check.frame)]);
            if check.is_dirty {
                return Response::failed(lost(self.line_size(), check.block), buffer);
            }
            let line = self.line_size().line_range(check.block);
            let part = line.intersection(&range).expect("the lines of a request touch it");
            let (result, bytes) = self.origin.read(part, Buffer::zeroed(part.length as usize), counters).await;
            if let Err(error) = result {
                return Response::failed(error, buffer);
            }
            let at = (part.offset - range.offset) as usize;
            buffer[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        Response::done(buffer)
    }

    /// Whether the data in the frame of a block matches its checksum; true if none is known, or if
    /// the frame cannot be read: the caller's own read then finds that out.
    ///
    /// Some callers do not keep writes to clean sectors of the line out meanwhile. Such a write
    /// forgets the checksum first, so the data is damaged only if this is still the line's
    /// checksum.
    pub(crate) async fn is_line_intact(&self, block: BlockNumber, frame: FrameNumber, checksum: LineChecksum) -> bool {
        if !checksum.is_known() {
            return true;
        }
        let line = Buffer::zeroed(self.line_size().bytes() as usize);
        let read = self.cache_device.read(self.layout.frame_offset(frame), line).await;
        if read.map_or(true, |line| checksum.matches(&line)) {
            return true;
        }
        let now = self.lines.state().frames.find(block);
        now.is_none_or(|(held_in, line)| held_in != frame || line.checksum != checksum)
    }

    /// Forgets the clean sectors of damaged lines (block, frame), and marks dirty ones lost.
    pub(crate) fn note_damage(&self, lines: &[(BlockNumber, FrameNumber)]) {
        for &(block, frame) in lines {
            let range = self.line_size().line_range(block);
            self.failed_reads.note_damaged(range, self.clock.now());
            self.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
            {
                let state = &mut *self.lines.state();
                if state.frames.lookup(block) == Some(frame) {
                    state.frames.set_lost(frame);
                }
            }
            self.lines.forget_clean(range);
        }
    }
}

/// The error for dirty data that cannot be read back.
pub(crate) fn lost(line_size: LineSize, block: BlockNumber) -> Error {
    let range = line_size.line_range(block);
    Error::new(
        ErrorKind::Media,
        format!("{range} are dirty in the cache, and its device does not return what was written"),
    )
}
