//! The staging area: bytes that were received and not yet parsed.
//!
//! One system call may bring many small messages; they wait here and are taken from the front as
//! they become whole. The next bytes are received into the free space behind them. No byte is ever
//! dropped: while the area is full, nothing more is received until messages are taken.
//!
//! A payload that is received here has to be copied out. That is cheaper than a system call where
//! payloads are small. After a large one only little space is offered at first, so that only the
//! beginning of the next large one is copied.

use zerocopy::FromBytes;

use crate::limits::{BULK_PAYLOAD_BYTES, BULK_STAGING_BYTES, STAGING_BYTES};

/// Received bytes `start..end` of the staging area.
pub(crate) struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// Most bytes the next receive may bring.
    window: usize,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; STAGING_BYTES].into_boxed_slice(), start: 0, end: 0, window: STAGING_BYTES }
    }

    /// The space for the next bytes; empty when there is none.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            // The rest is the beginning of one message, or messages that the owner has not polled
            // for yet: moving it is rare or short.
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let window_end = self.bytes.len().min(self.end + self.window);
        &mut self.bytes[self.end..window_end]
    }

    /// A payload of `length` bytes is over.
    pub(crate) fn payload_ended(&mut self, length: usize) {
        if length >= BULK_PAYLOAD_BYTES {
            self.window = BULK_STAGING_BYTES;
        }
    }

    /// The first `count` bytes of the space were filled.
    ///
    /// # Panics
    /// When that is more than the space.
    pub(crate) fn received(&mut self, count: usize) {
        assert!(count <= self.bytes.len() - self.end, "more bytes were received than there was space for");
        self.end += count;
        self.window = STAGING_BYTES;
    }

    /// All bytes that wait.
    pub(crate) fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The header at the front, left there, or `None` while it is not whole.
    pub(crate) fn peek<T: FromBytes>(&self) -> Option<T> {
        T::read_from_prefix(self.waiting()).ok().map(|(header, _)| header)
    }

    /// The header at the front, or `None` while it is not whole.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Option<T> {
        let header = self.peek()?;
        self.start += size_of::<T>();
        Some(header)
    }

    /// Forgets up to `count` bytes at the front; how many there were.
    pub(crate) fn skip(&mut self, count: u64) -> usize {
        let skipped = self.waiting().len().min(usize::try_from(count).unwrap_or(usize::MAX));
        self.start += skipped;
        skipped
    }

    /// Moves bytes from the front to `target`; how many there were.
    pub(crate) fn copy_to(&mut self, target: &mut [u8]) -> usize {
        let count = self.waiting().len().min(target.len());
        target[..count].copy_from_slice(&self.waiting()[..count]);
        self.start += count;
        count
    }
}
