//! One line of a write in write-back: target frame, sectors copied along, and the log entry.

use std::ops::Range;

use base::buffer::Buffer;
use base::checksum::crc32c;
use base::limits::BUFFER_ALIGNMENT;

use crate::format::{ENTRY_DEFERRED, ENTRY_WRITE, Line, LogEntry, checksum_of};
use crate::line_checksum::LineChecksum;
use crate::line_size::LineSize;
use crate::numbers::{BlockNumber, FrameNumber};
use crate::sectors::{SectorRun, Sectors};

/// One line of a write.
pub(crate) struct LineWrite {
    pub(crate) block: BlockNumber,
    /// Sectors to write.
    pub(crate) mask: Sectors,
    /// Offset of their bytes in the request's buffer.
    pub(crate) at: usize,
    /// The frame to write to.
    pub(crate) frame: FrameNumber,
    /// Whether `frame` is the one that holds the line already.
    pub(crate) is_in_place: bool,
    /// The frame that holds the line now, where that is another one.
    pub(crate) old_frame: Option<FrameNumber>,
    /// The line before this write.
    pub(crate) before: Line,
    /// Sectors of the old frame to copy along.
    pub(crate) copied: Sectors,
    /// A whole line with the old content of the copied sectors, and the new one of the others from [`LineWrite::merge`]
    /// on; empty when nothing is copied.
    pub(crate) merged: Buffer,
    /// Checksum of the line once this is durable, where this writes all of it.
    pub(crate) checksum: LineChecksum,
}

impl LineWrite {
    /// The line once this is durable.
    pub(crate) fn after(&self) -> Line {
        let (kept_valid, kept_dirty) = match self.is_in_place {
            true => (self.before.valid, self.before.dirty),
            false => (self.copied, self.copied & self.before.dirty),
        };
        Line {
            block: self.block,
            valid: kept_valid | self.mask,
            dirty: kept_dirty | self.mask,
            is_lost: false,
            checksum: self.checksum,
        }
    }

    /// Sectors that this writes and that stay unchanged as long as the line does.
    fn checked(&self) -> Sectors {
        self.mask | (self.copied & self.before.dirty)
    }

    /// The log entry of this write; sets the line's checksum, where it can be known.
    pub(crate) fn entry(&mut self, line_size: LineSize, buffer: &Buffer) -> LogEntry {
        if self.mask | self.copied == line_size.all_sectors() {
            self.checksum = LineChecksum::of(if self.copied.is_empty() { self.data(buffer) } else { &self.merged });
        }
        let checksum =
            if self.copied.is_empty() { crc32c(self.data(buffer)) } else { checksum_of(self.checked(), &self.merged) };
        LogEntry {
            kind: ENTRY_WRITE,
            checked: self.checked(),
            checksum,
            ..LogEntry::state(self.frame, self.old_frame, self.after())
        }
    }

    /// The log entry of this write as a deferred one, and its data.
    pub(crate) fn deferred_entry<'a>(&mut self, line_size: LineSize, buffer: &'a Buffer) -> (LogEntry, &'a [u8]) {
        let data = self.data(buffer);
        if self.mask == line_size.all_sectors() {
            self.checksum = LineChecksum::of(data);
        }
        let state = LogEntry::state(self.frame, None, self.after());
        (LogEntry { kind: ENTRY_DEFERRED, checked: self.mask, ..state }, data)
    }

    /// The bytes of the request that it writes.
    pub(crate) fn data<'a>(&self, buffer: &'a Buffer) -> &'a [u8] {
        &buffer[self.part()]
    }

    /// The entry that takes [`LineWrite::entry`] back.
    pub(crate) fn entry_back(&self) -> LogEntry {
        match self.old_frame {
            Some(old_frame) => LogEntry::state(old_frame, Some(self.frame), self.before),
            None => {
                let valid = self.before.valid & !self.mask;
                LogEntry::state(self.frame, None, Line { valid, ..self.before })
            }
        }
    }

    /// Range of its bytes in the request's buffer.
    pub(crate) fn part(&self) -> Range<usize> {
        self.at..self.at + self.mask.bytes() as usize
    }

    /// The sectors of the frame from the first to the last that it writes.
    pub(crate) fn run(&self) -> SectorRun {
        (self.mask | self.copied).hull().expect("a write has sectors")
    }

    /// Lays the written bytes over the copied ones, if there are any.
    pub(crate) fn merge(&mut self, buffer: &Buffer) {
        if self.copied.is_empty() {
            return;
        }
        let run = self.mask.hull().expect("a write has sectors");
        let part = self.part();
        self.merged[run.bytes()].copy_from_slice(&buffer[part]);
    }

    /// The bytes to write for [`LineWrite::run`]. They are copied only where they do not begin at a
    /// page.
    pub(crate) fn take_merged(&mut self) -> Buffer {
        let run = self.run();
        let mut merged = std::mem::take(&mut self.merged);
        if !run.offset().is_multiple_of(BUFFER_ALIGNMENT as u64) {
            return Buffer::copy_of(&merged[run.bytes()]);
        }
        merged.set_window(run.offset() as usize, run.length() as usize);
        merged
    }

    /// The frame that is busy with this write.
    pub(crate) fn busy_frame(&self) -> Option<FrameNumber> {
        if self.is_in_place { Some(self.frame) } else { self.old_frame }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sectors(bits: u8) -> Sectors {
        Sectors::from_bytes(&[bits])
    }

    /// Sectors 2 and 3 of a line whose lower half is valid, and of which sectors 0 and 2 are dirty: 2 must not be
    /// overwritten, so that 0 and 1 go along.
    fn moving() -> (LineWrite, Buffer) {
        let before = Line { block: BlockNumber(9), valid: sectors(0x0f), dirty: sectors(0x05), ..Line::default() };
        let mut merged = Buffer::zeroed(4096);
        merged[..1024].fill(1);
        let write = LineWrite {
            block: BlockNumber(9),
            mask: sectors(0x0c),
            at: 512,
            frame: FrameNumber(4),
            is_in_place: false,
            old_frame: Some(FrameNumber(2)),
            before,
            copied: sectors(0x03),
            merged,
            checksum: LineChecksum::UNKNOWN,
        };
        let mut request = Buffer::zeroed(512 + 1024);
        request[512..].fill(2);
        (write, request)
    }

    #[test]
    fn a_line_that_moves_takes_along_what_it_does_not_write() {
        let (mut write, request) = moving();
        write.merge(&request);
        let entry = write.entry(LineSize::default(), &request);
        assert_eq!((entry.frame, entry.frame_freed), (FrameNumber(4), Some(FrameNumber(2))));
        assert_eq!((entry.line.valid, entry.line.dirty), (sectors(0x0f), sectors(0x0d)));
        // Clean sectors that are copied along may change meanwhile; all others are compared with
        // the data.
        assert_eq!(entry.checked, sectors(0x0d));
        let mut line = [1; 2048];
        line[1024..].fill(2);
        assert_eq!(write.merged[..2048], line);
        assert_eq!(entry.checksum, checksum_of(entry.checked, &write.merged));
        assert_eq!(write.busy_frame(), Some(FrameNumber(2)), "the one that holds the line");
        assert_eq!(write.take_merged()[..], line, "and no more of the frame is written");
    }

    #[test]
    fn a_record_is_taken_back_by_one_that_says_what_was_there() {
        let (write, _) = moving();
        let back = write.entry_back();
        assert_eq!((back.frame, back.frame_freed), (FrameNumber(2), Some(FrameNumber(4))));
        assert_eq!(back.line.dirty, sectors(0x05));
        let in_place =
            LineWrite { is_in_place: true, old_frame: None, mask: sectors(0x08), frame: FrameNumber(2), ..write };
        let back = in_place.entry_back();
        assert_eq!((back.frame, back.frame_freed), (FrameNumber(2), None));
        assert_eq!(
            (back.line.valid, back.line.dirty),
            (sectors(0x07), sectors(0x05)),
            "what was written is not what it was"
        );
    }

    #[test]
    fn the_checksum_of_a_line_is_known_when_all_of_it_is_written() {
        let (moving, _) = moving();
        let mut whole = LineWrite { mask: sectors(0xff), at: 0, copied: Sectors::NONE, ..moving };
        let request = Buffer::copy_of(&[7; 4096]);
        assert_eq!(whole.entry(LineSize::default(), &request).line.checksum, LineChecksum::of(&request));
    }
}
