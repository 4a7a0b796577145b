//! The table on the device: the entries of all frames, in pages of two slots.
//!
//! A page is written to the slot that is *not* the newest, so a torn write leaves the older copy, and the log still
//! holds all that happened since: its tail moves only when the pages are durable. Of two valid slots the one with the
//! larger sequence counts, whether or not its checkpoint was completed: log entries carry whole states, so replaying
//! them over a newer page ends the same.

use base::buffer::BufferPool;
use base::checksum::Crc32c;
use block::device::DeviceExt;
use block::{Error, ErrorKind, SharedDevice};
use futures_util::stream::{self, StreamExt};
use store::limits::SEQUENCE_MAX;
use uuid::Uuid;

use crate::format::{PAGE_BYTES, Slot, StoredLine, page_lines, parse_slot};
use crate::layout::Layout;
use crate::limits::{TABLE_IO_BYTES, TABLE_READS_IN_FLIGHT};
use crate::numbers::{FrameNumber, PageNumber, TableSequence};

/// Most checkpoints that can fail in a row before one completes. A sequence further ahead than this
/// is damage.
const SEQUENCES_AHEAD_MAX: u64 = 1 << 32;

/// The newest slot of a page.
#[derive(Clone, Copy, Default)]
struct Newest {
    is_second: bool,
    /// [`TableSequence::NONE`] when nothing was written yet.
    sequence: TableSequence,
}

/// Which slot of each page is the newest.
pub(crate) struct Table {
    newest: Vec<Newest>,
    /// Larger than the sequence of every page.
    pub(crate) sequence_next: TableSequence,
    /// Pages with a torn slot that claims to be the newest. They have to be written before a checkpoint of a later
    /// sequence is complete: from then on the slot would look like one that was durable once.
    pub(crate) torn: Vec<PageNumber>,
}

impl Table {
    /// Offset of the slot to write `page` to.
    pub(crate) fn older_slot_offset(&self, layout: &Layout, page: PageNumber) -> u64 {
        let newest = self.newest.get(page.index()).copied().unwrap_or_default();
        layout.slot_offset(page, usize::from(!newest.is_second))
    }

    /// Notes that pages of this sequence were written to their older slots, durably.
    pub(crate) fn note_written(&mut self, pages: &[PageNumber], sequence: TableSequence) {
        for &page in pages {
            if let Some(newest) = self.newest.get_mut(page.index()) {
                *newest = Newest { is_second: !newest.is_second, sequence };
            }
        }
    }

    /// A checksum over the sequences of all newest slots: it differs when any page differs, except
    /// in one case of four billion. Never 0.
    pub(crate) fn digest(&self) -> u64 {
        let mut digest = Crc32c::new();
        for newest in &self.newest {
            digest.update(&newest.sequence.0.to_le_bytes());
        }
        u64::from(digest.finish()) | 1 << 32
    }
}

/// Reads the whole table and passes each entry that is not empty to `take`, in order, with its
/// frame number. Every page up to `durable_sequence` is known to have been written completely.
///
/// # Errors
/// `Corrupt` when a page is damaged in a way that no power loss explains; the device's own; those
/// of `take`.
pub(crate) async fn load(
    device: &SharedDevice,
    layout: &Layout,
    uuid: Uuid,
    durable_sequence: TableSequence,
    mut take: impl FnMut(FrameNumber, StoredLine<'_>) -> Result<(), Error>,
) -> Result<Table, Error> {
    check_sequence(durable_sequence)?;
    let mut table = Table { newest: Vec::new(), sequence_next: durable_sequence.next(), torn: Vec::new() };
    let pages_per_read = (TABLE_IO_BYTES / (2 * PAGE_BYTES)) as u64;
    // One more buffer than reads in flight, for the one that is being looked through. Buffers are
    // used again: new memory would have to be zeroed for each read.
    let pool = BufferPool::new((TABLE_READS_IN_FLIGHT + 1) * TABLE_IO_BYTES);
    let reads = stream::iter((0..layout.page_count).step_by(pages_per_read as usize)).map(async |page| {
        let count = pages_per_read.min(layout.page_count - page);
        let buffer = pool.acquire(count as usize * 2 * PAGE_BYTES).await;
        device.read(layout.slot_offset(PageNumber(page), 0), buffer).await
    });
    let mut reads = std::pin::pin!(reads.buffered(TABLE_READS_IN_FLIGHT));
    while let Some(buffer) = reads.next().await {
        for slots in buffer?.chunks_exact(2 * PAGE_BYTES) {
            let page = PageNumber(table.newest.len() as u64);
            let (first, second) = slots.split_at(PAGE_BYTES);
            let parsed = [first, second].map(|slot| parse_slot(slot, uuid, page));
            let newest = newest_slot(parsed, page, durable_sequence)?;
            for slot in parsed {
                // A torn page's sequence must not be used again, or the page would later look like one that was durable
                // once.
                if let Slot::Damaged(Some(claimed)) = slot
                    && claimed.0 < durable_sequence.0.saturating_add(SEQUENCES_AHEAD_MAX)
                {
                    table.sequence_next = table.sequence_next.max(claimed.next());
                    if newest.is_none_or(|(_, sequence)| claimed > sequence) {
                        table.torn.push(page);
                    }
                }
            }
            if let Some((is_second, sequence)) = newest {
                table.sequence_next = table.sequence_next.max(sequence.next());
                let lines = page_lines(if is_second { second } else { first }, layout.line_size);
                for (frame, line) in layout.frames_of_page(page).zip(lines) {
                    if !line.is_empty() {
                        take(frame, line)?;
                    }
                }
            }
            let newest = newest.map(|(is_second, sequence)| Newest { is_second, sequence });
            table.newest.push(newest.unwrap_or_default());
        }
    }
    Ok(table)
}

/// Refuses a sequence that no cache reaches: counting on from it would overflow.
fn check_sequence(sequence: TableSequence) -> Result<(), Error> {
    if sequence.0 <= SEQUENCE_MAX {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Corrupt, format!("the cache's table claims sequence {sequence}, which none reaches")))
}

/// The slot that counts (whether it is the second), and its sequence; `None` for a page that was never written.
fn newest_slot(
    [first, second]: [Slot; 2],
    page: PageNumber,
    durable_sequence: TableSequence,
) -> Result<Option<(bool, TableSequence)>, Error> {
    let newest = match (first, second) {
        (Slot::Valid(first), Slot::Valid(second)) if second > first => Some((true, second)),
        (Slot::Valid(first), _) => Some((false, first)),
        (_, Slot::Valid(second)) => Some((true, second)),
        _ => None,
    };
    let sequence = newest.map_or(TableSequence::NONE, |(_, sequence)| sequence);
    check_sequence(sequence)?;
    for slot in [first, second] {
        let is_damaged = match slot {
            // It claims to be newer than the other, and to be of a checkpoint that was completed:
            // no torn write looks like this.
            Slot::Damaged(Some(claimed)) => claimed > sequence && claimed <= durable_sequence,
            Slot::Damaged(None) | Slot::Empty | Slot::Valid(_) => false,
        };
        if is_damaged {
            let context = format!("page {page} of the cache's table is damaged");
            return Err(Error::new(ErrorKind::Corrupt, context));
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Line, emit_page};
    use crate::numbers::BlockNumber;

    const ID: Uuid = Uuid::from_bytes([7; 16]);

    fn page(sequence: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES];
        let line_size = crate::line_size::LineSize::default();
        let line = Line { block: BlockNumber(sequence), valid: line_size.all_sectors(), ..Line::default() };
        emit_page(&mut bytes, line_size, ID, PageNumber::FIRST, TableSequence(sequence), std::iter::once(line));
        bytes
    }

    fn newest(first: &[u8], second: &[u8], durable_sequence: u64) -> Result<Option<(bool, u64)>, ErrorKind> {
        let slots = [first, second].map(|slot| parse_slot(slot, ID, PageNumber::FIRST));
        newest_slot(slots, PageNumber::FIRST, TableSequence(durable_sequence))
            .map(|newest| newest.map(|(is_second, sequence)| (is_second, sequence.0)))
            .map_err(|error| error.kind())
    }

    #[test]
    fn the_newest_valid_slot_counts() {
        let empty = vec![0; PAGE_BYTES];
        assert_eq!(newest(&empty, &empty, 0), Ok(None));
        assert_eq!(newest(&page(1), &empty, 1), Ok(Some((false, 1))));
        assert_eq!(newest(&page(1), &page(2), 2), Ok(Some((true, 2))));
        assert_eq!(newest(&page(3), &page(2), 3), Ok(Some((false, 3))));
    }

    #[test]
    fn the_digest_is_what_the_format_page_says_and_another_one_when_any_page_is_another_one() {
        let table = |sequences: &[u64]| Table {
            newest: sequences
                .iter()
                .map(|&sequence| Newest { is_second: false, sequence: TableSequence(sequence) })
                .collect(),
            sequence_next: TableSequence(9),
            torn: Vec::new(),
        };
        let digest = table(&[0, 3, 0x0102_0304_0506_0708]).digest();
        let covered = [[0; 8], [3, 0, 0, 0, 0, 0, 0, 0], [8, 7, 6, 5, 4, 3, 2, 1]].concat();
        assert_eq!(digest, (1 << 32) + u64::from(base::checksum::crc32c(&covered)));
        for other in
            [[1, 3, 0x0102_0304_0506_0708], [0, 2, 0x0102_0304_0506_0708], [3, 0, 0x0102_0304_0506_0708], [0, 3, 7]]
        {
            assert_ne!(table(&other).digest(), digest);
        }
        let mut written = table(&[0, 3, 0x0102_0304_0506_0708]);
        written.note_written(&[0, 2].map(PageNumber), TableSequence(8));
        assert_eq!(written.digest(), table(&[8, 3, 8]).digest());
        assert_ne!(table(&[]).digest(), 0);
    }

    #[test]
    fn a_torn_slot_falls_back_and_a_rotten_one_is_an_error() {
        let mut torn = page(3);
        torn[4000] ^= 1;
        assert_eq!(newest(&page(2), &torn, 2), Ok(Some((false, 2))));
        assert_eq!(newest(&page(2), &torn, 3), Err(ErrorKind::Corrupt));
        let mut foreign = page(3);
        foreign[5] ^= 1;
        assert_eq!(newest(&page(2), &foreign, 2), Ok(Some((false, 2))));
        let empty = vec![0; PAGE_BYTES];
        assert_eq!(newest(&torn, &empty, 0), Ok(None));
    }

    /// Found by fuzzing (`cache_image`): the sequence after it overflowed.
    #[test]
    fn a_sequence_that_none_reaches_is_an_error() {
        assert_eq!(newest(&page(SEQUENCE_MAX), &page(1), 1), Ok(Some((false, SEQUENCE_MAX))));
        assert_eq!(newest(&page(u64::MAX), &page(1), 1), Err(ErrorKind::Corrupt));
    }
}
