//! The transmitting half of framing: PDUs wait in a queue as their pieces, and one vectored write takes many of them.
//!
//! Headers, digests and padding are made when a PDU is queued and live in its entry; data segments stay in the buffers
//! they came in and are released when their last byte is written.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use base::buffer::Buffer;
use base::checksum::{Crc32c, crc32c};

use super::{Digests, PduSizes, digest_bytes};
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
    /// Padding, then the data digest.
    tail: [u8; 3 + DIGEST_BYTES],
    tail_length: u8,
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
}

/// PDUs that wait to be written.
pub struct TransmitQueue {
    digests: Digests,
    entries: VecDeque<Entry>,
    /// Bytes of the first entry that are written.
    front_written: usize,
    bytes: usize,
    /// Bytes of memory that data segments keep.
    data_bytes_held: usize,
    pdu_count: u64,
    sizes: Option<Arc<PduSizes>>,
}

impl TransmitQueue {
    /// An empty queue.
    pub fn new(digests: Digests) -> Self {
        Self {
            digests,
            entries: VecDeque::new(),
            front_written: 0,
            bytes: 0,
            data_bytes_held: 0,
            pdu_count: 0,
            sizes: None,
        }
    }

    /// Counts the sizes of PDUs there, beginning with those that wait.
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
        let mut entry = Entry {
            head: [0; BHS_BYTES + DIGEST_BYTES],
            head_length: BHS_BYTES as u8,
            more_head: Vec::new(),
            held_bytes: data.held_bytes(),
            data,
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
        let length = entry.length();
        self.bytes += length;
        self.data_bytes_held += entry.held_bytes;
        if let Some(previous) = self.entries.back_mut().filter(|previous| previous.data.shares_with(&entry.data)) {
            self.data_bytes_held -= std::mem::take(&mut previous.held_bytes);
        }
        if let Some(sizes) = &self.sizes {
            sizes.count_sent(length);
        }
        self.pdu_count += 1;
        self.entries.push_back(entry);
    }

    /// Whether everything is written.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes not written yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of memory that data segments not written whole yet keep: their buffers, as large as these are.
    pub fn data_bytes_held(&self) -> usize {
        self.data_bytes_held
    }

    /// Bytes not written yet, or the bytes of memory that they keep, whichever are more.
    pub fn bytes_waiting(&self) -> usize {
        self.bytes.max(self.data_bytes_held + self.entries.len() * size_of::<Entry>())
    }

    /// PDUs not written whole yet.
    pub fn pdus_waiting(&self) -> usize {
        self.entries.len()
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
            self.entries.pop_front();
        }
        self.front_written = written;
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

    /// What bounds it must count a buffer, not the bytes of it that are sent.
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
        assert!(queue.bytes_waiting() > 4096);
        queue.handle_transmitted(48 + 4);
        assert_eq!(queue.bytes_waiting(), 0);
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
