//! The bytes to be sent, in order, without copying payloads.
//!
//! Small messages are gathered in byte runs; payload buffers stand between them as they are. One vectored write takes
//! as many of both as it can. A buffer is dropped, and so returns to its pool, when its last byte was sent.

use std::collections::VecDeque;
use std::io::IoSlice;

use base::buffer::Buffer;

use crate::limits::RUN_BYTES;

/// The transmit queue of one connection.
#[derive(Default)]
pub struct TransmitQueue {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that were sent.
    sent_of_first: usize,
    /// An emptied byte run, kept for its memory.
    spare: Vec<u8>,
    /// Bytes ever queued and ever sent; their difference waits.
    queued_bytes: u64,
    sent_bytes: u64,
}

enum Piece {
    Bytes(Vec<u8>),
    Payload(Buffer),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Payload(buffer) => buffer,
        }
    }
}

impl TransmitQueue {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes that wait.
    pub fn waiting_bytes(&self) -> u64 {
        self.queued_bytes - self.sent_bytes
    }

    /// Points `slices` at the first bytes that wait; how many slices were used.
    pub fn io_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.io_slices_of(usize::MAX, slices)
    }

    /// As [`io_slices`](Self::io_slices), and no more than `bytes_max` bytes.
    pub fn io_slices_of<'a>(&'a self, bytes_max: usize, slices: &mut [IoSlice<'a>]) -> usize {
        let mut skip = self.sent_of_first;
        let (mut used, mut left) = (0, bytes_max);
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            if left == 0 {
                break;
            }
            let bytes = &piece.bytes()[skip..];
            let length = bytes.len().min(left);
            *slice = IoSlice::new(&bytes[..length]);
            left -= length;
            skip = 0;
            used += 1;
        }
        used
    }

    /// The first `count` waiting bytes were sent.
    ///
    /// # Panics
    /// When fewer wait.
    pub fn handle_transmitted(&mut self, mut count: usize) {
        assert!(count as u64 <= self.waiting_bytes(), "more bytes were sent than were waiting");
        self.sent_bytes += count as u64;
        while let Some(first) = self.pieces.front() {
            let left = first.bytes().len() - self.sent_of_first;
            if count < left {
                self.sent_of_first += count;
                return;
            }
            count -= left;
            self.sent_of_first = 0;
            if let Some(Piece::Bytes(mut bytes)) = self.pieces.pop_front() {
                bytes.clear();
                self.spare = bytes;
            }
        }
    }

    /// Position in the stream of the next byte to be queued.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Count of bytes ever sent.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Queues a small message.
    pub(crate) fn push(&mut self, message: &[u8]) {
        self.append(|out| out.extend_from_slice(message));
    }

    /// Queues the bytes that `emit` appends, at least one.
    pub(crate) fn append(&mut self, emit: impl FnOnce(&mut Vec<u8>)) {
        let has_room = |run: &Piece| matches!(run, Piece::Bytes(bytes) if bytes.len() < RUN_BYTES);
        if !self.pieces.back().is_some_and(has_room) {
            self.pieces.push_back(Piece::Bytes(std::mem::take(&mut self.spare)));
        }
        if let Some(Piece::Bytes(run)) = self.pieces.back_mut() {
            let before = run.len();
            emit(run);
            assert!(run.len() > before, "an empty message would stay in the queue for ever");
            self.queued_bytes += (run.len() - before) as u64;
        }
    }

    /// Queues a payload.
    pub(crate) fn push_payload(&mut self, buffer: Buffer) {
        if !buffer.is_empty() {
            self.queued_bytes += buffer.len() as u64;
            self.pieces.push_back(Piece::Payload(buffer));
        }
    }

    /// Everything that waits, taken as sent: for tests that play the wire.
    #[cfg(test)]
    pub(crate) fn drain(&mut self) -> Vec<u8> {
        let mut slices = vec![IoSlice::new(&[]); self.pieces.len()];
        let used = self.io_slices(&mut slices);
        let bytes: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.iter().copied()).collect();
        self.handle_transmitted(bytes.len());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_however_they_are_cut() {
        for cut in 1..12 {
            let mut queue = TransmitQueue::default();
            queue.push(b"ab");
            queue.push(b"cd");
            queue.push_payload(Buffer::copy_of(b"payload"));
            queue.push_payload(Buffer::empty());
            queue.push(b"e");
            let mut sent = Vec::new();
            while !queue.is_empty() {
                let mut slices = [IoSlice::new(&[]); 2];
                let used = queue.io_slices(&mut slices);
                let visible: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.iter().copied()).collect();
                let count = cut.min(visible.len());
                sent.extend_from_slice(&visible[..count]);
                queue.handle_transmitted(count);
            }
            assert_eq!(sent, b"abcdpayloade");
            assert_eq!(queue.waiting_bytes(), 0);
        }
    }

    /// A client that takes its replies, but always leaves some bytes untaken.
    #[test]
    fn a_queue_that_is_never_empty_keeps_what_waits_and_little_more() {
        let mut queue = TransmitQueue::default();
        let reply = [7; 16];
        queue.push(&reply);
        for _ in 0..100_000 {
            queue.push(&reply);
            queue.handle_transmitted(reply.len());
        }
        let kept: usize = queue.pieces.iter().map(|piece| piece.bytes().len()).sum();
        assert!(kept <= 4 * RUN_BYTES, "{kept} bytes are kept for {} that wait", queue.waiting_bytes());
    }

    #[test]
    fn a_sent_payload_returns_to_its_pool() {
        let pool = base::buffer::BufferPool::new(1 << 20);
        let mut queue = TransmitQueue::default();
        queue.push_payload(pool.try_acquire(5).expect("the pool is full of nothing"));
        queue.handle_transmitted(4);
        assert!(pool.bytes_out() > 0);
        queue.handle_transmitted(1);
        assert_eq!(pool.bytes_out(), 0);
    }
}
