//! The transmitting half of framing: PDUs wait in a queue as lists of slices, and one vectored
//! write takes many of them.
//!
//! Headers, digests and padding are made when a PDU is queued and live in its entry; data segments stay in the buffers
//! they came in and are released when their last byte is written. PDUs that carry one buffer in many pieces are made
//! when it is nearly their turn.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use base::buffer::Buffer;
use base::checksum::{Crc32c, crc32c};

use super::bound::Bound;
use super::series::Series;
use super::{Digests, PduSizes, digest_bytes};
use crate::limits::SERIES_PDUS_MADE;
use crate::pdu::{AdditionalHeaders, BHS_BYTES, DIGEST_BYTES, Header, Lengths, RawBhs, padding_bytes};

/// The data segment of a PDU to be sent.
#[derive(Debug, Default)]
pub enum DataSegment {
    /// None.
    #[default]
    Empty,
    /// Few bytes: text, sense data.
    Bytes(Vec<u8>),
    /// Part of a buffer that goes out in this PDU only.
    Buffer(Buffer, Range<usize>),
    /// Part of a buffer that goes out in several PDUs.
    Shared(Arc<Buffer>, Range<usize>),
}

impl DataSegment {
    /// Bytes of memory it keeps.
    fn held_bytes(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.capacity(),
            Self::Buffer(buffer, _) => buffer.capacity(),
            Self::Shared(buffer, _) => buffer.capacity(),
        }
    }

    /// Whether it is part of the same buffer as `other`.
    fn shares_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Shared(own, _), Self::Shared(other, _)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Empty => &[],
            Self::Bytes(bytes) => bytes,
            Self::Buffer(buffer, range) => &buffer[range.clone()],
            Self::Shared(buffer, range) => &buffer[range.clone()],
        }
    }
}

impl From<Vec<u8>> for DataSegment {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// One PDU as its pieces, in their order on the wire.
struct Entry {
    /// BHS, then the header digest where there are no additional segments.
    head: [u8; BHS_BYTES + DIGEST_BYTES],
    head_length: u8,
    /// Additional header segments and the header digest; mostly empty.
    more_head: Vec<u8>,
    data: DataSegment,
    /// Bytes of memory that are free once it is written: of parts of one buffer in a row, the last has them all.
    held_bytes: usize,
    bound: Bound,
    /// Padding, then the data digest.
    tail: [u8; 3 + DIGEST_BYTES],
    tail_length: u8,
}

/// A PDU or series that is made when its turn is near.
enum Later {
    Entry(Entry),
    Series(Series),
}

impl Entry {
    fn pieces(&self) -> [&[u8]; 4] {
        [
            &self.head[..usize::from(self.head_length)],
            &self.more_head,
            self.data.bytes(),
            &self.tail[..usize::from(self.tail_length)],
        ]
    }

    fn length(&self) -> usize {
        self.pieces().iter().map(|piece| piece.len()).sum()
    }

    /// What it counts against the bound of answers.
    fn answer_bytes(&self) -> usize {
        match (self.bound, &self.data) {
            (Bound::Commands, _) => 0,
            (Bound::Answers, DataSegment::Shared(..)) => answer_bytes(self.length(), 0),
            (Bound::Answers, data) => answer_bytes(self.length(), data.held_bytes()),
        }
    }
}

/// What a PDU of so many bytes counts against the bound of answers, which keeps so many bytes of memory for itself: the
/// larger of what is sent and what is held, its place in the queue included.
fn answer_bytes(length: usize, held_bytes: usize) -> usize {
    length.max(held_bytes + size_of::<Entry>())
}

/// PDUs that wait to be written.
pub struct TransmitQueue {
    digests: Digests,
    entries: VecDeque<Entry>,
    /// A series that is not complete, and what was queued behind it.
    later: VecDeque<Later>,
    /// Count of PDUs in these.
    later_count: usize,
    /// Bytes of the first entry that are written.
    front_written: usize,
    bytes: usize,
    /// Bytes of memory that data segments keep.
    data_bytes_held: usize,
    /// What counts against the bound of answers.
    answer_bytes: usize,
    pdu_count: u64,
    sizes: Option<Arc<PduSizes>>,
}

impl TransmitQueue {
    /// An empty queue.
    pub fn new(digests: Digests) -> Self {
        Self {
            digests,
            entries: VecDeque::new(),
            later: VecDeque::new(),
            later_count: 0,
            front_written: 0,
            bytes: 0,
            data_bytes_held: 0,
            answer_bytes: 0,
            pdu_count: 0,
            sizes: None,
        }
    }

    /// Counts the sizes of PDUs in `sizes`, beginning with those that wait.
    pub fn count_sizes(&mut self, sizes: Arc<PduSizes>) {
        self.entries.iter().for_each(|entry| sizes.count_sent(entry.length()));
        self.sizes = Some(sizes);
    }

    /// Which digests PDUs queued from now on carry.
    pub fn set_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// Queues a PDU. Its lengths are filled in here.
    ///
    /// # Panics
    /// When the data segment is 2^24 bytes or longer.
    pub fn push<H: Header>(&mut self, header: &H, ahs: &AdditionalHeaders, data: DataSegment) {
        self.push_raw(&header.to_bytes(), ahs, data);
    }

    /// Queues a PDU whose header is already bytes: one that is sent again. Its lengths are filled in here.
    ///
    /// # Panics
    /// When the data segment is 2^24 bytes or longer.
    pub fn push_raw(&mut self, header: &RawBhs, ahs: &AdditionalHeaders, data: DataSegment) {
        self.push_entry(self.entry(header, ahs, data, Bound::Answers));
    }

    /// Queues a PDU of what a command read, likewise.
    ///
    /// # Panics
    /// When the data segment is 2^24 bytes or longer.
    pub fn push_data_in(&mut self, header: &RawBhs, data: DataSegment) {
        self.push_entry(self.entry(header, &AdditionalHeaders::default(), data, Bound::Commands));
    }

    fn push_entry(&mut self, entry: Entry) {
        self.bytes += entry.length();
        self.data_bytes_held += entry.held_bytes;
        self.answer_bytes += entry.answer_bytes();
        self.pdu_count += 1;
        if self.later.is_empty() {
            return self.enter(entry);
        }
        self.later_count += 1;
        self.later.push_back(Later::Entry(entry));
    }

    /// Queues the parts of `buffer` that `pieces` names as a PDU each, with the headers that `header` makes of them. A
    /// few of them are made now, the others when those are written.
    ///
    /// # Panics
    /// When one is 2^24 bytes or longer.
    pub fn push_series(
        &mut self,
        (buffer, bound): (Arc<Buffer>, Bound),
        pieces: impl Iterator<Item = Range<usize>> + Clone + Send + 'static,
        mut header: impl FnMut(&Range<usize>) -> RawBhs + Send + 'static,
    ) {
        let mut count = 0;
        for piece in pieces.clone() {
            let length = self.bytes_without_ahs(piece.len());
            self.bytes += length;
            if bound == Bound::Answers {
                self.answer_bytes += answer_bytes(length, 0);
            }
            count += 1;
        }
        if count > 0 {
            self.data_bytes_held += buffer.capacity();
        }
        self.pdu_count += count as u64;
        self.later_count += count;
        let heads = pieces.map(move |piece| (header(&piece), piece));
        self.later.push_back(Later::Series(Series::new((buffer, bound), count, Box::new(heads))));
        self.make_more();
    }

    /// Makes the PDUs whose turn is near.
    fn make_more(&mut self) {
        while self.entries.len() < SERIES_PDUS_MADE {
            let entry = match self.later.pop_front() {
                None => return,
                Some(Later::Entry(entry)) => entry,
                Some(Later::Series(mut series)) => {
                    let Some((header, piece)) = series.next() else { continue };
                    let data = DataSegment::Shared(Arc::clone(&series.buffer), piece);
                    let mut entry = self.entry(&header, &AdditionalHeaders::default(), data, series.bound);
                    if series.left > 0 {
                        // The last one holds all of it.
                        entry.held_bytes = 0;
                        self.later.push_front(Later::Series(series));
                    }
                    entry
                }
            };
            self.later_count -= 1;
            self.enter(entry);
        }
    }

    /// Bytes of a PDU without additional headers and with this much data.
    fn bytes_without_ahs(&self, data_bytes: usize) -> usize {
        let digest = |is_there: bool| if is_there { DIGEST_BYTES } else { 0 };
        let header = BHS_BYTES + digest(self.digests.header);
        header + data_bytes + padding_bytes(data_bytes) + digest(self.digests.data && data_bytes > 0)
    }

    /// Appends a PDU to those that are made.
    fn enter(&mut self, entry: Entry) {
        if entry.held_bytes > 0
            && let Some(previous) = self.entries.back_mut().filter(|previous| previous.data.shares_with(&entry.data))
        {
            self.data_bytes_held -= std::mem::take(&mut previous.held_bytes);
        }
        if let Some(sizes) = &self.sizes {
            sizes.count_sent(entry.length());
        }
        self.entries.push_back(entry);
    }

    /// A PDU as its pieces.
    fn entry(&self, header: &RawBhs, ahs: &AdditionalHeaders, data: DataSegment, bound: Bound) -> Entry {
        let mut entry = Entry {
            head: [0; BHS_BYTES + DIGEST_BYTES],
            head_length: BHS_BYTES as u8,
            more_head: Vec::new(),
            held_bytes: data.held_bytes(),
            data,
            bound,
            tail: [0; 3 + DIGEST_BYTES],
            tail_length: 0,
        };
        if !ahs.is_empty() {
            ahs.emit(&mut entry.more_head);
        }
        let raw = entry.head.first_chunk_mut::<BHS_BYTES>().expect("a head begins with a BHS");
        *raw = *header;
        let data_bytes = entry.data.bytes();
        let lengths = Lengths {
            ahs_words: u8::try_from(entry.more_head.len() / 4).expect("additional headers are below 1 KiB"),
            data_segment_bytes: u32::try_from(data_bytes.len()).expect("a data segment is below 2^24 bytes"),
        };
        lengths.emit(raw);
        if self.digests.header {
            let digest = digest_bytes(Crc32c::new().update(&raw[..]).update(&entry.more_head).finish());
            if entry.more_head.is_empty() {
                entry.head[BHS_BYTES..].copy_from_slice(&digest);
                entry.head_length += DIGEST_BYTES as u8;
            } else {
                entry.more_head.extend_from_slice(&digest);
            }
        }
        let padding = padding_bytes(data_bytes.len());
        entry.tail_length = padding as u8;
        if self.digests.data && !data_bytes.is_empty() {
            let digest = digest_of_data(data_bytes, padding);
            entry.tail[padding..padding + DIGEST_BYTES].copy_from_slice(&digest);
            entry.tail_length += DIGEST_BYTES as u8;
        }
        entry
    }

    /// Whether everything is written.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes not written yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory kept by data segments that are not fully written: the full size of their
    /// buffers.
    pub fn data_bytes_held(&self) -> usize {
        self.data_bytes_held
    }

    /// What counts against the bound of answers: of each PDU not written whole yet its bytes, or the bytes of memory
    /// that it keeps for itself, whichever are more.
    pub fn answer_bytes(&self) -> usize {
        self.answer_bytes
    }

    /// PDUs not written whole yet.
    pub fn pdus_waiting(&self) -> usize {
        self.entries.len() + self.later_count
    }

    /// PDUs queued so far.
    pub fn pdu_count(&self) -> u64 {
        self.pdu_count
    }

    /// Fills `out` with what is to be written next, in order, and returns how many slices that took.
    pub fn io_slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        self.io_slices_of(usize::MAX, out)
    }

    /// As [`io_slices`](Self::io_slices), and no more than `bytes_max` bytes.
    pub fn io_slices_of<'a>(&'a self, bytes_max: usize, out: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.front_written;
        let mut left = bytes_max;
        let mut count = 0;
        for piece in self.entries.iter().flat_map(Entry::pieces) {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            if skipped == piece.len() {
                continue;
            }
            let Some(slot) = out.get_mut(count).filter(|_| left > 0) else { break };
            let end = piece.len().min(skipped.saturating_add(left));
            *slot = IoSlice::new(&piece[skipped..end]);
            left -= end - skipped;
            count += 1;
        }
        count
    }

    /// `length` bytes were written.
    ///
    /// # Panics
    /// When that is more than was queued.
    pub fn handle_transmitted(&mut self, length: usize) {
        assert!(length <= self.bytes, "more was written than was queued");
        self.bytes -= length;
        let mut written = self.front_written + length;
        while let Some(front) = self.entries.front() {
            let front_length = front.length();
            if written < front_length {
                break;
            }
            written -= front_length;
            self.data_bytes_held -= front.held_bytes;
            self.answer_bytes -= front.answer_bytes();
            self.entries.pop_front();
        }
        self.front_written = written;
        self.make_more();
    }
}

fn digest_of_data(data: &[u8], padding: usize) -> [u8; DIGEST_BYTES] {
    if padding == 0 {
        return digest_bytes(crc32c(data));
    }
    digest_bytes(Crc32c::new().update(data).update(&[0; 3][..padding]).finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::{InitiatorTaskTag, TextRequest};
    use base::serial::Serial32;

    fn text() -> TextRequest {
        TextRequest {
            is_immediate: false,
            is_final: true,
            is_continued: false,
            lun: 0,
            initiator_task_tag: InitiatorTaskTag::new(8).unwrap(),
            target_transfer_tag: None,
            cmd_sn: Serial32(2),
            exp_stat_sn: Serial32(3),
        }
    }

    fn written(queue: &TransmitQueue, slots: usize) -> Vec<u8> {
        let mut slices = vec![IoSlice::new(&[]); slots];
        let count = queue.io_slices(&mut slices);
        slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn a_pdu_is_header_data_and_padding() {
        let mut queue = TransmitQueue::new(Digests::default());
        queue.push(&text(), &AdditionalHeaders::default(), DataSegment::from(b"A=b\0c".to_vec()));
        let bytes = written(&queue, 8);
        assert_eq!(bytes.len(), 48 + 8);
        assert_eq!(bytes[4..8], [0, 0, 0, 5]);
        assert_eq!(&bytes[48..], b"A=b\0c\0\0\0");
    }

    /// The limit must count a buffer, not the bytes of it that are sent.
    #[test]
    fn a_queue_counts_its_buffers_as_large_as_they_are() {
        let mut queue = TransmitQueue::new(Digests::default());
        let shared = Arc::new(Buffer::zeroed(10_000));
        for range in [0..4000, 4000..8000] {
            queue.push(&text(), &AdditionalHeaders::default(), DataSegment::Shared(Arc::clone(&shared), range));
        }
        assert_eq!(queue.data_bytes_held(), 12_288, "one buffer");
        queue.push(&text(), &AdditionalHeaders::default(), DataSegment::Buffer(Buffer::zeroed(1), 0..1));
        assert_eq!(queue.data_bytes_held(), 12_288 + 4096);
        queue.handle_transmitted(48 + 4000);
        assert_eq!(queue.data_bytes_held(), 12_288 + 4096, "the rest of it is still to be sent");
        queue.handle_transmitted(48 + 4000);
        assert_eq!(queue.data_bytes_held(), 4096);
        assert!(queue.answer_bytes() > 4096);
        queue.handle_transmitted(48 + 4);
        assert_eq!(queue.answer_bytes(), 0);
    }

    /// What commands read has bounds of its own, and what is sent of it again counts as it is sent.
    #[test]
    fn answers_are_counted_and_what_commands_read_is_not() {
        for bound in [Bound::Commands, Bound::Answers] {
            let mut queue = TransmitQueue::new(Digests::default());
            let header = text().to_bytes();
            queue.push_data_in(&header, DataSegment::Buffer(Buffer::zeroed(100_000), 0..100_000));
            assert_eq!(queue.answer_bytes(), 0);
            let pieces = (0..100usize).map(|index| 1000 * index..1000 * (index + 1));
            queue.push_series((Arc::new(Buffer::zeroed(100_000)), bound), pieces, move |_| header);
            let counted = if bound == Bound::Answers { 100 * (48 + 1000) } else { 0 };
            assert_eq!(queue.answer_bytes(), counted);
            queue.push(&text(), &AdditionalHeaders::default(), DataSegment::Empty);
            assert!((48..1000).contains(&(queue.answer_bytes() - counted)));
            while !queue.is_empty() {
                let length = queue.bytes().min(777);
                queue.handle_transmitted(length);
            }
            assert_eq!(queue.answer_bytes(), 0);
        }
    }

    #[test]
    fn a_portion_ends_in_the_middle_of_a_segment() {
        let mut queue = TransmitQueue::new(Digests::default());
        queue.push(&text(), &AdditionalHeaders::default(), DataSegment::from(vec![7; 100]));
        queue.push(&text(), &AdditionalHeaders::default(), DataSegment::from(vec![8; 100]));
        let all = written(&queue, 8);
        let mut bytes = Vec::new();
        while !queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = queue.io_slices_of(70, &mut slices);
            let portion = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect::<Vec<u8>>();
            assert_eq!(portion.len(), 70.min(all.len() - bytes.len()));
            queue.handle_transmitted(portion.len());
            bytes.extend(portion);
        }
        assert_eq!(bytes, all);
    }

    #[test]
    fn digests_follow_what_they_cover() {
        let mut queue = TransmitQueue::new(Digests { header: true, data: true });
        queue.push(&text(), &AdditionalHeaders::default(), DataSegment::from(vec![0; 32]));
        queue.push(&text(), &AdditionalHeaders::default(), DataSegment::Empty);
        let bytes = written(&queue, 8);
        assert_eq!(bytes.len(), 48 + 4 + 32 + 4 + 48 + 4, "no data segment, no data digest");
        assert_eq!(bytes[48..52], crc32c(&bytes[..48]).to_le_bytes());
        // RFC 7143 A.4: 32 bytes of zeroes.
        assert_eq!(bytes[84..88], [0xaa, 0x36, 0x91, 0x8a]);
    }

    /// For an initiator that takes 512 bytes a PDU and asks for 16 MiB, not all 32768 PDUs are made
    /// and held at once.
    #[test]
    fn of_a_long_series_few_are_made_before_their_turn() {
        let made = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = || made.load(std::sync::atomic::Ordering::Relaxed);
        for digests in [false, true].map(|are_there| Digests { header: are_there, data: are_there }) {
            made.store(0, std::sync::atomic::Ordering::Relaxed);
            let mut queue = TransmitQueue::new(digests);
            let mut plain = TransmitQueue::new(digests);
            let buffer = Arc::new(Buffer::copy_of(&[7; 3 * 1000]));
            let (header, pieces) = (text().to_bytes(), (0..1000usize).map(|index| 3 * index..3 * index + 3));
            for piece in pieces.clone() {
                plain.push_raw(&header, &AdditionalHeaders::default(), DataSegment::Shared(Arc::clone(&buffer), piece));
            }
            let counted = Arc::clone(&made);
            queue.push_series((Arc::clone(&buffer), Bound::Commands), pieces, move |_| {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                header
            });
            for queue in [&mut queue, &mut plain] {
                queue.push(&text(), &AdditionalHeaders::default(), DataSegment::Empty);
            }
            assert!((1..=SERIES_PDUS_MADE).contains(&count()), "{} are made", count());
            assert_eq!((queue.bytes(), queue.pdus_waiting()), (plain.bytes(), plain.pdus_waiting()));
            assert_eq!((queue.data_bytes_held(), queue.pdu_count()), (plain.data_bytes_held(), plain.pdu_count()));
            let (mut bytes, mut plain_bytes) = (Vec::new(), Vec::new());
            for (queue, bytes) in [(&mut queue, &mut bytes), (&mut plain, &mut plain_bytes)] {
                while !queue.is_empty() {
                    let next = written(queue, 7);
                    queue.handle_transmitted(next.len());
                    bytes.extend(next);
                }
                assert_eq!((queue.bytes(), queue.data_bytes_held(), queue.pdus_waiting()), (0, 0, 0));
            }
            assert_eq!(bytes, plain_bytes);
            assert_eq!((count(), Arc::strong_count(&buffer)), (1000, 1));
        }
    }

    #[test]
    fn partial_writes_go_on_where_they_stopped() {
        let mut queue = TransmitQueue::new(Digests::default());
        let buffer = Arc::new(Buffer::copy_of(&[1, 2, 3, 4, 5, 6, 7, 8]));
        queue.push(&text(), &AdditionalHeaders::default(), DataSegment::Shared(Arc::clone(&buffer), 0..4));
        queue.push(&text(), &AdditionalHeaders::default(), DataSegment::Shared(Arc::clone(&buffer), 4..8));
        let all = written(&queue, 8);
        for step in [1, 3, 47, 49, 104] {
            let mut queue = TransmitQueue::new(Digests::default());
            queue.push(&text(), &AdditionalHeaders::default(), DataSegment::Shared(Arc::clone(&buffer), 0..4));
            queue.push(&text(), &AdditionalHeaders::default(), DataSegment::Shared(Arc::clone(&buffer), 4..8));
            let mut bytes = Vec::new();
            while !queue.is_empty() {
                let next = written(&queue, 2);
                let length = next.len().min(step);
                bytes.extend_from_slice(&next[..length]);
                queue.handle_transmitted(length);
            }
            assert_eq!(bytes, all);
        }
        queue.handle_transmitted(all.len());
        drop(queue);
        assert_eq!(Arc::strong_count(&buffer), 1, "written buffers are released");
    }
}
